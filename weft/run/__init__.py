"""Run: execute a tiled program on arrays, on all virtual devices in lockstep."""

from weft.run.execute import run
from weft.run.local import LocalProgram

__all__ = ["LocalProgram", "run"]
