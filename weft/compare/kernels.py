"""Comparison of kernels with their nodes: every launch of a run against numpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from weft.array.stacked import Stacked
from weft.compare.differences import Difference, cancellation_bound, difference
from weft.compare.values import stacks_of
from weft.emit.numpy.target import NUMPY
from weft.ir.dense import Dense
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.types import Array, TensorType
from weft.ir.uses import free_variables
from weft.ir.write import node_text, value_names
from weft.kernels.group import Group
from weft.ops.control import OptimizationBarrier
from weft.ops.shape import Constant
from weft.pipeline import local_program
from weft.records import dataclass
from weft.run import LocalProgram
from weft.run.watched import RecordedLaunch, run_watched
from weft.target import Target


@dataclass(frozen=True, slots=True)
class CheckCounts:
    """The numbers of launches and values compared, and of kernels compared only in part."""

    launches: int = 0
    values: int = 0
    excess: int = 0  # values that differ by excess precision only
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelDifference:
    """The first kernel whose results differ from its nodes', and the first wrong node in it."""

    kernel: str
    launch: int  # number of the launch
    result: Difference
    step: Difference | None  # None if every prefix of its nodes is right
    node: str = ""  # text of that node

    def located(self) -> str:
        """The kernel, its result, and the node with its source line."""
        lines = [f"kernel {self.kernel}, run {self.launch}, differs from its nodes: {self.result}"]
        if self.step is None:
            lines.append("  every step is right with only those before it; together they differ")
        else:
            lines += [f"  the first step that differs: {self.step}", f"  {self.node}"]
        loc = self.result.loc if self.step is None else self.step.loc
        return "\n".join([*lines, f"  --> {loc.describe()}"])


class _Found(Exception):
    """Carries the first difference out of a run."""

    def __init__(self, difference: KernelDifference) -> None:
        self.difference = difference


def compare_kernels(
    program: LocalProgram, arrays: Sequence[Array]
) -> KernelDifference | CheckCounts:
    """Run a program's kernels one by one, and their nodes in numpy on the same operands.

    Kernels inside of flows are launches of their own here.
    """
    target = program.target
    if target is None or program.calls is None:
        return CheckCounts()
    if target.options.flows:
        apart = target.with_options(replace(target.options, flows=False))
        program = local_program(program.module, target=apart, world=program.world)
    checker = _Checker(program)
    try:
        run_watched(program, stacks_of(program, arrays), checker.see)
    except _Found as found:
        return found.difference
    return replace(checker.checked, skipped=tuple(checker.skipped))


class _Checker:
    """Compares launches as they complete."""

    def __init__(self, program: LocalProgram) -> None:
        self.program = program
        self.checked = CheckCounts()
        self.skipped: dict[str, None] = {}
        self.parts: dict[int, _Part | None] = {}  # by id of the group
        self.names = {
            v: name for f in program.module.functions.values() for v, name in value_names(f).items()
        }

    def see(self, launched: RecordedLaunch) -> None:
        """Compare a kernel's results with its nodes'."""
        group = launched.group
        assert group.kernel is not None, "only kernels are launched"
        if id(group) not in self.parts:
            self.parts[id(group)] = _part_of(group)
        part, number = self.parts[id(group)], self.checked.launches + 1
        if part is None:
            self.skipped[group.kernel.name] = None
            return
        expected = self.by_nodes(part, launched)
        outputs = dict(zip(group.outputs, launched.outputs, strict=True))
        excess = 0
        for value in part.wanted:
            result = self.difference(value, outputs[value], expected)
            if result.is_close:
                continue
            if not self.is_excess(part, value, launched, expected):
                step, text = self.first_step(part, launched, expected)
                raise _Found(KernelDifference(group.kernel.name, number, result, step, text))
            excess += 1
        before = self.checked
        values, excess = before.values + len(part.wanted), before.excess + excess
        self.checked = CheckCounts(number, values, excess)
        if len(part.wanted) < len([v for v in group.outputs if v.node is not None]):
            self.skipped[group.kernel.name] = None

    def difference(self, value: Value, array: Array, expected: Mapping[Value, Array]) -> Difference:
        """A kernel's value against its nodes'; devices may share it."""
        node, wanted = value.node, expected[value]
        assert node is not None, "a node makes it"
        whole = np.broadcast_to(array, np.broadcast_shapes(array.shape, wanted.shape))
        wanted = np.broadcast_to(wanted, whole.shape)
        scale = cancellation_bound([expected[v] for v in node.operands if v in expected])
        found = difference(self.names.get(value, "a value"), whole, wanted, node.loc, scale)
        return replace(found, what=str(value.type))

    def is_excess(
        self, part: _Part, value: Value, launched: RecordedLaunch, expected: Mapping[Value, Array]
    ) -> bool:
        """Whether a value is right if kernels keep no excess precision."""
        target = self.program.target
        assert target is not None, "it has kernels"
        if not target.options.excess_precision:
            return False
        exact = target.with_options(replace(target.options, excess_precision=False))
        made = self.by_kernels(part, value, launched, exact)
        return self.difference(value, made, expected).is_close

    def by_nodes(self, part: _Part, launched: RecordedLaunch) -> dict[Value, Array]:
        """The values of every node on a launch's operands, in numpy."""
        module, became = part.module(self.program.module, part.wanted)
        old = {new: value for value, new in became.items()}
        values: dict[Value, Array] = {}

        def see(node: Node, results: Sequence[Stacked]) -> None:
            for value, stack in zip(node.results, results, strict=True):
                if value in old:
                    values[old[value]] = np.array(stack.data)

        program = self.local(module, NUMPY)
        made = program.checked(*self.stacks(launched), watch=see)
        values.update((v, s.data) for v, s in zip(part.wanted, made, strict=True))
        values.update(zip(part.inputs, launched.inputs, strict=True))
        return values

    def first_step(
        self, part: _Part, launched: RecordedLaunch, expected: Mapping[Value, Array]
    ) -> tuple[Difference | None, str]:
        """The first value that differs when kernels compute only the nodes up to it."""
        target = self.program.target
        assert target is not None, "it has kernels"
        for node, only in part.steps:
            for value in node.results if only is None else (only,):
                if value not in expected or not isinstance(value.type, TensorType):
                    continue
                made = self.by_kernels(part, value, launched, target)
                found = self.difference(value, made, expected)
                if not found.is_close:
                    return found, node_text(node)
        return None, ""

    def by_kernels(
        self, part: _Part, value: Value, launched: RecordedLaunch, target: Target
    ) -> Array:
        """A value of a part, computed by a target."""
        module, _ = part.module(self.program.module, [value])
        (made,) = self.local(module, target)(*self.stacks(launched))
        data: Array = made.on_host().data
        return data

    def local(self, module: Module, target: Target) -> LocalProgram:
        """A local program of a part, on stacks like those of the whole."""
        return local_program(
            module, fold=target.has_kernels, target=target, world=self.program.world
        )

    def stacks(self, launched: RecordedLaunch) -> list[Stacked]:
        """The inputs of a launch, broadcast to every device."""
        sizes = self.program.sub_axes.sizes
        whole = [np.broadcast_to(a, (*sizes, *a.shape[len(sizes) :])) for a in launched.inputs]
        return [Stacked(np.ascontiguousarray(a), self.program.sub_axes) for a in whole]


