"""Candidate changes of a program's sharding annotations, each with the text to write.

Arguments that differ in numbers only (the weights of equal layers) are changed together, and so are
the constraints and values of one source line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal, TypeAlias

from weft.explain.state import CARRIES, named_state, with_arguments
from weft.ir.location import Location
from weft.ir.module import Module, Node, Value, apply, walk
from weft.ir.rebuild import Rebuild
from weft.ir.types import TensorType
from weft.mesh import Axis, DimSharding, Mesh, P, Sharding
from weft.mesh.algebra import DimAxes, total_size
from weft.ops.distributed.annotations import sharding_attribute
from weft.ops.distributed.sharding import ShardingConstraint
from weft.records import dataclass

EditKind: TypeAlias = Literal["argument", "constraint", "removal", "addition", "order"]
_NUMBER = re.compile(r"\d+")
_NAMED = 4  # the most results that a change names


@dataclass(frozen=True, slots=True)
class AnnotationEdit:
    """A change of annotations: the line, the text to write, and the changed program."""

    kind: EditKind
    loc: Location
    text: str
    apply: Callable[[Module], Module] = field(compare=False)
    lines: frozenset[object] = frozenset()  # lines that read what it changes
    size: int = 0  # bytes of what it changes


@dataclass(frozen=True, slots=True)
class ArgumentGroup:
    """Arguments alike but for numbers in their names: equal types and shardings."""

    name: str
    numbers: tuple[int, ...]
    type: TensorType
    split: DimAxes
    loc: Location
    lines: frozenset[object]


def mesh_in(module: Module) -> tuple[str, Mesh] | None:
    """The name of the program's mesh, and the mesh; None without axes to split by."""
    found = [(n, m) for n, m in module.meshes.items() if any(size > 1 for _, size in m.axes)]
    return found[0] if len(found) == 1 else None


def candidate_edits(module: Module, lines: Sequence[object]) -> Iterator[AnnotationEdit]:
    """Changes that may shorten a step; values of `lines` get constraints."""
    found = mesh_in(module)
    if found is None:
        return
    name, mesh = found
    groups, state = argument_groups(module), named_state(module)
    for group in groups:
        for split in _other_splits(group.type, group.split, mesh):
            yield _argument_edit([group], split, name, state)
    yield from _families(groups, name, mesh, state)
    yield from _constraint_edits(module, name, mesh)
    yield from _orders(module, name, mesh)
    yield from _additions(module, name, mesh, lines)


def argument_groups(module: Module) -> list[ArgumentGroup]:
    """The tensor arguments of the main function in groups."""
    main = module.function("main")
    attrs = main.arg_attrs or ((),) * len(main.body.args)
    readers = _reading_lines(module)
    members: dict[tuple[str, TensorType, DimAxes], list[int]] = {}
    for n, value in enumerate(main.body.args):
        if isinstance(value.type, TensorType) and value.type.rank:
            loc, split = (
                main.body.arg_locs[n],
                split_dims(sharding_attribute(attrs[n]), value.type.rank),
            )
            # params['layers.3.w'] and ['layers.4.w'] are one group, params['layers.*.w'].
            label = _NUMBER.sub("*", loc.name or f"%arg{n}") if loc.name else f"%arg{n}"
            members.setdefault((label, value.type, split), []).append(n)
    groups = []
    for (label, type, split), numbers in members.items():
        shown = label if len(numbers) > 1 else main.body.arg_locs[numbers[0]].name or label
        lines = frozenset().union(*[readers[main.body.args[n]] for n in numbers])
        loc = main.body.arg_locs[numbers[0]]
        groups.append(ArgumentGroup(shown, tuple(numbers), type, split, loc, lines))
    return groups


def _reading_lines(module: Module) -> dict[Value, frozenset[object]]:
    """The lines whose ops read each argument, through ops that only rearrange it."""
    main = module.function("main").body
    roots: dict[Value, Value] = {value: value for value in main.args}
    readers: dict[Value, set[object]] = {value: set() for value in main.args}
    for node in main.nodes:
        for value in node.operands:
            if value in roots:
                readers[roots[value]].add(node.loc.line)
                if node.op.name in CARRIES:
                    roots[node.results[0]] = roots[value]
    return {value: frozenset(lines - {None}) for value, lines in readers.items()}


