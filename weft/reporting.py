"""The data of a report: a program's mesh, layers, collectives, timeline, memory, other machines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from weft.advise import causes_of
from weft.capture import normalize
from weft.errors import WeftError
from weft.executable.memory import HeldBuffer
from weft.explain import layers, reasons
from weft.explain.causes import Causes
from weft.explain.layers import Layer, LayerRow
from weft.explain.reasons import Reasons
from weft.ir.location import Location
from weft.ir.module import Module
from weft.machine import Machine
from weft.machine import machine as machine_named
from weft.mesh import Mesh, Sharding
from weft.mesh.pieces import counts
from weft.predict import Prediction, predicted, program_for
from weft.report.page import page
from weft.shard import Rules, propagate, shard
from weft.timeline import Timeline, TimelineEvent

_EVENTS = 20_000  # the most events of a timeline that are drawn; the shortest are left out
_ROWS = 400  # the most rows of tensors
_PEAK = 24  # the most values listed at the peak
_DEVICES = 256  # the most devices that are drawn
_KINDS = ("h100", "h200", "b200", "gb200", "mi350", "tpu-v5p", "tpu-v7")


def write_report(
    path: str | os.PathLike[str],
    module: Module,
    machine: Machine,
    *,
    name: str = "",
    others: Sequence[Machine] | None = None,
    rules: Rules | None = None,
) -> Prediction:
    """Write the report of a captured program on a machine as one HTML file."""
    program = program_for(module, machine, rules=rules)
    prediction = predicted(program, machine, name=name)
    assert program.executable is not None
    held = program.executable.memory().at_peak()
    found = reasons(propagate(module, rules=rules, pads="named"))
    whatif = _elsewhere(module, machine, prediction, others, rules)
    causes = causes_of(normalize(module, shard), "named", rules)
    data = report_data(prediction, found, causes, held, whatif)
    try:
        Path(path).write_text(page(data), encoding="utf-8")
    except OSError as error:
        raise WeftError(
            f"cannot write {os.fspath(path)}: {error.strerror or error}",
            help="name a file in a folder that exists",
        ) from None
    return prediction


def report_data(
    prediction: Prediction,
    why: Reasons,
    causes: Causes,
    held: Sequence[HeldBuffer],
    whatif: Sequence[Prediction],
) -> dict[str, Any]:
    """The data of the page, as JSON's types."""
    mesh = prediction.mesh or Mesh()
    return {
        "program": prediction.name,
        "machine": _machine_json(prediction.machine),
        "mesh": [[name, size] for name, size in mesh.axes],
        "devices": prediction.devices,
        "shown": min(prediction.devices, _DEVICES),
        "step": _step_json(prediction),
        "layers": [*_layers_json(why, mesh)],
        "notes": [remark.text().strip() for remark in why.notes()],
        "collectives": _collectives_json(prediction.timeline, causes),
        "timeline": timeline_json(prediction.timeline),
        "memory": [[p.seconds, p.bytes] for p in prediction.timeline.memory],
        "held": len(held),
        "peak": _peak_json(held),
        "whatif": [_step_json(p) | {"machine": _machine_json(p.machine)} for p in whatif],
    }


def _machine_json(machine: Machine) -> dict[str, Any]:
    links = [
        {"name": link.name, "devices": link.devices, "bandwidth": link.bandwidth}
        for link in machine.links
    ]
    return {
        "name": machine.name,
        "about": machine.about,
        "memory": machine.memory,
        "bandwidth": machine.bandwidth,
        "links": links,
    }


def _step_json(prediction: Prediction) -> dict[str, Any]:
    memory = prediction.memory
    return {
        "seconds": prediction.seconds,
        "parts": {name: seconds for name, seconds in prediction.parts.items() if seconds},
        "hidden": prediction.hidden,
        "mfu": prediction.mfu if prediction.flops else None,
        "flops": prediction.flops,
        "tokens": prediction.tokens_per_second,
        "peak": memory.peak,
        "limit": prediction.machine.memory,
        "fits": prediction.fits,
        "held": {
            "arguments": memory.arguments,
            "results": memory.results - memory.aliased,
            "constants": memory.constants,
            "temporaries": memory.temporaries,
        },
    }


def _layers_json(found: Reasons, mesh: Mesh) -> Iterable[dict[str, Any]]:
    left = _ROWS
    for layer in layers(found):
        rows = layer.rows[:left]
        left -= len(rows)
        if rows:
            yield _layer_json(layer, rows, mesh)


def _layer_json(layer: Layer, rows: Sequence[LayerRow], mesh: Mesh) -> dict[str, Any]:
    return {
        "name": layer.name,
        "alike": len(layer.alike),
        "bytes": layer.bytes,
        "hidden": len(layer.rows) - len(rows),
        "rows": [_row_json(row, mesh) for row in rows],
    }


def _row_json(row: LayerRow, mesh: Mesh) -> dict[str, Any]:
    return {
        "names": list(row.names[:8]),
        "more": max(0, len(row.names) - 8),
        "op": row.op,
        "type": str(row.type).removeprefix("tensor<").removesuffix(">"),
        "shape": list(row.type.bounds),
        "axes": _axes(row.sharding, row.type.rank),
        "pieces": list(counts(row.sharding, mesh)) if row.sharding is not None else [],
        "local": list(row.local.bounds),
        "bytes": row.bytes,
        "note": row.note,
    }


