"""Results of graphs with eager mode's strides: dims in the order that it has in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def permute_outputs(module: Any, places: range) -> dict[int, tuple[int, ...]]:
    """Permute those of a graph's outputs that are not row-major in eager mode, so that they are.

    Programs give contiguous results. Returns, by output, the order of dims that undoes this.
    """
    import torch

    graph = module.graph
    output = graph.output_node()
    made = [*output.args[0]]
    undone: dict[int, tuple[int, ...]] = {}
    for n in places:
        held = made[n].meta.get("val") if isinstance(made[n], torch.fx.Node) else None
        if not isinstance(held, torch.Tensor) or (order := _order(held)) is None:
            continue
        with graph.inserting_before(output):
            node = graph.call_function(torch.ops.aten.permute.default, (made[n], [*order]))
        node.meta = {**made[n].meta, "val": held.permute(order)}
        made[n] = node
        undone[n] = tuple([order.index(dim) for dim in range(len(order))])
    output.args = (made,)
    return undone


def _order(tensor: Any) -> tuple[int, ...] | None:
    """The dims of a tensor from the outermost in memory on; None if they are in order."""
    sizes, strides = _numbers(tensor.shape), _numbers(tensor.stride())
    long = [dim for dim, size in enumerate(sizes) if size != 1]  # the others have any stride
    steps = [strides[dim] for dim in long]
    if None in steps or 0 in steps or 0 in sizes:
        return None
    ordered = sorted(long, key=lambda dim: strides[dim] or 0, reverse=True)
    if ordered == long:
        return None
    order = [*range(len(sizes))]
    for place, dim in zip(long, ordered, strict=True):
        order[place] = dim
    return tuple(order)


def _numbers(sizes: Sequence[Any]) -> list[int | None]:
    """Sizes or strides, symbolic ones by their values in the call that is compiled."""
    return [each if isinstance(each, int) else each.node.hint for each in sizes]


def permuted(results: Sequence[Any], undone: Mapping[int, tuple[int, ...]]) -> list[Any]:
    """The results with their own dims again."""
    made = [*results]
    for n, order in undone.items():
        made[n] = made[n].permute(order)
    return made
