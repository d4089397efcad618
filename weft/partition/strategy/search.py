"""Search: a module is partitioned by several policies, and the one that sends least is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from weft.cost.distinct import distinct_sent
from weft.cost.sent import full_gathers
from weft.ir.module import Module
from weft.partition.program import ModuleState
from weft.partition.strategy.policies import Policy, wishes

# How much else it may count that values are split as propagation says: each is tried.
_HEEDS = (0.5, 0.0)
_LITTLE = 0.01  # of all that is sent: to send less of it another try is not worth its time
_NEAR = 1.05  # times the least that is sent so far: worth another try
_LARGE = 6000  # nodes: on such a module fewer policies are tried
_WISHED = 1.1  # times the bytes that a policy with wishes sends must be less than others send
# Times the bytes that may be sent where nothing is gathered in full: by the way, or to that end.
_AVOIDED = 3.0
_AVOIDED_SHYLY = 1.25


@dataclass(frozen=True)
class Try:
    """A module as one policy partitions it."""

    local: Module
    program: ModuleState

    @cached_property
    def sent(self) -> float:
        """The bytes that a device sends."""
        return sent_by(self.local)

    @cached_property
    def full_gathers(self) -> int:
        """How many gathers give every device all of a tensor."""
        return full_gathers(self.local)

    @property
    def count(self) -> float:
        """What the bytes count as: to leave what propagation says must pay."""
        return self.sent * (_WISHED if self.program.policy.wishes else 1.0)


@dataclass
class Search:
    """Policies that were tried, and what came of them."""

    start: Callable[[Policy], ModuleState]
    localize: Callable[[ModuleState], Module]
    tried: list[Try] = field(default_factory=list)

    def run(self, policy: Policy) -> Try:
        """Partition by one policy."""
        program = self.start(policy)
        made = Try(self.localize(program), program)
        self.tried.append(made)
        return made

    def best(self) -> Try:
        """The best of all that were worth trying."""
        first = self.run(Policy())
        if not self.is_worth_more(first):
            return first
        is_large = sum(1 for _ in first.program.module.nodes()) > _LARGE
        for heed in _HEEDS[is_large:]:
            if not self.is_worth_more(self.run(Policy(heed))):
                return self.chosen()
        for some in wishes(first.program.module, first.program.splits, first.program.mesh):
            sent = self.run(Policy(0.5, some)).sent
            if sent <= _NEAR * self.least().count and not is_large:
                self.run(Policy(wishes=some))
        if self.least().full_gathers:
            self.run(replace(self.least().program.policy, is_shy=True))
        shy = Policy(is_shy=True)
        if self.chosen().full_gathers and self.tried[-1].program.policy != shy and not is_large:
            self.run(shy)
        return self.chosen()

    def is_worth_more(self, made: Try) -> bool:
        """Whether so much is sent for splits that disagree that another try may pay."""
        return made.program.moved > _LITTLE * self.tried[0].program.planned

    def least(self) -> Try:
        """The one that sends the least."""
        return min(self.tried, key=lambda made: made.count)

    def chosen(self) -> Try:
        """The one that sends the least, or little more and gathers nothing in full."""
        least = self.least()
        spare = [made for made in self.tried if not made.full_gathers]
        if any(made.count <= _more(made.program.policy) * least.count for made in spare):
            return min(spare, key=lambda made: made.count)
        return least


def _more(policy: Policy) -> float:
    return _AVOIDED_SHYLY if policy.is_shy else _AVOIDED


def sent_by(module: Module) -> float:
    """The bytes that a device sends in all functions that a host may call."""
    public = [name for name, f in module.functions.items() if f.visibility != "private"]
    return sum(distinct_sent(module, name) for name in public or module.functions)
