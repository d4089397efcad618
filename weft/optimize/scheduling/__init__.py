"""Scheduling passes: asynchronous pairs, their streams, and the order of nodes."""
