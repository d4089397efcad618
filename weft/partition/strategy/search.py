"""Policy search: a module is partitioned by several policies, and the cheapest is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import TypeAlias

from weft.cost.distinct import distinct_sent
from weft.cost.sent import full_gathers
from weft.ir.module import Module, Value
from weft.mesh.algebra import DimAxes
from weft.partition.program import ModuleState
from weft.partition.strategy.policies import Policy, overriding
from weft.records import dataclass

# The weights of propagated result splits to try.
_RESULT_WEIGHTS = (0.5, 0.0)
_LITTLE = 0.01  # the share of avoidable bytes below which no further policy is tried
_NEAR = 1.05  # a try within this factor of the best is refined
_LARGE = 6000  # nodes; larger modules get fewer tries
_OVERRIDING = 1.1  # factor on the cost of a policy with overrides: it must save a tenth
# Factor on the cost of a policy with prices. Sums of seconds do not see what overlaps: on 64 H100s
# GPT-2 lost 5% where the sum was 12% less. Programs bound by latency gain a multiple of it.
_PRICED = 1.5
# Factors on the bytes for plans without full gathers: incidental ones, and policies for it. The
# seconds of a machine are no proxy that errs by so much.
_AVOIDED = 3.0
_AVOIDED_BY_POLICY = 1.25

ModuleCost: TypeAlias = Callable[[Module], float]


@dataclass(frozen=True)
class PolicyOutcome:
    """The outcome of one policy."""

    local: Module
    program: ModuleState
    cost: ModuleCost

    @cached_property
    def sent(self) -> float:
        """The cost of what a device sends: bytes, or a machine's seconds."""
        return self.cost(self.local)

    @cached_property
    def full_gathers(self) -> int:
        """The number of full gathers."""
        return full_gathers(self.local)

    @property
    def count(self) -> float:
        """The weighted cost: a deviation from propagation must pay off."""
        policy = self.program.policy
        factor = _PRICED if policy.by_time else 1.0
        return self.sent * factor * (_OVERRIDING if policy.overrides else 1.0)


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy without the values of one module: for a program that differs in its layers only."""

    result_weight: float
    override: int | None  # the number of its overrides among those of the module
    avoids_full_gathers: bool
    by_time: bool


@dataclass
class PolicyMemory:
    """The policy chosen for a program, which the next one follows without a search."""

    choice: PolicyChoice | None = None


@dataclass
class Search:
    """The policies tried so far, with their outcomes."""

    start: Callable[[Policy], ModuleState]
    localize: Callable[[ModuleState], Module]
    seconds: ModuleCost | None = None  # of collectives on a machine; None to compare bytes
    tried: list[PolicyOutcome] = field(default_factory=list)
    overrides: list[Mapping[Value, DimAxes]] = field(default_factory=list)  # in their order

    def following(self, memory: PolicyMemory) -> PolicyOutcome:
        """The outcome of a remembered policy, or of a search, which is remembered."""
        if memory.choice is not None:
            return self.run(self.policy_of(memory.choice))
        best = self.best()
        memory.choice = self.choice_of(best.program.policy)
        return best

    def choice_of(self, policy: Policy) -> PolicyChoice:
        """The policy without the module's values."""
        same = (n for n, some in enumerate(self.overrides) if some is policy.overrides)
        flags = (policy.avoids_full_gathers, policy.by_time)
        return PolicyChoice(policy.result_weight, next(same, None), *flags)

    def policy_of(self, choice: PolicyChoice) -> Policy:
        """The policy for this module; without overrides where it has fewer of them."""
        overrides: Mapping[Value, DimAxes] = {}
        if choice.override is not None:
            program = self.start(Policy())
            listed = [*overriding(program.module, program.splits, program.mesh)]
            overrides = listed[choice.override] if choice.override < len(listed) else {}
        flags = (choice.avoids_full_gathers, choice.by_time)
        return Policy(choice.result_weight, overrides, *flags)

    def run(self, policy: Policy) -> PolicyOutcome:
        """Partition by one policy."""
        program = self.start(policy)
        made = PolicyOutcome(self.localize(program), program, self.seconds or sent_by)
        self.tried.append(made)
        return made

    def best(self) -> PolicyOutcome:
        """Try policies, and return the best outcome."""
        first = self.run(Policy())
        if not self.is_worth_more(first):
            return first
        if self.seconds is not None:
            self.run(Policy(by_time=True))
        # Whether bytes or seconds choose better for each op: collectives that are merged later
        # share a latency, which the choice of one op does not see.
        base = self.least().program.policy
        is_large = sum(1 for _ in first.program.module.nodes()) > _LARGE
        for result_weight in _RESULT_WEIGHTS[is_large:]:
            if not self.is_worth_more(self.run(replace(base, result_weight=result_weight))):
                return self.best_outcome()
        for some in overriding(first.program.module, first.program.splits, first.program.mesh):
            self.overrides.append(some)
            sent = self.run(replace(base, result_weight=0.5, overrides=some)).sent
            if sent <= _NEAR * self.least().count and not is_large:
                self.run(replace(base, overrides=some))
        if self.least().full_gathers:
            self.run(replace(self.least().program.policy, avoids_full_gathers=True))
        shy = replace(base, avoids_full_gathers=True)
        if (
            self.best_outcome().full_gathers
            and self.tried[-1].program.policy != shy
            and not is_large
        ):
            self.run(shy)
        return self.best_outcome()

    def is_worth_more(self, made: PolicyOutcome) -> bool:
        """Whether conflicting splits cost enough to justify another try."""
        return made.program.moved > _LITTLE * self.tried[0].program.planned

    def least(self) -> PolicyOutcome:
        """The outcome of the least cost."""
        return min(self.tried, key=lambda made: made.count)

    def best_outcome(self) -> PolicyOutcome:
        """The outcome of the least cost, or of slightly more without full gathers."""
        least = self.least()
        spare = [made for made in self.tried if not made.full_gathers]
        if any(made.count <= self.more(made.program.policy) * least.count for made in spare):
            return min(spare, key=lambda made: made.count)
        return least

    def more(self, policy: Policy) -> float:
        """The factor on the cost up to which a plan without full gathers is preferred."""
        is_meant = policy.avoids_full_gathers or self.seconds is not None
        return _AVOIDED_BY_POLICY if is_meant else _AVOIDED


def sent_by(module: Module) -> float:
    """The bytes that a device sends, over all entry functions."""
    public = [name for name, f in module.functions.items() if f.visibility != "private"]
    return sum(distinct_sent(module, name) for name in public or module.functions)
