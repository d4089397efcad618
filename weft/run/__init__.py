"""Run: a local program and arrays become arrays, on all virtual devices in lockstep."""

from weft.run.execute import execute
from weft.run.kernels import kinds
from weft.run.local import LocalProgram

__all__ = ["LocalProgram", "execute", "kinds"]
