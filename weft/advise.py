"""Explanations of what a program sends: every collective, its cause, and advice that was tried."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.capture import normalize
from weft.columns import Column, table_text
from weft.cost.repeated import repeated_layer_runs
from weft.errors import WeftError
from weft.explain.candidates import candidate_edits
from weft.explain.causes import Causes
from weft.explain.constraint_edits import lines_before
from weft.explain.edits import AnnotationEdit, mesh_in, spec_text, split_dims
from weft.explain.findings import (
    SendWarning,
    indivisible,
    line_text,
    padded,
    replicated,
    summed_twice,
)
from weft.explain.merged_rounds import fewer_rounds
from weft.explain.rounds import small_rounds
from weft.explain.state import result_names
from weft.ir.location import Location
from weft.ir.module import Module, Value
from weft.ir.types import TensorType
from weft.machine import Machine, bytes_text, seconds_text
from weft.ops.distributed.annotations import sharding_attribute
from weft.partition import Note, is_single_device, partition
from weft.partition.piece import Piece
from weft.predict import Prediction, predict
from weft.records import dataclass
from weft.shard import Pads, Rules, shard
from weft.timeline import COMPUTING, Timeline, TimelineEvent

TRIES = 48  # candidate annotations that are predicted
_GAIN = 0.02  # the least share of a step that advice saves
_LEAST = 1e-6  # and its seconds
_ENOUGH = 0.8  # the share of the best gain with which a simpler change comes first
_ENOUGH_REMOVED = 0.5  # the same where an annotation goes, and none is added
_SHOWN = 4  # pieces of advice
_LINES = 3  # lines whose values get constraints, of collectives and of products
_TINY, _MANY = 64 << 10, 8  # bytes of a collective that is latency, and the count worth a warning
_KINDS = ("removal", "state", "argument", "order", "constraint", "width", "addition", "result")


@dataclass(frozen=True, slots=True)
class ExplainedCollective:
    """The collectives of one kind, axes, size and line: cost, cause, and the advice about them."""

    name: str
    over: str
    bytes: float  # sent by a device, each time
    times: int
    seconds: float  # each time
    exposed: float  # in all, where compute waits
    loc: Location
    reason: str
    source: str  # of the seconds
    advice: int | None = None  # the number of the advice that removes it, from 1

    @property
    def total(self) -> float:
        """The seconds of all times."""
        return self.seconds * self.times


@dataclass(frozen=True, slots=True)
class Advice:
    """A change of annotations that was tried: what to write, and the step before and after."""

    text: str
    loc: Location
    kind: str
    before: float  # seconds of a step
    after: float
    memory_before: int
    memory_after: int
    module: Module  # the program with the change
    results: tuple[str, ...] = ()  # inferred shardings of results that it changes

    @property
    def gain(self) -> float:
        """The seconds of a step that it saves."""
        return self.before - self.after

    def __str__(self) -> str:
        saved = f"{seconds_text(self.before)} -> {seconds_text(self.after)} a step"
        memory = ""
        if abs(self.memory_after - self.memory_before) > 0.01 * self.memory_before:
            sizes = (bytes_text(self.memory_before), bytes_text(self.memory_after))
            memory = f", memory {sizes[0]} -> {sizes[1]}"
        moved = f"; returns {', '.join(self.results)}" if self.results else ""
        return f"{self.text}\n     {saved} ({self.gain / self.before:.0%} less){memory}{moved}"


@dataclass(frozen=True, slots=True)
class Explained:
    """The communication of a program on a machine: collectives, advice and warnings."""

    prediction: Prediction
    collectives: tuple[ExplainedCollective, ...]
    advice: tuple[Advice, ...]
    findings: tuple[SendWarning, ...]
    tried: int  # candidate annotations

    def __str__(self) -> str:
        return explained_text(self)

    def as_json(self) -> dict[str, Any]:
        """The explanation as data."""
        return {
            "prediction": self.prediction.as_json(),
            "collectives": [_collective_json(row) for row in self.collectives],
            "advice": [
                {"text": a.text, "line": a.loc.line, "kind": a.kind, "before": a.before}
                | {"after": a.after, "memory": [a.memory_before, a.memory_after]}
                | {"results": [*a.results]}
                for a in self.advice
            ],
            "warnings": [
                {"kind": f.kind, "text": f.text, "line": f.loc.line if f.loc else None}
                for f in self.findings
            ],
            "tried": self.tried,
        }


def explain(
    module: Module,
    machine: Machine,
    *,
    tries: int = TRIES,
    name: str = "",
    pads: Pads = "named",
    rules: Rules | None = None,
    numbers: Mapping[str, int] = {},
    variants: Iterable[tuple[str, Module]] = (),
) -> Explained:
    """Explain every collective of a captured program on a machine, and try what would remove it.

    At most `tries` changes of annotations are predicted; those that shorten the step are advice.
    `variants` are the program with other options to write, tried first, until one is slower.
    """
    options: dict[str, Any] = {"pads": pads, "rules": rules, "numbers": numbers, "apart": True}
    module = normalize(module, shard)
    whole = predict(module, machine, name=name, **options)
    causes = causes_of(module, pads, rules)
    rows = _rows(whole, causes)
    if abs(sum(row.times for row in rows) - whole.sends) > 0.1 * whole.sends:
        # Layers on lines of their own, or with other collectives at the ends: all are compiled.
        # Otherwise two of equal layers are drawn, and their events are scaled up.
        whole = predict(module, machine, name=name, whole=True, **options)
        rows = _rows(whole, causes)
    trying = _Trying(module, machine, whole, options, variants)
    advice = trying.advice(rows, tries) if mesh_in(module) is not None else ()
    rows = tuple(replace(row, advice=_removed_by(row, advice, trying)) for row in rows)
    sent = {axis for row in rows for axis in row.over.split()}
    findings = (*indivisible(causes.sharded, sent), *_findings(module, whole, rows, advice))
    return Explained(whole, rows, tuple(advice), findings, trying.count)


def causes_of(module: Module, pads: Pads, rules: Rules | None) -> Causes:
    """The causes of communication: the notes and places of partitioning a program."""
    notes: list[Note] = []
    places: dict[Value, list[Piece]] = {}
    if is_single_device(module):
        return Causes(module, notes, places)
    sharded = shard(module, pads=pads, rules=rules)
    partition(sharded, rules, notes, places)
    return Causes(sharded, notes, places)


def _key(event: TimelineEvent) -> tuple[object, ...]:
    return (event.name, event.over, round(event.bytes), event.loc.line or event.loc.text)


def _rows(prediction: Prediction, causes: Causes) -> tuple[ExplainedCollective, ...]:
    """A row for each kind, axes, size and line, the most exposed first."""
    layers, drawn = prediction.drawn or (1, 1)
    grouped: dict[tuple[object, ...], list[TimelineEvent]] = {}
    for event in prediction.timeline.collectives():
        grouped.setdefault(_key(event), []).append(event)
    rows = []
    for events in grouped.values():
        first, times = events[0], sum(event.times for event in events)
        seconds = sum(event.total for event in events) / times
        exposed = sum(event.exposed * event.times for event in events)
        reason = causes.reason(first.name, first.over, first.loc)
        # How often an event of a timeline with two layers runs in all layers.
        scale = drawn / layers if times >= layers else 1.0
        row = ExplainedCollective(
            first.name, first.over, first.bytes, round(times * scale), seconds, exposed * scale,
            first.loc, reason, first.source,
        )  # fmt: skip
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: (-row.exposed, -row.total)))


class _Trying:
    """Tries changes of annotations on a program with one of each equal layers."""

    def __init__(
        self,
        module: Module,
        machine: Machine,
        whole: Prediction,
        options: Mapping[str, Any],
        variants: Iterable[tuple[str, Module]],
    ) -> None:
        self.variants = variants
        self.module, self.machine, self.whole, self.options = module, machine, whole, options
        self.count = 0
        self.timelines: list[Timeline] = []  # of the program with each piece of advice

    def advice(self, rows: Sequence[ExplainedCollective], tries: int) -> tuple[Advice, ...]:
        """Changes one after another: each the best on top of those before it."""
        pieces_of_advice = self.options_advice(rounds=tries > 0)
        module, before = self.module, self.whole
        found = candidate_edits(module, self.lines(rows))
        edits = _shortlist(_ranked(found, rows), tries)
        self.count += len(edits)
        returns = self.returned(module)
        while edits and len(pieces_of_advice) < _SHOWN:
            tried = self.gains(module, edits)
            chosen = next(self.checked(module, before, tried), None)
            if chosen is None:
                break
            edit, module, after = chosen
            self.timelines.append(after.timeline)
            returned = self.returned(module)
            moved = tuple([f"{n} as {s}" for n, s in returned.items() if s != returns.get(n)])
            piece = Advice(
                edit.text, edit.loc, edit.kind, before.seconds, after.seconds,
                before.memory.peak, after.memory.peak, module, moved,
            )  # fmt: skip
            pieces_of_advice.append(piece)
            before, returns = after, returned
            # Of those that still gain on top of the chosen one; the others are not tried again.
            edits = [other for other, _ in tried if not _overlaps(other, edit)]
        return tuple(pieces_of_advice)

    def options_advice(self, *, rounds: bool) -> list[Advice]:
        """The best of the program's alternatives, which becomes the program."""
        advice: list[Advice] = []
        first, before = self.whole, self.whole
        for kind, text, variant in self.alternatives(rounds=rounds):
            module = normalize(variant, shard)
            after = predict(module, self.machine, name=first.name, **self.options)
            self.count += 1
            if not after.fits or not _is_gain(before.seconds, after.seconds):
                break
            piece = Advice(
                text, module.loc, kind, first.seconds, after.seconds,
                first.memory.peak, after.memory.peak, module,
            )  # fmt: skip
            advice, self.timelines = [piece], [after.timeline]
            self.module, self.whole, before = module, after, after
        return advice

    def alternatives(self, *, rounds: bool) -> Iterator[tuple[str, str, Module]]:
        """The program with other options; without any, with fewer rounds over micro-batches."""
        options, sends = 0, self.whole.timeline.collectives()
        for text, variant in self.variants:
            options += 1
            yield "option", text, variant
        waits = sum(event.exposed * event.times for event in sends if event.times > 1)
        has_room = 2 * self.whole.memory.peak <= self.machine.memory
        if rounds and not options and has_room and waits > _GAIN * self.whole.seconds:
            yield from (("rounds", *pair) for pair in fewer_rounds(self.module))

    def returned(self, module: Module) -> dict[str, str]:
        """The inferred shardings of the results that have no annotation of their own."""
        main = module.function("main")
        result_attrs = main.res_attrs or ((),) * len(main.body.results)
        if all(sharding_attribute(attrs) is not None for attrs in result_attrs):
            return {}
        sharded = shard(module, pads=self.options["pads"], rules=self.options["rules"])
        names = result_names(module)
        inferred = sharded.function("main").res_attrs or result_attrs
        return {
            names[n]: spec_text(split_dims(sharding_attribute(inferred[n]), type.rank))
            for n, type in enumerate(main.result_types)
            if sharding_attribute(result_attrs[n]) is None and isinstance(type, TensorType)
        }

    def lines(self, rows: Sequence[ExplainedCollective]) -> list[object]:
        """The lines of the most exposed collectives, and of the longest products."""
        products = [e for e in self.whole.timeline.events if e.kind in COMPUTING]
        longest = sorted(products, key=lambda event: -event.total)
        waits = [row.loc.line for row in rows if row.exposed]
        found = [
            line
            for listed in (waits, [event.loc.line for event in longest])
            for line in [*dict.fromkeys(line for line in listed if line is not None)][:_LINES]
        ]
        return [*dict.fromkeys(found), *lines_before(self.module, found)]

    def gains(
        self, module: Module, edits: Sequence[AnnotationEdit]
    ) -> list[tuple[AnnotationEdit, float]]:
        """The changes that shorten the step; the simplest with most of the best gain first."""
        base = self.short(module)
        tried: list[tuple[AnnotationEdit, Prediction]] = []
        for edit in edits:
            try:
                prediction = self.short(edit.apply(module))
            except WeftError:
                continue  # the program cannot be split like this
            # A program that does not fit may stay too large, but not grow.
            small = prediction.memory.peak <= max(self.machine.memory, base.memory.peak)
            if small and _is_gain(base.seconds, prediction.seconds):
                tried.append((edit, prediction))
        # The reader of a result may need it as it is declared: other changes come first.
        own = [made.seconds for edit, made in tried if edit.kind != "result"]
        least = min(own, default=0.0)

        def order(pair: tuple[AnnotationEdit, Prediction]) -> tuple[bool, bool, int, float, int]:
            edit, made = pair
            enough = _ENOUGH_REMOVED if edit.kind == "removal" else _ENOUGH
            is_less = base.seconds - made.seconds < enough * (base.seconds - least)
            # Of two that are equally fast, the one that splits more: its pieces take less memory.
            kind = _KINDS.index(edit.kind)
            times = round(made.seconds, 9)
            return edit.kind == "result", is_less, kind, times, made.memory.peak

        return [(edit, made.seconds) for edit, made in sorted(tried, key=order)]

    def short(self, module: Module) -> Prediction:
        """The prediction with one of each equal layers."""
        layered = repeated_layer_runs(module)
        small = module if layered is None else layered.with_layers(1)
        return predict(small, self.machine, whole=True, **self.options)

    def checked(
        self, module: Module, before: Prediction, tried: Sequence[tuple[AnnotationEdit, float]]
    ) -> Iterator[tuple[AnnotationEdit, Module, Prediction]]:
        """The changes whose gain the prediction of all layers confirms."""
        for edit, _ in tried:
            changed = edit.apply(module)
            after = predict(changed, self.machine, name=self.whole.name, **self.options)
            fits = after.fits or after.memory.peak <= before.memory.peak
            if fits and _is_gain(before.seconds, after.seconds):
                yield edit, changed, after


