"""Rematerialization of gathers: gather again near a late use where memory is short."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weft.ir.gc_pause import without_gc
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.purity import callee_of
from weft.ir.rebuild import Rebuild
from weft.ir.types import Type
from weft.ir.uses import reads
from weft.ir.work import moved
from weft.machine import Machine
from weft.ops.distributed.collective import AllGather
from weft.ops.elementwise.convert import Convert
from weft.ops.shape import Reshape, Transpose
from weft.ops.slicing import Slice
from weft.records import dataclass

# The number of a repeated gather, so that CSE does not merge it with another one.
AGAIN = "weft.rematerialized"
_CHEAP = (Reshape, Transpose, Convert, Slice)  # repeated together with the gather that they read
_LONGEST = 4  # the most of these after a gather


def rematerialize_gather(
    module: Module, *, machine: Machine | None = None, limit: int | None = None
) -> Module:
    """Cut the live ranges of gathered values where more than `limit` bytes are live.

    The default limit is the machine's memory. Arguments count as live throughout.
    """
    most = limit if limit is not None else machine.memory if machine is not None else None
    if most is None or not any(isinstance(node.op, AllGather) for node in module.nodes()):
        return module
    with without_gc():
        known: dict[str, int] = {}
        plans: dict[Region, list[Recomputation]] = {}
        for function in _inner_first(module):
            lives = LiveRanges(function.body, known)
            plans[function.body] = lives.cut_until(most)
            known[function.name] = lives.peak
        return _Cutting(module, plans).module() if any(plans.values()) else module


def peaks(module: Module) -> dict[str, int]:
    """The peak of live bytes of each function, callees included."""
    found: dict[str, int] = {}
    for function in _inner_first(module):
        found[function.name] = LiveRanges(function.body, found).peak
    return found


def _inner_first(module: Module) -> list[Function]:
    """Functions in post-order: callees first."""
    order: dict[str, Function] = {}

    def visit(function: Function, path: tuple[str, ...]) -> None:
        if function.name in order or function.name in path:
            return
        for node in function.body.nodes:
            callee = callee_of(node.op)
            if callee is not None and callee in module.functions:
                visit(module.functions[callee], (*path, function.name))
        order[function.name] = function

    for function in module.functions.values():
        visit(function, ())
    return list(order.values())


@dataclass(eq=False)
class LiveRange:
    """The live range of a value in a region, from its definition to its last use."""

    value: Value
    born: int
    uses: list[int]  # the positions of its uses, in order

    @property
    def end(self) -> int:
        """The position of its last use."""
        return self.uses[-1] if self.uses else self.born

    @property
    def size(self) -> int:
        """Its bytes."""
        return moved(self.value.type)


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A value that is recomputed before a position, from the operand of a gather."""

    value: Value
    place: int


