"""Convolution along split spatial dims, with halo exchange."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from weft.ir.module import Node
from weft.ir.op import rule as rule_of
from weft.ir.rule import Dims, Rule, RuleFactor
from weft.mesh import Mesh
from weft.mesh.algebra import Axes, DimAxes, total_size
from weft.ops.convolution import Convolution
from weft.partition.partitioners.dilation import ZERO, DeviceView, Dilation, dilated_view
from weft.partition.partitioners.views import Views, empty, sent_by
from weft.partition.partitioners.windows import window_view
from weft.partition.piece import Piece
from weft.partition.site import NodeSite, tensor
from weft.partition.strategy.factors import FactorAxes, compact, split_by_factors


def convolution_rules(node: Node, splits: tuple[DimAxes, ...]) -> tuple[Rule, ...]:
    """A spatial dim of the input is split with the window positions, or with the kernel.

    With the positions, neighbours exchange halos. With the kernel, devices also have partial sums
    over their parts of the kernel.
    """
    op = node.op
    assert isinstance(op, Convolution)
    plain = rule_of(op, node.operand_types)
    spatial = range(len(op.dimension_numbers.input_spatial_dimensions))
    rules = []
    for kept in itertools.product((True, False), repeat=len(spatial)):
        rule = plain
        for n, is_kept in zip(spatial, kept, strict=True):
            rule = _with_spatial(rule, node, op, n, is_kept)
        rules.append(_compact(rule))
    return tuple(rules)


def _with_spatial(rule: Rule, node: Node, op: Convolution, n: int, is_kept: bool) -> Rule:
    """The rule with a spatial dim of the input as a factor of the result or of the kernel."""
    dims = op.dimension_numbers
    a, b, c = (
        dims.input_spatial_dimensions[n],
        dims.kernel_spatial_dimensions[n],
        dims.output_spatial_dimensions[n],
    )
    rhs, out = tensor(node.operand_types[1]), op.out
    shared, alone = len(rule.factors), len(rule.factors) + 1
    if is_kept:
        # One factor for input and output positions although their sizes differ: shards of the input
        # are aligned with those of the output up to the halo that the view fetches.
        new = (RuleFactor(out.sizes[c], "permutation"), RuleFactor(rhs.sizes[b], "whole"))
        places = (shared, alone, shared)
    else:
        new = (RuleFactor(rhs.sizes[b], "reduction"), RuleFactor(out.sizes[c], "whole"))
        places = (shared, shared, alone)
    left, right = rule.operands
    return replace(
        rule,
        factors=(*rule.factors, *new),
        operands=(_at(left, a, places[0]), _at(right, b, places[1])),
        results=(_at(rule.results[0], c, places[2]),),
    )


def _at(dims: Dims, dim: int, factor: int) -> Dims:
    return (*dims[:dim], (factor,), *dims[dim + 1 :])


def _compact(rule: Rule) -> Rule:
    """The rule without unused factors; placeholder factors stay whole."""
    rule = compact(rule)
    factors = [RuleFactor(f.size, "whole") if f.needs_offset else f for f in rule.factors]
    return Rule(tuple(factors), rule.operands, rule.results)


def convolution_sent(node: Node, rule: Rule, by_factor: FactorAxes, mesh: Mesh) -> float:
    """The bytes of the input's halos; a kernel of uneven size is not split."""
    op, kernel = node.op, split_by_factors(by_factor, rule.operands[1], rule, mesh)
    assert isinstance(op, Convolution) and kernel is not None
    sizes = tensor(node.operand_types[1]).sizes
    for dim in op.dimension_numbers.kernel_spatial_dimensions:
        if sizes[dim] % total_size(kernel[dim], mesh):
            return math.inf
    return sent_by(convolution_views)(node, rule, by_factor, mesh)


def convolution_views(
    node: Node, operands: tuple[DimAxes, ...], results: tuple[DimAxes, ...], mesh: Mesh
) -> Views:
    """The views of the input under a device's window positions, or under its part of the kernel."""
    op = node.op
    assert isinstance(op, Convolution)
    dims = op.dimension_numbers
    lhs, rhs = (tensor(t) for t in node.operand_types)
    window = op.window(rhs)
    views = []
    for n, (a, b, c) in enumerate(
        zip(
            dims.input_spatial_dimensions,
            dims.kernel_spatial_dimensions,
            dims.output_spatial_dimensions,
            strict=True,
        )
    ):
        if axes := results[0][c]:
            sizes = lhs.sizes[a], op.out.sizes[c]
            views.append((0, window_view(window, n, a, axes, sizes, mesh)))
        elif axes := operands[1][b]:
            views.append((0, _kernel_view(op, node, n, axes, mesh)))
    return views


def _kernel_view(op: Convolution, node: Node, n: int, axes: Axes, mesh: Mesh) -> DeviceView:
    """The view of the input under a part of the kernel at all window positions."""
    dims = op.dimension_numbers
    lhs, rhs = (tensor(t) for t in node.operand_types)
    window, places = op.window(rhs), op.out.sizes[dims.output_spatial_dimensions[n]]
    count, apart = total_size(axes, mesh), window.window_dilations[n]
    piece = -(-window.sizes[n] // count)
    begins = [t * piece for t in range(count)]
    # A reversed window meets the kernel from its end on.
    if op.window_reversal is not None and op.window_reversal[n]:
        begins = [window.sizes[n] - (t + 1) * piece for t in range(count)]
    starts = tuple(b * apart for b in begins)
    width = (piece - 1) * apart + (places - 1) * window.strides[n] + 1
    dim = dims.input_spatial_dimensions[n]
    spread = Dilation(lhs.sizes[dim], window.padding[n][0], window.base_dilations[n])
    return DeviceView(dim, axes, spread, starts, width, tuple(s + width for s in starts))


def convolution(site: NodeSite) -> tuple[Piece, ...]:
    """A local convolution on the view."""
    op, (lhs, rhs) = site.node.op, site.operands
    assert isinstance(op, Convolution)
    if empty(site):
        return site.zeros()
    splits = (lhs.split, rhs.split)
    window = op.window(tensor(site.node.operand_types[1]))
    padding, steps = [*window.padding], [*window.base_dilations]
    value = lhs.value
    numbers = op.dimension_numbers.input_spatial_dimensions
    for _, view in convolution_views(site.node, splits, site.splits, site.mesh):
        n = numbers.index(view.dim)
        seen = dilated_view(site.builder, value, view, ZERO)
        value = seen.value
        padding[n], steps[n] = (seen.low, seen.high), seen.step
    local = op.local((value.type, rhs.value.type), site.local_types())
    local = local.replace(padding=tuple(padding), lhs_dilation=tuple(steps))
    return site.result_pieces(*site.add(local, (value, rhs.value)))
