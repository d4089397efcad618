"""Kernels beside their nodes: every launch of a run against the nodes that it stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.array.stacked import Stacked
from weft.compare.differences import Difference, difference
from weft.compare.values import stacks_of
from weft.ir.location import UNKNOWN
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.reading import reads
from weft.ir.types import Array, TensorType
from weft.ir.write import node_text, value_names
from weft.kernels.group import Group
from weft.run import LocalProgram
from weft.run.target import Target
from weft.run.watched import Launched, run_watched


@dataclass(frozen=True, slots=True)
class Checked:
    """How many launches and values were compared, and the kernels that have no nodes to be run."""

    launches: int = 0
    values: int = 0
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelDifference:
    """The first kernel whose results differ from those of its nodes, and the first node in it."""

    kernel: str
    launch: int  # its number among the launches of the run
    result: Difference
    step: Difference | None  # None if every node is right by itself, with those before it
    node: str = ""  # the text of that node

    def told(self) -> str:
        """The kernel, its result, and the step with the line that it comes from."""
        lines = [f"kernel {self.kernel}, run {self.launch}, differs from its nodes: {self.result}"]
        if self.step is None:
            lines.append("  every step is right with only those before it; together they differ")
        else:
            lines += [f"  the first step that differs: {self.step}", f"  {self.node}"]
        loc = self.result.loc if self.step is None else self.step.loc
        return "\n".join([*lines, f"  --> {loc.describe()}"])


class _Found(Exception):
    """The first kernel that differs."""

    def __init__(self, difference: KernelDifference) -> None:
        self.difference = difference


def compare_kernels(program: LocalProgram, arrays: Sequence[Array]) -> KernelDifference | Checked:
    """Run a program's kernels one by one, and each one's nodes, in numpy, on the same operands."""
    if program.target is None:
        return Checked()
    checker = _Checker(program)
    try:
        run_watched(program, stacks_of(program, arrays), checker.see)
    except _Found as found:
        return found.difference
    return replace(checker.checked, skipped=tuple(checker.skipped))


class _Checker:
    """Compares launches as they end."""

    def __init__(self, program: LocalProgram) -> None:
        self.program = program
        self.checked = Checked()
        self.skipped: dict[str, None] = {}
        self.parts: dict[int, _Part | None] = {}  # by the id of the group
        self.names = {
            v: name for f in program.module.functions.values() for v, name in value_names(f).items()
        }

    def see(self, launched: Launched) -> None:
        """Compare what a kernel gave with what its nodes give."""
        group = launched.group
        assert group.kernel is not None, "only kernels are launched"
        if id(group) not in self.parts:
            self.parts[id(group)] = _part_of(group)
        part, number = self.parts[id(group)], self.checked.launches + 1
        if part is None:
            self.skipped[group.kernel.name] = None
            return
        expected = self.by_nodes(part, launched)
        compared = 0
        for value, given in zip(group.outputs, launched.outputs, strict=True):
            if value not in expected:
                continue
            compared += 1
            found = self.difference(value, given, expected[value])
            if not found.is_close:
                step = self.first_step(part, launched, expected)
                text = "" if step is None or step[0].node is None else node_text(step[0].node)
                made = None if step is None else step[1]
                raise _Found(KernelDifference(group.kernel.name, number, found, made, text))
        self.checked = replace(self.checked, launches=number, values=self.checked.values + compared)

    def difference(self, value: Value, given: Array, expected: Array) -> Difference:
        """A value of a kernel against the one of its nodes; devices may share it."""
        loc = value.node.loc if value.node is not None else UNKNOWN
        whole = np.broadcast_to(given, np.broadcast_shapes(given.shape, expected.shape))
        name = self.names.get(value, "a value")
        found = difference(name, whole, np.broadcast_to(expected, whole.shape), loc)
        type = value.type
        return replace(found, what=str(type))

    def by_nodes(self, part: _Part, launched: Launched) -> dict[Value, Array]:
        """What every node gives on the operands of a launch, in numpy."""
        module, became = part.module(self.program.module, part.wanted)
        old = {new: value for value, new in became.items()}
        found: dict[Value, Array] = {}

        def see(node: Node, results: Sequence[Stacked]) -> None:
            for value, stack in zip(node.results, results, strict=True):
                if value in old:
                    found[old[value]] = np.array(stack.data)

        program = self.local(module, None)
        made = program.checked(*self.stacks(program, launched), watch=see)
        for value, stack in zip(part.wanted, made, strict=True):
            found[value] = np.array(stack.data)
        return found

    def first_step(
        self, part: _Part, launched: Launched, expected: Mapping[Value, Array]
    ) -> tuple[Value, Difference] | None:
        """The first value that differs where kernels compute it, and nothing after it."""
        for node in part.nodes:
            for value in node.results:
                if value not in expected or not isinstance(value.type, TensorType):
                    continue
                module, _ = part.module(self.program.module, [value])
                program = self.local(module, self.program.target)
                (made,) = program(*self.stacks(program, launched))
                found = self.difference(value, np.asarray(made.data), expected[value])
                if not found.is_close:
                    return value, found
        return None

    def local(self, module: Module, target: Target | None) -> LocalProgram:
        """A part of the program, on stacks like those of the whole."""
        return LocalProgram(
            module, fold=target is not None, target=target, world=self.program.world
        )

    def stacks(self, program: LocalProgram, launched: Launched) -> list[Stacked]:
        """The inputs of a launch, spelled out for every device."""
        sizes = self.program.atoms.sizes
        whole = [np.broadcast_to(a, (*sizes, *a.shape[len(sizes) :])) for a in launched.inputs]
        return [Stacked(np.ascontiguousarray(a), self.program.atoms) for a in whole]


@dataclass(frozen=True)
class _Part:
    """The nodes between the inputs of a group and its outputs, in an order in which they run."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    wanted: tuple[Value, ...]

    def module(self, whole: Module, results: Sequence[Value]) -> tuple[Module, dict[Value, Value]]:
        """A module of these nodes alone, as far as results need them, and what values became."""
        copy = _Copy({v: Value(v.type) for v in self.inputs})
        needed = {*(_nodes_between(self.inputs, results) or ())}
        args = tuple([copy.became[v] for v in self.inputs])
        nodes = [copy.node(node) for node in self.nodes if node in needed]
        body = Region(args, nodes, tuple([copy.became[v] for v in results]))
        functions = {n: f for n, f in whole.functions.items() if n != "main"}
        made = {"main": Function("main", body), **functions}
        return replace(whole, functions=made, tables={}), copy.became


