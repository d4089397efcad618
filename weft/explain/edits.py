"""Changes of the shardings of arguments and results, each with the text to write.

Arguments that differ in numbers only (the weights of equal layers) are changed together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Literal, TypeAlias

from weft.explain.state import (
    CARRIES,
    is_of_torch,
    named_state,
    result_names,
    state_results,
    with_arguments,
    with_results,
)
from weft.ir.location import Location
from weft.ir.module import Module, Value
from weft.ir.types import TensorType
from weft.mesh import Axis, DimSharding, Mesh, P, Sharding
from weft.mesh.algebra import DimAxes, total_size
from weft.ops.distributed.annotations import sharding_attribute
from weft.records import dataclass

EditKind: TypeAlias = Literal[
    "removal", "state", "argument", "order", "constraint", "width", "addition", "result"
]
NUMBER = re.compile(r"\d+")
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

    names: tuple[str, ...]  # one pattern, or all names if the pattern fits other arguments, too
    numbers: tuple[int, ...]
    type: TensorType
    split: DimAxes
    loc: Location
    lines: frozenset[object]

    @property
    def text(self) -> str:
        """The names, of many the first."""
        return _listed(self.names)


def mesh_in(module: Module) -> tuple[str, Mesh] | None:
    """The name of the program's mesh, and the mesh; None without axes to split by."""
    found = [(n, m) for n, m in module.meshes.items() if any(size > 1 for _, size in m.axes)]
    return found[0] if len(found) == 1 else None


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
            label = NUMBER.sub("*", loc.name) if loc.name else f"%arg{n}"
            members.setdefault((label, value.type, split), []).append(n)
    names = [loc.name or f"%arg{n}" for n, loc in enumerate(main.body.arg_locs)]
    groups = []
    for (_, type, split), numbers in members.items():
        lines = frozenset().union(*[readers[main.body.args[n]] for n in numbers])
        loc = main.body.arg_locs[numbers[0]]
        shown = _pattern_of([names[n] for n in numbers], names)
        groups.append(ArgumentGroup(shown, tuple(numbers), type, split, loc, lines))
    return groups


