"""Sequence parallelism: the activations between the blocks of tensor parallelism are split, too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft.capture.captured import Leaf
from weft.capture.torch.constrain import Hooks, define_constraint, sharding_text
from weft.capture.torch.plans.ready import (
    DATA,
    PLANS,
    MeshRoles,
    is_transposed,
    mesh_roles,
    styles_of,
    tensor_split,
)
from weft.ir.module import Module, Node, Value, apply, tensor_of
from weft.ir.rebuild import rewrite
from weft.mesh import Mesh, P
from weft.ops.contract import DotDims, DotGeneral
from weft.ops.elementwise.convert import Convert
from weft.ops.shape import Reshape, Transpose


def splits_sequences(plan: object) -> bool:
    """Whether a plan's name has sequence parallelism in it."""
    return isinstance(plan, str) and plan in PLANS and "sp" in plan.split("+")


def splits_heads(mesh: Mesh | None) -> bool:
    """Whether a mesh has axes that may split more than the batch."""
    return mesh is not None and any(size > 1 and axis not in DATA for axis, size in mesh.axes)


@contextmanager
def split_sequences(
    plan: object, module: Any, state: Sequence[Leaf], mesh: Mesh | None
) -> Iterator[None]:
    """Trace a module with the constraints of sequence parallelism, if the plan has it."""
    if not splits_sequences(plan) or mesh is None:
        yield
        return
    axes, styles = mesh_roles(mesh), styles_of(module)
    columns: list[Any] = []
    rows: list[Any] = []
    for leaf in state:
        path, _, kind = leaf.name.rpartition(".")
        split = tensor_split(leaf, {"tp"}, axes, styles, module) if kind == "weight" else {}
        if split and len(leaf.shape) == 2:
            layer = module.get_submodule(path)
            # What an embedding split by its vocabulary returns is a partial sum, too.
            summed = (0 not in split) != is_transposed(module, path)
            is_row = summed or hasattr(layer, "num_embeddings")
            (rows if is_row else columns).append(layer)
    with _constrained(columns, rows, axes):
        yield


@contextmanager
def _constrained(columns: Sequence[Any], rows: Sequence[Any], axes: MeshRoles) -> Iterator[None]:
    """Split activations between blocks along the sequence, while a module is traced.

    The inputs of layers that are split by columns are whole, once for all layers that read one; the
    outputs of layers that are split by rows, and the gradients of both, are split along dim 1.
    Inside of a block, between the two, features are split.
    """
    import torch

    define_constraint()
    op = torch.ops.weft.constrain
    gathered: dict[int, tuple[Any, Any]] = {}  # by identity, with the tensor that has it

    def text(x: Any, *dims: tuple[str, ...] | None) -> str:
        data = axes.data if axes.divide(x.shape[0], axes.data) else None
        return sharding_text(P(data, *dims), 3)

    def is_split(x: Any, dim: int) -> bool:
        is_activation = isinstance(x, torch.Tensor) and x.dim() == 3
        return is_activation and axes.divide(x.shape[dim], axes.tensor)

    def gather(_: Any, args: Any) -> Any:
        if not args or not is_split(args[0], 1):
            return None
        x = args[0]
        if id(x) not in gathered:
            # The gradient is split along the sequence: the partial sums of all columns are
            # reduce-scattered.
            gathered[id(x)] = (x, op(x, text(x, None, None), text(x, axes.tensor, None)))
        return gathered[id(x)][1], *args[1:]

    def scatter(_: Any, __: Any, made: Any) -> Any:
        return op(made, text(made, axes.tensor, None)) if is_split(made, 1) else made

    def inside(_: Any, args: Any, made: Any = None) -> Any:
        x = made if made is not None else args[0] if args else None
        found = op(x, text(x, None, axes.tensor)) if is_split(x, 2) else x
        return found if made is not None or not args else (found, *args[1:])

    handles = [module.register_forward_hook(scatter) for module in rows]
    for module in columns:
        handles += [module.register_forward_pre_hook(gather), module.register_forward_hook(inside)]
    handles += [module.register_forward_pre_hook(inside) for module in rows]
    try:
        yield
    finally:
        Hooks(tuple(handles)).remove()


def unmerge_batches(module: Module) -> Module:
    """Products of batches of matrices, with the dims apart that a reshape has merged to a batch.

    Splits of the batch by data and of the heads by tensor parallelism have none in one dim of both.
    """
    return rewrite(module, _unmerged, kinds=(Reshape,))


def _unmerged(node: Node) -> Node | None:
    """reshape(dot(reshape(x), reshape(y))) -> dot(x, y), where batch dims alone are merged."""
    made = node.operands[0].node
    converted = made if made is not None and isinstance(made.op, Convert) else None
    product = made if converted is None else converted.operands[0].node
    if product is None or not isinstance(product.op, DotGeneral):
        return None
    op, type = product.op, tensor_of(node.results[0])
    dims, merged = op.dot_dimension_numbers, tensor_of(product.results[0])
    if (dims.lhs_batching_dimensions, dims.rhs_batching_dimensions) != ((0,), (0,)):
        return None
    count = type.rank - merged.rank + 1  # of the dims that are merged to one
    lead = type.sizes[:count]
    if count < 2 or type.sizes[count:] != merged.sizes[1:] or math.prod(lead) != merged.sizes[0]:
        return None
    x, y = (_with_lead(value, lead) for value in product.operands)
    if x is None or y is None:
        return None
    batch = tuple(range(count))
    left, right = (
        tuple([dim + count - 1 for dim in contracted])
        for contracted in (dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions)
    )
    whole = merged.with_shape(type.sizes)
    found = DotGeneral(DotDims(batch, batch, left, right), whole, op.precision_config, op.algorithm)
    value = apply(found, x, y, loc=product.loc)
    if converted is None:
        return value
    return apply(Convert(type), value.results[0], loc=converted.loc)


def _with_lead(value: Value, lead: tuple[int, ...]) -> Value | None:
    """The value whose leading dims were merged to the first of this one, or None."""
    node = value.node
    if node is None:
        return None
    if isinstance(node.op, Transpose) and node.op.permutation[0] == 0:
        inner = _with_lead(node.operands[0], lead)
        order = [dim + len(lead) - 1 for dim in node.op.permutation[1:]]
        if inner is None:
            return None
        return apply(Transpose((*range(len(lead)), *order)), inner, loc=node.loc).results[0]
    if not isinstance(node.op, Reshape):
        return None
    (source,), type = node.operands, tensor_of(value)
    given, rows = tensor_of(source).sizes, type.sizes[1:]
    if given == (*lead, *rows):
        return source
    # Heads that queries share are two dims, or one.
    if len(given) <= type.rank or given[-len(rows) :] != rows:
        return None
    return apply(Reshape(type.with_shape((*lead, *rows))), source, loc=node.loc).results[0]
