"""Ops that are split in a way of their own: the factors they allow, and how a piece is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.ir.module import Node
from weft.ir.op import Op
from weft.ir.rule import Rule
from weft.mesh import Mesh
from weft.ops.index import Gather
from weft.ops.reduce import Reduce
from weft.ops.scatter import Scatter
from weft.ops.shape import Constant, Iota, Reverse
from weft.ops.sharding import ShardyConstant
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad, Slice
from weft.partition.concatenates import concatenate, concatenate_rules, concatenate_sent
from weft.partition.constants import constant, iota
from weft.partition.dynamic_slices import (
    dynamic_slice,
    slice_factors,
    slice_rules,
    update_slice,
)
from weft.partition.factors import FactorAxes
from weft.partition.free import every_factor, plain_factors
from weft.partition.gathers import gather, gather_factors
from weft.partition.placed import Placed, Split
from weft.partition.reductions import reduce
from weft.partition.scatters import scatter, scatter_factors
from weft.partition.site import Site
from weft.partition.slices import cut, pad, pad_views, reverse, reverse_views, slice_views
from weft.partition.views import sent_by, shifted_factors


@dataclass(frozen=True, slots=True)
class Way:
    """How one kind of op is partitioned."""

    free: Callable[[Node, Rule], frozenset[int]]  # the factors that may be split
    emit: Callable[[Site], tuple[Placed, ...]]
    rule: Callable[[Node], Rule] | None = None  # where partitioning sees other factors than Shardy
    rules: Callable[[Node, tuple[Split, ...]], tuple[Rule, ...]] | None = (
        None  # of them the cheapest
    )
    sent: Callable[[Node, Rule, FactorAxes, Mesh], float] | None = None  # bytes, by the op itself


WAYS: dict[type[Op], Way] = {
    Constant: Way(every_factor, constant),
    ShardyConstant: Way(every_factor, constant),
    Iota: Way(every_factor, iota),
    Reduce: Way(plain_factors, reduce),
    Gather: Way(gather_factors, gather),
    Scatter: Way(scatter_factors, scatter),
    Slice: Way(shifted_factors, cut, sent=sent_by(slice_views)),
    Pad: Way(shifted_factors, pad, sent=sent_by(pad_views)),
    Concatenate: Way(shifted_factors, concatenate, rules=concatenate_rules, sent=concatenate_sent),
    DynamicSlice: Way(slice_factors, dynamic_slice, rules=slice_rules),
    DynamicUpdateSlice: Way(shifted_factors, update_slice),
    Reverse: Way(shifted_factors, reverse, sent=sent_by(reverse_views)),
}
