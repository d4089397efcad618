"""Facts of a program for the search: its state, its batch, and classes of its dims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property

from weft.capture import Captured
from weft.cost.costs import PRODUCTS
from weft.ir.module import Module, Node, Region, Value, tensor_of
from weft.ir.op import rule as rule_of
from weft.ir.types import TensorType
from weft.partition.strategy.dim_classes import DimClasses, dim_classes
from weft.records import dataclass

DimClass = int  # the number of a class of corresponding dims: split in all tensors or in none


@dataclass(frozen=True, slots=True)
class ArgumentFact:
    """An argument: its name, type, the classes of its dims, and its role."""

    name: str
    type: TensorType
    classes: tuple[DimClass, ...]
    role: str  # weight, optimizer or batch
    result: int | None  # the result that is its new value, if it is updated
    times: int  # the number of layers that have such an argument

    @property
    def is_updated(self) -> bool:
        """Whether the program returns its new value."""
        return self.result is not None


@dataclass(frozen=True, slots=True)
class TensorFact:
    """A tensor of a node: its bytes and the classes of its dims."""

    bytes: int
    classes: tuple[DimClass, ...]


@dataclass(frozen=True, slots=True)
class NodeFact:
    """A node: its work, its factors and its tensors; equal ones are counted."""

    flops: int
    bytes: int
    is_product: bool
    dtype: object  # of the products' operands
    factors: tuple[DimClass, ...]
    operands: tuple[TensorFact, ...]
    result: TensorFact


@dataclass(frozen=True)
class ProgramFacts:
    """A program with one layer of each kind, for estimates without compiling."""

    module: Module
    arguments: tuple[ArgumentFact, ...]
    sizes: tuple[int, ...]  # of each class: the greatest common divisor of its dims
    nodes: Mapping[NodeFact, int]
    partial: Mapping[DimClass, Mapping[TensorFact, int]]  # partial sums if a class is split
    saved: tuple[tuple[TensorFact, int], ...]  # activations that the backward pass reads
    layers: int
    labels: Mapping[DimClass, str] = field(default_factory=dict)

    @cached_property
    def weights(self) -> tuple[ArgumentFact, ...]:
        """The weights, trained or not."""
        return tuple([a for a in self.arguments if a.role == "weight"])

    @cached_property
    def trains(self) -> bool:
        """Whether weights or an optimizer's state are returned anew."""
        return any(a.is_updated for a in self.arguments if a.role != "batch")

    @cached_property
    def batch_dims(self) -> tuple[DimClass, ...]:
        """The class of the batch: the first dim of what is neither weight nor state."""
        leading = Counter([a.classes[0] for a in self.arguments if a.role == "batch" and a.classes])
        return tuple([c for c, _ in leading.most_common(1)])

    @cached_property
    def sequence_dims(self) -> tuple[DimClass, ...]:
        """The classes of the other dims of the batch."""
        others = [c for a in self.arguments if a.role == "batch" for c in a.classes[1:]]
        return tuple(dict.fromkeys(c for c in others if c not in self.batch_dims))

    @cached_property
    def tensor_dims(self) -> tuple[DimClass, ...]:
        """The classes of the dims of matrices among the weights, those with most bytes first."""
        amounts: Counter[DimClass] = Counter()
        for argument in self.weights:
            if len(argument.classes) > 1:
                for c in set(argument.classes):
                    amounts[c] += argument.type.nbytes * argument.times
        ours = (*self.batch_dims, *self.sequence_dims)
        return tuple([c for c, _ in amounts.most_common() if c not in ours and self.sizes[c] > 1])


def state_results(captured: Captured) -> dict[int, int]:
    """The results that are new values of arguments, by argument: updated in place or by name."""
    if captured.updated:  # a PyTorch module: the capture knows which tensors it writes
        return {argument: n for n, argument in enumerate(captured.updated)}
    groups: dict[str, dict[str, int]] = {}
    for n, leaf in enumerate(captured.arguments):
        parameter, tail = _parted(leaf.name)
        groups.setdefault(parameter, {})[tail] = n
    results: dict[int, int] = {}
    left = _returned_trees(captured)
    follows_state = True
    for members in groups.values():
        # An array alone may come back as x + f(x): it is state only where no data is before it.
        head = next(
            (
                head
                for head, others in left.items()
                if (follows_state or [*members] != [""])
                and members.keys() == others.keys()
                and all(_same(captured, n, others[tail]) for tail, n in members.items())
            ),
            None,
        )
        follows_state = follows_state and head is not None
        if head is not None:
            others = left.pop(head)
            results.update({n: others[tail] for tail, n in members.items()})
    return results


def _returned_trees(captured: Captured) -> dict[str, dict[str, int]]:
    """The results by their places in the returned tuple, and all of them as one tree."""
    names = [leaf.name.removeprefix("result") for leaf in captured.results]
    trees: dict[str, dict[str, int]] = {}
    for n, name in enumerate(names):
        head, tail = _parted(name)
        trees.setdefault(head, {})[tail] = n
    return trees | {"": {name: n for n, name in enumerate(names)}}