def _axes(sharding: Sharding | None, rank: int) -> list[list[str]]:
    if sharding is None:
        return [[] for _ in range(rank)]
    return [[str(axis).replace('"', "") for axis in dim.axes] for dim in sharding.dims]


def _line(loc: Location) -> dict[str, Any]:
    place, _, source = loc.describe().partition("  ") if loc.known else ("", "", "")
    return {"place": _short(place), "source": source}


def _short(place: str) -> str:
    """A place with its path below the working folder, or with its last parts."""
    inside = place.removeprefix(f"{os.getcwd()}{os.sep}")
    parts = inside.split(os.sep)
    return inside if not inside.startswith(os.sep) else os.sep.join(parts[-2:])


def _collectives_json(timeline: Timeline, causes: Causes) -> list[dict[str, Any]]:
    """One row for each kind, axes, size and line."""
    rows: dict[object, list[TimelineEvent]] = {}
    for event in timeline.collectives():
        key = (event.name, event.over, round(event.bytes), event.loc.line or event.loc)
        rows.setdefault(key, []).append(event)
    made = [_collective_json(events, causes) for events in rows.values()]
    return sorted(made, key=lambda row: -row["total"])


def _collective_json(events: Sequence[TimelineEvent], causes: Causes) -> dict[str, Any]:
    first, times = events[0], sum(e.times for e in events)
    return {
        "kind": first.name,
        "over": first.over,
        "bytes": first.bytes,
        "times": times,
        "total": sum(e.total for e in events),
        "exposed": sum(e.exposed * e.times for e in events),
        "from": first.source,
        "track": first.track,
        "reasons": [causes.reason(first.name, first.over, first.loc)],
    } | _line(first.loc)


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """The events of a timeline as numbers into lists of names, tracks and lines."""
    events = timeline.events
    if len(events) > _EVENTS:
        least = sorted(e.duration for e in events)[-_EVENTS]
        events = tuple(e for e in events if e.duration >= least)[:_EVENTS]
    names = [*dict.fromkeys(e.name for e in events)]
    kinds = [*dict.fromkeys(e.kind for e in events)]
    tracks = [*timeline.tracks]
    lines = [*dict.fromkeys(e.loc for e in events)]
    numbers = [{word: n for n, word in enumerate(words)} for words in (names, kinds, tracks)]
    places = {loc: n for n, loc in enumerate(lines)}
    return {
        "seconds": timeline.seconds,
        "left": len(timeline.events) - len(events),
        "names": names,
        "kinds": kinds,
        "tracks": tracks,
        "lines": [_line(loc) for loc in lines],
        "events": [
            [
                numbers[2][e.track],
                float(f"{e.start:.9g}"),
                float(f"{e.duration:.6g}"),
                numbers[0][e.name],
                numbers[1][e.kind],
                places[e.loc],
                e.times,
                round(e.bytes),
                float(f"{e.exposed:.6g}"),
                e.over,
            ]
            for e in events
        ],
    }


def _peak_json(held: Sequence[HeldBuffer]) -> list[dict[str, Any]]:
    """The buffers that are live at the peak; equal ones of a line are one row."""
    rows: dict[object, list[HeldBuffer]] = {}
    for buffer in held:
        name = buffer.name if buffer.kind == "argument" else _op_of(buffer)
        rows.setdefault((name, buffer.kind, buffer.size, buffer.loc.line), []).append(buffer)
    made = [_held_json(some[0]) | {"times": len(some)} for some in rows.values()]
    return sorted(made, key=lambda row: -row["bytes"] * row["times"])[:_PEAK]


def _op_of(buffer: HeldBuffer) -> str:
    """The op of a buffer's value: the end of a tracer's name `jit(step)/jvp()/dot_general`."""
    words = buffer.called.split("/")
    backward = any(word.startswith("transpose(") for word in words)
    return f"{words[-1]} (backward)" if backward else words[-1]


def _held_json(buffer: HeldBuffer) -> dict[str, Any]:
    is_argument = buffer.kind == "argument"
    return {
        "kind": buffer.kind,
        "bytes": buffer.size,
        "name": buffer.called if is_argument else _op_of(buffer),
        "type": str(buffer.type).removeprefix("tensor<").removesuffix(">"),
    } | _line(buffer.loc)


def _elsewhere(
    module: Module,
    machine: Machine,
    here: Prediction,
    others: Sequence[Machine] | None,
    rules: Rules | None,
) -> list[Prediction]:
    """The same program on other machines with as many devices, and on this one."""
    predictions = [here]
    for other in default_machines(machine, here.devices) if others is None else others:
        if other.name != machine.name:
            predictions.append(
                predicted(program_for(module, other, rules=rules), other, name=here.name)
            )
    return predictions


def default_machines(machine: Machine, devices: int) -> list[Machine]:
    """The machines of the package that a step is predicted on, too."""
    return (
        [machine_named(f"{devices}x{kind}") for kind in _KINDS[:4]]
        if machine.kind != "cpu"
        else [machine_named(f"{devices}x{kind}") for kind in _KINDS[:3]]
    )
