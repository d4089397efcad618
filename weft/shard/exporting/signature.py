"""Arguments and results of a program: their annotated and inferred shardings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from weft.ir.location import Location
from weft.ir.module import Node, Value
from weft.ir.types import TensorType
from weft.mesh import DimSharding, Mesh, Sharding
from weft.mesh.algebra import Axes, is_list_prefix, total_size
from weft.ops.control import Call
from weft.ops.distributed.sharding import Reshard, ShardingConstraint
from weft.records import dataclass
from weft.shard.propagation.graph import Instance

# The arguments and results that may have uneven, padded shards: those with annotations, all, or
# none, as in Shardy. The others lose axes.
Pads = Literal["none", "named", "inferred"]


@dataclass(frozen=True, slots=True)
class IndivisibleDim:
    """A dim of an argument or result that is less split than inferred: its size does not divide."""

    what: str  # "result 0"
    dim: int
    size: int
    inferred: Axes
    kept: Axes
    pieces: int  # by the inferred axes
    loc: Location

    def __str__(self) -> str:
        axes = ", ".join(map(str, self.inferred))
        ending = f"split by {', '.join(map(str, self.kept))} only" if self.kept else "not split"
        where = f" [{self.loc.describe()}]" if self.loc.known else ""
        return (
            f"{self.what} is {ending} along dim {self.dim}: {axes} is inferred for it, whose "
            f"{self.pieces} pieces do not divide {self.size}{where}"
        )


@dataclass(frozen=True, slots=True)
class SignatureValue:
    """An argument or result of a program."""

    what: str  # "argument 0 (x)"
    value: Value
    named: Sharding | None  # by an annotation, or a constraint on the value
    loc: Location

    def named_at_least(self, sharding: Sharding, reached: Sharding) -> Sharding:
        """The sharding with all annotated axes that propagation kept."""
        if self.named is None or self.named.mesh != reached.mesh:
            return sharding
        dims = zip(sharding.dims, self.named.dims, reached.dims, strict=True)
        return replace(sharding, dims=tuple([_at_least(*each) for each in dims]))

    def shrunk(self, reached: Sharding, sharding: Sharding, mesh: Mesh) -> Iterator[IndivisibleDim]:
        """The dims that lost axes because of uneven sizes."""
        type = self.value.type
        if not isinstance(type, TensorType) or not type.is_static or not mesh.axes:
            return  # or a maximal sharding
        dims = zip(type.sizes, reached.dims, sharding.dims, strict=True)
        for n, (size, before, after) in enumerate(dims):
            # Axes may be lost for other reasons as well; only sizes that do not divide are the
            # user's concern.
            pieces = total_size(before.axes, mesh)
            if before.axes != after.axes and size % pieces:
                yield IndivisibleDim(self.what, n, size, before.axes, after.axes, pieces, self.loc)


def signature_values(
    root: Instance, initial: Sequence[Sharding | None]
) -> dict[int, SignatureValue]:
    """The arguments and results of a program by cell."""
    arguments = argument_values(root, initial)
    found = {root.cells[one.value]: one for one in arguments}
    return found | dict(zip(root.result_cells, result_values(root, initial), strict=False))


def argument_values(root: Instance, initial: Sequence[Sharding | None]) -> list[SignatureValue]:
    """The arguments of a program; `initial` has the shardings before propagation."""
    body = root.function.body
    named = [initial[root.cells[v]] for v in body.args]
    labels = [
        f"argument {n} ({loc.name})" if loc.name else f"argument {n}"
        for n, loc in enumerate(body.arg_locs)
    ]
    locs = [
        loc if loc.line else _first_reader(v, body.nodes, loc)
        for v, loc in zip(body.args, body.arg_locs, strict=True)
    ]
    return [*map(SignatureValue, labels, body.args, named, locs)]


def result_values(root: Instance, initial: Sequence[Sharding | None]) -> list[SignatureValue]:
    """The results of a program."""
    listed = []
    cells = root.result_cells or (None,) * len(root.function.body.results)
    for n, (value, cell) in enumerate(zip(root.function.body.results, cells, strict=True)):
        annotated = None if cell is None else initial[cell]
        named = _fill_dims(annotated, _constraint(root, value))
        loc = root.function.loc if value.node is None else value.node.loc
        listed.append(SignatureValue(f"result {n}", value, named, loc))
    return listed


def _first_reader(value: Value, nodes: Sequence[Node], default: Location) -> Location:
    """The line of an argument's first use."""
    return next((n.loc for n in nodes if value in n.operands and n.loc.line), default)


def _constraint(instance: Instance, value: Value) -> Sharding | None:
    """The sharding of the constraint that defines a value, also in a called function."""
    node = value.node
    if node is None:
        return None
    match node.op:
        case ShardingConstraint(sharding=named) | Reshard(sharding=named):
            return named
        case Call() if (inner := instance.calls.get(node)) is not None:
            return _constraint(inner, inner.function.body.results[value.index])
    return None


def _fill_dims(own: Sharding | None, other: Sharding | None) -> Sharding | None:
    """The first sharding, with its unsplit dims from the second."""
    if own is None or other is None or own.mesh != other.mesh:
        return other if own is None else own
    pairs = zip(own.dims, other.dims, strict=True)
    return replace(own, dims=tuple([mine if mine.axes else theirs for mine, theirs in pairs]))


def _at_least(dim: DimSharding, named: DimSharding, reached: DimSharding) -> DimSharding:
    is_kept = is_list_prefix(named.axes, reached.axes)
    if not is_kept or is_list_prefix(named.axes, dim.axes):
        return dim
    return replace(dim, axes=named.axes)
