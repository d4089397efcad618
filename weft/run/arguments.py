"""Arguments of a call: type checks, conversion, and placement into slots."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.array.host import HOST_MEMORY, dense
from weft.array.memory import DeviceBuffer, Memory
from weft.array.stacked import Kind, Stacked, kind_of
from weft.errors import WeftError
from weft.executable.stack_dims import StackDims
from weft.ir.module import Function
from weft.ir.types import TensorType
from weft.run.code import SlotValues
from weft.run.launch import TablePlace
from weft.varying.masks import Mask, union


class Arguments:
    """The argument types of a program and their slots."""

    def __init__(
        self,
        function: Function,
        masks: Sequence[Mask],
        stack_dims: StackDims,
        slots: Sequence[int],
        places: Mapping[int, list[TablePlace]],
        memory: Memory,
    ) -> None:
        self.memory = HOST_MEMORY if memory.is_host else memory  # kernels read all host arguments
        self.function, self.stack_dims, self.sub_axes = function, stack_dims, stack_dims.sub_axes
        self.types, self.slots = function.arg_types, slots
        self.masks = [union(mask) for mask in masks]
        # For each argument its fast-path kind, its slot, and the table entries for its address.
        self.listed = [(self._kind(n), slot, places.get(slot, [])) for n, slot in enumerate(slots)]

    def _kind(self, index: int) -> Kind | None:
        """The kind of an argument that needs no conversion."""
        type = self.types[index]
        if not isinstance(type, TensorType):
            return None
        shape = self.stack_dims.shape(self.masks[index]) + type.sizes
        return kind_of(self.sub_axes, shape, type.dtype.numpy, self.memory)

    def put(self, stacks: Sequence[Stacked | None], s: SlotValues) -> None:
        """Write the arguments of a call into its slots."""
        if len(stacks) != len(self.listed):
            raise self.miscounted(len(stacks))
        for stack, (kind, slot, places) in zip(stacks, self.listed, strict=True):
            # By identity: kinds are interned, and one comparison stands for all checks.
            if stack is not None and stack.kind is kind:
                s[slot] = stack.data
                address = stack.address or stack.locate()
            else:
                s[slot], address = self._put(self.slots.index(slot), stack, kind, places)
            for table, place in places:
                s[table][place] = address

    def miscounted(self, count: int) -> WeftError:
        """The error for a wrong number of arguments."""
        return WeftError(
            f"{self.function.name} takes {len(self.listed)} arguments, {count} given",
            help="give one value for each argument",
            loc=self.function.loc,
        )

    def writable(self, stacks: Sequence[Stacked | None], donated: Sequence[int]) -> list[int]:
        """Numbers of donated arguments with no other reference."""
        owned = [n for n in donated if (s := stacks[n]) is not None and s.is_writable]
        listed = [id(s.data) for s in stacks if s is not None]
        if len({*listed}) == len(listed):
            return owned
        # Donated once and read once: writing over it would change the other argument.
        uses = Counter(listed)  # an array may be passed twice
        return [n for n in owned if (s := stacks[n]) is not None and uses[id(s.data)] == 1]

    def _put(
        self, index: int, stack: Stacked | None, kind: Kind | None, places: Sequence[TablePlace]
    ) -> tuple[Any, int]:
        """Convert an argument off the fast path; returns its address if a kernel reads it."""
        if kind is not None and places and self.memory.is_host:
            converted = self.fitted(index, stack, kind)
            return converted.data, converted.address or converted.locate()
        array = self.array(index, stack)
        if array is None or self.memory.is_host:
            return array, 0
        assert stack is not None
        if array is stack.data:  # hits the fast path next time
            if stack.located() is kind:
                return stack.data, stack.locate()
            array = stack.data
        array = self.memory.place(array)
        return array, self.memory.address(array)

    def fitted(self, index: int, stack: Stacked | None, kind: Kind) -> Stacked:
        """An argument as a dense stack on the host: itself, its view, or a copy."""
        if stack is not None and (known := stack.view) is not None and known.kind is kind:
            return known
        # As many elements: the sub-axes differ at most, and another time nothing is copied. A stack
        # that is broadcast stays as it is, and its copy lasts for one call.
        is_same = stack is not None and _holds(stack, math.prod(kind.shape))
        if stack is not None and is_same:
            stack.located()
        array = self.array(index, stack)
        assert stack is not None and array is not None, "kinds are those of tensors"
        if array is stack.data and stack.located() is kind:  # hits the fast path next time
            return stack
        dense_stack = Stacked(dense(array), self.sub_axes)
        assert dense_stack.located() is kind, "arguments are what their types say"
        if is_same and dense_stack.locate() == stack.locate():
            stack.view = dense_stack  # at once: another thread sees all of it or nothing
        return dense_stack

    def array(self, index: int, stack: Stacked | None) -> Any:
        """One argument, broadcast to the mask that the program takes it with.

        The result is in the program's memory, or in host memory if only the host reads it.
        """
        type, mask = self.types[index], self.masks[index]
        if not isinstance(type, TensorType):
            return None
        if stack is None:
            raise WeftError(f"argument {index} is missing", help=f"give a stack of {type}")
        if stack.shape != type.sizes or stack.data.dtype != type.dtype.numpy:
            raise WeftError(
                f"argument {index} holds {stack.data.dtype}{list(stack.shape)} on each device, "
                f"but the program takes {type}",
                help="split it as the program's shardings say",
            )
        if not stack.is_on_host and stack.memory is not self.memory:
            stack = stack.on_host()
        stack = stack.to(self.sub_axes)
        data = stack.data
        head = self.stack_dims.shape(mask)
        if data.shape[: self.stack_dims.lead] == head:
            return data
        # The program computes once for all devices along these dims: taking any of the pieces would
        # be silently wrong on the others.
        varies = [n for n, size in enumerate(head) if size == 1 < data.shape[n]]
        if varies:
            raise WeftError(
                f"argument {index} differs between devices over which the program takes it "
                "replicated",
                help="split it as the argument's weft.sharding says",
            )
        if data.__class__ is DeviceBuffer:
            rows = np.broadcast_to(stack.rows().data, head)
            return stack.picked(Stacked(rows, self.sub_axes)).data
        return np.broadcast_to(data, head + type.sizes)


def _holds(stack: Stacked, count: int) -> bool:
    """Whether a stack is on the host, and has so many elements."""
    return stack.is_on_host and stack.data.size == count
