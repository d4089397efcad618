"""Explanations of shardings: where each axis came from, and the conflicts that stopped others."""

from weft.explain.conflicts import Conflict, Padding
from weft.explain.layers import Layer, LayerRow, layers
from weft.explain.lookup import lookup
from weft.explain.made_by import Origin, made_by
from weft.explain.reasons import Explanation, Reasons, Remark, reasons

__all__ = [
    "Conflict",
    "Explanation",
    "Layer",
    "LayerRow",
    "Origin",
    "Padding",
    "Reasons",
    "Remark",
    "layers",
    "lookup",
    "made_by",
    "reasons",
]
