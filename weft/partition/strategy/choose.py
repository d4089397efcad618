"""The choice of axes for each factor of an op, by the bytes sent or the prices of a machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from weft.cost.prices import BYTES, CollectivePrices
from weft.ir.rule import Rule, RuleFactor
from weft.ir.types import TensorType, Type
from weft.mesh import Mesh
from weft.mesh.algebra import Axes, DimAxes, overlaps, total_size
from weft.partition.reshard import plan
from weft.partition.strategy.factors import FactorAxes, project, split_by_factors
from weft.records import dataclass

# The weight of a byte sent for full replication of a tensor, if that is to be avoided.
_FULL_GATHER_PENALTY = 20.0

Version = tuple[DimAxes, Axes]  # a split and unreduced axes


@dataclass(frozen=True, slots=True)
class ShardingProblem:
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
    result_weight: float = 1.0  # the weight of the cost of the wanted result splits
    avoids_full_gathers: bool = False  # whether full gathers of sharded tensors are penalized
    prices: CollectivePrices = BYTES  # of reshards


@dataclass(frozen=True, slots=True)
class FactorChoice:
    """The axes of an op's factors by one of its rules."""

    problem: ShardingProblem
    axes: FactorAxes
    is_agreed: bool  # all tensors agree on them, whatever costs weigh


def cheapest(problems: Sequence[ShardingProblem]) -> FactorChoice:
    """Of several rules for one op the cheapest, and the axes of its factors."""
    if len(problems) == 1:
        return choose(problems[0])
    answers: list[tuple[float, FactorChoice]] = []
    for problem in problems:
        choice = choose(problem)
        cost = _cost(problem, choice.axes)
        if cost <= _computing(problem, choice.axes):  # nothing is sent
            return replace(choice, is_agreed=choice.is_agreed and not answers)
        answers.append((cost, choice))
    return replace(min(answers, key=lambda answer: answer[0])[1], is_agreed=False)


def choose(problem: ShardingProblem) -> FactorChoice:
    """The axes of each factor: those that all tensors agree on, or else the cheapest found."""
    sources = list(_sources(problem))
    first = _merged(problem, sources)
    if _agreed(problem, first, sources):
        return FactorChoice(problem, first, True)
    # A search from several seeds: each tensor's own axes, all of them with another one first, and
    # no axes at all. One seed may end in a local minimum.
    options = _options(problem, sources)
    seeds = [first, *[_merged(problem, [s]) for s in sources], _merged(problem, [])]
    for n in range(1, len(sources)):
        seeds.append(_merged(problem, [*sources[n:], *sources[:n]]))
    costs = [_cost(problem, seed) for seed in seeds]
    least = min(costs)
    best = seeds[costs.index(least)]
    return FactorChoice(problem, _improved(problem, best, least, options), False)


def _sources(problem: ShardingProblem) -> Iterator[dict[int, Axes]]:
    """The factor axes of each tensor, the largest tensor first."""
    rule = problem.rule
    sides = [
        *zip(problem.operands, problem.asked, rule.operands, strict=True),
        *zip(problem.results, problem.wanted, rule.results, strict=True),
    ]
    order = sorted(range(len(sides)), key=lambda n: -_elements(sides[n][0]))
    for n in order:
        _, split, dims = sides[n]
        others = [s for s, _ in problem.given[n]] if n < len(problem.given) else []
        for one in dict.fromkeys([split, *others]):
            if one is not None and any(one):
                found = project(one, dims, rule, problem.mesh)
                yield {f: axes for f, axes in found.items() if f in problem.free}


def _elements(type: Type) -> int:
    return type.size if isinstance(type, TensorType) else 0


def _merged(problem: ShardingProblem, sources: Sequence[dict[int, Axes]]) -> FactorAxes:
    """Every factor with the axes of the first source that has some, without conflicts."""
    by_factor: dict[int, Axes] = {}
    parts = problem.rule.parts
    for source in sources:
        for factor, axes in source.items():
            # Factors that share no tensor, not even by way of others, may use the same axes.
            beside = [a for f, a in by_factor.items() if parts[f] == parts[factor]]
            if factor not in by_factor and not _any_overlap(axes, beside):
                by_factor[factor] = axes
    return tuple([by_factor.get(n, ()) for n in range(len(problem.rule.factors))])


def _any_overlap(axes: Axes, others: Collection[Axes]) -> bool:
    return any(overlaps(a, b) for a in axes for other in others for b in other)


def _agreed(
    problem: ShardingProblem, by_factor: FactorAxes, sources: list[dict[int, Axes]]
) -> bool:
    """Whether this choice needs no reshard, and no other choice can be better."""
    rule = problem.rule
    # Such a split needs masks and a combination, which are not reshards: let the search compare.
    if any(axes and _is_masked(f) for f, axes in zip(rule.factors, by_factor, strict=True)):
        return False
    for dims, split, given in zip(rule.operands, problem.asked, problem.given, strict=True):
        if split_by_factors(by_factor, dims, rule, problem.mesh) != split:
            return False
        if not any(there == split for there, _ in given):
            return False
    for dims, wanted in zip(rule.results, problem.wanted, strict=True):
        made = split_by_factors(by_factor, dims, rule, problem.mesh)
        if made is None or (wanted is not None and made != wanted):
            return False
    return True


def _options(problem: ShardingProblem, sources: list[dict[int, Axes]]) -> list[list[Axes]]:
    options: list[list[Axes]] = [[()] for _ in problem.rule.factors]
    for source in sources:
        for factor, axes in source.items():
            for count in range(len(axes), 0, -1):
                if axes[:count] not in options[factor]:
                    options[factor].append(axes[:count])
    for axes in dict.fromkeys([*_loose(problem), *[a for s in sources for a in s.values()]]):
        _add_loose(problem, axes, options)
    return options


