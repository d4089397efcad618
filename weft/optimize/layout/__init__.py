"""Rewrites of a program for a target: layouts of convolutions, narrow results, unrolled windows."""

from weft.optimize.layout.channels_last import channels_last
from weft.optimize.layout.narrow_ragged_dots import narrow_ragged_dots
from weft.optimize.layout.unroll_windows import unroll_windows

__all__ = ["channels_last", "narrow_ragged_dots", "unroll_windows"]
