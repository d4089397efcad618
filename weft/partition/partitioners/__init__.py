"""Partitioners of op families: the factors that may be split, and the local computation."""

from __future__ import annotations

from collections.abc import Callable

from weft.ir.module import Node
from weft.ir.op import Op
from weft.ir.rule import Rule
from weft.mesh import Mesh
from weft.mesh.algebra import DimAxes
from weft.ops.attention import Attention
from weft.ops.convolution import Convolution
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.distributed.sharding import ShardyConstant
from weft.ops.index import Gather
from weft.ops.linalg import TriangularSolve
from weft.ops.ragged import RaggedDot
from weft.ops.reduce import Reduce
from weft.ops.scatter import Scatter
from weft.ops.shape import Constant, Iota, Reshape, Reverse
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad, Slice
from weft.ops.sort import TopK
from weft.ops.window import ReduceWindow, SelectAndScatter
from weft.partition.partitioners.attentions import (
    attention,
    attention_rules,
    attention_sent,
)
from weft.partition.partitioners.concatenates import (
    concatenate,
    concatenate_rules,
    concatenate_sent,
)
from weft.partition.partitioners.constants import constant, iota
from weft.partition.partitioners.convolutions import (
    convolution,
    convolution_rules,
    convolution_sent,
)
from weft.partition.partitioners.dynamic_slices import (
    dynamic_slice,
    slice_rules,
    update_slice,
)
from weft.partition.partitioners.gathers import gather, gather_factors
from weft.partition.partitioners.joins import Join, join, join_rules, join_sent
from weft.partition.partitioners.outer_calls import call_factors, solve_factors
from weft.partition.partitioners.partials import (
    folded_factors,
    reduce,
    top_k,
    top_k_factors,
    top_k_rule,
)
from weft.partition.partitioners.pools import (
    pool_factors,
    pool_rules,
    pool_views,
    select_and_scatter,
)
from weft.partition.partitioners.ragged import ragged_dot, ragged_rule
from weft.partition.partitioners.reshapes import reshape, reshape_rules, reshape_sent
from weft.partition.partitioners.scatters import scatter, scatter_factors
from weft.partition.partitioners.slices import (
    cut,
    pad,
    pad_views,
    reverse,
    reverse_views,
    slice_views,
)
from weft.partition.partitioners.views import sent_by, shifted_factors
from weft.partition.partitioners.windows import reduce_window, window_sent
from weft.partition.piece import Piece
from weft.partition.site import NodeSite
from weft.partition.strategy.factors import FactorAxes, every_factor, plain_factors
from weft.records import dataclass

RulesOf = Callable[[Node, tuple[DimAxes, ...]], tuple[Rule, ...]]


@dataclass(frozen=True, slots=True)
class Partitioner:
    """The partitioner of one kind of op."""

    free: Callable[[Node, Rule], frozenset[int]]  # the factors that may be split
    emit: Callable[[NodeSite], tuple[Piece, ...]]
    rule: Callable[[Node], Rule] | None = None  # factors that differ from Shardy's
    rules: RulesOf | None = None  # alternative rules, of which the cheapest is taken
    # The bytes sent by the op's own communication.
    sent: Callable[[Node, Rule, FactorAxes, Mesh], float] | None = None


PARTITIONERS: dict[type[Op], Partitioner] = {
    Constant: Partitioner(every_factor, constant),
    ShardyConstant: Partitioner(every_factor, constant),
    Iota: Partitioner(every_factor, iota),
    Attention: Partitioner(plain_factors, attention, rules=attention_rules, sent=attention_sent),
    Reduce: Partitioner(folded_factors, reduce),
    RaggedDot: Partitioner(plain_factors, ragged_dot, ragged_rule),
    Reshape: Partitioner(plain_factors, reshape, rules=reshape_rules, sent=reshape_sent),
    TopK: Partitioner(top_k_factors, top_k, top_k_rule),
    CustomCall: Partitioner(call_factors, NodeSite.plain),
    TriangularSolve: Partitioner(solve_factors, NodeSite.plain),
    Gather: Partitioner(gather_factors, gather),
    Scatter: Partitioner(scatter_factors, scatter),
    Slice: Partitioner(shifted_factors, cut, sent=sent_by(slice_views)),
    Pad: Partitioner(shifted_factors, pad, sent=sent_by(pad_views)),
    Concatenate: Partitioner(
        shifted_factors, concatenate, rules=concatenate_rules, sent=concatenate_sent
    ),
    Join: Partitioner(shifted_factors, join, rules=join_rules, sent=join_sent),
    DynamicSlice: Partitioner(shifted_factors, dynamic_slice, rules=slice_rules),
    DynamicUpdateSlice: Partitioner(shifted_factors, update_slice),
    ReduceWindow: Partitioner(shifted_factors, reduce_window, sent=window_sent),
    SelectAndScatter: Partitioner(
        pool_factors, select_and_scatter, rules=pool_rules, sent=sent_by(pool_views)
    ),
    Convolution: Partitioner(
        shifted_factors, convolution, rules=convolution_rules, sent=convolution_sent
    ),
    Reverse: Partitioner(shifted_factors, reverse, sent=sent_by(reverse_views)),
}