def _loose(problem: ShardingProblem) -> list[Axes]:
    """Axes of dims that may have to be gathered: other dims could use them instead."""
    rule = problem.rule
    axes_lists: list[Axes] = []
    for split, dims in zip(
        (*problem.asked, *problem.wanted), (*rule.operands, *rule.results), strict=True
    ):
        for axes, factors in zip(split or (), dims, strict=False):
            stuck = len(factors) > 1 or factors[0] not in problem.free
            if axes and stuck and axes not in axes_lists:
                axes_lists.append(axes)
    return axes_lists


def _add_loose(problem: ShardingProblem, axes: Axes, options: list[list[Axes]]) -> None:
    for factor, choices in enumerate(options):
        kind = problem.rule.factors[factor]
        if factor not in problem.free or kind.role != "pass":
            continue
        for held in list(choices):
            longer = (*held, *axes)
            # Without padding only: a loose axis is an opportunity, not a request of the program.
            fits = kind.size % total_size(longer, problem.mesh) == 0
            if fits and not _any_overlap(axes, (held,)) and longer not in choices:
                choices.append(longer)


def _is_masked(factor: RuleFactor) -> bool:
    """Whether splitting a factor gives masked partial results, an avoidable cost."""
    return factor.role == "reduction" and factor.combine is None


def _improved(
    problem: ShardingProblem, best: FactorAxes, least: float, options: list[list[Axes]]
) -> FactorAxes:
    """Local search: change one factor at a time, dropping conflicting axes, while it is cheaper."""
    parts = problem.rule.parts
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
                    if parts[n] == parts[factor] and _any_overlap(axes, (other,))
                    else other
                    for n, other in enumerate(best)
                )
                cost = _cost(problem, tried)
                if cost < least:
                    best, least = tried, cost
        if least == before:
            break
    return best


def _cost(problem: ShardingProblem, axes: FactorAxes) -> float:
    """The cost of a choice: bytes sent, and computation in bytes."""
    rule, mesh, prices = problem.rule, problem.mesh, problem.prices
    cost = _computing(problem, axes)
    sides = zip(problem.operands, problem.given, rule.operands, strict=True)
    for type, versions, dims in sides:
        split = split_by_factors(axes, dims, rule, mesh)
        if split is None:
            return math.inf
        if isinstance(type, TensorType):
            sent = min(
                plan(type, s, partial, split, (), mesh, prices).cost for s, partial in versions
            )
            cost += _counted(problem, sent, versions[0][0], split)
    unreduced = unreduced_axes(rule, axes)
    for type, wanted, dims in zip(problem.results, problem.wanted, rule.results, strict=True):
        split = split_by_factors(axes, dims, rule, mesh)
        if split is None:
            return math.inf
        if isinstance(type, TensorType):
            to = split if wanted is None else wanted
            least = plan(type, split, unreduced, split, (), mesh, prices).cost
            moved = plan(type, split, unreduced, to, (), mesh, prices).cost
            moved = _counted(problem, moved, split, to)
            # What reducing costs in any case counts in full; only the rest, which propagation asks
            # for, is weighted by the policy.
            cost += min(moved, least) + max(0.0, moved - least) * problem.result_weight
    return cost if problem.sent is None else cost + problem.sent(axes)


def _counted(problem: ShardingProblem, sent: float, start: DimAxes, to: DimAxes) -> float:
    """The weighted cost of the bytes sent for a tensor: more for penalized gathers."""
    everyone = problem.mesh.size
    is_full = not any(to) and total_size(_all(start), problem.mesh) == everyone
    return sent * _FULL_GATHER_PENALTY if problem.avoids_full_gathers and is_full else sent


def _all(split: DimAxes) -> Axes:
    return tuple(axis for axes in split for axis in axes)


def _computing(problem: ShardingProblem, chosen: FactorAxes) -> float:
    pieces = math.prod(total_size(axes, problem.mesh) for axes in chosen)
    return _points(problem) / pieces * problem.prices.point


def _points(problem: ShardingProblem) -> int:
    """The number of points that an op computes; for indexed ops, one per element."""
    # The factors of gathers and scatters do not span all points that are computed.
    if problem.rule.is_aided:
        return max((_elements(t) for t in (*problem.operands, *problem.results)), default=0)
    return problem.rule.points


def unreduced_axes(rule: Rule, chosen: FactorAxes) -> Axes:
    """The axes of split reductions, over which the results are unreduced."""
    pairs = zip(rule.factors, chosen, strict=True)
    return tuple(a for factor, axes in pairs if factor.role == "reduction" for a in axes)


def moved_bytes(
    problem: ShardingProblem, operands: tuple[DimAxes, ...], results: tuple[DimAxes, ...]
) -> float:
    """The bytes of the reshards of operands and results."""
    pairs = [
        *zip(problem.operands, problem.asked, operands, strict=True),
        *zip(problem.results, results, problem.wanted, strict=True),
    ]
    # An operand that is there replicated, too, is sliced for free.
    free = [any(not any(s) and not unreduced for s, unreduced in given) for given in problem.given]
    pairs = [pair for n, pair in enumerate(pairs) if n >= len(free) or not free[n]]
    return sum(
        plan(type, given, (), to, (), problem.mesh).bytes
        for type, given, to in pairs
        if isinstance(type, TensorType) and to is not None and given != to
    )
