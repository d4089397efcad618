"""Canonicalization of collectives: fewer, of fewer bytes, over mesh axes, or none at all."""

from __future__ import annotations

from weft.ir.gc_pause import without_gc
from weft.ir.module import Module
from weft.ir.op import Op
from weft.ops.combiners import COMBINERS
from weft.ops.distributed.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
    ReduceScatter,
)
from weft.ops.distributed.local import AllSlice, AxisIndex, PermuteAlongAxes, VariadicReduceScatter
from weft.ops.distributed.ragged import RaggedAllToAll
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Subtract
from weft.ops.reduce import Reduce
from weft.ops.slicing import DynamicSlice, Slice
from weft.optimize.collectives.facts import Facts, RebuildWithFacts, RewriteRule
from weft.optimize.collectives.gather_rules import (
    EXCHANGE_RULES,
    GATHER_RULES,
    PERMUTE_RULES,
    convert_of_moved,
    part_of_gather,
)
from weft.optimize.collectives.group_rules import (
    lists_to_axes,
    one_replica,
    permute_along_axes,
    tidy_axes,
    tidy_pieces,
)
from weft.optimize.collectives.reduce_rules import (
    REDUCE_RULES,
    SCATTER_RULES,
    cut_of_sum,
    fold_of_sum,
    sum_of_sums,
)
from weft.optimize.collectives.slice_rules import RULES as SLICE_RULES
from weft.optimize.drop_dead import drop_dead

_GROUPS: tuple[RewriteRule, ...] = (lists_to_axes, tidy_axes)

TABLE: dict[type[Op], tuple[RewriteRule, ...]] = {
    AllReduce: (*_GROUPS, *REDUCE_RULES),
    ReduceScatter: (*_GROUPS, *SCATTER_RULES),
    AllGather: (*_GROUPS, *GATHER_RULES),
    AllToAll: (*_GROUPS, *EXCHANGE_RULES),
    CollectiveBroadcast: _GROUPS,
    RaggedAllToAll: _GROUPS,
    CollectivePermute: (permute_along_axes,),
    PermuteAlongAxes: (tidy_axes, *PERMUTE_RULES),
    VariadicReduceScatter: (tidy_axes,),
    AxisIndex: (tidy_axes,),
    AllSlice: (tidy_pieces, *SLICE_RULES),
    **{type(op): (sum_of_sums,) for op in (*COMBINERS.values(), Subtract())},
    Convert: (convert_of_moved,),
    Slice: (cut_of_sum, part_of_gather),
    DynamicSlice: (cut_of_sum,),
    Reduce: (fold_of_sum, part_of_gather),
}
_COLLECTIVES: tuple[type[Op], ...] = (
    *(kind for kind in TABLE if kind.collective),
    AllSlice,
    AxisIndex,
)
# Rules depend on use counts, which change as rules apply; a fixed point comes much earlier.
_ROUNDS = 8


def canonicalize_collectives(module: Module) -> Module:
    """Apply the rules on collectives to a fixed point."""
    if not one_replica(module) or not module.meshes:
        return module
    with without_gc():
        for _ in range(_ROUNDS):
            if not any(isinstance(node.op, _COLLECTIVES) for node in module.nodes()):
                return module
            after = RebuildWithFacts(Facts(module, TABLE)).module()
            if after is module:
                return module
            module = drop_dead(after)
    return module
