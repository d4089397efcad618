"""Names and kinds of items in timelines, predicted or measured."""

from __future__ import annotations

from typing import Literal, TypeAlias

from weft.executable.items import Host, Item, Launch
from weft.kernels.attention import Attention
from weft.kernels.opaque import Opaque
from weft.kernels.work import product_flops

ComputeKind: TypeAlias = Literal["product", "attention", "memory"]
_HEAVY = frozenset(("dot_general", "convolution", "reduce", "attention", "ragged_dot"))


def item_name(item: Item) -> str:
    """The op of an item without its dialect; of a launch, the ops that it computes."""
    if isinstance(item, Launch):
        return launch_name(item)
    if isinstance(item, Host):
        return short_name(item.node.op.name)
    return type(item).__name__.lower()


def launch_name(item: Launch) -> str:
    """The ops that a launch computes, the heaviest first."""
    if item.group is None:
        return item.kernel.name
    nodes = [n for n in item.group.nodes if n.op.name != "stablehlo.constant"]
    names = [short_name(node.op.name) for node in nodes]
    heavy = [name for name in names if name in _HEAVY]
    listed = [*dict.fromkeys([*heavy, *reversed(names)])]
    more = f" + {len(nodes) - 1}" if len(nodes) > 1 else ""
    return f"{listed[0]}{more}" if listed else item.kernel.name


def launch_kind(item: Launch) -> ComputeKind:
    """Whether a launch computes products, attention, or is bound by memory."""
    if isinstance(item.kernel, Attention):
        return "attention"
    if isinstance(item.kernel, Opaque):  # precompiled: its steps are not known
        return "memory"
    return "product" if product_flops(item.kernel) else "memory"


def short_name(name: str) -> str:
    """The name of an op without its dialect."""
    return name.partition(".")[2] or name
