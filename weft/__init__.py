"""Weft compiles and runs PyTorch and JAX programs on many devices, in Python."""

from weft.array import Array, devices, put
from weft.capture import constrain, parse
from weft.compiled import Compiled, compile  # noqa: A004  # the word users know
from weft.eager import compute
from weft.errors import Unsupported, WeftError
from weft.evaluate import evaluate
from weft.ir.module import Module
from weft.mesh import Mesh, P

Array.computed_by(compute)

__version__ = "0.1.0"

__all__ = [
    "Array",
    "Compiled",
    "Mesh",
    "Module",
    "P",
    "Unsupported",
    "WeftError",
    "__version__",
    "compile",
    "constrain",
    "devices",
    "evaluate",
    "parse",
    "put",
]
