"""The op table of this target, complete over all ops."""

from __future__ import annotations

from weft.emit.triton.library.nodes import CALLS, WRITES
from weft.emit.triton.pointwise import elementwise_ops
from weft.ir.op import Op
from weft.kernels.ops import MOVED, PRODUCTS, REDUCED
from weft.ops import OPS, attention
from weft.ops.ragged import RaggedDot
from weft.target import OpSupport

_HOST = OpSupport("library", "numpy", "it runs in numpy on copies: it has no kernel on a GPU")
LOOPS, PRODUCT, ALONE = (OpSupport("emitted", where) for where in ("loops", "product", "alone"))

TABLE: dict[type[Op], OpSupport] = {
    **dict.fromkeys(OPS, _HOST),
    **dict.fromkeys([*CALLS, *WRITES, RaggedDot], ALONE),
    **dict.fromkeys(PRODUCTS, PRODUCT),
    **dict.fromkeys(elementwise_ops(), LOOPS),
    **dict.fromkeys(MOVED | REDUCED, LOOPS),
    attention.Attention: OpSupport("emitted", "attention"),
}
