"""Runs of short programs of one device on PyTorch tensors of the host, without arrays of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from weft.array.context import CONTEXTS, note
from weft.array.exchange import to_numpy, to_torch
from weft.array.host import is_dense
from weft.array.stacked import Stacked
from weft.native.cpython import reads_objects
from weft.records import dataclass
from weft.run.local import LocalProgram


@dataclass(frozen=True, slots=True)
class _KnownTensor:
    """A tensor that stays from call to call, and the stack of its memory."""

    tensor: ref[Any]
    address: int
    strides: tuple[int, ...]
    stack: Stacked

    def is_of(self, tensor: Any) -> bool:
        """Whether this is the same tensor, in the same memory."""
        held = self.tensor()
        if held is None or held is not tensor:
            return False
        # `parameter.data = ...` replaces the memory of the same object.
        return bool(held.data_ptr() == self.address and held.stride() == self.strides)


class HostTensors:
    """Synchronous runs on tensors of the program's types.

    `updated` arguments are written in place; the other results are new tensors.
    """

    def __init__(
        self,
        program: LocalProgram,
        shapes: Sequence[tuple[int, ...]],
        updated: Sequence[int],
        seed: Callable[[], Any] | None,
    ) -> None:
        direct = program.direct
        assert direct is not None, "asked by `of`"
        self.run, self.frame, self.stream = direct.on_arrays, program.frame, program.runs_on
        self.kinds, self.updated, self.seed = direct.kinds, frozenset(updated), seed
        self.count = len(self.kinds) - (seed is not None)
        self.shapes, self.first = [*shapes], len(updated)
        self.copied = [(n, at) for n, at in enumerate(updated) if n not in direct.over]
        self.parameter = sys.modules["torch"].nn.Parameter
        self.known: list[_KnownTensor | None] = [None] * len(self.kinds)

    @classmethod
    def of(
        cls,
        program: LocalProgram,
        shapes: Sequence[tuple[int, ...]],
        updated: Sequence[int],
        seed: Callable[[], Any] | None,
    ) -> HostTensors | None:
        """The runs of a program; None if it needs more than a native call."""
        direct = program.direct
        if direct is None or not direct.is_whole or not reads_objects():
            return None
        if program.plan.lent or program.here is not None or program.mesh.size > 1:
            return None
        # A donated argument's memory is taken by its own new value, or by none: that is copied.
        places = dict(enumerate(updated))
        in_place = all(places.get(n) == place for n, place in direct.over.items())
        in_place = in_place and {*program.donated} == {*updated}
        owned = all(own for n, (*_, own) in enumerate(direct.made) if n not in direct.over)
        if not in_place or not owned or len(direct.made) != len(updated) + len(shapes):
            return None
        return cls(program, shapes, updated, seed)

    def __call__(self, tensors: Sequence[Any]) -> list[Any] | None:
        """The results that update no argument; None, without a run, if one has to be converted."""
        stream = self.stream  # what is queued must come first, as in `at_once`
        if len(tensors) != self.count or stream.tasks or stream.busy or stream.outside:
            return None
        # Another thread may read what this run would write.
        if self.first and stream.beside:
            return None
        if self.seed is not None:
            tensors = (*tensors, self.seed())
        stacks = []
        for n, (known, tensor) in enumerate(zip(self.known, tensors, strict=True)):
            is_known = known is not None and known.is_of(tensor)
            stack = known.stack if known is not None and is_known else self._stack(n, tensor)
            if stack is None:
                return None
            stacks.append(stack)
        stream.beside.append(None)
        try:
            made = self.run(tuple(stacks), self.frame)
        except BaseException as error:
            note(error, CONTEXTS.here())
            raise
        finally:
            stream.beside.pop()
        if made is None:
            return None
        for number, place in self.copied:
            stacks[place].data[...] = made[number].data
        pairs = zip(made[self.first :], self.shapes, strict=True)
        return [to_torch(stack.data.reshape(shape)) for stack, shape in pairs]

    def _stack(self, place: int, tensor: Any) -> Stacked | None:
        """A dense tensor of the host as a stack of its memory; None for others."""
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            return None
        if tensor.is_conj() or tensor.is_neg():  # flags of a view, which no kernel reads
            return None
        array, kind = to_numpy(tensor), self.kinds[place]
        if array.dtype != kind.dtype or not is_dense(array):
            return None
        is_updated = place in self.updated
        stack = Stacked(array.reshape(kind.shape), kind.sub_axes, is_updated, kind)
        # Parameters and state stay where they are from call to call; others are mostly new ones.
        if is_updated or tensor.__class__ is self.parameter:
            known = _KnownTensor(ref(tensor), tensor.data_ptr(), tensor.stride(), stack)
            self.known[place] = known
        return stack