def _pattern_of(members: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The names of a group as one: `*` for the numbers that vary; all of them if others fit."""
    first, *others = [NUMBER.findall(name) for name in members]
    between = NUMBER.split(members[0])
    fixed = [all(o[n] == number for o in others) for n, number in enumerate(first)]
    pairs = zip(first, fixed, strict=True)
    shown = [*(number if is_fixed else "*" for number, is_fixed in pairs), ""]
    pattern = "".join(text + number for text, number in zip(between, shown, strict=True))
    fits = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
    alone = sum(fits.fullmatch(name) is not None for name in names) == len(members)
    return (pattern,) if alone else tuple(members)


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


def other_splits(type: TensorType, split: DimAxes, mesh: Mesh) -> Iterator[DimAxes]:
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


@dataclass(frozen=True, slots=True)
class Spelling:
    """How the user writes shardings: in `in_shardings`, or in a plan by the arguments' names."""

    state: Mapping[int, str]  # by argument the annotated result that is its next value
    is_plan: bool = False

    def text(self, groups: Sequence[ArgumentGroup], spec: str) -> str:
        """The text to write for arguments and their next values."""
        names = [name for group in groups for name in group.names]
        if self.is_plan:  # what a module updates in place keeps its sharding
            return "plan: " + _listed([f'"{name}": {spec}' for name in names])
        numbers = sorted(n for group in groups for n in group.numbers)
        text = f"in_shardings: {_listed(names)}: {spec}"
        results = [self.state[n] for n in numbers if n in self.state]
        return f"{text}; out_shardings: {_listed(results)}: the same" if results else text


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def argument_edits(module: Module, name: str, mesh: Mesh) -> Iterator[AnnotationEdit]:
    """Other shardings of arguments and of their next values, group by group and of families."""
    groups, spelling = argument_groups(module), Spelling(named_state(module), is_of_torch(module))
    for group in groups:
        for split in other_splits(group.type, group.split, mesh):
            yield _argument_edit([group], split, name, spelling)
    # Several groups of one shape and sharding, as optimizer state is.
    alike: dict[tuple[TensorType, DimAxes], list[ArgumentGroup]] = {}
    for group in groups:
        alike.setdefault((group.type, group.split), []).append(group)
    for (type, split), members in alike.items():
        if len(members) > 1:
            for other in other_splits(type, split, mesh):
                yield _argument_edit(members, other, name, spelling)
    yield from _as_weights(groups, name, spelling)


def _argument_edit(
    groups: Sequence[ArgumentGroup], split: DimAxes, mesh: str, spelling: Spelling
) -> AnnotationEdit:
    sharding = Sharding(mesh, tuple([DimSharding(axes) for axes in split]))
    numbers = frozenset(n for group in groups for n in group.numbers)
    change = partial(with_arguments, shardings=dict.fromkeys(sorted(numbers), sharding))
    lines = frozenset().union(*[group.lines for group in groups])
    size = sum(group.type.nbytes * len(group.numbers) for group in groups)
    text = spelling.text(groups, spec_text(split))
    return AnnotationEdit("argument", groups[0].loc, text, change, lines, size)


def _as_weights(
    groups: Sequence[ArgumentGroup], mesh: str, spelling: Spelling
) -> Iterator[AnnotationEdit]:
    """State that is split as what it belongs to: `m['w']` and `v['w']` as `params['w']`."""
    for root in dict.fromkeys(_root(group) for group in groups):
        owners = {group.names[0][len(root) :]: group for group in groups if _root(group) == root}
        alike: dict[DimAxes, list[ArgumentGroup]] = {}
        for group in groups:
            tails = [t for t in owners if t and group.names[0].endswith(t)]
            owner = owners[max(tails, key=len)] if tails and _root(group) != root else group
            if owner.type.sizes == group.type.sizes and owner.split != group.split:
                alike.setdefault(owner.split, []).append(group)
        if len(alike) > 1:  # else it is a change of one family
            yield _join([_argument_edit(g, s, mesh, spelling) for s, g in alike.items()])


def _root(group: ArgumentGroup) -> str:
    """The argument that a leaf is of."""
    return re.split(r"[\[.]", group.names[0])[0]


def _join(edits: Sequence[AnnotationEdit]) -> AnnotationEdit:
    """Several changes as one."""

    def change(module: Module) -> Module:
        for edit in edits:
            module = edit.apply(module)
        return module

    lines = frozenset().union(*[edit.lines for edit in edits])
    text, size = "\n     ".join(e.text for e in edits), sum(edit.size for edit in edits)
    return AnnotationEdit("argument", edits[0].loc, text, change, lines, size)


def result_edits(module: Module, name: str, mesh: Mesh) -> Iterator[AnnotationEdit]:
    """Other shardings of results: of state that of its argument, so that steps fit together."""
    main = module.function("main")
    attrs, body = main.res_attrs or ((),) * len(main.body.results), main.body
    arg_attrs = main.arg_attrs or ((),) * len(body.args)
    names = result_names(module)
    before = {result: argument for argument, result in state_results(module).items()}
    alike: dict[tuple[TensorType, DimAxes, DimAxes | None], list[int]] = {}
    for n, value in enumerate(body.results):
        sharding, type = sharding_attribute(attrs[n]), value.type
        if sharding is None or not isinstance(type, TensorType) or not type.rank:
            continue
        came = None
        if n in before:
            came = split_dims(sharding_attribute(arg_attrs[before[n]]), type.rank)
        split = split_dims(sharding, type.rank)
        if came != split:
            alike.setdefault((type, split, came), []).append(n)
    for (type, split, came), numbers in alike.items():
        shown = _listed([names[n] for n in numbers])
        nodes = [body.results[n].node for n in numbers]
        found = [node.loc for node in nodes if node is not None]
        lines = frozenset(loc.line for loc in found) - {None}
        for other in other_splits(type, split, mesh) if came is None else [came]:
            sharding = Sharding(name, tuple([DimSharding(axes) for axes in other]))
            change = partial(with_results, shardings=dict.fromkeys(numbers, sharding))
            why = "" if came is None else ", as the argument that it is the next value of"
            text = f"out_shardings: {shown}: {spec_text(other)}{why}"
            loc, size = (found or [module.loc])[0], type.nbytes * len(numbers)
            kind: EditKind = "result" if came is None else "state"
            yield AnnotationEdit(kind, loc, text, change, lines, size)


def place(loc: Location) -> str:
    """` at mlp.py:5`, or nothing for what has no line."""
    line = loc.line
    return f" at {line[0].rpartition('/')[2]}:{line[1]}" if line else ""
