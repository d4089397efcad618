"""Common subexpression elimination: equal nodes on equal values become one."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TypeAlias

from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.purity import is_pure
from weft.ir.rebuild import carry_tables

Known: TypeAlias = dict[object, Node]


def cse(module: Module) -> Module:
    """Merge every node without effect into an equal one that stands before it and sees the same."""
    enabled = gc.isenabled()
    gc.disable()  # only small objects that stay
    try:
        became: dict[Value, Value] = {}
        functions = {n: _function(f, became) for n, f in module.functions.items()}
        return carry_tables(module.with_functions(functions), became)
    finally:
        if enabled:
            gc.enable()


def _function(function: Function, became: dict[Value, Value]) -> Function:
    body = _region(function.body, {}, became)
    return function if body is function.body else replace(function, body=body)


def _region(region: Region, outer: Known, became: dict[Value, Value]) -> Region:
    """The region with equal nodes merged; nodes of the regions around it are known in it."""
    known = dict(outer) if outer else {}
    out: list[Node] = []
    add, get, look = out.append, became.get, known.get
    for node in region.nodes:
        operands = node.operands
        if operands:
            operands = tuple([get(v, v) for v in operands])
        if node.regions:
            regions = tuple([_region(r, known, became) for r in node.regions])
            key: object = (node.op, operands, node.attrs, *map(_structure, regions))
            mergeable = is_pure(node)
        else:
            regions = ()
            op = node.op
            key = (op, operands, node.attrs)
            mergeable = op.pure and not op.collective and not hasattr(op, "callee")
        twin = look(key) if mergeable else None
        if twin is not None:
            became.update(zip(node.results, twin.results, strict=True))
            continue
        if operands != node.operands or regions != node.regions:
            made = node.rebuilt(operands, regions)
            became.update(zip(node.results, made.results, strict=True))
            node = made
        if mergeable:
            known[key] = node
        add(node)
    results = tuple([get(v, v) for v in region.results])
    if len(out) == len(region.nodes) and results == region.results and out == region.nodes:
        return region
    return Region(region.args, out, results, region.loc, region.arg_locs)


def _structure(region: Region) -> tuple[object, ...]:
    """What a region computes, with its own values numbered, so that equal regions are equal."""
    numbers: dict[Value, int] = {v: n for n, v in enumerate(region.args)}
    return _numbered(region, numbers)


def _numbered(region: Region, numbers: dict[Value, int]) -> tuple[object, ...]:
    parts: list[object] = [tuple(v.type for v in region.args)]
    for value in region.args:
        numbers.setdefault(value, len(numbers))
    for node in region.nodes:
        operands = tuple([numbers.get(v, v) for v in node.operands])
        inner = tuple(_numbered(r, numbers) for r in node.regions)
        parts.append((node.op, operands, node.attrs, inner))
        for value in node.results:
            numbers[value] = len(numbers)
    parts.append(tuple([numbers.get(v, v) for v in region.results]))
    return tuple(parts)
