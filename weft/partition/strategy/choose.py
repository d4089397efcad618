"""The choice of axes for each factor of an op, by the bytes sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence

from weft.ir.rule import Rule, RuleFactor
from weft.ir.types import TensorType, Type
from weft.mesh import Mesh
from weft.mesh.algebra import Axes, DimAxes, overlaps, total_size
from weft.partition.reshard import plan
from weft.partition.strategy.factors import FactorAxes, asked, project
from weft.records import dataclass

# The cost of one point of an op's loop nest, in bytes: computing is cheap, not free.
_POINT = 1e-5

# The weight of a byte sent for full replication of a tensor, if that is to be avoided.
_SHYNESS = 20.0

Version = tuple[DimAxes, Axes]  # a split and unreduced axes


@dataclass(frozen=True, slots=True)
class Question:
    """An op with the available versions of its operands and the wanted splits of its results."""

    rule: Rule
    operands: tuple[Type, ...]
    results: tuple[Type, ...]
    given: tuple[tuple[Version, ...], ...]  # for each operand its available versions
    asked: tuple[DimAxes, ...]  # for each operand its propagated split
    wanted: tuple[DimAxes | None, ...]  # for each result; None for any split
    free: frozenset[int]  # the factors that may be split
    mesh: Mesh
    sent: Callable[[FactorAxes], float] | None = None  # bytes sent by the op's own partitioner
    heed: float = 1.0  # the weight of the cost of the wanted result splits
    is_shy: bool = False  # whether full gathers of sharded tensors are penalized


def cheapest(questions: Sequence[Question]) -> tuple[Question, FactorAxes]:
    """Of several rules for one op the cheapest, and the axes of its factors."""
    if len(questions) == 1:
        return questions[0], choose(questions[0])
    answers = []
    for question in questions:
        chosen = choose(question)
        cost = _cost(question, chosen)
        if cost <= _computing(question, chosen):  # nothing is sent
            return question, chosen
        answers.append((question, chosen, cost))
    best = min(answers, key=lambda answer: answer[2])
    return best[0], best[1]


def choose(question: Question) -> FactorAxes:
    """The axes of each factor: those that all tensors agree on, or else the cheapest found."""
    sources = list(_sources(question))
    first = _merged(question, sources)
    if _agreed(question, first, sources):
        return first
    # A search from several seeds: each tensor's own axes, all of them with another one first, and
    # no axes at all. One seed may end in a local minimum.
    options = _options(question, sources)
    seeds = [first, *[_merged(question, [s]) for s in sources], _merged(question, [])]
    for n in range(1, len(sources)):
        seeds.append(_merged(question, [*sources[n:], *sources[:n]]))
    costs = [_cost(question, seed) for seed in seeds]
    least = min(costs)
    best = seeds[costs.index(least)]
    return _improved(question, best, least, options)


def _sources(question: Question) -> Iterator[dict[int, Axes]]:
    """The factor axes of each tensor, the largest tensor first."""
    rule = question.rule
    sides = [
        *zip(question.operands, question.asked, rule.operands, strict=True),
        *zip(question.results, question.wanted, rule.results, strict=True),
    ]
    order = sorted(range(len(sides)), key=lambda n: -_elements(sides[n][0]))
    for n in order:
        _, split, dims = sides[n]
        others = [s for s, _ in question.given[n]] if n < len(question.given) else []
        for one in dict.fromkeys([split, *others]):
            if one is not None and any(one):
                found = project(one, dims, rule, question.mesh)
                yield {f: axes for f, axes in found.items() if f in question.free}


def _elements(type: Type) -> int:
    return type.size if isinstance(type, TensorType) else 0


def _merged(question: Question, sources: Sequence[dict[int, Axes]]) -> FactorAxes:
    """Every factor with the axes of the first source that has some, without conflicts."""
    chosen: dict[int, Axes] = {}
    parts = question.rule.parts
    for source in sources:
        for factor, axes in source.items():
            beside = [a for f, a in chosen.items() if parts[f] == parts[factor]]
            if factor not in chosen and not _taken(axes, beside):
                chosen[factor] = axes
    return tuple([chosen.get(n, ()) for n in range(len(question.rule.factors))])


def _taken(axes: Axes, others: Collection[Axes]) -> bool:
    return any(overlaps(a, b) for a in axes for other in others for b in other)


def _agreed(question: Question, chosen: FactorAxes, sources: list[dict[int, Axes]]) -> bool:
    """Whether this choice needs no reshard, and no other choice can be better."""
    rule = question.rule
    # Such a split needs masks and a combination, which are not reshards: let the search compare.
    if any(axes and _is_masked(f) for f, axes in zip(rule.factors, chosen, strict=True)):
        return False
    for dims, split, given in zip(rule.operands, question.asked, question.given, strict=True):
        if asked(chosen, dims, rule, question.mesh) != split:
            return False
        if not any(there == split for there, _ in given):
            return False
    for dims, wanted in zip(rule.results, question.wanted, strict=True):
        made = asked(chosen, dims, rule, question.mesh)
        if made is None or (wanted is not None and made != wanted):
            return False
    return True


def _options(question: Question, sources: list[dict[int, Axes]]) -> list[list[Axes]]:
    options: list[list[Axes]] = [[()] for _ in question.rule.factors]
    for source in sources:
        for factor, axes in source.items():
            for count in range(len(axes), 0, -1):
                if axes[:count] not in options[factor]:
                    options[factor].append(axes[:count])
    for axes in dict.fromkeys([*_loose(question), *[a for s in sources for a in s.values()]]):
        _add_loose(question, axes, options)
    return options


def _loose(question: Question) -> list[Axes]:
    """Axes of dims that may have to be gathered: other dims could use them instead."""
    rule = question.rule
    found: list[Axes] = []
    for split, dims in zip(
        (*question.asked, *question.wanted), (*rule.operands, *rule.results), strict=True
    ):
        for axes, factors in zip(split or (), dims, strict=False):
            stuck = len(factors) > 1 or factors[0] not in question.free
            if axes and stuck and axes not in found:
                found.append(axes)
    return found


def _add_loose(question: Question, axes: Axes, options: list[list[Axes]]) -> None:
    for factor, choices in enumerate(options):
        kind = question.rule.factors[factor]
        if factor not in question.free or kind.role != "pass":
            continue
        for held in list(choices):
            made = (*held, *axes)
            # Without padding only: a loose axis is an opportunity, not a request of the program.
            fits = kind.size % total_size(made, question.mesh) == 0
            if fits and not _taken(axes, (held,)) and made not in choices:
                choices.append(made)


def _is_masked(factor: RuleFactor) -> bool:
    """Whether splitting a factor gives masked partial results, an avoidable cost."""
    return factor.role == "reduction" and factor.combine is None


def _improved(
    question: Question, best: FactorAxes, least: float, options: list[list[Axes]]
) -> FactorAxes:
    """Local search: change one factor at a time, dropping conflicting axes, while it is cheaper."""
    parts = question.rule.parts
    for _ in range(3):  # bounded, for compile time
        before = least
        for factor, choices in enumerate(options):
            for axes in choices:
                if axes == best[factor]:
                    continue
                tried = tuple(
                    axes
                    if n == factor
                    else ()
                    if parts[n] == parts[factor] and _taken(axes, (other,))
                    else other
                    for n, other in enumerate(best)
                )
                cost = _cost(question, tried)
                if cost < least:
                    best, least = tried, cost
        if least == before:
            break
    return best


def _cost(question: Question, chosen: FactorAxes) -> float:
    """The cost of a choice: bytes sent, and computation in bytes."""
    rule, mesh = question.rule, question.mesh
    cost = _computing(question, chosen)
    sides = zip(question.operands, question.given, rule.operands, strict=True)
    for type, given, dims in sides:
        split = asked(chosen, dims, rule, mesh)
        if split is None:
            return math.inf
        if isinstance(type, TensorType):
            sent = min(plan(type, s, unreduced, split, (), mesh).bytes for s, unreduced in given)
            cost += _counted(question, sent, given[0][0], split)
    unreduced = unreduced_axes(rule, chosen)
    for type, wanted, dims in zip(question.results, question.wanted, rule.results, strict=True):
        split = asked(chosen, dims, rule, mesh)
        if split is None:
            return math.inf
        if isinstance(type, TensorType):
            to = split if wanted is None else wanted
            least = plan(type, split, unreduced, split, (), mesh).bytes
            moved = plan(type, split, unreduced, to, (), mesh).bytes
            moved = _counted(question, moved, split, to)
            # What reducing costs in any case counts in full; only the rest, which propagation asks
            # for, is weighted by the policy.
            cost += min(moved, least) + max(0.0, moved - least) * question.heed
    return cost if question.sent is None else cost + question.sent(chosen)


def _counted(question: Question, sent: float, start: DimAxes, to: DimAxes) -> float:
    """The weighted cost of the bytes sent for a tensor: more for penalized gathers."""
    everyone = question.mesh.size
    is_full = not any(to) and total_size(_all(start), question.mesh) == everyone
    return sent * _SHYNESS if question.is_shy and is_full else sent


def _all(split: DimAxes) -> Axes:
    return tuple(axis for axes in split for axis in axes)


def _computing(question: Question, chosen: FactorAxes) -> float:
    pieces = math.prod(total_size(axes, question.mesh) for axes in chosen)
    return _points(question) / pieces * _POINT


def _points(question: Question) -> int:
    """The number of points that an op computes; for indexed ops, one per element."""
    # The factors of gathers and scatters do not span all points that are computed.
    if question.rule.is_aided:
        return max((_elements(t) for t in (*question.operands, *question.results)), default=0)
    return question.rule.points


def unreduced_axes(rule: Rule, chosen: FactorAxes) -> Axes:
    """The axes of split reductions, over which the results are unreduced."""
    pairs = zip(rule.factors, chosen, strict=True)
    return tuple(a for factor, axes in pairs if factor.role == "reduction" for a in axes)


def moved_bytes(
    question: Question, operands: tuple[DimAxes, ...], results: tuple[DimAxes, ...]
) -> float:
    """The bytes of the reshards of operands and results."""
    pairs = [
        *zip(question.operands, question.asked, operands, strict=True),
        *zip(question.results, results, question.wanted, strict=True),
    ]
    free = [any(not any(s) and not unreduced for s, unreduced in given) for given in question.given]
    pairs = [pair for n, pair in enumerate(pairs) if n >= len(free) or not free[n]]
    return sum(
        plan(type, given, (), to, (), question.mesh).bytes
        for type, given, to in pairs
        if isinstance(type, TensorType) and to is not None and given != to
    )
