"""The groups of a region for a target: decided or cached; then tuned."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from weft.cache.entry import Key
from weft.cache.store import the_store
from weft.errors import WeftError
from weft.ir.module import Node, Value
from weft.ir.types import TensorType
from weft.kernels.group import AnyKernel, Group
from weft.kernels.stacked_node import StackedNode
from weft.target import Target
from weft.tile.drafts.pulls import REDUCTIONS
from weft.tile.fusion.fuse import fuse
from weft.tile.fusion.nodes import unsupported_reason
from weft.tile.fusion.recall import fingerprint, packed, restored
from weft.tile.fusion.sums import sums_apart
from weft.tune import tuned

LARGE = 300  # nodes of a region from which caching pays off


def group(
    nodes: Sequence[StackedNode], sizes: tuple[int, ...], results: Sequence[Value], target: Target
) -> Sequence[Group]:
    """The nodes of a region as kernels, in executable order.

    A group without a kernel is one node for the host. `sizes` are those of the leading dims;
    `results` must be materialized. Decisions for large regions are cached on disk. Kernels with
    candidates use the fastest, as far as known.
    """
    replacements: dict[AnyKernel, AnyKernel] = {}
    groups_so_far: list[Group] = []
    for group in _groups(nodes, sizes, results, target):
        kernel = group.kernel
        if kernel is None and type(group.nodes[-1].op) in REDUCTIONS:
            _warn_of_numpy(group.nodes[-1], target)
        if kernel is not None and target.options.tune != "off":
            if kernel not in replacements:
                replacements[kernel] = tuned(kernel, target)
            if replacements[kernel] is not kernel:
                group = replace(group, kernel=replacements[kernel])
        groups_so_far.append(group)
    return groups_so_far


def _groups(
    nodes: Sequence[StackedNode], sizes: tuple[int, ...], results: Sequence[Value], target: Target
) -> Sequence[Group]:
    if target.options.fold_sums:
        # Before the fingerprint: it changes the nodes that groups are made of.
        nodes = sums_apart(nodes, results)
    identity = target.identity if len(nodes) >= LARGE else None
    if identity is None:
        return fuse(nodes, sizes, results, target)
    store, parts = the_store(), [("region", fingerprint(nodes, sizes, results))]
    parts += [("processor", identity), ("target", target.name)]
    parts += [("fold_sums", str(target.options.fold_sums))]
    parts += [("excess_precision", str(target.options.excess_precision))]
    key = Key("groups", f"{len(nodes)} nodes", tuple(parts))
    data = store.get(key)
    if data is not None:
        try:
            groups = restored(data, nodes, sizes)
        except WeftError:
            store.refuse(key)
        else:
            target.recall(_kernels(groups), hashlib.sha256(data).hexdigest())
            return groups
    groups = fuse(nodes, sizes, results, target)
    data = packed(groups, nodes)
    if data is not None:
        store.put(key, data)
        target.remember(_kernels(groups), hashlib.sha256(data).hexdigest())
    return groups


def _kernels(groups: Sequence[Group]) -> list[AnyKernel]:
    """The distinct kernels of groups, in order."""
    return [*dict.fromkeys([group.kernel for group in groups if group.kernel is not None])]


def _warn_of_numpy(node: Node, target: Target) -> None:
    """Warn about a reduction that falls back to numpy because of its element type."""
    if unsupported_reason(node, target) is not None:
        dtypes = dict.fromkeys([t.dtype.name for t in node.types if isinstance(t, TensorType)])
        what = f"{node.op.name} of {', '.join(dtypes)}"
        _warn_once(f"{what} has no kernel of the {target.name} target: numpy runs it")


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)
