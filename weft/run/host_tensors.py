"""Runs of short programs of one device on PyTorch tensors of the host, without arrays of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any
from weakref import ref

from weft.array.context import CONTEXTS, note
from weft.array.exchange import to_numpy, to_torch
from weft.array.host import is_dense
from weft.ir.types import Array
from weft.records import dataclass
from weft.run.execute import QuickRun


@dataclass(frozen=True, slots=True)
class _KnownTensor:
    """A parameter, and the numpy array of its memory."""

    tensor: ref[Any]
    address: int
    strides: tuple[int, ...]
    array: Array

    def is_of(self, tensor: Any) -> bool:
        """Whether this is the same parameter, in the same memory."""
        held = self.tensor()
        if held is None or held is not tensor:
            return False
        # `parameter.data = ...` replaces the memory of the same object.
        return bool(held.data_ptr() == self.address and held.stride() == self.strides)


class QuickTensors:
    """Synchronous runs on tensors of the program's types; results are new tensors."""

    def __init__(self, quick: QuickRun, shapes: Sequence[tuple[int, ...]]) -> None:
        self.quick, self.stream = quick, quick.stream
        self.run, self.frame = quick.on_arrays, quick.frame
        self.shapes = [*shapes]
        self.parameter = sys.modules["torch"].nn.Parameter
        self.known: list[_KnownTensor | None] = [None] * quick.count

    def __call__(self, tensors: Sequence[Any]) -> list[Any] | None:
        """The results; None, and nothing has run, if an argument has to be converted."""
        stream = self.stream  # what is queued must come first, as in `at_once`
        if len(tensors) != len(self.known) or stream.tasks or stream.busy or stream.outside:
            return None
        arrays = []
        for n, (known, tensor) in enumerate(zip(self.known, tensors, strict=True)):
            is_known = known is not None and known.is_of(tensor)
            array = known.array if known is not None and is_known else self._array(n, tensor)
            if array is None:
                return None
            arrays.append(array)
        stream.beside.append(None)
        try:
            stacks = self.run(tuple(arrays), self.frame)
        except BaseException as error:
            note(error, CONTEXTS.here())
            raise
        finally:
            stream.beside.pop()
        if stacks is None:
            return None
        pairs = zip(stacks, self.shapes, strict=True)
        return [to_torch(stack.data.reshape(shape)) for stack, shape in pairs]

    def _array(self, place: int, tensor: Any) -> Array | None:
        """A dense tensor of the host as an array of its memory; None for others."""
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            return None
        if tensor.is_conj() or tensor.is_neg():  # flags of a view, which no kernel reads
            return None
        array = to_numpy(tensor)
        # Parameters stay where they are from call to call; other tensors are mostly new ones.
        if tensor.__class__ is self.parameter and is_dense(array):
            strides = tensor.stride()
            self.known[place] = _KnownTensor(ref(tensor), tensor.data_ptr(), strides, array)
        return array
