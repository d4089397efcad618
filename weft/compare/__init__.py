"""Comparison of results and intermediate values with a reference, to locate errors."""

from weft.compare.differences import Difference, difference, errors
from weft.compare.kernels import Checked, KernelDifference, compare_kernels
from weft.compare.values import compare_every_op

__all__ = [
    "Checked",
    "Difference",
    "KernelDifference",
    "compare_every_op",
    "compare_kernels",
    "difference",
    "errors",
]
