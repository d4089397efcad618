"""Fuse the nodes of a region into kernels, in executable order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.ir.module import Value
from weft.ir.uses import free_variables
from weft.kernels.group import AnyKernel, Group
from weft.kernels.kernel import Kernel
from weft.kernels.single_node import SingleNode, single_node_kernel
from weft.kernels.stacked_node import StackedNode
from weft.ops.convolution import Convolution
from weft.target import Target
from weft.tile.attention.fuse import attention_groups
from weft.tile.drafts.convolution import convolution_kernel
from weft.tile.drafts.finish import finished
from weft.tile.fusion.grouping import Grouping
from weft.tile.fusion.ordering import hoist_kernels, in_order
from weft.tile.fusion.reduced_products import reduced_products
from weft.tile.fusion.shared_reads import shared_reads


def fuse(
    nodes: Sequence[StackedNode], sizes: tuple[int, ...], results: Sequence[Value], target: Target
) -> list[Group]:
    """The groups of a region's nodes, given their masks.

    `sizes` are those of the leading dims, `results` must be materialized. The target defines what
    its kernels can compute, and schedules them. With its option `fold_sums` a contraction absorbs a
    following all_reduce, which changes rounding; without `excess_precision` every step rounds as
    its node does.
    """
    exact = not target.options.excess_precision
    found = attention_groups(nodes, sizes, results, excess_precision=not exact)
    attention = [g for g in found if g.kernel and target.unsupported_kernel(g.kernel) is None]
    grouping = Grouping(nodes, sizes, results, target, attention)
    grouping.run()
    groups = [*attention, *(finished(draft, grouping.shape, target) for draft in grouping.drafts)]
    places = {p.node: p for p in nodes}
    for node in grouping.alone:
        kernel = by_itself(places[node], sizes, target)
        inputs = node.operands if kernel is not None else (*node.operands, *free_variables(node))
        groups.append(Group((node,), kernel, inputs, node.results))
    # An order with exchanges in flight is a schedule, whose kernels hide them where they are.
    scheduled = bool(grouping.flights.spans)
    ordered = in_order(groups, grouping.positions, scheduled)
    rest = (grouping.positions, grouping.flights, target)
    # After the ordering: merging asks which groups lie between a product and its reduction.
    merged = reduced_products(ordered, results, *rest)
    if target.limits.shared:
        ordered = in_order(merged, grouping.positions, scheduled)
        merged = shared_reads(ordered, results, target)
    made = in_order(merged, grouping.positions, scheduled)
    made = made if scheduled else hoist_kernels(made, results)
    return [_strict(group) for group in made] if exact else made


def by_itself(stacked: StackedNode, sizes: tuple[int, ...], target: Target) -> AnyKernel | None:
    """The kernel of an unfused node, if the target has one."""
    convolved = isinstance(stacked.node.op, Convolution)
    kernel = (
        convolution_kernel(stacked, sizes, target)
        if convolved
        else single_node_kernel(stacked, sizes)
    )
    if kernel is None or target.unsupported_kernel(kernel) is not None:
        return None
    exact = not target.options.excess_precision
    return replace(kernel, excess_precision=False) if exact else kernel


def _strict(group: Group) -> Group:
    """A group whose kernel has no excess precision."""
    if not isinstance(group.kernel, Kernel | SingleNode):
        return group
    return replace(group, kernel=replace(group.kernel, excess_precision=False))
