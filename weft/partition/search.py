"""Search: a module is partitioned by several policies, and the one that sends least is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from weft.cost.gathers import full_gathers
from weft.cost.sent import bytes_sent, total_sent
from weft.ir.module import Module, Value
from weft.ir.types import TensorType
from weft.ops.control import Call
from weft.partition.localize import Program
from weft.partition.placed import split_of
from weft.partition.policies import Policy, wishes

# How much it counts that values are split as propagation says: each is tried.
_HEEDS = (1.1, 0.5, 0.0)
_LITTLE = 0.01  # of all that is sent: to send less of it another try is not worth its time
_NEAR = 1.05  # times the least that is sent so far: worth another try
_LARGE = 6000  # nodes: such a module is tried with these only
# Times the bytes that may be sent where nothing is gathered in full: by the way, or to that end.
_AVOIDED = 3.0
_AVOIDED_SHYLY = 1.25


@dataclass(frozen=True, slots=True)
class Try:
    """A module as one policy partitions it."""

    local: Module
    program: Program
    sent: float  # bytes
    full_gathers: int


@dataclass
class Search:
    """Policies that were tried, and what came of them."""

    start: Callable[[Policy], Program]
    localize: Callable[[Program], Module]
    tried: list[Try] = field(default_factory=list)

    def run(self, policy: Policy) -> Try:
        """Partition by one policy."""
        program = self.start(policy)
        local = self.localize(program)
        is_plain = not self.tried and not program.moved  # no other try could send less
        counts = (0.0, 0) if is_plain else (sent_by(local), full_gathers(local))
        made = Try(local, program, *counts)
        self.tried.append(made)
        return made

    def best(self) -> Try:
        """The best of all that were worth trying."""
        for heed in _HEEDS:
            made = self.run(Policy(heed))
            if made.program.moved <= _LITTLE * self.tried[0].sent:
                return self.least()
        module, mesh = made.program.module, made.program.mesh
        if sum(1 for _ in module.nodes()) > _LARGE:
            return self.chosen()
        given = {
            value: split_of(sharding, value.type.rank)
            for value, sharding in made.program.table.items()
            if isinstance(value.type, TensorType)
        }
        for some in wishes(module, given, mesh):
            if self.run(Policy(0.5, some)).sent <= _NEAR * self.least().sent:
                self.run(Policy(1.1, some))
        if self.least().full_gathers:
            self.run(replace(self.least().program.policy, is_shy=True))
        shy = Policy(is_shy=True)
        if self.chosen().full_gathers and self.tried[-1].program.policy != shy:
            self.run(shy)
        return self.chosen()

    def least(self) -> Try:
        """The one that sends the least."""
        return min(self.tried, key=lambda made: made.sent)

    def chosen(self) -> Try:
        """The one that sends the least, or little more and gathers nothing in full."""
        least = self.least()
        spare = [made for made in self.tried if not made.full_gathers]
        if any(made.sent <= _more(made.program.policy) * least.sent for made in spare):
            return min(spare, key=lambda made: made.sent)
        return least


def _more(policy: Policy) -> float:
    return _AVOIDED_SHYLY if policy.is_shy else _AVOIDED


def sent_by(module: Module) -> float:
    """The bytes that a device sends in all functions that a host may call."""
    public = [name for name, f in module.functions.items() if f.visibility != "private"]
    return sum(_sent(module, name) for name in public or module.functions)


def _sent(module: Module, name: str) -> float:
    """The bytes of one function, equal calls counted once: one is left when they are inlined."""
    total = total_sent(bytes_sent(module, name))
    seen: set[tuple[str, tuple[Value, ...]]] = set()
    for node in module.function(name).body.nodes:
        if isinstance(node.op, Call):
            call = (node.op.callee, node.operands)
            total -= total_sent(bytes_sent(module, node.op.callee)) if call in seen else 0.0
            seen.add(call)
    return total
