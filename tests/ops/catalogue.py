"""The examples of every op, collected from the files of all families."""

from __future__ import annotations

import importlib
import importlib.util

from hypothesis.strategies import SearchStrategy

from tests.ops.example import Example
from weft.ir.op import Op
from weft.ops import FAMILIES, OPS

FILES = tuple(f"tests.ops.examples.{family.__name__.rpartition('.')[2]}" for family in FAMILIES)

# Ops that are checked elsewhere, and why no example of them can be drawn.
EXEMPT = {
    "stablehlo.uniform_quantize": "quantized types are refused when they are read",
    "stablehlo.uniform_dequantize": "quantized types are refused when they are read",
    "weft.async_start": "no oracle knows it; test_split_async.py checks the pair",
    "weft.async_done": "no oracle knows it; test_split_async.py checks the pair",
}


def _collected() -> dict[type[Op], SearchStrategy[Example]]:
    found: dict[type[Op], SearchStrategy[Example]] = {}
    for name in filter(importlib.util.find_spec, FILES):
        found |= importlib.import_module(name).EXAMPLES
    return found


EXAMPLES = _collected()
CHECKED = tuple(op for op in OPS if op in EXAMPLES)
