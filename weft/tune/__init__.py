"""Tuning: the fastest of several schedules of a kernel, measured once."""

from weft.tune.choice import Chosen, choice, end_tuning, explained, tuned
from weft.tune.progress import TriedClass, TuneProgress, listening

__all__ = [
    "Chosen",
    "TriedClass",
    "TuneProgress",
    "choice",
    "end_tuning",
    "explained",
    "listening",
    "tuned",
]
