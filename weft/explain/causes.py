"""The cause of a collective, in a sentence: the op that needs it, and the split that it meets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from weft.columns import cut
from weft.explain.names import op_name
from weft.ir.location import Location
from weft.ir.module import Module, Node, Value
from weft.mesh.algebra import Axes
from weft.ops.contract import DotGeneral
from weft.ops.distributed.sharding import Reshard, ShardingConstraint
from weft.partition import Note
from weft.partition.piece import Piece

_REDUCES = ("all_reduce", "reduce_scatter")
_CODE = 56  # the most characters of a source line in a sentence


class Causes:
    """The causes of a program's collectives, by what partitioning noted."""

    def __init__(
        self, sharded: Module, notes: Sequence[Note], places: Mapping[Value, list[Piece]]
    ) -> None:
        self.sharded, self.places = sharded, places
        self.by_text: dict[str, list[Node]] = {}
        self.by_line: dict[object, list[Node]] = {}
        self.notes: dict[Node, list[Note]] = {}
        self.names: dict[Value, str] = {}
        self.makers: dict[Value, list[Node]] = {}
        main = sharded.function("main").body
        for value, loc in zip(main.args, main.arg_locs, strict=True):
            self.names[value] = loc.name or "an argument"
        for node in sharded.nodes():
            self.by_text.setdefault(node.loc.text, []).append(node)
            if node.loc.line:
                self.by_line.setdefault(node.loc.line, []).append(node)
        for note in notes:
            self.notes.setdefault(note.node, []).append(note)

    def nodes(self, loc: Location) -> list[Node]:
        """The nodes of the global program that a location belongs to, the nearest first."""
        lines = [(file, line) for file, line, _ in loc.frames]
        near = [node for line in dict.fromkeys(lines) for node in self.by_line.get(line, ())]
        return [*self.by_text.get(loc.text, ()), *near]

    def reason(self, name: str, over: str, loc: Location) -> str:
        """Why a collective is there, in a sentence."""
        axes, nodes = frozenset(over.split()), self.nodes(loc)
        shown = " and ".join(f"`{axis}`" for axis in over.split()) or "all devices"
        code = _code(loc)
        if name in _REDUCES:
            reduction = next(self._summed(nodes, axes), None)
            # The op that reads a partial sum makes it whole: the cause is the one before it.
            if reduction is None or not reduction[1]:
                makers = [v.node for node in nodes for v in node.operands if v.node is not None]
                before = next(self._summed(makers, axes), None)
                if before is not None and before[1]:
                    reduction, code = before, _code(before[0].loc)
            return _reduction(name, reduction, code, shown, loc)
        if name == "all_gather":
            return self._gathered(nodes, axes, code, shown)
        if name == "all_to_all":
            return f"the pieces of {code} along {shown} are read with another dim split"
        if name.endswith("ragged_all_to_all"):
            return f"the rows of {code} go to the devices along {shown} that the program chooses"
        if name == "collective_permute":
            return f"{code} moves pieces along {shown}: a shift, a halo or a ring of products"
        return f"{code} sends along {shown}"

    def _summed(self, nodes: Sequence[Node], axes: Collection[str]) -> Iterator[tuple[Node, str]]:
        """Nodes with partial sums along axes, and the dim that they sum over."""
        for node in nodes:
            pieces = [piece for value in node.results for piece in self.places.get(value, ())]
            partial = [p.partial for p in pieces if p.partial is not None]
            if any(_meets(p.axes, axes) for p in partial):
                yield node, self._summed_dim(node, axes)

    def _summed_dim(self, node: Node, axes: Collection[str]) -> str:
        for number, value in enumerate(node.operands):
            for piece in self.places.get(value, ()):
                for dim, split in enumerate(piece.split):
                    if _meets(split, axes) and _is_summed(node, number, dim):
                        return f"dim {dim} of {self.name(value)}"
        return ""

    def _gathered(self, nodes: Sequence[Node], axes: Collection[str], code: str, shown: str) -> str:
        for node in nodes:
            for note in self.notes.get(node, ()):
                if note.what == "operand" and _meets(note.axes, axes):
                    value = self.name(node.operands[note.number])
                    return (
                        f"{code} reads {value}, whose dim {note.dim} is split over {shown}: "
                        f"{note.reason}"
                    )
            if isinstance(node.op, ShardingConstraint | Reshard):
                return f"the constraint {code} keeps whole what {shown} splits before it"
        return f"{code} is split over {shown}, and a later op reads it whole"

    def name(self, value: Value) -> str:
        """An argument's name, or the op that computes a value."""
        if value in self.names:
            return self.names[value]
        return f"the result of {op_name(value.node)}" if value.node is not None else "an argument"


def _reduction(
    name: str, cause: tuple[Node, str] | None, code: str, shown: str, loc: Location
) -> str:
    gradient = "in the gradient, " if "transpose(" in (loc.name or "") else ""
    after = (
        "what follows needs the whole sum"
        if name == "all_reduce"
        else "each keeps a piece of the sum"
    )
    if cause is None or not cause[1]:
        return f"{gradient}{code} is a partial result on each device along {shown}; {after}"
    node, dim = cause
    verb = "contracts" if isinstance(node.op, DotGeneral) else "reduces"
    return (
        f"{gradient}{code} {verb} {dim}, which is split over {shown}, so each device holds a "
        f"partial sum; {after}"
    )


def _is_summed(node: Node, number: int, dim: int) -> bool:
    if isinstance(node.op, DotGeneral):
        dims = node.op.dot_dimension_numbers
        summed = (dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions)
        return number < 2 and dim in summed[number]
    summed_dims = getattr(node.op, "dimensions", ())
    return dim in summed_dims if isinstance(summed_dims, tuple) else False


def _meets(split: Axes, axes: Collection[str]) -> bool:
    return any(axis.name in axes for axis in split)


def _code(loc: Location) -> str:
    """The source text in backticks, or the tracer's name of the op."""
    text = loc.describe()
    place, _, code = text.partition("  ")
    if code:
        return f"`{cut(code.strip(), _CODE)}`"
    name = (loc.name or "").rpartition("/")[2]
    return f"`{name}`" if name else place or "an op"
