"""Weft compiles and runs PyTorch and JAX programs on many devices, in Python."""

from weft.capture import parse
from weft.errors import Unsupported, WeftError
from weft.evaluate import evaluate
from weft.ir.module import Module
from weft.mesh import Mesh, P

__version__ = "0.1.0"

__all__ = [
    "Mesh",
    "Module",
    "P",
    "Unsupported",
    "WeftError",
    "__version__",
    "evaluate",
    "parse",
]
