"""Plans in words: what each one splits, what it sends, and how it differs from the best."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from weft.machine import bytes_text, seconds_text
from weft.mesh import P
from weft.planner.candidates import DATA, FSDP, MODEL, PlanCandidate, expert_dims
from weft.planner.facts import DimClass, ProgramFacts
from weft.planner.repeats import LAYER_NUMBER


class TriedPlan(Protocol):
    """A simulated candidate."""

    @property
    def candidate(self) -> PlanCandidate: ...
    @property
    def seconds(self) -> float: ...
    @property
    def memory(self) -> int: ...
    @property
    def parts(self) -> Mapping[str, float]: ...
    @property
    def sent(self) -> Mapping[str, float]: ...


def patterns(specs: Mapping[str, P], facts: ProgramFacts | None) -> dict[str, P]:
    """Shardings by patterns: numbers become `*` where all names of a pattern agree."""
    by_pattern: dict[str, P] = {}
    unequal: set[str] = set()  # layers with different shardings keep their own names
    for name, spec in specs.items():
        pattern = LAYER_NUMBER.sub("*", name)
        if by_pattern.setdefault(pattern, spec) != spec:
            unequal.add(pattern)
    exact = {name: spec for name, spec in specs.items() if LAYER_NUMBER.sub("*", name) in unequal}
    return exact | {pattern: s for pattern, s in by_pattern.items() if pattern not in unequal}


def explained(
    facts: ProgramFacts, best: Sequence[TriedPlan], *, screened: int, tried: int
) -> list[tuple[str, ...]]:
    """Sentences on each plan: its splits, its traffic, and its trade-offs."""
    first = best[0]
    texts = []
    for one in best:
        lines = [*_splits(facts, one.candidate), *_traffic(one)]
        if one is first:
            lines.append(f"the fastest of {tried} simulated and {screened:,} estimated candidates")
        else:
            lines.append(_against(one, first))
        texts.append(tuple(lines))
    return texts


def _splits(facts: ProgramFacts, candidate: PlanCandidate) -> list[str]:
    sizes, split = candidate.sizes, dict(candidate.split)
    lines = []
    rows = [f"{a}={sizes[a]}" for a in (DATA, FSDP) if a in sizes]
    if rows:
        lines.append(f"the batch is split over {' x '.join(rows)}")
    if FSDP in sizes:
        over = f"sharded over fsdp={sizes[FSDP]}"
        if not facts.trains:
            lines.append(f"weights are {over}")
        elif candidate.shards_weights:
            lines.append(f"weights, gradients and the optimizer's state are {over}")
        else:
            lines.append(f"the optimizer's state is {over}, weights are whole on each device")
    along = [c for c, axes in split.items() if MODEL in axes]
    weights = [w for c in along if (w := _weights_of(facts, c)) and c not in facts.sequence_dims]
    if weights:
        listed = "; ".join(dict.fromkeys(weights))
        lines.append(f"tensor parallel over model={sizes[MODEL]}: {listed}")
    if any(c in along for c in facts.sequence_dims):
        lines.append(f"the sequence is split over model={sizes[MODEL]}")
    for c in expert_dims(facts):
        if c in split:
            lines.append(f"experts are split over {' x '.join(split[c])}")
    return lines


def _weights_of(facts: ProgramFacts, c: DimClass) -> str:
    """The dims of weights of a class: `dim 1 of q, k, v, dim 0 of o`."""
    places: dict[int, list[str]] = {}
    for argument in facts.weights:
        for dim, other in enumerate(argument.classes):
            if other == c and len(argument.classes) > 1:
                places.setdefault(dim, []).append(short_name(argument.name))
    return ", ".join(f"dim {d} of {', '.join(names)}" for d, names in sorted(places.items()))


def short_name(name: str) -> str:
    """The last words of an argument's name."""
    words = re.findall(r"[A-Za-z_]\w*", name)
    words = [w for w in words if w not in ("weight", "weights")] or words
    return words[-1] if words else name


def _traffic(one: TriedPlan) -> list[str]:
    top = sorted(one.sent.items(), key=lambda item: -item[1])[:2]
    waits = one.parts.get("collectives exposed", 0.0)
    if not top:
        return ["nothing is sent"]
    listed = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in top)
    return [f"collectives: {listed}; compute waits {seconds_text(waits)} for them"]


def _against(one: TriedPlan, first: TriedPlan) -> str:
    slower = one.seconds / first.seconds - 1
    less = first.memory - one.memory
    trade = f"{slower:.1%} slower than the best"
    if less > 0:
        trade += f", with {bytes_text(less)} less memory a device"
    elif less < 0:
        trade += f", with {bytes_text(-less)} more memory a device"
    changes = {k: one.parts.get(k, 0.0) - first.parts.get(k, 0.0) for k in one.parts}
    if changes:
        name, most = max(changes.items(), key=lambda item: item[1])
        if most > 0:
            trade += f": {seconds_text(most)} more in {name}"
    return trade
