"""Loops and branches that all devices take together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft.array.room import ROOM, address_of
from weft.ir.module import Region
from weft.ir.types import Array, TensorType
from weft.run.code import Item, Slots, Step, Turn
from weft.run.flow import chooser_of, shape_of, widen
from weft.run.kernel import Site
from weft.run.vary import Masks, Scope

if TYPE_CHECKING:
    from weft.run.code import Code
    from weft.run.compile import Compiler


# Loops


def loop(compiler: Compiler, site: Site, carried: Masks, code: Code) -> None:
    """A loop whose predicate is the same on all devices."""
    made = _Loop(compiler, site, carried)
    inner = (made.test, made.work)
    item = Item(site.node, made.bind, None, made.ins, made.outs, site.node.results, inner=inner)
    layout = site.scope.layout
    listed = zip(site.node.results, carried, strict=True)
    item.shapes = tuple([shape_of(v, m, layout) for v, m in listed])
    item.carried = tuple(made.slots)
    item.turns = [] if compiler.target is not None and not layout.has_rows else None
    code.items.append(item)


class _Loop:
    """The parts of a loop."""

    def __init__(self, compiler: Compiler, site: Site, carried: Masks) -> None:
        scope, node, layout = site.scope, site.node, site.scope.layout
        condition, body = node.regions
        self.compiler = compiler
        self.slots = [compiler.new() for _ in carried]
        for region in (condition, body):
            scope.slots.update(zip(region.args, self.slots, strict=True))
        scope.let(condition.args, carried)
        self.test = compiler.region(condition, scope)
        scope.let(body.args, carried)
        self.work = compiler.region(body, scope, frees=True)
        made = scope.of(body.results)
        self.enter = [widen(m, c, layout) for m, c in zip(site.given, carried, strict=True)]
        self.again = [widen(m, c, layout) for m, c in zip(made, carried, strict=True)]
        self.ins = tuple([scope.slots[v] for v in node.operands])
        self.outs = compiler.results(node, scope)
        self.rows = layout.active

    def bind(self, item: Item) -> Step:
        """The closure."""
        (verdict,), slots, outs, dead = self.test.results, self.slots, self.outs, item.dead
        test, work, rows, own = self.test, self.work, self.rows, item.own
        results = {*test.results, *work.results}
        leftovers = tuple(results - {*slots, *self.compiler.constants})
        turns = [_Turning(turn, item, self.compiler) for turn in item.turns or ()]
        turning = {turn.index for turn in item.turns or ()}
        changing = [
            (slot, again, result)
            for n, (slot, again, result) in enumerate(
                zip(slots, self.again, work.results, strict=True)
            )
            if n not in turning and slot != result
        ]
        at_first = self.compiler.settled(slots)
        each_round = self.compiler.settled([slot for slot, _, _ in changing])

        def step(s: Slots) -> None:
            active = None if rows is None else s[rows]
            values = [w(s[n], active) for w, n in zip(self.enter, self.ins, strict=True)]
            for n in own:
                values[n] = values[n].copy()
            for slot, value in zip(slots, values, strict=True):
                s[slot] = value
            if at_first is not None:
                at_first(s)
            for turn in turns:
                turn.begin(s)
            count = 0
            while True:
                test.run(s)
                if not s[verdict].reshape(-1)[0]:
                    break
                for turn in turns:
                    turn.before(s, count)
                work.run(s)
                values = [again(s[n], active) for _, again, n in changing]
                for (slot, _, _), value in zip(changing, values, strict=True):
                    s[slot] = value
                if each_round is not None:
                    each_round(s)
                for turn in turns:
                    turn.after(s, count)
                count += 1
            for turn in turns:
                turn.end(s, count)
            for slot, out in zip(slots, outs, strict=True):
                s[out], s[slot] = s[slot], None
            for slot in (*leftovers, *dead):
                s[slot] = None

        return step


class _Turning:
    """What a kernel of the body makes anew in every round, in one buffer or in two by turns."""

    def __init__(self, turn: Turn, loop: Item, compiler: Compiler) -> None:
        launches = compiler.launches
        assert launches is not None, "kernels of a target are launched"
        shape, type = loop.shapes[turn.index], loop.values[turn.index].type
        assert shape is not None and isinstance(type, TensorType), "kernels make tensors"
        self.shape, self.dtype, self.nbytes = shape, type.dtype.numpy, turn.nbytes
        self.slot, self.result, self.count = turn.slot, turn.result, turn.buffers
        self.offsets = turn.places
        self.held = compiler.new()  # the arrays, and their addresses
        self.read = launches.places.get(turn.slot, [])
        self.written = launches.places[turn.result]

    def begin(self, s: Slots) -> None:
        """Have memory for the rounds."""
        if self.offsets:
            if s[self.held] is None:
                arrays = [np.ndarray(self.shape, self.dtype, s[0], at) for at in self.offsets]
                s[self.held] = self._with_addresses(arrays)
        else:
            arrays = [ROOM.empty(self.shape, self.dtype, self.nbytes) for _ in range(self.count)]
            s[self.held] = self._with_addresses(arrays)

    def _with_addresses(self, arrays: list[Array]) -> list[tuple[Array, int]]:
        return [(array, address_of(array)) for array in arrays]

    def before(self, s: Slots, count: int) -> None:
        """Say where the next value is to be written."""
        if count < self.count or self.count > 1:
            _, address = s[self.held][count % self.count]
            for table, place in self.written:
                s[table][place] = address
        s[self.result] = s[self.held][count % self.count][0]

    def after(self, s: Slots, count: int) -> None:
        """The next value is what is carried now."""
        array, address = s[self.held][count % self.count]
        s[self.slot] = array
        for table, place in self.read:
            s[table][place] = address

    def end(self, s: Slots, count: int) -> None:
        """What is carried lies in the loop's memory, also where there was no round."""
        if not count:
            array, _ = s[self.held][0]
            array[...] = s[self.slot]
            s[self.slot] = array
        if not self.offsets:
            s[self.held] = None


# Branches


def branch(compiler: Compiler, site: Site, code: Code) -> None:
    """A branch that all devices take together."""
    scope, node, layout = site.scope, site.node, site.scope.layout
    codes = tuple([compiler.region(region, scope) for region in node.regions])
    wide = [
        [widen(m, c, layout) for m, c in zip(scope.of(r.results), site.made, strict=True)]
        for r in node.regions
    ]
    chooser, rows = scope.slots[node.operands[0]], layout.active
    choose = chooser_of(node)
    outs = compiler.results(node, scope)
    own = [own_results(r, scope, compiler.constants) for r in node.regions]

    def bind(item: Item) -> Step:
        dead = item.dead

        def step(s: Slots) -> None:
            taken = choose(s[chooser].reshape(-1)[0])
            code = codes[taken]
            code.run(s)
            active = None if rows is None else s[rows]
            made = [w(s[n], active) for w, n in zip(wide[taken], code.results, strict=True)]
            for slot in own[taken]:
                s[slot] = None
            for out, value in zip(outs, made, strict=True):
                s[out] = value
            for slot in dead:
                s[slot] = None

        return step

    item = Item(node, bind, None, (chooser,), outs, node.results, inner=codes)
    item.only_reads = True
    code.items.append(item)


def own_results(region: Region, scope: Scope, constants: Any) -> tuple[int, ...]:
    """The slots of results that a region computes itself."""
    made = {v for n in region.nodes for v in n.results}
    return tuple({scope.slots[v] for v in region.results if v in made} - set(constants))
