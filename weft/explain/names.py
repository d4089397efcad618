"""Names of values, ops and locations in explanations."""

from __future__ import annotations

from pathlib import PurePath

from weft.explain.counterparts import Counterparts, counterparts
from weft.explain.owners import Owner
from weft.ir.location import Location
from weft.ir.module import Module, Node, Value
from weft.ir.write import value_names
from weft.ops.control import Call, Composite
from weft.ops.custom_calls.custom import CustomCall


class Names:
    """The value names of the user's module, for values of the prepared module."""

    def __init__(self, original: Module, prepared: Module) -> None:
        self.original = original
        self.counterparts: Counterparts = counterparts(original, prepared)
        self.names: dict[Value, str] = {}
        for function in original.functions.values():
            self.names |= value_names(function)
        self.main = next(iter(original.functions), None)
        if "main" in original.functions:
            self.main = "main"

    def value(self, value: Value) -> str | None:
        """`%3` for a value of either module; None for one that only the prepared module has."""
        origin = self.counterparts.came_from.get(value, value)
        return self.names.get(origin)

    def owner(self, owner: Owner | None) -> str:
        """`%3`, `%arg0 (params['w'])`, `result 0`, `%3 of @f`."""
        if owner is None:
            return "a value"
        function = owner.function.name
        suffix = "" if function == self.main else f" of @{function}"
        if owner.result is not None:
            return f"result {owner.result}{suffix}"
        name = self.value(owner.value)
        if name is None:
            made = owner.value.node
            return (f"the result of {op_name(made)}" if made else "an argument") + suffix
        label = owner.loc.name if owner.argument is not None and owner.region_of is None else None
        return f"{name}{suffix}" + (f" ({label})" if label else "")


def op_name(node: Node) -> str:
    """`dot_general`, `call of @f`, `custom_call @gemm`."""
    match node.op:
        case Call(callee=callee):
            return f"call of @{callee}"
        case CustomCall(call_target_name=target):
            return f"custom_call @{target}"
        case Composite(name_=name):
            return f"composite {name}"
    return node.op.name.removeprefix("stablehlo.").removeprefix("sdy.")


def place(loc: Location) -> str:
    """` (model.py:41)`, or an empty text without a line."""
    line = loc.line
    return f" ({PurePath(line[0]).name}:{line[1]})" if line else ""