def split_dims(sharding: Sharding | None, rank: int) -> DimAxes:
    """The axes of each dim; none without a sharding."""
    if sharding is None or not sharding.dims:
        return ((),) * rank
    return tuple([dim.axes for dim in sharding.dims])


def _other_splits(type: TensorType, split: DimAxes, mesh: Mesh) -> Iterator[DimAxes]:
    """Splits that differ in one axis, or in the order of two dims; pieces are even."""
    tried = {split}
    for candidate in _changed(split, mesh):
        even = all(
            size % total_size(axes, mesh) == 0
            for size, axes in zip(type.sizes, candidate, strict=True)
        )
        if candidate not in tried and even:
            tried.add(candidate)
            yield candidate


def _changed(split: DimAxes, mesh: Mesh) -> Iterator[DimAxes]:
    rank = range(len(split))
    for name, size in mesh.axes:
        axis = Axis(name)
        # Parts of axes are the user's intent: no other part or the whole is tried in their place.
        if size == 1 or any(a.name == name and a.size is not None for d in split for a in d):
            continue
        without = tuple([tuple([a for a in axes if a != axis]) for axes in split])
        for dim in rank:
            yield tuple([(*axes, axis) if n == dim else axes for n, axes in enumerate(without)])
        yield without
    used = {axis.name for axes in split for axis in axes}
    unused = tuple([Axis(name) for name, size in mesh.axes if size > 1 and name not in used])
    if len(unused) > 1:
        for dim in rank:
            yield tuple([(*axes, *unused) if n == dim else axes for n, axes in enumerate(split)])
    for one in rank:
        for other in range(one + 1, len(split)):
            order = [*rank]
            order[one], order[other] = other, one
            yield tuple([split[n] for n in order])


def spec_text(split: DimAxes) -> str:
    """`P("data", None)`."""
    return repr(P(*[DimSharding(axes) for axes in split]))


def _argument_edit(
    groups: Sequence[ArgumentGroup],
    split: DimAxes,
    mesh: str,
    state: Mapping[int, str],
    label: str = "",
) -> AnnotationEdit:
    numbers = frozenset(n for group in groups for n in group.numbers)
    sharding = Sharding(mesh, tuple([DimSharding(axes) for axes in split]))

    def change(module: Module) -> Module:
        return with_arguments(module, dict.fromkeys(numbers, sharding))

    first = groups[0]
    text = f"in_shardings: {label or first.name}: {spec_text(split)}"
    if results := [state[n] for n in sorted(numbers) if n in state]:
        more = f" and {len(results) - _NAMED} more" if len(results) > _NAMED else ""
        text += f"; out_shardings: {', '.join(results[:_NAMED])}{more}: the same"
    lines = frozenset().union(*[group.lines for group in groups])
    size = sum(group.type.nbytes * len(group.numbers) for group in groups)
    return AnnotationEdit("argument", first.loc, text, change, lines, size)


def _families(
    groups: Sequence[ArgumentGroup], name: str, mesh: Mesh, state: Mapping[int, str]
) -> Iterator[AnnotationEdit]:
    """Changes of several groups at once: of one shape and sharding, as optimizer state is."""
    alike: dict[tuple[TensorType, DimAxes], list[ArgumentGroup]] = {}
    for group in groups:
        alike.setdefault((group.type, group.split), []).append(group)
    for (type, split), members in alike.items():
        if len(members) > 1:
            label = ", ".join(group.name for group in members)
            for other in _other_splits(type, split, mesh):
                yield _argument_edit(members, other, name, state, label)


# Constraints


def _constraint_edits(module: Module, name: str, mesh: Mesh) -> Iterator[AnnotationEdit]:
    """Constraints of the program, each line's without it or with other axes."""
    constraints: dict[tuple[object, Sharding], Node] = {}
    for node in module.nodes():
        if isinstance(node.op, ShardingConstraint):
            constraints.setdefault((node.loc.text, node.op.sharding), node)
    for (text, sharding), node in constraints.items():
        type = node.results[0].type
        if not isinstance(type, TensorType) or len(sharding.dims) != type.rank:
            continue
        place = _place(node.loc)
        remove = _Constraints(str(text), sharding, None)
        message = f"remove the constraint {spec_text(split_dims(sharding, type.rank))}{place}"
        lines = frozenset([node.loc.line])
        yield AnnotationEdit("removal", node.loc, message, remove, lines, type.nbytes)
        for split in _other_splits(type, split_dims(sharding, type.rank), mesh):
            other = Sharding(name, tuple([DimSharding(axes) for axes in split]))
            message = f"write {spec_text(split)} in the constraint{place}"
            change = _Constraints(str(text), sharding, other)
            yield AnnotationEdit("constraint", node.loc, message, change, lines, type.nbytes)