def _is_gain(before: float, after: float) -> bool:
    return before - after > max(_LEAST, _GAIN * before)


def _overlaps(one: AnnotationEdit, other: AnnotationEdit) -> bool:
    """Whether two changes are of the same annotation."""
    same = one.kind == other.kind and one.loc.text == other.loc.text
    return same or {one.kind, other.kind} == {"order"}


def _ranked(
    edits: Iterator[AnnotationEdit], rows: Sequence[ExplainedCollective]
) -> list[AnnotationEdit]:
    """Changes near exposed collectives first, then those of most bytes."""
    exposed: dict[object, float] = {}
    for row in rows:
        for file, line, _ in row.loc.frames[:1]:
            exposed[file, line] = exposed.get((file, line), 0.0) + row.exposed
    total = sum(exposed.values()) or 1.0

    def rank(edit: AnnotationEdit) -> tuple[float, int]:
        near = sum(exposed.get(line, 0.0) for line in edit.lines) / total
        if edit.kind in ("removal", "state", "order", "width"):
            near += 1.0  # few, so that none of them is left out
        return (-round(near, 2), -edit.size)

    return sorted(edits, key=rank)


def _shortlist(ranked: Sequence[AnnotationEdit], tries: int) -> list[AnnotationEdit]:
    """The first changes; a line of many ops leaves half of the tries to other ones."""
    late = [e for kind in ("addition", "result") for e in ranked if e.kind == kind]
    others = len(ranked) - len(late)
    left_out = set(map(id, late[max(tries // 2, tries - others) :]))
    return [edit for edit in ranked if id(edit) not in left_out][:tries]


def _removed_by(row: ExplainedCollective, advice: Sequence[Advice], trying: _Trying) -> int | None:
    """The number of the advice with which a collective is gone or much cheaper."""
    for number in range(len(advice)):
        after = dict[tuple[object, ...], float]()
        for event in trying.timelines[number].collectives():
            place = (event.name, event.over, event.loc.line or event.loc.text)
            after[place] = after.get(place, 0.0) + event.total
        before = row.total
        left = after.get((row.name, row.over, row.loc.line or row.loc.text), 0.0)
        if left < 0.5 * before:
            return number + 1
    return None


def _findings(
    module: Module,
    prediction: Prediction,
    rows: Sequence[ExplainedCollective],
    advice: Sequence[Advice],
) -> Iterator[SendWarning]:
    """Warnings about what costs memory or time without a collective to blame."""
    yield from replicated(module, prediction.memory.peak)
    yield from padded(module)
    tiny = [row for row in rows if row.bytes < _TINY]
    count = sum(row.times for row in tiny)
    exposed = sum(row.exposed for row in tiny)
    if count >= _MANY and exposed > _GAIN * prediction.seconds:
        yield SendWarning(
            "tiny collectives",
            f"{count:,} collectives send less than {bytes_text(_TINY)} each: their "
            f"{seconds_text(exposed)} are latency; use larger batches or fewer devices",
        )
    yield from summed_twice(module)
    merges = any(piece.kind == "rounds" for piece in advice)  # which says more
    if 2 * prediction.memory.peak <= prediction.machine.memory and not merges:
        waits = [(row.loc.line, row.times, row.exposed / prediction.seconds) for row in rows]
        yield from small_rounds(module, waits)
    exposed = prediction.parts["collectives exposed"]
    share = exposed / prediction.seconds if prediction.seconds else 0.0
    if share > 0.3:
        yield SendWarning(
            "exposed latency",
            f"compute waits for collectives in {share:.0%} of the step",
            rows[0].loc if rows else None,
        )


def _collective_json(row: ExplainedCollective) -> dict[str, Any]:
    same = ("over", "bytes", "times", "seconds", "exposed", "reason", "source", "advice")
    numbers = {name: getattr(row, name) for name in same}
    return {"collective": row.name, "line": row.loc.line} | numbers


def explained_text(explained: Explained, width: int | None = None) -> str:
    """The explanation as text: the step, a table of collectives, reasons, advice and warnings."""
    lines = [explained.prediction.headline(), ""]
    if not explained.collectives:
        lines.append("nothing is sent between devices")
    else:
        lines += _table(explained.collectives, width)
    if explained.advice:
        lines += ["", f"advice, each on top of those before it ({explained.tried} changes tried):"]
        lines += [f"  {number}. {made}" for number, made in enumerate(explained.advice, 1)]
    elif explained.collectives and explained.tried:
        lines += ["", f"no advice: none of {explained.tried} changes that were tried is faster"]
    if explained.findings:
        lines += ["", "warnings:", *[f"  {f.kind}: {f.text}" for f in explained.findings]]
    return "\n".join(lines)


_COLUMNS = (
    Column("collective"),
    Column("over"),
    Column("sent", right=True),
    Column("times", right=True),
    Column("each", right=True),
    Column("exposed", right=True),
    Column("line and reason", fit="wrap"),
)
_REASON = 40  # the least width of reasons beside the numbers


def _table(rows: Sequence[ExplainedCollective], width: int | None) -> list[str]:
    cells = [
        (
            row.name,
            row.over,
            bytes_text(round(row.bytes)),
            f"{row.times:,}",
            seconds_text(row.seconds),
            seconds_text(row.exposed) if row.exposed > 1e-9 else "hidden",
            (f"{line_text(row.loc)}: " if row.loc.line else "")
            + row.reason
            + (f" (advice {row.advice})" if row.advice is not None else ""),
        )
        for row in rows
    ]
    numbers = table_text(_COLUMNS[:-1], [row[:-1] for row in cells]).split("\n")
    if width is None or max(map(len, numbers)) + 2 + _REASON <= width:
        return table_text(_COLUMNS, cells, width).split("\n")
    # A narrow terminal: each reason is below its row.
    below = [textwrap.indent(textwrap.fill(row[-1], width - 4), "    ") for row in cells]
    pairs = zip(numbers[1:], below, strict=True)
    return [numbers[0], *[line for pair in pairs for line in pair]]
