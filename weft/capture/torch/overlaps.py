"""Tensors of the last call: those that share memory, and their types.

A tensor must not be overwritten while another that shares its memory is still read.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from operator import le
from typing import Any

_KEYS = 256  # cache keys that are remembered
_STATIC = (bool, int, str, type(None))  # classes of arguments that are compared by value


class MemoryOverlaps:
    """The overlapping tensors among a program's arguments, remembered from call to call."""

    def __init__(self) -> None:
        self.addresses: list[int] = []
        self.views: list[Any] = []  # shapes and strides
        self.overlapping: frozenset[int] = frozenset()
        self.moving: set[int] = set()  # numbers of the tensors that are in other memory each time
        # Where the others start and end, in order; None if some of them overlap.
        self.spans: tuple[list[int], list[int]] | None = None

    def overlaps(self, tensors: Sequence[Any], views: list[Any] | None = None) -> frozenset[int]:
        """The numbers of the tensors whose memory overlaps that of another one.

        Shapes and strides may be known to be those of an earlier call, by the `views` of then.
        """
        addresses = [tensor.data_ptr() for tensor in tensors]
        if views is None:
            views = [(tensor.shape, tensor.stride()) for tensor in tensors]
        if views is not self.views and views != self.views:
            self.moving, self.spans = set(), None
            self.overlapping = _overlapping(tensors, addresses)
        elif addresses != self.addresses:
            self.overlapping = self._moved(tensors, addresses)
        self.addresses, self.views = addresses, views
        return self.overlapping

    def _moved(self, tensors: Sequence[Any], addresses: Sequence[int]) -> frozenset[int]:
        """The overlaps of tensors of which some are in other memory than in the call before.

        Mostly these are the arguments of a call, and the parameters are where they were.
        """
        before = self.addresses
        moved = [n for n, address in enumerate(addresses) if address != before[n]]
        if self.spans is None or not self.moving.issuperset(moved):
            self.moving.update(moved)
            still = [span for span in _spans(tensors, addresses) if span[2] not in self.moving]
            starts, ends = [start for start, _, _ in still], [end for _, end, _ in still]
            apart = all(map(le, ends, starts[1:]))
            self.spans = (starts, ends) if apart else None
        if self.spans is None:
            return _overlapping(tensors, addresses)
        starts, ends = self.spans
        moving = [*self.moving]
        last = 0
        for start, end, _ in _spans([tensors[n] for n in moving], [addresses[n] for n in moving]):
            place = bisect_right(starts, start)
            is_apart = start >= last and (not place or ends[place - 1] <= start)
            if not is_apart or (place < len(starts) and starts[place] < end):
                return _overlapping(tensors, addresses)
            last = end
        return frozenset()


def overlapping_tensors(tensors: Sequence[Any]) -> frozenset[int]:
    """The numbers of the tensors whose memory overlaps that of another one."""
    return _overlapping(tensors, [tensor.data_ptr() for tensor in tensors])


def lazy_views(tensors: Sequence[Any]) -> frozenset[int]:
    """The numbers of the tensors that are conjugated or negated when they are read."""
    return frozenset([n for n, tensor in enumerate(tensors) if tensor.is_conj() or tensor.is_neg()])


def _spans(tensors: Sequence[Any], addresses: Sequence[int]) -> list[tuple[int, int, int]]:
    """Where the bytes of each tensor start and end, with its number, in order."""
    spans = []
    for n, (tensor, start) in enumerate(zip(tensors, addresses, strict=True)):
        # An empty tensor has an address, and no bytes to share.
        if tensor.numel():
            # The offset of the last element: strides of PyTorch's tensors are never negative.
            last = 0
            for size, step in zip(tensor.shape, tensor.stride(), strict=True):
                last += (size - 1) * step
            spans.append((start, start + (last + 1) * tensor.element_size(), n))
    spans.sort()
    return spans


def _overlapping(tensors: Sequence[Any], addresses: Sequence[int]) -> frozenset[int]:
    overlaps = set()
    before, end = -1, 0
    for start, stop, n in _spans(tensors, addresses):
        # Sorted by their start: it is enough to compare with the one that reaches farthest.
        if start < end:
            overlaps |= {before, n}
        if stop > end:
            before, end = n, stop
    return frozenset(overlaps)


