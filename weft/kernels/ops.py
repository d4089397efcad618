"""The ops that tile can lower to loops on any target: steps, and changes of index."""

from __future__ import annotations

from weft.ir.op import Op
from weft.ops import OPS, contract, control, convolution, index, reduce, shape, slicing
from weft.ops.distributed import collective, local

# Data movement: a load at another index, a select between loads, a counter.
MOVED: frozenset[type[Op]] = frozenset(
    {
        *(shape.Constant, shape.Iota, shape.Reshape, shape.Transpose, shape.BroadcastInDim),
        *(shape.Broadcast, shape.Reverse, slicing.Slice, slicing.Pad, slicing.Concatenate),
        *(slicing.DynamicSlice, index.Gather, control.OptimizationBarrier, local.AxisIndex),
        *(collective.AllGather, collective.AllToAll, collective.CollectivePermute),
        *(collective.CollectiveBroadcast, local.PermuteAlongAxes, local.AllSlice),
    }
)
# Reductions along factors.
REDUCED: frozenset[type[Op]] = frozenset(
    {reduce.Reduce, collective.AllReduce, collective.ReduceScatter}
)
PRODUCTS: frozenset[type[Op]] = frozenset(
    {contract.DotGeneral, contract.Dot, convolution.Convolution}
)
LOOPS = MOVED | REDUCED | PRODUCTS | {op for op in OPS if op.elementwise} | {shape.BitcastConvert}
