"""Ragged dots round their results themselves where a conversion would."""

from __future__ import annotations

from collections import Counter

from weft.ir.module import Module, Node, Value, apply
from weft.ir.rebuild import Rebuild, Rewritten
from weft.ir.types import TensorType, Type
from weft.ops.elementwise.convert import Convert
from weft.ops.ragged import RaggedDot
from weft.optimize.drop_dead import drop_dead

_HALF = {"bf16", "f16"}


def narrow_ragged_dots(module: Module) -> Module:
    """Give a ragged dot the narrower type that its only reader converts its result to.

    Sums of products are rounded once in either case, and no wide result is stored.
    """
    wide = _read_once(module)
    if not wide:
        return module

    def narrowed(node: Node) -> Rewritten:
        """convert(ragged_dot(x, y)) -> ragged_dot(x, y), when nothing else reads the wide sums."""
        if not isinstance(node.op, Convert):
            return None
        (value,) = node.operands
        made, out = value.node, node.results[0].type
        if made is None or not isinstance(made.op, RaggedDot) or not _is_half(out):
            return None
        # The counts are of values of the old module, while `value` may have been rebuilt by now.
        if not any(rebuild.became.get(old, old) is value for old in wide):
            return None
        assert isinstance(out, TensorType)
        return apply(made.op.replace(out=out), *made.operands, loc=made.loc)

    rebuild = Rebuild(module, (narrowed,), kinds=(Convert,))
    after = rebuild.module()
    return module if after is module else drop_dead(after)


def _is_half(type: Type) -> bool:
    return isinstance(type, TensorType) and type.dtype.name in _HALF


def _read_once(module: Module) -> list[Value]:
    """The f32 results of ragged dots that one node reads."""
    found: list[Value] = []
    for node in module.nodes():
        if isinstance(node.op, RaggedDot) and node.op.out.dtype.name == "f32":
            found += node.results
    if not found:
        return found
    count: Counter[Value] = Counter()
    for function in module.functions.values():
        count.update(function.body.results)
    for node in module.nodes():
        count.update(node.operands)
        for region in node.regions:
            count.update(region.results)
    return [value for value in found if count[value] == 1]
