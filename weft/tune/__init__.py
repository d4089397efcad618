"""Tuning: of several ways to run a kernel, the one that is fastest here, measured once."""

from weft.tune.choice import Chosen, choice, explained, tuned

__all__ = ["Chosen", "choice", "explained", "tuned"]