class LiveRanges:
    """The live ranges of a region, and the live bytes at each node."""

    def __init__(self, region: Region, peaks: dict[str, int]) -> None:
        self.count = len(region.nodes)
        # Arguments are the caller's: they stay live to the end.
        self.of: dict[Value, LiveRange] = {v: LiveRange(v, 0, [self.count]) for v in region.args}
        inner = np.zeros(self.count + 1, np.int64)
        for place, node in enumerate(region.nodes):
            for value in dict.fromkeys(reads(node)):
                if (life := self.of.get(value)) is not None and life.uses[-1:] != [self.count]:
                    life.uses.append(place)
            for value in node.results:
                self.of[value] = LiveRange(value, place, [])
            inside = [LiveRanges(r, peaks).peak for r in node.regions if node.op.control]
            inner[place] = max([*inside, peaks.get(callee_of(node.op) or "", 0)])
        for value in region.results:
            if (life := self.of.get(value)) is not None and life.end != self.count:
                life.uses.append(self.count)
        self.alive = inner + self._alive()

    def _alive(self) -> npt.NDArray[np.int64]:
        # A difference array: the running sum is what is live at each node.
        change = np.zeros(self.count + 2, np.int64)
        for life in self.of.values():
            change[life.born] += life.size
            change[life.end + 1] -= life.size
        return np.cumsum(change)[:-1]

    @property
    def peak(self) -> int:
        """The peak of live bytes."""
        return int(self.alive.max())

    def cut_until(self, most: int) -> list[Recomputation]:
        """Cuts that bring the peak down to `most` bytes, or as far as possible."""
        ready = [life for life in self.of.values() if source_of(life.value) is not None]
        cuts: list[Recomputation] = []
        while ready and self.peak > most:
            place = int(self.alive.argmax())
            late = self.cut_at(place, most, ready)
            if not late:
                break
            ready += late
            cuts += [Recomputation(life.value, life.born) for life in late]
        return cuts

    def cut_at(self, place: int, most: int, ready: list[LiveRange]) -> list[LiveRange]:
        """Cut live ranges across a position, largest first, until at most `most` bytes are live."""
        crossing: list[LiveRange] = []
        across = [life for life in ready if life.born < place < life.end]
        for life in sorted(across, key=lambda life: self.gain(life, place), reverse=True):
            if self.alive[place] <= most:
                break
            if self.gain(life, place)[0] <= 0:
                continue
            after = self.without(life, place)
            if after.max() <= self.peak:  # else its source would extend the peak elsewhere
                self.alive = after
                crossing.append(self.cut(life, place))
        return crossing

    def gain(self, life: LiveRange, place: int) -> tuple[int, int]:
        """The bytes that a cut frees at a position, and for how long; none if it is used there."""
        if not life.born < place < life.end or place in life.uses:
            return 0, 0
        before, after = _around(life, place)
        source = self.of.get(source_of(life.value) or life.value)
        longer = source.size if source is not None and source.end < place else 0
        return life.size - longer, after - before

    def without(self, life: LiveRange, place: int) -> npt.NDArray[np.int64]:
        """The live bytes at each node after a cut at a position."""
        before, after = _around(life, place)
        alive = self.alive.copy()
        alive[before + 1 : after] -= life.size
        alive[after] += between(life.value)
        source = self.of.get(source_of(life.value) or life.value)
        if source is not None and source.end < after:
            alive[source.end + 1 : after + 1] += source.size
        return alive

    def cut(self, life: LiveRange, place: int) -> LiveRange:
        """End a live range before a position; the rest begins at the next use."""
        before, after = _around(life, place)
        late = LiveRange(life.value, after, [n for n in life.uses if n >= after])
        life.uses = [n for n in life.uses if n <= before]
        source = self.of.get(source_of(life.value) or life.value)
        if source is not None and source.end < after:
            source.uses.append(after)
        return late


def between(value: Value) -> int:
    """The bytes of the intermediate values between a gather and a value computed from it."""
    total = 0
    while value.node is not None and not isinstance(value.node.op, AllGather):
        (value,) = value.node.operands
        total += moved(value.type)
    return total


def _around(life: LiveRange, place: int) -> tuple[int, int]:
    """The last use (or the definition) before a position, and the first one after it."""
    before = max([n for n in life.uses if n < place], default=life.born)
    return before, min(n for n in life.uses if n > place)


def source_of(value: Value) -> Value | None:
    """The value that recomputation needs: the operand of the gather."""
    for _ in range(_LONGEST):
        node = value.node
        if node is None or node.attrs:
            return None
        if isinstance(node.op, AllGather):
            found = node.operands[value.index]
            # The operand is kept alive instead: that must be the smaller one.
            return found if moved(found.type) < moved(value.type) else None
        if not isinstance(node.op, _CHEAP):
            return None
        (value,) = node.operands
    return None


class _Cutting(Rebuild):
    """One rebuild, with values recomputed where live ranges were cut."""

    def __init__(self, module: Module, plans: dict[Region, list[Recomputation]]) -> None:
        super().__init__(module, ())
        self.plans = plans
        self.times: dict[Value, int] = {}

    def region(self, region: Region) -> Region:
        cuts = self.plans.get(region)
        if not cuts:
            return super().region(region)
        places: dict[int, list[Value]] = {}
        for cut in cuts:
            places.setdefault(cut.place, []).append(cut.value)
        first: dict[Value, Value] = {}  # the values of this region before any cut
        out: list[Node] = []
        for place, node in enumerate([*region.nodes, None]):
            for value in places.get(place, ()):
                self.became[value] = self.again(value, first, out)
            if node is not None:
                self.node(node, out)
                first.update({v: self.became.get(v, v) for v in node.results})
        results = tuple([self.became.get(v, v) for v in region.results])
        return Region(region.args, out, results, region.loc, region.arg_locs)

    def again(self, value: Value, first: dict[Value, Value], out: list[Node]) -> Value:
        """The recomputed value."""
        node = value.node
        assert node is not None
        if isinstance(node.op, AllGather):
            shard = node.operands[value.index]
            types: tuple[Type, ...] = (value.type,)
            op, source = node.op.replace(outs=types), first.get(shard, shard)
            self.times[value] = self.times.get(value, 0) + 1
            # Numbered, so that two repetitions of one gather differ as well.
            attrs = ((AGAIN, f"{self.times[value]} : i64"),)
            copy = apply(op, source, attrs=attrs, loc=node.loc)
        else:
            copy = apply(node.op, self.again(node.operands[0], first, out), loc=node.loc)
        out.append(copy)
        return copy.results[0]
