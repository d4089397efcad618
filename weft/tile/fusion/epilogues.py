"""Nodes after a contraction that are better stored by it than computed by its readers."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Protocol

from weft.ir.module import Node, Value, tensor_of
from weft.kernels.stacked_node import StackedNode
from weft.ops.elementwise.pointwise import Add
from weft.target import Limits
from weft.tile.fusion.nodes import narrows


class GroupedValues(Protocol):
    """The questions about values that a grouping answers while it is built."""

    @property
    def limits(self) -> Limits: ...
    @property
    def makers(self) -> Mapping[Value, StackedNode]: ...
    def elements(self, value: Value) -> int: ...
    def shape(self, value: Value) -> tuple[int, ...]: ...
    def viewed(self, value: Value) -> Value: ...
    def waiting(self, value: Value) -> Sized: ...
    def is_product(self, value: Value) -> bool: ...
    def is_small(self, value: Value, elements: int) -> bool: ...
    def is_short(self, node: Node) -> bool: ...


def finishes_product(grouping: GroupedValues, node: Node) -> bool:
    """Whether a contraction stores a node's result as soon as its own: in fewer bits, or biased."""
    return _rounds_product(grouping, node) or _adds_bias(grouping, node)


def _rounds_product(grouping: GroupedValues, node: Node) -> bool:
    """Whether a node rounds a contraction's result, or that with a bias, to fewer bits."""
    if not narrows(node):
        return False
    elements, value = grouping.elements(node.results[0]), node.operands[0]
    for _ in range(grouping.limits.chain):
        if grouping.is_product(value):
            return True
        maker = grouping.makers.get(grouping.viewed(value))
        if maker is None or not grouping.is_short(maker.node) or len(grouping.waiting(value)) > 1:
            return False
        large = [v for v in maker.node.operands if not grouping.is_small(v, elements)]
        if len(large) != 1:
            return False
        (value,) = large
    return False


def _adds_bias(grouping: GroupedValues, node: Node) -> bool:
    """Whether a node adds a vector along the last dim to a contraction's narrow result.

    A library does so while it stores the result.
    """
    if not isinstance(node.op, Add) or tensor_of(node.results[0]).dtype.bits != 16:
        return False
    products = [v for v in node.operands if grouping.is_product(v)]
    vectors = [grouping.viewed(v) for v in node.operands if v not in products]
    if len(products) != 1 or not vectors or tensor_of(vectors[0]).rank != 1:
        return False
    return grouping.elements(vectors[0]) == grouping.shape(node.results[0])[-1]
