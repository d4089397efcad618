"""Every op of StableHLO, CHLO and sdy, and the few of our own, declared once, by family.

The tables of all ops are created on first use: running a saved program needs few of them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from weft.ir.op import Op

if TYPE_CHECKING:
    FAMILIES: tuple[ModuleType, ...]
    OPS: tuple[type[Op], ...]
    BY_NAME: dict[str, type[Op]]

_FAMILIES = (
    "elementwise.pointwise",
    "elementwise.transcendental",
    "elementwise.convert",
    "elementwise.special",
    "elementwise.broadcasting",
    "contract",
    "einsum",
    "ragged",
    "convolution",
    "attention",
    "reduce",
    "batch_norm",
    "window",
    "shape",
    "slicing",
    "index",
    "scatter",
    "sort",
    "linalg",
    "random",
    "dynamic",
    "control",
    "distributed.collective",
    "distributed.local",
    "distributed.async_pairs",
    "distributed.sharding",
    "custom_calls.custom",
    "custom_calls.checks",
)


class _OnDemand(Mapping[str, type[Op]]):
    """Ops by name, of families that are imported one by one until a name is found."""

    def __init__(self) -> None:
        self.known: dict[str, type[Op]] = {}
        self.left = [f"{__name__}.{family}" for family in _FAMILIES]

    def __getitem__(self, name: str) -> type[Op]:
        while name not in self.known:
            if not self.left:
                raise KeyError(name)
            # what is imported already costs nothing
            family = next((f for f in self.left if f in sys.modules), self.left[0])
            ops = importlib.import_module(family).OPS
            self.known |= {op.name: op for op in ops}
            self.left = [f for f in self.left if f != family]
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(__getattr__("BY_NAME"))

    def __len__(self) -> int:
        return len(__getattr__("BY_NAME"))


ON_DEMAND: Mapping[str, type[Op]] = _OnDemand()


def __getattr__(name: str) -> Any:
    """The families, all their ops, or these by name."""
    if name not in ("FAMILIES", "OPS", "BY_NAME"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    families = tuple([importlib.import_module(f"{__name__}.{family}") for family in _FAMILIES])
    ops = tuple([op for family in families for op in family.OPS])
    tables = {"FAMILIES": families, "OPS": ops, "BY_NAME": {op.name: op for op in ops}}
    globals().update(tables)
    return tables[name]
