"""Make a program on which Weft and Shardy differ small.

`python -m tests.shard.shrink FILE [user|op|aggressive|basic|whole]`: right after propagation on
that level, or after the whole pipeline.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from tests.shard import whole
from tests.shard.compare import compared, listed
from tests.shard.oracle import propagated
from weft.capture import parse
from weft.ir.module import Function, Module, Node, Region, Value, walk
from weft.shard import PropagationLevel, propagate

SHARDING = "sdy.sharding"


def differs(text: str, stage: str = "user") -> bool:
    """Whether the oracle takes a program, and Weft does otherwise or fails."""
    try:
        if stage == "whole":
            whole.exported(text)  # refuses what is not a program
            return bool(whole.differences(parse(text)))
        level = cast(PropagationLevel, stage)
        answer = propagated(text, level, final=False)
        if answer.error is not None:
            return False
        return bool(list(compared(answer.propagated, listed(propagate(parse(text), level)))))
    except whole.Refused:
        return False
    except Exception:  # noqa: BLE001  # any failure of ours is a difference
        return True


def shrink(text: str, stage: str = "user") -> str:
    """A smaller program that still differs."""
    module = parse(text)
    again = True
    while again:
        again = False
        for candidate in candidates(module):
            try:
                shown = candidate.text()
            except KeyError:  # reads what is not there
                continue
            if differs(shown, stage):
                module, again = parse(shown), True
                break
    return module.text()


def candidates(module: Module) -> Iterator[Module]:
    """Programs that are a little smaller, the much smaller ones first."""
    for name in module.functions:
        if name != "main":
            rest = {n: f for n, f in module.functions.items() if n != name}
            yield module.with_functions(rest)
    for name, function in module.functions.items():
        made = dict(module.functions)
        for smaller in (*_without_nodes(function), *_without_ends(function), *_plainer(function)):
            made[name] = smaller
            yield module.with_functions(made)


def _without_nodes(function: Function) -> Iterator[Function]:
    """One node less; who read it reads a new argument, or one of the same type that there is."""
    nodes = sorted(walk(function.body), key=lambda n: -sum(1 for r in n.regions for _ in walk(r)))
    for node in nodes:
        if not _is_read(function.body, node):
            yield replace(function, body=_rebuilt(function.body, {node}, {}))
    for node in reversed(nodes):
        for stand_in in (node.operands, function.body.args):
            found = [next((v for v in stand_in if v.type is r.type), None) for r in node.results]
            if node.results and all(v is not None for v in found):
                became = dict(zip(node.results, found, strict=True))
                yield replace(function, body=_rebuilt(function.body, {node}, became))
        args = [Value(t, None, len(function.body.args) + n) for n, t in enumerate(node.types)]
        became = dict(zip(node.results, args, strict=True))
        body = _rebuilt(function.body, {node}, became, tuple(args))
        attrs = function.arg_attrs
        if function.name == "main":
            yield replace(
                function, body=body, arg_attrs=(*attrs, *((),) * len(args)) if attrs else ()
            )


def _is_read(region: Region, node: Node) -> bool:
    made = set(node.results)
    return bool(made) and (
        any(v in made for n in walk(region) for v in n.operands)
        or any(v in made for r in _regions(region) for v in r.results)
    )


def _regions(region: Region) -> Iterator[Region]:
    yield region
    for node in region.nodes:
        for inner in node.regions:
            yield from _regions(inner)


def _without_ends(function: Function) -> Iterator[Function]:
    """Fewer results, fewer arguments."""
    if function.name != "main":
        return
    body = function.body
    for n in range(len(body.results)):
        if len(body.results) == 1:
            break
        kept = [m for m in range(len(body.results)) if m != n]
        results = tuple(body.results[m] for m in kept)
        attrs = tuple(function.res_attrs[m] for m in kept) if function.res_attrs else ()
        yield replace(function, body=Region(body.args, body.nodes, results), res_attrs=attrs)
    used = {v for n in walk(body) for v in n.operands} | {
        v for r in _regions(body) for v in r.results
    }
    for n, value in enumerate(body.args):
        if value not in used:
            kept = [m for m in range(len(body.args)) if m != n]
            args = tuple(body.args[m] for m in kept)
            attrs = tuple(function.arg_attrs[m] for m in kept) if function.arg_attrs else ()
            yield replace(function, body=Region(args, body.nodes, body.results), arg_attrs=attrs)


def _plainer(function: Function) -> Iterator[Function]:
    """One annotation less."""
    for n, attrs in enumerate(function.arg_attrs):
        if attrs:
            rest = (*function.arg_attrs[:n], (), *function.arg_attrs[n + 1 :])
            yield replace(function, arg_attrs=rest)
    for n, attrs in enumerate(function.res_attrs):
        if attrs:
            rest = (*function.res_attrs[:n], (), *function.res_attrs[n + 1 :])
            yield replace(function, res_attrs=rest)
    for node in walk(function.body):
        if any(name == SHARDING for name, _ in node.attrs):
            yield replace(function, body=_rebuilt(function.body, set(), {}, plain=node))


def _rebuilt(
    region: Region,
    dropped: set[Node],
    became: dict[Value, Value | None],
    more: tuple[Value, ...] = (),
    plain: Node | None = None,
) -> Region:
    def read(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(_last(v, became) for v in values)

    nodes = []
    for node in region.nodes:
        if node in dropped:
            continue
        regions = tuple(_rebuilt(r, dropped, became, plain=plain) for r in node.regions)
        attrs = node.attrs
        if node is plain:
            attrs = tuple(a for a in attrs if a[0] != SHARDING)
        made = Node(node.op, read(node.operands), node.types, regions, attrs, node.loc)
        became.update(zip(node.results, made.results, strict=True))
        nodes.append(made)
    return Region((*region.args, *more), nodes, read(region.results), region.loc)


def _last(value: Value, became: dict[Value, Value | None]) -> Value:
    while (following := became.get(value)) is not None:
        value = following
    return value


if __name__ == "__main__":
    print(shrink(Path(sys.argv[1]).read_text(), *sys.argv[2:]))
