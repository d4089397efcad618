"""Rewrites of a program for the library of a target: layouts of convolutions, unrolled windows."""

from weft.optimize.layout.channels_last import channels_last
from weft.optimize.layout.unroll_windows import unroll_windows

__all__ = ["channels_last", "unroll_windows"]
