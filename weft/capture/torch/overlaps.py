"""Tensors that share memory: one must not be overwritten while another is still read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class MemoryOverlaps:
    """The overlapping tensors among a program's arguments, remembered from call to call."""

    def __init__(self) -> None:
        self.addresses: list[int] = []
        self.found: frozenset[int] = frozenset()

    def overlaps(self, tensors: Sequence[Any]) -> frozenset[int]:
        """The numbers of the tensors whose memory overlaps that of another one."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        if addresses != self.addresses:
            self.found = _overlapping(tensors, addresses)
            self.addresses = addresses
        return self.found


def _overlapping(tensors: Sequence[Any], addresses: Sequence[int]) -> frozenset[int]:
    spans = []
    for n, (tensor, start) in enumerate(zip(tensors, addresses, strict=True)):
        if tensor.numel():
            last = sum([(size - 1) * step for size, step in zip(tensor.shape, tensor.stride(),
                                                                strict=True)])  # fmt: skip
            spans.append((start, start + (last + 1) * tensor.element_size(), n))
    spans.sort()
    found = set()
    before, end = -1, 0
    for start, stop, n in spans:
        if start < end:
            found |= {before, n}
        if stop > end:
            before, end = n, stop
    return frozenset(found)
