"""Explain: why every value has its sharding, and what stood in the way."""

from weft.explain.conflicts import Conflict, Padding
from weft.explain.layers import Layer, LayerRow, layers
from weft.explain.lookup import lookup
from weft.explain.made_by import Origin, made_by
from weft.explain.reasons import Reasons, Remark, Story, reasons

__all__ = [
    "Conflict",
    "Layer",
    "LayerRow",
    "Origin",
    "Padding",
    "Reasons",
    "Remark",
    "Story",
    "layers",
    "lookup",
    "made_by",
    "reasons",
]
