"""Flows: the propagation behaviour shared by nodes of one op and types."""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from weft.ir.module import Node
from weft.ir.op import rule as rule_of
from weft.ir.rule import Rule, RuleFactor
from weft.ir.types import TensorType
from weft.records import dataclass
from weft.shard.kinds import is_elementwise, is_scalar, stops_shardings
from weft.shard.manual import ManualFrame
from weft.shard.propagation.directions import ROUNDS, DirectionTable, directions
from weft.shard.propagation.factors import BOTH
from weft.shard.rules import Rules


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The propagation behaviour of a visit."""

    rule: Rule
    directions: DirectionTable  # for each round, for each factor
    elementwise: bool = False
    frame: ManualFrame | None = None  # the border of a manual computation


NOTHING = Flow(Rule((), (), ()), ((),) * ROUNDS)


class FlowClass(NamedTuple):
    """The flow of all nodes of one op and operand types."""

    tensors: tuple[int, ...]  # operands whose other uses determine the directions
    alone: Flow  # if the node is their only user
    shared: Flow  # if not
    idle: bool  # whether nothing can propagate


@dataclass(slots=True)
class Flows:
    """The flows of a program, each computed once."""

    rules: Rules  # the user's rules
    kinds: dict[object, FlowClass | None] = field(default_factory=dict)
    edges: dict[object, Flow] = field(default_factory=dict)

    def kind(self, node: Node) -> FlowClass | None:
        """The flow class of a node; None if no sharding propagates through it."""
        operands = node.operands
        if len(operands) == 1:
            key: object = (node.op, operands[0].type)
        else:
            key = (node.op, *[v.type for v in operands])
        if node.regions or node.attrs:
            key = (key, node.bodies, node.attrs)
        try:
            return self.kinds[key]
        except KeyError:
            found = self.kinds[key] = self.learn(node)
            return found

    def learn(self, node: Node) -> FlowClass | None:
        values = node.operands + node.results
        if not any(isinstance(v.type, TensorType) and v.type.shape for v in values):
            return None
        rule = self.rules.find(node)
        if rule is None:
            if stops_shardings(type(node.op)):
                return None
            rule = rule_of(node.op, node.operand_types, node.bodies)
        elementwise = is_elementwise(node)
        alone, shared = directions(node, rule, elementwise)
        if alone == shared:
            flow = Flow(rule, alone, elementwise)
            return FlowClass((), flow, flow, _is_idle(rule))
        tensors = tuple(n for n, v in enumerate(node.operands) if not is_scalar(v))
        flows = Flow(rule, alone, elementwise), Flow(rule, shared, elementwise)
        return FlowClass(tensors, *flows, _is_idle(rule))

    def edge(self, type: TensorType, sources: int = 1, frame: ManualFrame | None = None) -> Flow:
        """The flow of an edge: every dim between each source and the result, in both directions."""
        key = (type, sources, frame)
        if key not in self.edges:
            dims = tuple((n,) for n in range(type.rank))
            rule = Rule(tuple(RuleFactor(size) for size in type.sizes), (dims,) * sources, (dims,))
            self.edges[key] = Flow(rule, ((BOTH,) * type.rank,) * ROUNDS, False, frame)
        return self.edges[key]


def _is_idle(rule: Rule) -> bool:
    """Whether no two dims share a factor, as in the broadcast of a scalar."""
    found = [f for dims in rule.operands + rule.results for factors in dims for f in factors]
    return len(found) == len(set(found))
