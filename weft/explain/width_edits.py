"""Products whose wide results are only converted: they may be of the narrower type at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.explain.constraint_edits import described
from weft.explain.edits import AnnotationEdit
from weft.ir.module import Module, Node, Value, apply, uses
from weft.ir.rebuild import Rebuild
from weft.ir.types import TensorType
from weft.ops.contract import DotGeneral
from weft.ops.elementwise.convert import Convert
from weft.records import dataclass


def width_edits(module: Module, lines: Sequence[object]) -> Iterator[AnnotationEdit]:
    """Products of some lines in the type that they are converted to, so that sums are sent in it.

    What a device adds up stays wide; partial sums of devices are rounded before they are sent.
    """
    narrow = _narrowed(module)
    seen: set[tuple[str, TensorType]] = set()
    for node, type in narrow.items():
        key = (node.loc.text, type)
        if node.loc.line not in lines or key in seen:
            continue
        seen.add(key)
        wide = node.results[0].type
        assert isinstance(wide, TensorType)
        text = (
            f"make {described(node)} of type {type.dtype}, to which it is converted: its partial "
            f"sums are then rounded to {type.dtype} and sent (preferred_element_type)"
        )
        change = _Narrower(node.loc.text, type)
        yield AnnotationEdit(
            "width", node.loc, text, change, frozenset([node.loc.line]), wide.nbytes
        )


def _narrowed(module: Module) -> dict[Node, TensorType]:
    """The products that are only read by conversions to one narrower type, and that type."""
    found: dict[Node, TensorType] = {}
    for function in module.functions.values():
        returned = set(function.body.results)
        for value, readers in uses(function.body).items():
            node, types = value.node, {reader.types[0] for reader, _ in readers}
            if node is None or not isinstance(node.op, DotGeneral) or value in returned:
                continue
            if node.op.algorithm is not None or len(types) != 1:
                continue
            if not all(isinstance(reader.op, Convert) for reader, _ in readers):
                continue
            (type,), wide = types, value.type
            if isinstance(type, TensorType) and isinstance(wide, TensorType) and _less(type, wide):
                found[node] = type
    return found


def _less(type: TensorType, wide: TensorType) -> bool:
    floats = type.dtype.is_float and wide.dtype.is_float
    return floats and type.dtype.bits < wide.dtype.bits and type.dtype.bits >= _LEAST_BITS


_LEAST_BITS = 16  # sums are not rounded to eight


@dataclass(frozen=True, slots=True)
class _Narrower:
    """Gives the products of one location the type that they are converted to."""

    text: str
    type: TensorType

    def __call__(self, module: Module) -> Module:
        narrow = _narrowed(module)
        chosen = {n for n, type in narrow.items() if n.loc.text == self.text and type == self.type}
        return _Narrowing(module, chosen, self.type).module()


class _Narrowing(Rebuild):
    def __init__(self, module: Module, chosen: set[Node], type: TensorType) -> None:
        super().__init__(module, ())
        self.chosen, self.type = chosen, type
        self.narrow: dict[Value, Value] = {}

    def node(self, node: Node, out: list[Node]) -> None:
        if node in self.chosen:
            assert isinstance(node.op, DotGeneral)
            operands = [self.became.get(value, value) for value in node.operands]
            made = apply(node.op.replace(out=self.type), *operands, loc=node.loc)
            out.append(made)
            self.narrow[node.results[0]] = made.results[0]
        elif node.operands and node.operands[0] in self.narrow:
            self.becomes(node, (self.narrow[node.operands[0]],))
        else:
            super().node(node, out)
