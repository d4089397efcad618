"""Loops and branches that all devices take together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft.ir.module import Region
from weft.run.code import Item, Slots, Step
from weft.run.flow import chooser_of, shape_of, widen
from weft.run.kernel import Site
from weft.run.scope import Scope
from weft.run.turns import Turning, native_rounds
from weft.varying.masks import Masks

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
        self.made = {s for r in node.regions for s in own_results(r, scope, ())}

    def bind(self, item: Item) -> Step:
        """The closure."""
        slots, outs, dead = self.slots, self.outs, item.dead
        test, work, rows, own = self.test, self.work, self.rows, item.own
        leftovers = tuple(self.made - {*self.compiler.constants})
        turns = [Turning(turn, item, self.compiler) for turn in item.turns or ()]
        changing = self._changing({n for turn in item.turns or () for n in turn.indices})
        at_first = self.compiler.settled(slots)
        rounds = None if changing else native_rounds(self.compiler, test, work, turns)
        rounds = rounds or self._rounds(changing, turns)

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
            count = rounds(s)
            for turn in turns:
                turn.end(s, count)
            for slot, out in zip(slots, outs, strict=True):
                s[out], s[slot] = s[slot], None
            for slot in (*leftovers, *dead):
                s[slot] = None

        return step

    def _rounds(
        self, changing: Sequence[tuple[int, Any, int]], turns: Sequence[Turning]
    ) -> Callable[[Slots], int]:
        """What runs all rounds, one after another, and says how many there were."""
        (verdict,), test, work, rows = self.test.results, self.test, self.work, self.rows
        every_round = [turn for turn in turns if not turn.settles]
        settled = self.compiler.settled([slot for slot, _, _ in changing])

        def rounds(s: Slots) -> int:
            active = None if rows is None else s[rows]
            count = 0
            while True:
                test.run(s)
                if not s[verdict].item():
                    return count
                work.run(s)
                if changing:
                    values = [wide(s[n], active) for _, wide, n in changing]
                    for (slot, _, _), value in zip(changing, values, strict=True):
                        s[slot] = value
                    if settled is not None:
                        settled(s)
                for turn in every_round if count else turns:
                    turn.go_on(s, count)
                count += 1

        return rounds

    def _changing(self, turning: set[int]) -> list[tuple[int, Any, int]]:
        """What is carried anew after every round: its slot, how it is spelled out, and the next."""
        listed = zip(self.slots, self.again, self.work.results, strict=True)
        return [
            (slot, again, result)
            for n, (slot, again, result) in enumerate(listed)
            if n not in turning and slot != result
        ]


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
