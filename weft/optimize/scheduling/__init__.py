"""Passes on time: asynchronous pairs, their streams, and the order of nodes."""