@dataclass(frozen=True, slots=True)
class _Constraints:
    """Replaces the constraints of one location, or removes them."""

    text: str
    old: Sharding
    new: Sharding | None

    def __call__(self, module: Module) -> Module:
        return _Constraining(module, self).module()


class _Constraining(Rebuild):
    def __init__(self, module: Module, edit: _Constraints) -> None:
        super().__init__(module, ())
        self.edit = edit

    def node(self, node: Node, out: list[Node]) -> None:
        op, edit = node.op, self.edit
        meant = isinstance(op, ShardingConstraint) and op.sharding == edit.old
        if not meant or node.loc.text != edit.text:
            super().node(node, out)
        elif edit.new is None:
            (operand,) = node.operands
            self.becomes(node, (self.became.get(operand, operand),))
        else:
            (operand,) = node.operands
            constraint = apply(
                ShardingConstraint(edit.new), self.became.get(operand, operand), loc=node.loc
            )
            out.append(constraint)
            self.becomes(node, constraint.results)


def _additions(
    module: Module, name: str, mesh: Mesh, lines: Sequence[object]
) -> Iterator[AnnotationEdit]:
    """New constraints on the results of some lines."""
    seen: set[tuple[str, object]] = set()
    for line in lines:
        for node in walk(module.function("main").body):
            key = (node.loc.text, node.types)
            type = node.results[0].type if len(node.results) == 1 else None
            if node.loc.line != line or key in seen or not isinstance(type, TensorType):
                continue
            seen.add(key)
            # A vector is small, and the value that an op only rearranges is the better place.
            if type.rank < 2 or node.op.name in CARRIES or node.regions:
                continue
            for split in _other_splits(type, ((),) * type.rank, mesh):
                sharding = Sharding(name, tuple([DimSharding(axes) for axes in split]))
                what = node.op.name.partition(".")[2]
                message = (
                    f"weft.constrain(..., {spec_text(split)}) on the {what} "
                    f"{'x'.join(map(str, type.shape))}{_place(node.loc)}"
                )
                change = _Adding(node.loc.text, node.op.name, type, sharding)
                yield AnnotationEdit(
                    "addition", node.loc, message, change, frozenset([line]), type.nbytes
                )


@dataclass(frozen=True, slots=True)
class _Adding:
    """Adds a constraint to all results of one location, op and type."""

    text: str
    op: str
    type: TensorType
    sharding: Sharding

    def __call__(self, module: Module) -> Module:
        return _Added(module, self).module()


class _Added(Rebuild):
    def __init__(self, module: Module, edit: _Adding) -> None:
        super().__init__(module, ())
        self.edit = edit

    def node(self, node: Node, out: list[Node]) -> None:
        super().node(node, out)
        edit = self.edit
        if node.loc.text != edit.text or node.op.name != edit.op or node.types != (edit.type,):
            return
        (result,) = node.results
        constraint = apply(
            ShardingConstraint(edit.sharding), self.became.get(result, result), loc=node.loc
        )
        out.append(constraint)
        self.becomes(node, constraint.results)


# Axes


def _orders(module: Module, name: str, mesh: Mesh) -> Iterator[AnnotationEdit]:
    """Two axes of the mesh in each other's place, which puts another one on the fast links."""
    # An explicit order of devices is the user's choice of links.
    if mesh.device_ids is not None:
        return
    for one in range(len(mesh.axes)):
        for other in range(one + 1, len(mesh.axes)):
            axes = list(mesh.axes)
            axes[one], axes[other] = axes[other], axes[one]
            text = "mesh: " + ", ".join(f"{axis}={size}" for axis, size in axes)
            change = _Order(name, Mesh(axes))
            yield AnnotationEdit("order", module.loc, text, change)


@dataclass(frozen=True, slots=True)
class _Order:
    """Replaces the mesh by one with another order of its axes."""

    name: str
    mesh: Mesh

    def __call__(self, module: Module) -> Module:
        return replace(module, meshes={**module.meshes, self.name: self.mesh})


def _place(loc: Location) -> str:
    line = loc.line
    return f" at {line[0].rpartition('/')[2]}:{line[1]}" if line else ""
