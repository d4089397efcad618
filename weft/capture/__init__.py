"""Capture: a user's program becomes a module."""

from weft.capture.stablehlo import parse

__all__ = ["parse"]
