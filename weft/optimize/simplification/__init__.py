"""Passes on values: algebra that holds exactly, and constants that are known now."""
