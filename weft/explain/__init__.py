"""Explain: why every value has its sharding, and what stood in the way."""

from weft.explain.conflicts import Conflict, Padding
from weft.explain.layers import Layer, Row, layers
from weft.explain.lookup import lookup
from weft.explain.made_by import Made, made_by
from weft.explain.reasons import Note, Reasons, Story, reasons

__all__ = [
    "Conflict",
    "Layer",
    "Made",
    "Note",
    "Padding",
    "Reasons",
    "Row",
    "Story",
    "layers",
    "lookup",
    "made_by",
    "reasons",
]
