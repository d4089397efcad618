"""Tuning: the fastest of several schedules of a kernel, measured once."""

from weft.tune.choice import Chosen, choice, explained, tuned

__all__ = ["Chosen", "choice", "explained", "tuned"]