class LastCall:
    """The types of the last call's tensors, and a small key for calls that have the same.

    It holds no tensor: a module's own are read anew, and their order is compared by identity.
    """

    def __init__(self) -> None:
        self.modules: list[Any] = []
        self.state: list[
            int
        ] = []  # identities: training modes, parameters, buffers, modules, hooks
        self.places: list[int] = []  # where in the state each tensor is
        self.types: list[Any] | None = None  # None if calls like the last need the whole key
        self.classes: list[type] = []  # of the arguments
        self.static: list[tuple[int, Any]] = []  # arguments that are no tensors
        self.strides: list[Any] = []  # of the arguments
        self.modes: Any = None
        self.names: tuple[str, ...] = ()  # of keyword arguments
        self.views: list[Any] = []  # of all tensors
        self.keys: dict[Hashable, object] = {}
        self.key: object = None

    def note(
        self, module: Any, args: Any, kwargs: Any, values: Sequence[Any], key: Any, views: list[Any]
    ) -> None:
        """Remember a call's flattened tensors, and its whole cache key, which ends in overlaps."""
        self.types, self.views = None, views
        given = (*args, *kwargs.values())
        tensors = [value for value in given if type(value) not in _STATIC]
        own = values[: len(values) - len(tensors)]
        # Subclasses and nested arguments take the whole key, and complex ones, which may be lazy.
        if any(tensor.dtype.is_complex for tensor in tensors if hasattr(tensor, "dtype")):
            return
        if not _are_tensors(tensors) or [*map(id, values[len(own) :])] != [*map(id, tensors)]:
            return
        self.modules = [] if module is None else [*_distinct(module)]
        held = self._held()
        # Reversed: the first place of a tied parameter stays.
        by_identity = {id(value): n for n, value in reversed([*enumerate(held)])}
        if any(id(value) not in by_identity for value in own):
            return
        self.places = [by_identity[id(value)] for value in own]
        self.state, self.modes, self.names = [*map(id, held)], tracing_modes(), (*kwargs,)
        self.classes = [*map(type, given)]
        self.static = [(n, each) for n, each in enumerate(given) if type(each) in _STATIC]
        self.strides = [tensor.stride() for tensor in tensors]
        self.types = [(value.dtype, value.shape, value.device) for value in values]
        if len(self.keys) >= _KEYS:
            self.keys.clear()
        # Without the overlaps, which `key_with` adds for every call. An object compares by
        # identity, in no time, where the whole key compares the types of all parameters.
        self.key = self.keys.setdefault(key[:-1], object())

    def values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        """The flattened tensors of a call whose types are those of the last one, or None."""
        if self.types is None or self.modes != tracing_modes():
            return None
        inputs = (*args, *kwargs.values()) if kwargs else args
        if [*map(type, inputs)] != self.classes or (*kwargs,) != self.names:
            return None
        if self.static:
            if any(inputs[n] != value for n, value in self.static):
                return None
            inputs = tuple([value for value in inputs if type(value) not in _STATIC])
        held = self._held()
        # Identities, not values: a replaced parameter, a module that was added, or another training
        # mode changes the program. True and False have one identity each.
        if [*map(id, held)] != self.state:
            return None
        tensors = (*[held[n] for n in self.places], *inputs)
        same = [(value.dtype, value.shape, value.device) for value in tensors] == self.types
        # Strides with the addresses of memory decide which tensors overlap.
        same = same and [value.stride() for value in inputs] == self.strides
        return tensors if same else None

    def _held(self) -> list[Any]:
        return [
            *chain.from_iterable(
                [
                    (m.training, *m._parameters.values(), *m._buffers.values(),
                     *m._modules.values(), *m._forward_hooks, *m._forward_pre_hooks)
                    for m in self.modules
                ]
            )
        ]  # fmt: skip

    def key_with(self, overlapping: frozenset[int]) -> Hashable:
        """The small key of the last call's types, for tensors of which these overlap."""
        return self.key, overlapping


def _distinct(module: Any) -> list[Any]:
    """A module and all inside of it, each once."""
    modules, todo = dict[int, Any](), [module]
    while todo:
        at = todo.pop()
        if at is not None and id(at) not in modules:
            modules[id(at)] = at
            todo += at._modules.values()
    return [*modules.values()]


def _are_tensors(values: Sequence[Any]) -> bool:
    """Whether all are plain tensors."""
    torch = sys.modules["torch"]
    plain = (torch.Tensor, torch.nn.Parameter)
    return not [value for value in values if type(value) not in plain]


def tracing_modes() -> tuple[Any, ...]:
    """PyTorch's modes that change what is traced."""
    torch = sys.modules["torch"]
    is_on = torch.is_autocast_enabled
    on_host = is_on("cpu") and torch.get_autocast_dtype("cpu")
    on_gpu = is_on("cuda") and torch.get_autocast_dtype("cuda")
    return torch.get_default_dtype(), matmul_precision(), on_host, on_gpu


def matmul_precision() -> str:
    """PyTorch's precision of f32 products: highest, high or medium."""
    precision: str = sys.modules["torch"].get_float32_matmul_precision()
    return precision
