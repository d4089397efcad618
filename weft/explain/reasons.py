"""The reasons of every sharding: the origin of each axis, and the conflicts that stopped others."""

from __future__ import annotations

from collections.abc import Iterator

from weft.errors import WeftError
from weft.explain.conflicts import Conflict, ConflictKind, Padding, axes_text, conflicts, paddings
from weft.explain.history import AxisPath, AxisStep, History
from weft.explain.names import Names, op_name, place
from weft.explain.owners import Owner, owners
from weft.ir.location import UNKNOWN, Location
from weft.ir.module import Value
from weft.ir.types import TensorType, Type
from weft.mesh import Sharding
from weft.mesh.algebra import Axes, total_size
from weft.records import dataclass
from weft.shard import Propagated
from weft.shard.closing import closed, evenly, without_sub_axes
from weft.shard.exporting.signature import SignatureValue, signature_values
from weft.shard.preparation.prepare import prepare

_FIRST, _LAST = 3, 4  # the most steps of a path that are shown
_TITLES: dict[ConflictKind, str] = {
    "indivisible": "size does not divide",
    "padded": "size does not divide",
    "whole": "forced replication",
}


@dataclass(frozen=True, slots=True)
class DimExplanation:
    """The explanation of one dim: the axes that split it, and the reasons."""

    dim: int
    size: int
    axes: str
    sentences: tuple[str, ...]

    def text(self) -> str:
        """The dim, and its reasons below it."""
        state = f"is split by {self.axes}" if self.axes else "is whole"
        lines = [f"dim {self.dim} (size {self.size}) {state}", *self.sentences]
        return "\n    ".join(lines)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one value's sharding, in one call of its function."""

    name: str
    what: str
    type: Type
    sharding: Sharding | None
    loc: Location
    called: str  # the call site, of a called function
    dims: tuple[DimExplanation, ...]
    alike: int = 0  # other copies of the value with this sharding

    def text(self) -> str:
        """The explanation as text."""
        sharding = "replicated" if self.sharding is None else self.sharding.body()
        lines = [f"{self.name}: {self.what}, {self.type}, {sharding}"]
        if self.loc.line:
            lines.append(f"  --> {self.loc.describe()}")
        if self.called:
            lines.append(f"  called {self.called}")
        if self.alike:
            lines.append(f"  and {self.alike} more like it, for other readers or calls")
        lines += [f"  {dim.text()}" for dim in self.dims]
        if not self.dims:
            lines.append("  it has no dims to split")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Remark:
    """A finding in a program, merged by line and kind."""

    kind: ConflictKind
    loc: Location
    message: str
    count: int = 1

    def text(self) -> str:
        """The message, the line, and the number of findings there."""
        lines = [f"{_TITLES.get(self.kind, 'conflict')}: {self.message}"]
        if self.loc.known:
            lines.append(f"  --> {self.loc.describe()}")
        if self.count > 1:
            lines.append(f"   |  and {self.count - 1} more like it at this line")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Reasons:
    """Explanations for all values of a module, of the user's or the prepared one."""

    propagated: Propagated
    history: History
    names: Names
    owners: tuple[Owner | None, ...]
    cells: dict[Value, list[int]]
    conflicts: tuple[Conflict, ...]
    paddings: tuple[Padding, ...]
    disputed: tuple[Remark, ...]  # sharding groups whose values are annotated differently
    stopped: dict[tuple[int, int], list[Conflict]]  # by cell and dim that lack an axis
    signature: dict[int, SignatureValue]  # arguments and results of the program, by cell

    def of(self, value: Value) -> tuple[Explanation, ...]:
        """The explanations of a value: one for each distinct sharding of its copies."""
        alike: dict[Sharding | None, list[int]] = {}
        for cell in self.cells_of(value):
            alike.setdefault(self.sharding(cell), []).append(cell)
        return tuple(self.explanation(first, len(rest)) for first, *rest in alike.values())

    def of_result(self, number: int, function: str | None = None) -> Explanation:
        """The explanation of a function's declared result."""
        name = function or self.names.main
        for root in self.propagated.graph.roots:
            if root.function.name == name and number < len(root.result_cells):
                return self.explanation(root.result_cells[number])
        raise WeftError(f"@{name} has no result {number}", help="count the results from 0")

    def cells_of(self, value: Value) -> list[int]:
        """The cells of a value: one for each copy and each call of its function."""
        copies = self.names.counterparts.became.get(value, [value])
        return [cell for copy in copies for cell in self.cells.get(copy, ())]

    def sharding(self, cell: int) -> Sharding | None:
        """The final sharding of a cell: closed, and even at arguments and results."""
        sharding, owner = self.history.final[cell], self.owners[cell]
        if sharding is None:
            return None
        if owner is not None and owner.is_signature:
            sharding = self.at_signature(sharding, cell, owner)
        return closed(sharding)

    def at_signature(self, sharding: Sharding, cell: int, owner: Owner) -> Sharding:
        """The even part of a sharding, at a function's arguments and results."""
        pads, one = self.propagated.pads != "none", self.signature.get(cell)
        if pads and one is None:  # a called function keeps uneven shardings
            return sharding
        mesh = self.history.mesh(sharding)
        made = evenly(sharding, self.propagated.graph.types[cell], mesh)
        if owner.function.name == self.names.main:
            made = without_sub_axes(made)
        return one.named_at_least(made, sharding) if pads and one is not None else made

    def notes(self) -> tuple[Remark, ...]:
        """Conflicts, uneven shards and forced replication, merged by line and kind."""
        remarks: dict[tuple[object, ConflictKind], Remark] = {}
        for note in self._all_notes():
            key = (note.loc.line or note.loc, note.kind)
            first = remarks.get(key)
            again = note if first is None else _once_more(first)
            remarks[key] = again
        return tuple(remarks.values())

    def explanation(self, cell: int, alike: int = 0) -> Explanation:
        """The explanation of a cell's sharding; `alike` counts further cells with the same one."""
        owner = self.owners[cell]
        type = self.propagated.graph.types[cell]
        sizes = type.bounds if isinstance(type, TensorType) else ()
        return Explanation(
            self.label(cell),
            _what(owner),
            type,
            self.sharding(cell),
            owner.loc if owner else UNKNOWN,
            " from ".join(f"at {c.loc.describe()}" for c in reversed(owner.calls)) if owner else "",
            tuple(self.dim(cell, dim, size) for dim, size in enumerate(sizes)),
            alike,
        )

    def dim(self, cell: int, dim: int, size: int) -> DimExplanation:
        """The explanation of a dim of a cell."""
        sharding, spread = self.sharding(cell), self.history.final[cell]
        if sharding is not None and not self.history.mesh(sharding).axes:
            return DimExplanation(dim, size, "", ("it is whole, on one device",))
        axes = sharding.dims[dim].axes if sharding else ()
        reached = spread.dims[dim].axes if spread else ()
        sentences: list[str] = []
        for axis in reached:
            path = self.history.path(cell, dim, axis)
            lines = [*self.origin(path), *map(self.step, path.steps)]
            sentences += _shortened(lines)
        stopped = self.stopped.get((cell, dim), [])
        sentences += dict.fromkeys(self.sentence(c) for c in stopped)
        if reached != axes:
            sentences.append(self.dropped(reached, size, cell))
        if not sentences and self.is_closed(cell, dim):
            sentences = [f"{self.annotation(cell)} keeps it whole"]
        elif not sentences:
            sentences = ["nothing reached it"]
        return DimExplanation(dim, size, axes_text(axes) if axes else "", tuple(sentences))

    def dropped(self, axes: Axes, size: int, cell: int) -> str:
        """The reason that axes are dropped at an argument or result of the program."""
        spread = self.history.final[cell]
        assert spread is not None
        pieces = total_size(axes, self.history.mesh(spread))
        if size % pieces == 0:
            return "arguments and results are not split by parts of axes: some are left out"
        verb = "makes" if len(axes) == 1 else "make"
        which = "arguments and results are"
        if self.propagated.pads != "none":
            which = "arguments and results whose shardings are inferred are"
        return (
            f"{axes_text(axes)} {verb} {pieces} pieces, which do not divide {size}: "
            f"{which} split evenly only"
        )

    # Sentences

    def label(self, cell: int) -> str:
        """The name of a cell's value."""
        return self.names.owner(self.owners[cell])

    def annotation(self, cell: int) -> str:
        """The annotation of a cell, and its location."""
        owner = self.owners[cell]
        if owner is None:
            return "its annotation"
        words, loc = owner.annotation()
        return words + place(loc)

    def is_closed(self, cell: int, dim: int) -> bool:
        sharding = self.propagated.graph.initial[cell]
        return sharding is not None and not sharding.dims[dim].is_open

    def origin(self, path: AxisPath) -> Iterator[str]:
        """The sentence about the annotation that an axis comes from."""
        cell = path.origin
        if path.by is not None:
            words = f"the manual computation{place(path.by.loc)}"
        else:
            cell = self.leader(cell)
            words = self.annotation(cell)
        priority = f", priority {path.priority}" if path.priority else ""
        yield f"{words} puts {path.axis} on dim {path.dim} of {self.label(cell)}{priority}"
        if cell != path.origin:
            yield self.step(AxisStep(cell, path.dim, path.origin, path.dim, None))

    def leader(self, cell: int) -> int:
        """The member of a cell's sharding group that is annotated, if the cell itself is not."""
        owner = self.owners[cell]
        if owner is None or owner.is_annotated() or owner.result is not None:
            return cell
        for other in self.history.groups.get(cell, ()):
            member = self.owners[other]
            if member is not None and member.is_annotated():
                return other
        return cell

    def step(self, step: AxisStep) -> str:
        """The sentence about one step of an axis."""
        way = (
            f"from dim {step.source_dim} of {self.label(step.source)} "
            f"to dim {step.target_dim} of {self.label(step.target)}"
        )
        if step.visit is None:
            return f"the sharding group carries it {way}"
        node = step.visit.node
        name = f"{op_name(node)}{place(node.loc)}" if node else "the return"
        return f"{name} carries it {way}"

    def sentence(self, conflict: Conflict) -> str:
        """The sentence about a conflict at an op."""
        cut, node = conflict.cut, conflict.visit.node
        op = op_name(node) if node else "the return"
        source = f"dim {cut.source_dim} of {self.label(conflict.source)}"
        target = f"dim {cut.dim} of {self.label(conflict.cell)}"
        axes = axes_text(cut.axes)
        if cut.kind == "whole":
            is_operand = cut.tensor < len(conflict.visit.rule.operands)
            cost = "it is gathered first" if is_operand else "it is computed whole, then split"
            return f"{op} needs {target} whole, but {axes} splits it: {cost}"
        if cut.kind == "disagree":
            return f"{op}: {source} is split by {axes}, {target} by {axes_text(cut.other)}"
        return f"{op}: {source} is split by {axes}, {target} is not: {self.clause(conflict, op)}"

    def clause(self, conflict: Conflict, op: str) -> str:
        """The clause with the reason that a dim lacks an axis."""
        cut = conflict.cut
        # These kinds miss the next axis alone; `disagree` and `whole` have several.
        (axis,) = cut.axes
        match cut.kind:
            case "closed":
                return f"{self.annotation(conflict.cell)} closes it"
            case "replicated":
                return f"{self.annotation(conflict.cell)} keeps it whole along {axis}"
            case "unreduced":
                return f"it is unreduced along {axis}"
            case "taken":
                return f"{axis} splits dim {cut.taken_dim} of it already"
            case "indivisible":
                sharding = self.history.final[conflict.source]
                pieces = total_size(cut.axes, self.history.mesh(sharding)) if sharding else 0
                return f"{axis} makes {pieces} pieces, which do not divide {cut.size}"
            case "strided":
                return "its pieces would not be contiguous"
            case "barrier":
                return "a propagation barrier stands between"
        return f"{op} passes no sharding along it"

    def where(self, conflict: Conflict) -> Location:
        """The location of a conflict's op, or of its call site."""
        node, owner = conflict.visit.node, self.owners[conflict.cell]
        calls = owner.calls if owner else ()
        places = [*([node.loc] if node else []), *(call.loc for call in reversed(calls))]
        known = [place for place in places if place.line]
        if known or places:
            return (known or places)[0]
        return owner.loc if owner else UNKNOWN

    def is_cut(self, padding: Padding) -> bool:
        """Whether a dim that would be padded loses axes instead."""
        kept = self.sharding(padding.cell)
        return kept is not None and kept.dims[padding.dim].axes != padding.axes

    def _all_notes(self) -> Iterator[Remark]:
        yield from self.disputed
        for conflict in self.conflicts:
            yield Remark(conflict.kind, self.where(conflict), self.sentence(conflict))
        for padding in self.paddings:
            owner = self.owners[padding.cell]
            where = f"dim {padding.dim} of {self.label(padding.cell)}"
            if self.is_cut(padding):
                assert owner is not None, "an argument or a result"
                why = self.dropped(padding.axes, padding.size, padding.cell)
                yield Remark("indivisible", owner.line, f"{where}: {why}")
                continue
            # Rounded up: all pieces have the size of the first.
            piece = -(-padding.size // padding.pieces)
            yield Remark(
                "padded",
                owner.line if owner else UNKNOWN,
                f"{where} has size {padding.size} and is split by {axes_text(padding.axes)} into "
                f"{padding.pieces} pieces of {piece}: the last are padded",
            )


def reasons(propagated: Propagated) -> Reasons:
    """The explanations of a propagated module."""
    graph = propagated.graph
    history = History(graph, propagated.level)
    by_node, cells = owners(graph)
    dead = {cell for cell, owner in enumerate(by_node) if owner is None}
    cut = conflicts(graph, history.final, dead)
    stopped: dict[tuple[int, int], list[Conflict]] = {}
    for conflict in cut:
        for where in conflict.places:
            stopped.setdefault(where, []).append(conflict)
    return Reasons(
        propagated,
        history,
        Names(propagated.given or propagated.module, propagated.module),
        tuple(by_node),
        cells,
        tuple(cut),
        tuple(paddings(graph, history.final)),
        tuple(_disputed(propagated)),
        stopped,
        {n: b for root in graph.roots for n, b in signature_values(root, graph.initial).items()},
    )


def _disputed(propagated: Propagated) -> Iterator[Remark]:
    if not propagated.graph.groups:
        return
    for group in prepare(propagated.given or propagated.module).conflicts:
        node, _ = next(iter(group.members.values()))
        message = (
            f"sharding group {group.id}: its values are annotated with different shardings, "
            "so each keeps its own"
        )
        yield Remark("disagree", node.loc, message)


def _what(owner: Owner | None) -> str:
    if owner is None:
        return "a value"
    if owner.result is not None:
        return "declared result"
    if owner.argument is not None:
        inside = f" of {op_name(owner.region_of)}" if owner.region_of else ""
        return f"argument{inside}"
    assert owner.value.node is not None
    return op_name(owner.value.node)


def _shortened(lines: list[str]) -> list[str]:
    """A long path without its middle."""
    hidden = len(lines) - _FIRST - _LAST
    if hidden < 2:
        return lines
    return [*lines[:_FIRST], f"... {hidden} more steps ...", *lines[-_LAST:]]


def _once_more(note: Remark) -> Remark:
    return Remark(note.kind, note.loc, note.message, note.count + 1)
