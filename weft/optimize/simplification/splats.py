"""Splat constants: their element, and exact comparisons with numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.dense import Dense
from weft.ir.location import Location
from weft.ir.module import Node, Value, apply
from weft.ir.types import TensorType
from weft.ops.shape import Constant


def splat_of(value: Value) -> Any | None:
    """The element of a splat constant, as a numpy scalar; None for other values."""
    node = value.node
    if node is None or not isinstance(node.op, Constant) or not node.op.value.is_splat:
        return None
    return node.op.value.elements[0]


def splat(element: Any, type: TensorType, loc: Location) -> Node:
    """A splat constant."""
    return apply(Constant(Dense(np.asarray(element).astype(type.dtype.numpy), type)), loc=loc)


def is_number(value: Value, number: int, *, negative: bool | None = None) -> bool:
    """Whether a value is a splat of that number, with that sign for a zero float."""
    element = splat_of(value)
    if element is None or element != number:
        return False
    type = value.type
    assert isinstance(type, TensorType)
    if negative is None or not type.dtype.is_float:
        return True
    return bool(np.signbit(np.float64(element))) == negative
