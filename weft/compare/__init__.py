"""Comparison of results and intermediate values with a reference, to locate errors."""

from weft.compare.differences import Difference, difference, errors
from weft.compare.kernels import CheckCounts, KernelDifference, compare_kernels
from weft.compare.modules import ModuleComparison, ModuleDifference, compare_modules
from weft.compare.required import RequiredCorrelation, read_required
from weft.compare.values import compare_every_op

__all__ = [
    "CheckCounts",
    "Difference",
    "KernelDifference",
    "ModuleComparison",
    "ModuleDifference",
    "RequiredCorrelation",
    "compare_every_op",
    "compare_kernels",
    "compare_modules",
    "difference",
    "errors",
    "read_required",
]