@dataclass(frozen=True)
class _Part:
    """The nodes between a group's inputs and outputs, in topological order."""

    group: Group
    steps: tuple[NodeStep, ...]
    wanted: tuple[Value, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the kernel reads."""
        return self.group.inputs

    def module(self, whole: Module, results: Sequence[Value]) -> tuple[Module, dict[Value, Value]]:
        """A module of these nodes, pruned to the results, and the map of values."""
        copy = _Copy({v: Value(v.type) for v in self.inputs})
        args = tuple([copy.became[v] for v in self.inputs])
        for node, only in _steps_to(results, self.group) or ():
            copy.nodes.append(copy.node(node, only))
        body = Region(args, copy.nodes, tuple([copy.became[v] for v in results]))
        functions = {n: f for n, f in whole.functions.items() if n != "main"}
        made = {"main": Function("main", body), **functions}
        return replace(whole, functions=made, tables={}), copy.became


class _Copy:
    """Clones nodes onto other operands."""

    def __init__(self, became: dict[Value, Value]) -> None:
        self.became = became
        self.nodes: list[Node] = []

    def node(self, node: Node, only: Value | None = None) -> Node:
        """The clone of a node; optionally with only one of its results."""
        operands = tuple([self.operand(v, only) for v in node.operands])
        made = node.rebuilt(operands, tuple([self.region(r) for r in node.regions]))
        pairs = zip(node.results, made.results, strict=True)
        self.became.update((v, new) for v, new in pairs if only in (None, v))
        return made

    def operand(self, value: Value, only: Value | None) -> Value:
        """The clone of an operand; zeros for those that the result does not depend on."""
        if only is None or value in self.became:
            return self.became[value]
        assert isinstance(value.type, TensorType), "tensors are exchanged together"
        zeros = np.zeros((), value.type.dtype.numpy)
        self.nodes.append(Node(Constant(Dense(zeros, value.type)), (), (value.type,)))
        return self.nodes[-1].results[0]

    def region(self, region: Region) -> Region:
        args = tuple([Value(v.type) for v in region.args])
        self.became.update(zip(region.args, args, strict=True))
        nodes = [self.node(node) for node in region.nodes]
        results = tuple([self.became[v] for v in region.results])
        return Region(args, nodes, results, region.loc, region.arg_locs)


def _part_of(group: Group) -> _Part | None:
    """The nodes of a kernel; None if they cannot be recovered from its inputs."""
    wanted = tuple([v for v in group.outputs if _steps_to([v], group)])
    steps = _steps_to(wanted, group)
    return _Part(group, tuple(steps), wanted) if steps and wanted else None


# A node, and for one that only groups values the single result that is needed.
NodeStep: TypeAlias = tuple[Node, Value | None]


def _only_groups(node: Node) -> bool:
    """Whether each result depends only on the operand of the same number."""
    if not node.op.collective and not isinstance(node.op, OptimizationBarrier):
        return False
    return len(node.results) == len(node.operands) > 1


def _steps_to(results: Iterable[Value], group: Group) -> list[NodeStep] | None:
    """The nodes from a group's inputs to its results; None if they need other values."""
    makers = {v: node for node in group.nodes for v in node.results}
    known, steps = {*group.inputs}, list[NodeStep]()
    todo: list[tuple[Value, bool]] = [(v, False) for v in results]
    while todo:
        value, ready = todo.pop()
        if value in known:
            continue
        node = makers.get(value, value.node)  # tile may have rewritten a sum
        if node is None:
            return None
        apart = _only_groups(node)
        if ready:
            steps.append((node, value if apart else None))
            known.update([value] if apart else node.results)
            continue
        needed = [node.operands[value.index]] if apart else node.operands
        todo.append((value, True))
        todo += [(v, False) for v in (*needed, *free_variables(node))]
    return steps
