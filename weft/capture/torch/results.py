"""Results of a program as PyTorch tensors: the result tree, and updates of the caller's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from weft.array.exchange import to_numpy, to_torch
from weft.array.update import update
from weft.capture.captured import Leaf
from weft.capture.torch.graph import GraphConstant, Imported
from weft.ir.types import TensorType
from weft.ops.elementwise.pointwise import Add
from weft.ops.shape import Constant
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Packing:
    """The conversion of results into the function's result tree."""

    tree: Any
    leaves: tuple[int | GraphConstant, ...]
    updated: tuple[int, ...]
    alone: int | None = field(init=False)  # the only result, where that is the whole tree

    def __post_init__(self) -> None:
        only = self.leaves[0] if len(self.leaves) == 1 and self.tree.is_leaf() else None
        object.__setattr__(self, "alone", only if isinstance(only, int) else None)

    def unflatten(self, results: list[Any]) -> Any:
        """The result tree with tensors in it."""
        if self.alone is not None:
            return results[self.alone]
        return self.tree.unflatten(
            [each.value if isinstance(each, GraphConstant) else results[each]
             for each in self.leaves]
        )  # fmt: skip


def own_tensor(array: Any, leaf: Leaf) -> Any:
    """An array as a tensor in memory of its own: no argument's, nor another result's."""
    held = array.enqueued()
    is_one = held.is_on_host and held.data.shape == (1,) * held.lead + leaf.shape
    if is_one and held.owned and held.data.flags.writeable:
        return to_torch(held.data.reshape(leaf.shape))  # no other array has this memory
    whole = array.gathered()  # on workers, too
    held = whole.enqueued()
    if held.owned:
        return whole.to_torch()
    return to_torch(whole.numpy().copy()) if held.is_on_host else whole.to_torch().clone()


def counted_updates(program: Imported) -> tuple[tuple[int, float], ...]:
    """The updates of numbers that add a constant, such as a step count: result and constant."""
    body = program.module.function("main").body
    counts: list[tuple[int, float]] = []
    for n, place in enumerate(program.updated):
        node, argument = body.results[n].node, body.args[place]
        if node is None or not isinstance(node.op, Add) or argument not in node.operands:
            continue
        # `x + x` has no other operand, and is no count.
        (other,) = [v for v in node.operands if v is not argument] or [argument]
        known, type = None if other.node is None else other.node.op, argument.type
        is_number = isinstance(type, TensorType) and not type.sizes and type.dtype.is_float
        if is_number and isinstance(known, Constant):
            counts.append((n, float(known.value.array.item())))
    return tuple(counts)


def write_updates(
    values: Sequence[Any],
    updated: Sequence[int],
    results: Sequence[Any],
    counted: Sequence[tuple[int, float]],
) -> None:
    """Write new values into the caller's tensors, unless the program has done so itself.

    Counts on the host are added to there: a device's results would have to be waited for.
    """
    import torch

    changed = [values[place] for place in updated]
    # `results` goes on with the outputs; it is empty if the program wrote to these tensors itself.
    pairs = [*zip(changed, results, strict=False)]
    for n, number in counted:
        tensor, result = pairs[n]
        if tensor.device.type == "cpu" and not result.enqueued().is_on_host:
            tensor.detach().add_(number)
            pairs[n] = (None, None)
    pairs = [pair for pair in pairs if pair[0] is not None]
    # Views with a lazy conjugation or negation: numpy has no such views of their memory.
    lazy = [(t, result) for t, result in pairs if t.is_conj() or t.is_neg()]
    for tensor, result in lazy:
        tensor.detach().copy_(result.to_torch())
    pairs = [pair for pair in pairs if not (pair[0].is_conj() or pair[0].is_neg())]
    on_host = [(t, result) for t, result in pairs if t.device.type == "cpu"]
    update([to_numpy(t) for t, _ in on_host], [result for _, result in on_host])
    _update_on_device([(t, result) for t, result in pairs if t.device.type != "cpu"])
    torch.autograd.graph.increment_version(changed)  # as in-place ops do


def _update_on_device(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Write new values into tensors of a device; nothing where the program has written there.

    A result in memory that is not its own may be in another tensor's: it is copied first.
    """
    # All results are read before a tensor is written: one may lie in the memory of another's
    # target.
    left = []
    for tensor, result in pairs:
        whole = result.gathered()
        held = whole.enqueued()  # later work of the stream waits for it
        if not held.is_on_host and held.memory.address(held.data) == tensor.data_ptr():
            continue
        made = whole.to_torch()
        left.append((tensor, made if held.owned else made.clone()))
    for tensor, made in left:
        tensor.detach().copy_(made)