def _parted(name: str) -> tuple[str, str]:
    """The first part of a name, the parameter or the place among the results, and the rest."""
    start = 1 if name.startswith(("[", ".")) else 0
    ends = [at for at in (name.find("[", start), name.find(".", start)) if at > 0]
    at = min(ends, default=len(name))
    return name[:at], name[at:]


def _same(captured: Captured, argument: int, result: int) -> bool:
    one, other = captured.arguments[argument], captured.results[result]
    return one.shape == other.shape and one.dtype == other.dtype


def program_facts(
    module: Module,
    names: Sequence[str],
    state: Mapping[int, int],
    in_layers: frozenset[Value],
    layers: int,
) -> ProgramFacts:
    """The facts of a flat module with one of its layers."""
    body = module.function("main").body
    numbers = _DimNumbers(dim_classes(module))
    nodes: Counter[NodeFact] = Counter()
    for node in body.nodes:
        fact = _node_fact(node, numbers)
        if fact is not None:
            nodes[fact] += layers if node.results[0] in in_layers else 1
    uses = _last_uses(body.nodes)
    roles = _roles(module, state, numbers)
    arguments = tuple(
        ArgumentFact(
            name, type, numbers.of(value), role, state.get(n), layers if value in in_layers else 1
        )
        for n, (name, value, role) in enumerate(zip(names, body.args, roles, strict=True))
        if isinstance(type := value.type, TensorType)
    )
    used = sorted({c for argument in arguments for c in argument.classes})
    partial = {c: _sums(body.nodes, numbers, c, in_layers, layers) for c in used}
    saved = _saved(body.nodes, uses, state, module, numbers, in_layers, layers)
    return ProgramFacts(module, arguments, tuple(numbers.sizes), nodes, partial, saved, layers)


class _DimNumbers:
    """Classes of dims by number, with the greatest size that divides all their dims."""

    def __init__(self, classes: DimClasses) -> None:
        self.classes = classes
        self.numbers: dict[tuple[Value, int], int] = {}
        self.sizes: list[int] = []
        self.factors: dict[Node, tuple[tuple[DimClass, str], ...]] = {}

    def of(self, value: Value) -> tuple[DimClass, ...]:
        """The classes of a value's dims."""
        if not isinstance(value.type, TensorType):
            return ()
        return tuple([self.number(value, d) for d in range(value.type.rank)])

    def number(self, value: Value, dim: int) -> DimClass:
        """The class of one dim."""
        root = self.classes.find((value, dim))
        number = self.numbers.get(root)
        if number is None:
            number = self.numbers[root] = len(self.sizes)
            self.sizes.append(0)  # gcd(0, n) is n
        size = tensor_of(value).bounds[dim]
        if size > 1:
            self.sizes[number] = math.gcd(self.sizes[number], size)
        return number

    def fact(self, value: Value) -> TensorFact:
        """The bytes and classes of a value."""
        return TensorFact(tensor_of(value).nbytes, self.of(value))


def _factor_classes(node: Node, numbers: _DimNumbers) -> tuple[tuple[DimClass, str], ...]:
    """The class and role of each factor of a node that is the major one of some dim."""
    known = numbers.factors.get(node)
    if known is None:
        known = numbers.factors[node] = _find_factors(node, numbers)
    return known


def _find_factors(node: Node, numbers: _DimNumbers) -> tuple[tuple[DimClass, str], ...]:
    rule = rule_of(node.op, node.operand_types, node.bodies)
    classes: dict[int, DimClass] = {}
    sides = [*zip(node.operands, rule.operands, strict=True)]
    sides += zip(node.results, rule.results, strict=True)
    for value, dims in sides:
        for dim, factors in enumerate(dims):
            # Of a reshaped dim the first factor is the outer one, along which a sharding splits it.
            major = next((f for f in factors if rule.factors[f].size > 1), factors[0])
            classes.setdefault(major, numbers.number(value, dim))
    return tuple((c, rule.factors[f].role) for f, c in classes.items())


def _node_fact(node: Node, numbers: _DimNumbers) -> NodeFact | None:
    if not node.results or not all(
        isinstance(t, TensorType) for t in (*node.operand_types, *node.types)
    ):
        return None
    if node.regions and not node.operands:
        return None
    is_product = isinstance(node.op, PRODUCTS)
    if node.regions:  # a reduction, a sort: about one operation an element
        work_flops = sum(tensor_of(v).size for v in node.operands)
    else:
        work_flops = node.op.work(node.operand_types, node.types).flops
    operands = tuple([numbers.fact(v) for v in node.operands])
    result = numbers.fact(node.results[0])
    factors = tuple([c for c, _ in _factor_classes(node, numbers)])
    dtype = tensor_of(node.operands[0]).dtype if node.operands else None
    # Operands of elementwise nodes are results of others, and counted there.
    size = sum(o.bytes for o in operands) + result.bytes if is_product else result.bytes
    return NodeFact(work_flops, size, is_product, dtype if is_product else None, factors,
                    operands if is_product else (), result)  # fmt: skip


