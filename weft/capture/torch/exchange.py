"""Ops of expert parallelism: rows at indices of each device, sums of rows, and their exchange.

Leading dims of all operands are devices: the first one along the axes of experts, the second one
along those of the batch. `rows_at` and `sums_at` are each other's gradient,
`exchange_rows` is its own, and `device_products` has `device_sums`, which has none.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from weft.capture.torch.build import AtenLowering, Build, shape_of, type_of
from weft.capture.torch.dtypes import computed_in
from weft.errors import WeftError
from weft.ir.module import Region, Value
from weft.ir.types import I32, TensorType
from weft.mesh import MeshAxes, Sharding, parse_sharding
from weft.ops.combiners import combiner
from weft.ops.distributed.collective import AllGather, ChannelHandle
from weft.ops.distributed.ragged import RaggedAllToAll
from weft.ops.distributed.sharding import ManualComputation
from weft.ops.elementwise.pointwise import And
from weft.ops.index import Gather, GatherDims
from weft.ops.ragged import RaggedDims, RaggedDot
from weft.ops.scatter import Scatter, ScatterDims

# [d, b, rows, k] x [d, groups, k, n], and its sums [d, b, rows, m] x [d, b, rows, n]
_PRODUCT = RaggedDims((0,), (0,), (3,), (2,), (2,), (1,))
_SUMS = RaggedDims((0, 1), (0, 1), (2,), (2,), (2,), ())
_CHANNEL = ChannelHandle(1, 1)


@cache
def define_exchange() -> Any:
    """Define the ops, with their gradients, and return what keeps them alive."""
    import torch

    ops: Any = torch.ops.weft
    held: list[Any] = []

    def define(schema: str, shape: Any, backward: Any) -> None:
        name = schema.partition("(")[0]

        def meaning(*_: Any) -> Any:
            raise AssertionError(f"{name} is captured, and never run by PyTorch")

        op = torch.library.custom_op(
            f"weft::{name}", meaning, mutates_args=(), schema=schema.removeprefix(name)
        )
        op.register_fake(shape)
        op.register_autograd(backward, setup_context=keep)
        held.append(op)

    def no_second_derivative(*_: Any) -> Any:
        raise WeftError(
            "weft::device_sums has no gradient",
            help="second derivatives through experts are not supported: detach the gradient",
        )

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.size, ctx.inputs = inputs[0].shape[-2], inputs

    define(
        "rows_at(Tensor rows, Tensor places) -> Tensor",
        lambda rows, places: rows.new_empty((*places.shape, rows.shape[-1])),
        lambda ctx, grad: (ops.sums_at(grad, ctx.saved_tensors[1], ctx.size), None),
    )
    define(
        "sums_at(Tensor rows, Tensor places, int size) -> Tensor",
        lambda rows, places, size: rows.new_empty((*rows.shape[:-2], size, rows.shape[-1])),
        lambda ctx, grad: (ops.rows_at(grad, ctx.saved_tensors[1]), None, None),
    )
    define(
        "exchange_rows(Tensor rows, Tensor there, Tensor back, int size, str sharding) -> Tensor",
        lambda rows, there, back, size, _: rows.new_empty((*rows.shape[:2], size, rows.shape[3])),
        lambda ctx, grad: (
            # `back` before `there`: gradients return by the opposite routes.
            ops.exchange_rows(grad, *ctx.saved_tensors[:0:-1], ctx.size, ctx.inputs[4]),
            None, None, None, None,
        ),
    )  # fmt: skip

    define(
        # The identity of the whole tensor, of which only the sharding changes: so is its gradient.
        "gather_routing(Tensor x, str sharding) -> Tensor",
        lambda x, sharding: torch.empty_like(x),
        lambda ctx, grad: (grad, None),
    )

    def products_backward(ctx: Any, grad: Any) -> Any:
        rows, matrices, sizes = ctx.saved_tensors
        left = right = None
        if ctx.needs_input_grad[0]:
            left = ops.device_products(grad, matrices.transpose(-1, -2), sizes)
        if ctx.needs_input_grad[1]:
            # Devices along the batch have the same matrices: their gradients are summed.
            right = ops.device_sums(rows, grad, sizes).sum(1)
        return left, right, None

    define(
        "device_products(Tensor rows, Tensor matrices, Tensor sizes) -> Tensor",
        lambda rows, matrices, _: rows.new_empty((*rows.shape[:3], matrices.shape[3])),
        products_backward,
    )
    define(
        "device_sums(Tensor rows, Tensor grads, Tensor sizes) -> Tensor",
        lambda rows, grads, sizes: rows.new_empty((*sizes.shape, rows.shape[-1], grads.shape[-1])),
        no_second_derivative,
    )
    return held


# Lowerings


def rows_at(b: Build, rows: Value, places: Value) -> Value:
    """Rows at indices, and zeros at indices outside."""
    rows_type, count = type_of(rows), len(shape_of(places)) - 1
    lead, size = tuple(range(count)), rows_type.sizes[count]
    dims = GatherDims((count + 1,), (count,), lead, lead, (count,), count + 1)
    result = b.op(Gather(dims, (*[1] * (count + 1), rows_type.sizes[-1])), rows, places)
    low = b.compare("GE", places, b.like(places, 0))
    inside = b.op(And(), low, b.compare("LT", places, b.like(places, size)))
    mask = b.spread(inside, shape_of(result), range(count + 1))
    return b.select(mask, result, b.like(result, 0))


def sums_at(b: Build, rows: Value, places: Value, size: int) -> Value:
    """Sums of the rows of each index; rows of indices outside are left out."""
    wide = TensorType(b.out.sizes, computed_in(b.out.dtype))
    lead = tuple(range(wide.rank - 2))
    at = len(lead)
    dims = ScatterDims((at + 1,), (at,), lead, lead, (at,), at + 1)
    region = combiner("add", wide)
    sums = b.op(
        Scatter(dims, (wide,)),
        b.splat(0, wide), places, b.convert(rows, wide.dtype), regions=(region,),
    )  # fmt: skip
    return b.convert(sums, b.out.dtype)


def exchange_rows(
    b: Build, rows: Value, there: Value, back: Value, size: int, sharding: str
) -> Value:
    """A ragged all-to-all along the axes of the first dim, in a manual computation."""
    spec = parse_sharding(sharding)
    first, second = (dim.axes for dim in spec.dims[:2])
    numbers = Sharding(spec.mesh, (spec.dims[2], *spec.dims[:3]))
    rows_type, routed = type_of(rows), type_of(there)
    local = rows_type.with_shape((1, 1, *rows_type.sizes[2:]))
    # Input offsets, send sizes, output offsets and receive sizes, as the op takes them.
    vectors = routed.with_shape((4, 1, 1, routed.sizes[3]))
    args = (Value(local, None, 0), Value(vectors, None, 1))
    body = Build(loc=b.loc)
    out = body.splat(0, rows_type.with_shape((size, rows_type.sizes[3])))
    each = [body.reshape(body.slice(args[1], 0, n, n + 1), routed.sizes[3:]) for n in range(4)]
    groups = MeshAxes(spec.mesh, first)
    sent = body.reshape(args[0], local.sizes[2:])
    arrivals = body.op(RaggedAllToAll(groups, _CHANNEL), sent, out, *each)
    arrivals = body.reshape(arrivals, (1, 1, *shape_of(arrivals)))
    op = ManualComputation((spec, numbers), (spec,), (*first, *second), (b.out,))
    return b.op(op, rows, there, regions=(Region(args, body.nodes, (arrivals,)),))


def gather_routing(b: Build, x: Value, sharding: str) -> Value:
    """An all-gather along the axes of the first dim, in a manual computation.

    A constraint would be met where the value is read, at the price of a collective for each read.
    """
    spec, x_type = parse_sharding(sharding), type_of(x)
    (first, second), (devices, _, *rest) = (dim.axes for dim in spec.dims[:2]), x_type.sizes
    local, whole = (x_type.with_shape((count, 1, *rest)) for count in (1, devices))
    args, body = (Value(local, None, 0),), Build(loc=b.loc)
    gather = AllGather(0, MeshAxes(spec.mesh, first), (whole,), _CHANNEL, True)
    result = body.op(gather, *args)
    out = Sharding(spec.mesh, (spec.dims[2], *spec.dims[1:]))
    op = ManualComputation((spec,), (out,), (*first, *second), (x_type,))
    return b.op(op, x, regions=(Region(args, body.nodes, (result,)),))


def device_products(b: Build, rows: Value, matrices: Value, sizes: Value) -> Value:
    """Rows in groups, times the matrix of each group."""
    return _ragged(b, _PRODUCT, b.out.sizes, rows, matrices, sizes)


def device_sums(b: Build, rows: Value, grads: Value, sizes: Value) -> Value:
    """The sums over the rows of each group."""
    *devices, groups, m, n = b.out.sizes
    made = _ragged(b, _SUMS, (groups, *devices, m, n), rows, grads, sizes)
    return b.transpose(made, (1, 2, 0, 3, 4))


def _ragged(b: Build, dims: RaggedDims, shape: Any, *operands: Value) -> Value:
    """A ragged dot that accumulates in f32 at least."""
    left, right, sizes = operands
    wide = TensorType(tuple(shape), computed_in(b.out.dtype))
    made = b.op(RaggedDot(dims, wide), left, right, b.convert(sizes, I32))
    return b.convert(made, b.out.dtype)


LOWERINGS: dict[str, AtenLowering] = {
    f"weft.{lowering.__name__}.default": lowering
    for lowering in (rows_at, sums_at, exchange_rows, gather_routing, device_products, device_sums)
}
