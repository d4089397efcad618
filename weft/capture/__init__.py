"""Capture: a user's program becomes a module."""

from weft.capture.captured import Captured, Leaf
from weft.capture.constrain import constrain
from weft.capture.stablehlo import parse

__all__ = ["Captured", "Leaf", "constrain", "parse"]