def _sums(
    nodes: Sequence[Node],
    numbers: _DimNumbers,
    split: DimClass,
    in_layers: frozenset[Value],
    layers: int,
) -> dict[TensorFact, int]:
    """The tensors that need an all_reduce if a class is split, and how many times each.

    Partial sums that are added to each other need a single all_reduce, of their sum.
    """
    pending: set[Value] = set()
    sums: Counter[TensorFact] = Counter()

    def complete(value: Value) -> None:
        pending.discard(value)
        sums[numbers.fact(value)] += layers if value in in_layers else 1

    for node in nodes:
        late = [v for v in node.operands if v in pending]
        if late and node.op.name == "stablehlo.add" and len(late) == len(node.operands):
            pending.add(node.results[0])
            pending.difference_update(late)
            continue
        for value in dict.fromkeys(late):
            complete(value)
        if _reduces(node, numbers, split):
            pending.update(node.results[:1])
    for value in [*pending]:
        complete(value)
    return dict(sums)


def _reduces(node: Node, numbers: _DimNumbers, split: DimClass) -> bool:
    if not all(isinstance(t, TensorType) for t in (*node.operand_types, *node.types)):
        return False
    if not node.results:
        return False
    return any(c == split and role == "reduction" for c, role in _factor_classes(node, numbers))


def _roles(module: Module, state: Mapping[int, int], numbers: _DimNumbers) -> list[str]:
    """The role of each argument: weight, optimizer or batch.

    State that the results other than the new state are computed from is weights, other state is the
    optimizer's. An argument that is neither state nor has a dim of the batch is an untrained
    weight: frozen, or of inference.
    """
    body = module.function("main").body
    # Backward from the results that are no new state: the loss, or the predictions.
    needed = {v for n, v in enumerate(body.results) if n not in set(state.values())}
    for node in reversed(body.nodes):
        if any(v in needed for v in node.results):
            needed.update(node.operands)
    batch = _batch_class(body, state, numbers)
    roles = []
    for n, value in enumerate(body.args):
        classes = numbers.of(value)
        # State with a dim of the batch, such as a cache of keys, is data like the batch itself.
        if n in state and batch not in classes:
            roles.append("weight" if value in needed else "optimizer")
        else:
            roles.append("weight" if classes and batch not in classes else "batch")
    return roles


def _batch_class(body: Region, state: Mapping[int, int], numbers: _DimNumbers) -> DimClass | None:
    """The class of the batch: the first dim of the results, else of an argument but the state.

    A training step returns its state and a loss, so that only its arguments have a batch: of their
    first dims the one that most values have, since no activation is without it.
    """
    updated = {*state.values()}
    of_arguments = Counter([c for v in body.args for c in set(numbers.of(v))])
    first = Counter[DimClass]()
    for n, value in enumerate(body.results):
        classes = numbers.of(value)
        if n not in updated and classes and of_arguments[classes[0]]:
            first[classes[0]] += tensor_of(value).size
    if first:
        return first.most_common(1)[0][0]
    trained = {c for n in state for c in numbers.of(body.args[n])}
    data = [numbers.of(v) for n, v in enumerate(body.args) if n not in state]
    leading = {classes[0] for classes in data if classes}
    spread = Counter([c for node in body.nodes for v in node.results for c in {*numbers.of(v)}])
    return max(leading - trained or leading, key=lambda c: (spread[c], -c), default=None)


def _last_uses(nodes: Sequence[Node]) -> dict[Value, int]:
    return {value: n for n, node in enumerate(nodes) for value in node.operands}


def _saved(
    nodes: Sequence[Node],
    uses: Mapping[Value, int],
    state: Mapping[int, int],
    module: Module,
    numbers: _DimNumbers,
    in_layers: frozenset[Value],
    layers: int,
) -> tuple[tuple[TensorFact, int], ...]:
    """The values that are live where the loss is computed, and the largest value of the program."""
    body = module.function("main").body
    others = {v for n, v in enumerate(body.results) if n not in set(state.values())}
    # Where the loss is computed the forward pass ends: what is defined before and read after is
    # saved.
    middle = max((n for n, node in enumerate(nodes) if others & set(node.results)), default=0)
    saved = [
        (numbers.fact(v), layers if v in in_layers else 1)
        for n, node in enumerate(nodes[:middle])
        for v in node.results
        if uses.get(v, -1) > middle and isinstance(v.type, TensorType)
    ]
    largest = max(
        (v for node in nodes for v in node.results if isinstance(v.type, TensorType)),
        key=lambda v: tensor_of(v).nbytes,
        default=None,
    )
    # Twice the largest: a node's operand and its result are live together.
    return (*saved, *([(numbers.fact(largest), 2)] if largest is not None else []))
