"""The op table of this target: one cell for every op, without holes."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from weft.emit.llvm.math import pointwise
from weft.emit.llvm.single import emit as single
from weft.ir.op import Op
from weft.kernels.ops import MOVED, PRODUCTS, REDUCED
from weft.ops import (
    attention,
    batch_norm,
    control,
    dynamic,
    einsum,
    index,
    random,
    reduce,
    shape,
)
from weft.ops.custom_calls import checks, custom
from weft.ops.distributed import async_pairs as together
from weft.ops.distributed import collective, local, sharding
from weft.ops.elementwise import broadcasting, convert, special, transcendental
from weft.ops.elementwise.pointwise import Map
from weft.target import OpSupport

LOOPS, PRODUCT, ALONE = (OpSupport("emitted", where) for where in ("loops", "product", "alone"))


def numpy(why: str) -> OpSupport:
    """Computed by numpy."""
    return OpSupport("library", "numpy", why)


def runtime(why: str) -> OpSupport:
    """Done by the runtime, between kernels."""
    return OpSupport("library", "runtime", why)


def unsupported(why: str) -> OpSupport:
    """Unsupported."""
    return OpSupport("unsupported", "", why)


def _all(families: Iterable[ModuleType], cell: OpSupport) -> dict[type[Op], OpSupport]:
    return {op: cell for family in families for op in family.OPS}


# Later rows override earlier ones: first whole families, then single ops.
TABLE: dict[type[Op], OpSupport] = {
    **_all([transcendental, special], numpy("no vector form of the function yet")),
    **_all([broadcasting], numpy("frameworks write the broadcast as an op of its own")),
    **_all([einsum], numpy("frameworks write dot_general")),
    **_all([batch_norm], numpy("frameworks write it as arithmetic")),
    **_all([dynamic], numpy("the sizes are known only when it runs")),
    **_all([control, together], runtime("it decides what runs, and computes nothing")),
    **_all([collective, local], runtime("devices meet in it")),
    **_all([sharding], runtime("it says where values are, and computes nothing")),
    **_all([custom, checks], runtime("it is a call of something else")),
    Map: numpy("frameworks write its region as ops"),
    special.ChloConstant: numpy("frameworks write stablehlo.constant"),
    special.ConstantLike: numpy("frameworks write stablehlo.constant"),
    convert.UniformQuantize: unsupported("quantized types are not supported"),
    convert.UniformDequantize: unsupported("quantized types are not supported"),
    reduce.Scan: numpy("its region takes slices of any shape"),
    shape.GetDimensionSize: runtime("it is known, or counted, without looking at elements"),
    shape.SetDimensionSize: runtime("it changes no element"),
    random.Rng: numpy("its numbers are those of numpy's generator"),
    attention.Attention: OpSupport("emitted", "attention"),
    **dict.fromkeys((*single.EMIT, *single.FITTED), ALONE),
    **dict.fromkeys(PRODUCTS, PRODUCT),  # those of complex numbers are single nodes
    **dict.fromkeys(pointwise.EMIT, LOOPS),
    **dict.fromkeys(MOVED | REDUCED, LOOPS),
    index.Gather: ALONE,
}
