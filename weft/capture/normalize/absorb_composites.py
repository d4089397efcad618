"""Reading composites of Weft's own ops, and JAX's custom calls of them, back as these ops."""

from __future__ import annotations

from functools import lru_cache

from weft.ir.module import Module, Node, apply
from weft.ir.op import Op, read_op
from weft.ir.rebuild import rewrite
from weft.ir.scan import dictionary
from weft.ops import BY_NAME
from weft.ops.control import Call, Composite
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.distributed.collective import GROUPS, ChannelHandle
from weft.ops.distributed.ragged import CALL, RaggedAllToAll
from weft.ops.sort import TopK

# JAX's composite for top-k; its decomposition, a sort, is slower and cannot be split.
_WRAPPED = (TopK,)


def absorb_composites(module: Module) -> Module:
    """Replace every composite named after an op of Weft's by that op."""
    names = {
        node.op.decomposition
        for node in module.nodes()
        if isinstance(node.op, Composite) and _absorbed(node.op) is not None
    }
    if any(_is_exchange(node) for node in module.nodes()):
        module = rewrite(module, exchange, kinds=(CustomCall,))
    if not names:
        return module
    made = rewrite(module, composite)
    called = {node.op.callee for node in made.nodes() if isinstance(node.op, Call)}
    kept = {n: f for n, f in made.functions.items() if n not in names or n in called}
    return made.with_functions(kept)


def composite(node: Node) -> Node | None:
    """composite "weft.x" -> weft.x, when there is such an op."""
    made = _absorbed(node.op) if isinstance(node.op, Composite) else None
    if made is None:
        return None
    return Node(made, node.operands, node.types, node.regions, node.attrs, node.loc)


def _is_exchange(node: Node) -> bool:
    return isinstance(node.op, CustomCall) and node.op.call_target_name == CALL


def exchange(node: Node) -> Node | None:
    """custom_call @ragged_all_to_all -> weft.ragged_all_to_all, which knows its groups."""
    if not _is_exchange(node):
        return None
    assert isinstance(node.op, CustomCall)
    config = dictionary(node.op.backend_config or "{}")
    groups = GROUPS.read(config["replica_groups"]) if "replica_groups" in config else ()
    channel = node.op.config.get("channel_id", 0)
    made = RaggedAllToAll(groups, ChannelHandle(channel, 1) if channel else None)
    return apply(made, *node.operands, attrs=node.attrs, loc=node.loc)


@lru_cache(maxsize=4096)
def _absorbed(op: Composite) -> Op | None:
    cls = BY_NAME.get(op.name_)
    if cls is None or not (cls.composite or cls in _WRAPPED):
        return None
    made, _ = read_op(cls, dictionary(op.composite_attributes or "{}"), op.outs)
    return made
