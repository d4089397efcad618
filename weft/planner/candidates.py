"""Candidates of plans: mesh shapes, the axes of classes of dims, and shardings from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

from weft.mesh import P
from weft.planner.facts import ArgumentFact, DimClass, ProgramFacts
from weft.records import dataclass

DATA, FSDP, MODEL = "data", "fsdp", "model"
_MOST_CLASSES = 6  # of weights, along the model axis; every subset is tried, 2^6 at most


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    """A mesh, the axes along which each class of dims is split, and what state is split further."""

    axes: tuple[tuple[str, int], ...]  # of size above 1, major first
    split: tuple[tuple[DimClass, tuple[str, ...]], ...]
    shards_weights: bool  # along fsdp; else only the optimizer's state
    leads: bool = False  # whether state is sharded along its first dim; else along its largest

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis."""
        return dict(self.axes)

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        return math.prod(size for _, size in self.axes)


def candidates(facts: ProgramFacts, devices: int) -> Iterator[PlanCandidate]:
    """Every mesh of data, fsdp and model axes, and every set of classes along them."""
    dims = [c for c in facts.tensor_dims if facts.sizes[c] > 1][:_MOST_CLASSES]
    for data, fsdp, model in _shapes(devices):
        axes = tuple([(n, s) for n, s in ((DATA, data), (FSDP, fsdp), (MODEL, model)) if s > 1])
        rows = tuple([name for name, _ in axes if name != MODEL])
        batch = _batch(facts, data * fsdp, rows)
        if batch is None:
            continue
        for tensor in _subsets(facts, dims, model):
            for experts in _elsewhere(facts, tensor, data, fsdp):
                split = tuple(sorted((*batch, *tensor, *experts)))
                if fsdp == 1 or facts.trains:  # else there is no optimizer state to split
                    yield PlanCandidate(axes, split, False)
                if fsdp > 1:
                    yield PlanCandidate(axes, split, True)
                    yield PlanCandidate(axes, split, True, leads=True)


def _shapes(devices: int) -> Iterator[tuple[int, int, int]]:
    factors = [n for n in range(1, devices + 1) if devices % n == 0]
    for model in factors:
        for fsdp in factors:
            if devices % (model * fsdp) == 0:
                yield devices // (model * fsdp), fsdp, model


def _batch(
    facts: ProgramFacts, rows: int, axes: tuple[str, ...]
) -> tuple[tuple[DimClass, tuple[str, ...]], ...] | None:
    """The batch along the data and fsdp axes; None where it does not divide."""
    if rows == 1:
        return ()
    if any(facts.sizes[c] % rows for c in facts.batch_dims) or not facts.batch_dims:
        return None
    return tuple([(c, axes) for c in facts.batch_dims])


def _subsets(
    facts: ProgramFacts, dims: list[DimClass], model: int
) -> Iterator[tuple[tuple[DimClass, tuple[str, ...]], ...]]:
    """The sets of classes split along the model axis, whose size divides them."""
    if model == 1:
        yield ()
        return
    fits = [c for c in (*dims, *facts.sequence_dims) if facts.sizes[c] % model == 0]
    for count in range(1, len(fits) + 1):
        for subset in itertools.combinations(fits, count):
            if any(c in dims for c in subset) or facts.sequence_dims:
                yield tuple([(c, (MODEL,)) for c in subset])


def _elsewhere(
    facts: ProgramFacts,
    split: tuple[tuple[DimClass, tuple[str, ...]], ...],
    data: int,
    fsdp: int,
) -> Iterator[tuple[tuple[DimClass, tuple[str, ...]], ...]]:
    """Expert parallelism along an axis of the batch: classes that only lead weights of rank 3."""
    yield ()  # no expert parallelism
    used = {c for c, _ in split}
    for c in expert_dims(facts):
        if c in used:
            continue
        for name, size in ((FSDP, fsdp), (DATA, data)):
            if size > 1 and facts.sizes[c] % size == 0:
                yield ((c, (name,)),)


def expert_dims(facts: ProgramFacts) -> tuple[DimClass, ...]:
    """The classes of experts: the first dim of weights of rank 3 that no matrix has."""
    firsts = {a.classes[0] for a in facts.weights if a.type.rank == 3}
    others = {c for a in facts.weights for c in a.classes[a.type.rank == 3 :]}  # [True :] is [1:]
    return tuple(sorted(firsts - others))


def sharding_of(argument: ArgumentFact, candidate: PlanCandidate) -> tuple[tuple[str, ...], ...]:
    """The axes of each dim of an argument, before state is split further."""
    sizes, split = candidate.sizes, dict(candidate.split)
    used: set[str] = set()
    dims: list[tuple[str, ...]] = []
    for size, c in zip(argument.type.bounds, argument.classes, strict=True):
        # A sharding has an axis once: of two dims of one class only the first is split.
        axes = tuple([a for a in split.get(c, ()) if a not in used])
        if math.prod([sizes[a] for a in axes]) > 1 and size % math.prod([sizes[a] for a in axes]):
            axes = ()
        used.update(axes)
        dims.append(axes)
    return tuple(dims)


def spec_of(argument: ArgumentFact, candidate: PlanCandidate) -> P:
    """The sharding of an argument; state is split along fsdp where its dims divide."""
    dims = [*sharding_of(argument, candidate)]
    priorities = [0] * len(dims)
    along = fsdp_dim(argument, candidate, dims)
    if along is not None:
        dims[along] = (*dims[along], FSDP)
        # Propagated after the batch's axes, which have priority 0: weights are gathered where they
        # are used, and the batch stays split.
        priorities[along] = 1
    while dims and not dims[-1]:
        dims.pop()
    if along is not None:
        return P(*[d or None for d in dims], priorities=priorities[: len(dims)])
    return P(*[d or None for d in dims])


def fsdp_dim(
    argument: ArgumentFact, candidate: PlanCandidate, dims: list[tuple[str, ...]]
) -> int | None:
    """The dim of weights or optimizer state that is split along fsdp, too; None for none."""
    sizes = candidate.sizes
    shards = argument.role == "optimizer" or (
        argument.role == "weight" and candidate.shards_weights
    )
    if not shards or FSDP not in sizes or any(FSDP in axes for axes in dims):
        return None
    bounds = argument.type.bounds
    fits = [
        d
        for d, axes in enumerate(dims)
        if bounds[d] % (math.prod([sizes[a] for a in axes]) * sizes[FSDP]) == 0
    ]
    # A dim that is not split yet, and of these the largest, or the first.
    order = (lambda d: -d) if candidate.leads else (lambda d: bounds[d])
    return max(fits, key=lambda d: (not dims[d], order(d)), default=None)


def specs(facts: ProgramFacts, candidate: PlanCandidate) -> Mapping[str, P]:
    """The sharding of each argument by name."""
    return {a.name: spec_of(a, candidate) for a in facts.arguments}
