"""The slots of a tiled program while it is read: their stacks, and their places in the plan."""

from __future__ import annotations

from collections.abc import Mapping

from weft.executable.items import Slot, Slots, Stack
from weft.executable.words import is_slot, slot_of, type_of
from weft.ir.dense import parse_dense
from weft.ir.scan import parse_type
from weft.ir.types import Array, TensorType
from weft.kernels.tokens import Line, syntax_error


class SlotDefinitions:
    """Slots in the order of their definitions; operands must be defined before they are read."""

    def __init__(self, resources: Mapping[str, Array]) -> None:
        self.resources = resources
        self.stacks: dict[Slot, Stack | None] = {0: None, 1: None}
        self.places: dict[Slot, int] = {}  # offsets in the arena
        self.over: dict[Slot, tuple[int, bool]] = {}
        self.donors: dict[Slot, Slot] = {}

    def stack(self, slot: Slot) -> Stack:
        stack = self.stacks.get(slot)
        if stack is None:
            raise syntax_error(f"b{slot} holds nothing")
        return stack

    def operands(self, line: Line) -> Slots:
        """Operands: slots that must be defined before."""
        operands = tuple(line.listed("(", ")", lambda: slot_of(line)))
        for slot in operands:
            if slot not in self.stacks:
                raise syntax_error(f"b{slot} is used before its definition")
        return operands

    def define(self, line: Line) -> Slot:
        """A definition of a slot."""
        slot = slot_of(line)
        if slot in self.stacks:
            raise syntax_error(f"b{slot} is defined twice")
        if line.accept("@"):
            self.places[slot] = line.integer()
        while line.accept("over"):
            always = bool(line.accept("own"))
            if line.accept("operand"):
                self.over[slot] = (line.integer(), always)
            else:
                self.donors[slot] = slot_of(line)
        line.expect(":")
        self.stacks[slot] = self.parse_stack(line)
        return slot

    def parse_stack(self, line: Line) -> Stack:
        if line.token == "<":
            return Stack(parse_type(line.brackets()[1:-1]), None)
        dtype = line.dtype()
        line.expect("[")
        head: list[int] | None = []
        if line.accept("?"):
            head = None
        else:
            head = [] if line.token == "|" else line.separated(line.integer)
        line.expect("|")
        dims = [] if line.token == "]" else line.separated(line.integer)
        line.expect("]")
        type = TensorType(tuple(dims), dtype)
        return Stack(type, None if head is None else (*head, *dims))

    def define_all(self, line: Line) -> Slots:
        if not is_slot(line.token):
            return ()
        return tuple(line.separated(lambda: self.define(line)))

    def constant(self, line: Line) -> object:
        if line.accept("none"):
            return None
        if line.token == "(":
            return tuple(line.listed("(", ")", lambda: self.constant(line)))
        if line.accept("resource"):
            name = line.name()
            line.expect(":")
            type = type_of(line)
            if name not in self.resources:
                raise syntax_error(f"the resource {name} is missing")
            array = self.resources[name]
            assert isinstance(type, TensorType)
            if array.shape != type.sizes or array.dtype != type.dtype.numpy:
                raise syntax_error(f"the resource {name} is {array.dtype}{array.shape}, not {type}")
            return array
        line.expect("dense")
        value = line.brackets()
        line.expect(":")
        start = line.text.index(value)
        return parse_dense(f"dense{line.text[start : start + len(value)]} : {type_of(line)}").array
