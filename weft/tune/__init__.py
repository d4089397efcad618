"""Tuning: the fastest of several schedules of a kernel, measured once."""

from weft.tune.choice import Chosen, choice, explained, tuned
from weft.tune.process import close_worker
from weft.tune.progress import TriedClass, TuneProgress, listening

__all__ = [
    "Chosen",
    "TriedClass",
    "TuneProgress",
    "choice",
    "close_worker",
    "explained",
    "listening",
    "tuned",
]
