"""XLA's own partitioner: the collectives of a program that it has compiled, and what they send.

The program, annotated for Shardy, is compiled for forced host devices as JAX does it; collectives
are read from the optimized HLO text and counted as `weft.cost.sent` counts ours.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from tests.oracles.process import Oracle, serve
from weft.cost.collective_time import TrafficKind
from weft.cost.sent import share_sent

ORACLE = Oracle("tests.oracles.xla_collectives", timeout=900.0)
MOST = 32  # devices
KINDS: dict[str, TrafficKind] = {
    "all-reduce": "reduce",
    "all-gather": "gather",
    "reduce-scatter": "scatter",
    "all-to-all": "exchange",
    "ragged-all-to-all": "exchange",
    "collective-permute": "permute",
    "collective-broadcast": "permute",
}
_WORDS = "|".join(sorted(KINDS, key=len, reverse=True))
_COLLECTIVE = re.compile(rf" = (.*?) ({_WORDS})(-start)?\(")
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_CALLED = re.compile(r"(?:to_apply|calls|called_computations)=\{?%?([\w.-]+)")
_WHILE = re.compile(r" while\(.*condition=%?([\w.-]+), body=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRUE_FALSE = re.compile(r"true_computation=%?([\w.-]+), false_computation=%?([\w.-]+)")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
_MESH = re.compile(r"replica_groups=(?:@\w+ |)mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_LISTS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_MOVES = re.compile(r" (?:bitcast|copy|transpose|reshape|convert|fusion|get-tuple-element)\(")
_PAIRS = re.compile(r"source_target_pairs=\{([{}\d,]*)\}")


@dataclass(frozen=True)
class Row:
    """A collective: what a device sends in it, and how often it is run."""

    name: str
    devices: int
    bytes: float
    count: int
    reach: int = 0  # of a gather: the devices whose pieces the result holds, earlier gathers' too


def collectives(text: str, devices: int) -> list[Row]:
    """The collectives that XLA makes of an annotated program."""
    return [Row(*each) for each in ORACLE.ask({"text": text, "devices": devices})]


def optimized(text: str, devices: int) -> str:
    """XLA's optimized program, as HLO text."""
    made: str = ORACLE.ask({"text": text, "devices": devices, "hlo": True})
    return made


# Reading HLO text


@dataclass
class _Computation:
    rows: list[Row] = field(default_factory=list)
    calls: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)  # rounds, one of these
    reach: dict[str, int] = field(default_factory=dict)  # of values that gathers lead to


def read(hlo: str, everyone: int) -> list[Row]:
    """Every collective of a module's text, as often as its entry runs it."""
    computations: dict[str, _Computation] = {}
    entry, current = "", _Computation()
    for line in hlo.splitlines():
        if head := _HEAD.match(line):
            current = computations[head[1]] = _Computation()
            entry = head[1] if line.startswith("ENTRY") else entry
        elif " = " in line:
            for row in _collective(line, everyone):
                current.rows.append(_reaching(line, row, current.reach))
            _lead_on(line, current.reach)
            current.calls.extend(_calls(line))
    return list(_run(entry, computations))


def _reaching(line: str, row: Row, reach: dict[str, int]) -> Row:
    """A gather with its reach, which is noted for what reads it."""
    if row.name != "all-gather":
        return row
    name, operands = _names(line)
    before = max((reach.get(o, 1) for o in operands), default=1)
    reach[name] = row.devices * before
    return replace(row, reach=reach[name])


def _lead_on(line: str, reach: dict[str, int]) -> None:
    """What only rearranges a gathered value leads on to it."""
    name, operands = _names(line)
    if _MOVES.search(line) and len(operands) == 1 and operands[0] in reach:
        reach[name] = reach[operands[0]]


def _names(line: str) -> tuple[str, list[str]]:
    """The name of an instruction and those of its operands."""
    head, _, tail = line.partition(" = ")
    inside = re.search(r" [\w-]+\(([^)]*)\)", tail)
    words = head.split()
    return words[-1].lstrip("%"), re.findall(r"%([\w.-]+)", inside[1]) if inside else []


def _calls(line: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    if found := _WHILE.search(line):
        trips = _TRIPS.search(line)
        rounds = int(trips[1]) if trips else 1
        yield from ((rounds, (found[1],)), (rounds, (found[2],)))
    elif found := _BRANCHES.search(line):
        yield 1, tuple(name.strip().lstrip("%") for name in found[1].split(","))
    elif found := _TRUE_FALSE.search(line):
        yield 1, (found[1], found[2])
    elif " fusion(" not in line and (found := _CALLED.search(line)):
        yield 1, (found[1],)


def _run(name: str, computations: dict[str, _Computation]) -> Iterator[Row]:
    given = computations[name]
    yield from given.rows
    for rounds, branches in given.calls:
        made = [list(_run(branch, computations)) for branch in branches if branch in computations]
        rows = max(made, key=lambda rows: sum(r.bytes * r.count for r in rows), default=[])
        yield from (replace(r, count=r.count * rounds) for r in rows)


def _collective(line: str, everyone: int) -> Iterator[Row]:
    found = _COLLECTIVE.search(line)
    if found is None:
        return
    shapes = [_bytes(*shape) for shape in _SHAPE.findall(found[1])]
    if found[3] and found[2] in ("all-gather", "collective-permute"):
        shapes = shapes[len(shapes) // 2 :]  # of a start, operands come before results
    size = float(sum(shapes))
    if found[2] == "collective-permute":
        pairs = _PAIRS.search(line)
        moves = re.findall(r"\{(\d+),(\d+)\}", pairs[1]) if pairs else []
        share = sum(a != b for a, b in moves) / everyone
        yield Row(found[2], everyone, size * share, 1)
        return
    devices = _group(line, everyone)
    if found[2] == "reduce-scatter":
        size *= devices
    yield Row(found[2], devices, size * share_sent(KINDS[found[2]], devices), 1)


def _bytes(dtype: str, dims: str) -> int:
    bits = 8 if dtype in ("pred", "token") else int(re.findall(r"\d+", dtype)[0])
    count = math.prod(int(d) for d in dims.split(",") if d)
    return (count * bits + 7) // 8


def _group(line: str, everyone: int) -> int:
    if found := _IOTA.search(line):
        return int(found[2])
    if found := _MESH.search(line):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", found[1])}
        total = 1
        for name, part in re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", found[2]):
            total *= int(part) if part else sizes[name]
        return total
    if found := _LISTS.search(line):
        return len(found[1].split(","))
    return everyone


# Inside the oracle's process


def main() -> None:
    """Answer programs with their collectives, or with XLA's text."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={MOST}"
    import jax
    from jax._src.lib import xla_client

    from tests.oracles.xla_local import options

    everyone = jax.devices("cpu")

    def answer(request: dict[str, Any]) -> object:
        count = request["devices"]
        devices = xla_client.DeviceList(tuple(everyone[:count]))
        client: Any = everyone[0].client
        program = client.compile_and_load(request["text"], devices, options(count))
        hlo = program.hlo_modules()[0].to_string()
        if request.get("hlo"):
            return hlo
        return [astuple(row) for row in read(hlo, count)]

    serve(answer)


if __name__ == "__main__":
    main()