class _Copy:
    """Nodes with other operands."""

    def __init__(self, became: dict[Value, Value]) -> None:
        self.became = became

    def node(self, node: Node) -> Node:
        """The node on what its operands became."""
        operands = tuple([self.became[v] for v in node.operands])
        made = node.rebuilt(operands, tuple([self.region(r) for r in node.regions]))
        self.became.update(zip(node.results, made.results, strict=True))
        return made

    def region(self, region: Region) -> Region:
        args = tuple([Value(v.type) for v in region.args])
        self.became.update(zip(region.args, args, strict=True))
        nodes = [self.node(node) for node in region.nodes]
        results = tuple([self.became[v] for v in region.results])
        return Region(args, nodes, results, region.loc, region.arg_locs)


def _part_of(group: Group) -> _Part | None:
    """What a kernel stands for; None if that is not to be told from its inputs."""
    wanted = tuple([v for v in group.outputs if v.node is not None])
    nodes = _nodes_between(group.inputs, wanted)
    return _Part(group.inputs, tuple(nodes), wanted) if nodes and wanted else None


def _nodes_between(inputs: Iterable[Value], results: Iterable[Value]) -> list[Node] | None:
    """The nodes that make results of inputs, operands first; None if they need other values."""
    known, found = {*inputs}, dict[Node, None]()
    todo: list[tuple[Value, bool]] = [(v, False) for v in results]
    while todo:
        value, ready = todo.pop()
        if value in known:
            continue
        node = value.node
        if node is None:
            return None
        if ready:
            found[node] = None
            known.update(node.results)
            continue
        inside = {v for region in node.regions for v in _made_in(region)}
        todo.append((value, True))
        todo += [(v, False) for v in reads(node) if v not in inside]
    return [*found]


def _made_in(region: Region) -> set[Value]:
    """The values of a region and of those inside of it."""
    found = {*region.args}
    for node in region.nodes:
        found.update(node.results)
        for inner in node.regions:
            found |= _made_in(inner)
    return found
