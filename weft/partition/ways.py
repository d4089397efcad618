"""Ops that are split in a way of their own: the factors they allow, and how a piece is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.ir.module import Node
from weft.ir.op import Op
from weft.ir.rule import Rule
from weft.ops.reduce import Reduce
from weft.ops.shape import Constant, Iota
from weft.ops.sharding import ShardyConstant
from weft.partition.constants import constant, iota
from weft.partition.free import every_factor, plain_factors
from weft.partition.placed import Placed
from weft.partition.reductions import reduce
from weft.partition.site import Site


@dataclass(frozen=True, slots=True)
class Way:
    """How one kind of op is partitioned."""

    free: Callable[[Node, Rule], frozenset[int]]  # the factors that may be split
    emit: Callable[[Site], tuple[Placed, ...]]


WAYS: dict[type[Op], Way] = {
    Constant: Way(every_factor, constant),
    ShardyConstant: Way(every_factor, constant),
    Iota: Way(every_factor, iota),
    Reduce: Way(plain_factors, reduce),
}
