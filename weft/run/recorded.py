"""Recorded programs: launches run one by one, and each of them and each host node is timed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from weft.cost import KINDS
from weft.cost.sent import SentCounter
from weft.executable.items import Collective, Done, Host, Item, Launch, Site, Start, all_items
from weft.executable.launched import item_name, launch_kind
from weft.ir.location import Location
from weft.recording import ItemSpan, Recorder
from weft.run.bind import all_codes, loaded_kernels
from weft.run.code import SlotStep, SlotValues
from weft.run.separate import SeparateKernel
from weft.target import Addresses

if TYPE_CHECKING:
    from weft.array.addressable import Addressable
    from weft.array.memory import Stream
    from weft.executable.items import Tiled
    from weft.run.code import Code
    from weft.run.launch import Calls
    from weft.timeline import Timeline

T = TypeVar("T")


class _Current(threading.local):
    """The events of the run in this thread."""

    spans: list[ItemSpan] | None = None


class RecordedProgram:
    """The events of one program's runs."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.clock = recorder, recorder.clock
        self.current = _Current()
        self.lock = threading.Lock()
        self.runs = 0
        self.synchronize: Callable[[], None] | None = None
        self.number = -1  # of a program that is not attached

    def attach(
        self,
        tiled: Tiled,
        code: Code,
        calls: Calls | None,
        stream: Stream | None,
        here: Addressable | None,
        digest: str,
    ) -> None:
        """Note the items of a loaded program, and time its steps."""
        items = [*all_items(tiled.block)]
        numbers = {id(item): number for number, item in enumerate(items)}
        if stream is not None:
            self.synchronize = stream.synchronize
        for launch, loaded in loaded_kernels(calls) if calls else ():
            loaded.item = numbers[id(launch)]
        for each in all_codes(code):
            for place, unit in enumerate(each.units):
                if isinstance(unit, Host | Done):
                    each.steps[place] = self._timed(each.steps[place], numbers[id(unit)])
        every = tiled.world.devices()
        devices = (every if here is None else every[[*here.places]]).tolist()
        self.number = self.recorder.program(
            {
                "name": tiled.module.name or tiled.module.function(tiled.function).name,
                "digest": digest,
                "devices": devices,
                "items": _item_rows(tiled, items, devices),
            }
        )

    def predict(self, timeline: Timeline, machine: str, name: str) -> None:
        """Note the predicted seconds of each line, and the program's name if it has another."""
        rows: dict[tuple[str, str, str], float] = {}
        for event in timeline.events:
            if event.kind not in ("wait", "loop"):
                key = (event.name, event.kind, event.loc.text)
                seconds = event.exposed * event.times if event.kind == "collective" else event.total
                rows[key] = rows.get(key, 0.0) + seconds
        self.recorder.add(
            "predicted",
            {
                "program": self.number,
                "machine": machine,
                "name": name,
                "seconds": timeline.seconds,
                "rows": [[*key, seconds] for key, seconds in rows.items()],
            },
        )

    @property
    def is_running(self) -> bool:
        """Whether a run in this thread is being recorded."""
        return self.current.spans is not None

    def run(self, call: Callable[..., T], stacks: Sequence[Any]) -> T:
        """Run the program, and note its events."""
        spans = self.current.spans = list[ItemSpan]()
        with self.lock:
            count, self.runs = self.runs, self.runs + 1
        if self.synchronize is not None:  # kernels of earlier runs must not count for this one
            self.synchronize()
        begin = self.clock()
        try:
            return call(*stacks)
        finally:
            if self.synchronize is not None:
                self.synchronize()
            self.current.spans = None
            self.recorder.run(self.number, count, begin, self.clock(), spans)

    def around(self, loaded: SeparateKernel, _: Addresses, run: Callable[[], None]) -> None:
        """Launch a kernel and wait for it."""
        begin = self.clock()
        run()
        if self.synchronize is not None:
            self.synchronize()
        self._note(loaded.item, begin)

    def _timed(self, step: SlotStep, item: int) -> SlotStep:
        def timed(slots: SlotValues) -> None:
            begin = self.clock()
            step(slots)
            self._note(item, begin)

        return timed

    def _note(self, item: int, begin: int) -> None:
        spans = self.current.spans
        if spans is not None:  # None where a step runs outside of a run
            spans.append((item, begin, self.clock()))


def _item_rows(tiled: Tiled, items: Sequence[Item], devices: Sequence[int]) -> list[dict[str, Any]]:
    sent, starts = SentCounter(tiled.module), dict[int, int]()
    rows: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        row: dict[str, Any] = {"name": item_name(item), "loc": _text(item.loc)}
        match item:
            case Launch():
                row["kind"] = launch_kind(item)
            case Collective():
                row |= {"kind": "collective", "meets": _met(item.site, devices)}
                if type(item.node.op) in KINDS:
                    traffic = sent.collective(item.node)
                    row |= {"over": traffic.over, "bytes": traffic.bytes}
                if isinstance(item, Start):
                    starts[item.outs[0]] = number
                    row |= {"kind": "start", "stream": item.stream or ""}
            case Host():
                row["kind"] = "memory"
            case Done():
                row |= {"kind": "done", "start": starts.get(item.ins[0], -1)}
            case _:
                row["kind"] = "flow"  # not timed: its blocks are
        rows.append(row)
    return rows


def _text(loc: Location) -> str:
    return loc.text if loc.known else ""


def _met(site: Site, devices: Sequence[int]) -> list[int]:
    """All devices of the groups that devices of this process are in."""
    if not hasattr(site.op, "groups"):
        return site.world.devices().tolist()  # type: ignore[no-any-return]
    here = {*devices}
    groups = [group for group in site.world.groups(site.op) if here & {*group}]
    return sorted({device for group in groups for device in group})
