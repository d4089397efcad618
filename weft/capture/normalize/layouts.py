"""Layouts that JAX leaves open (`auto`): a result keeps the dim order that it is computed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.errors import Unsupported
from weft.ir.attrs import Attrs
from weft.ir.module import Module, Node
from weft.ir.names import LAYOUT
from weft.ir.types import TensorType, Type
from weft.ops.control import Call
from weft.ops.distributed.sharding import ShardingConstraint
from weft.ops.shape import Transpose

DimOrder = tuple[int, ...]  # from minor to major
Orders = Sequence[DimOrder | None]  # of values; None for any layout
_OPEN = '"auto"'


def row_major(rank: int) -> DimOrder:
    """The row-major layout: the last dim is the minor one."""
    return tuple(reversed(range(rank)))


def layout_in(attrs: Attrs, rank: int) -> DimOrder:
    """The layout attribute of an argument or a result; row-major if it is left open."""
    text = dict(attrs).get(LAYOUT, "").strip('"')
    plain = row_major(rank)
    if text in ("", "auto", "default"):
        return plain
    dims, _, more = text.strip("{}").partition(":")
    found = tuple([int(word) for word in dims.split(",") if word])
    if more or sorted(found) != sorted(plain):
        raise Unsupported(
            f"unsupported layout {text!r}", help="expected an order of dims, as {1,0}"
        )
    return found


def choose_layouts(module: Module) -> Module:
    """The module with a layout for every result whose own is left open; arguments are row-major."""
    main = module.functions.get("main")
    if main is None:
        return module
    if not any((LAYOUT, _OPEN) in attrs for attrs in main.res_attrs):
        return module
    args = zip(main.arg_attrs, main.body.args, strict=True)
    orders = _of_function(module, "main", [layout_in(a, _rank(v.type)) for a, v in args])
    res_attrs = tuple([_with_layout(*pair) for pair in zip(main.res_attrs, orders, strict=True)])
    return module.with_functions({**module.functions, "main": replace(main, res_attrs=res_attrs)})


def _with_layout(attrs: Attrs, order: DimOrder | None) -> Attrs:
    if order is None or (LAYOUT, _OPEN) not in attrs:
        return attrs
    kept = [pair for pair in attrs if pair[0] != LAYOUT]
    return (*kept, (LAYOUT, f'"{{{",".join(map(str, order))}}}"'))


def _of_function(module: Module, name: str, given: Orders) -> Orders:
    """The layouts of a function's results, from those of its arguments."""
    body = module.function(name).body
    known = dict(zip(body.args, given, strict=True))
    for node in body.nodes:
        orders = _of_node(module, node, [known.get(value) for value in node.operands])
        known.update(zip(node.results, orders, strict=True))
    return [known.get(value) for value in body.results]


def _of_node(module: Module, node: Node, orders: Orders) -> Orders:
    match node.op:
        case Transpose(permutation=moved):
            order = row_major(len(moved)) if orders[0] is None else orders[0]
            return [tuple([moved.index(dim) for dim in order])]
        case Call(callee=callee):
            return _of_function(module, callee, orders)
        case ShardingConstraint():
            return orders
    if node.op.elementwise:
        pairs = zip(orders, node.operand_types, strict=True)
        # Scalars are broadcast and have no order to give.
        found = {order for order, type in pairs if _rank(type) == _rank(node.types[0])}
        if len(found := found - {None}) == 1:
            return [*found] * len(node.types)
    return [None] * len(node.types)


def _rank(type: Type) -> int:
    return type.rank if isinstance(type, TensorType) else 0
