"""Changes of constraints inside of a program: none, other ones, and new ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.explain.edits import NUMBER, AnnotationEdit, other_splits, place, spec_text, split_dims
from weft.explain.state import CARRIES
from weft.ir.module import Module, Node, Region, Value, apply
from weft.ir.rebuild import Rebuild
from weft.ir.types import TensorType
from weft.mesh import DimSharding, Mesh, Sharding
from weft.ops.control import Call
from weft.ops.distributed.sharding import ManualComputation, ShardingConstraint
from weft.ops.shape import Reshape
from weft.records import dataclass

_LONGEST = 56  # characters of an expression that advice repeats


class FreeAxes:
    """The mesh without the axes that are manual where a node is: there they split nothing."""

    def __init__(self, module: Module, mesh: Mesh) -> None:
        self.module, self.mesh = module, mesh
        self.manual: dict[Node, frozenset[str]] = {}
        for function in module.functions.values():
            self._see(function.body, frozenset())

    def _see(self, region: Region, manual: frozenset[str]) -> None:
        for node in region.nodes:
            if manual:
                self.manual[node] = self.manual.get(node, frozenset()) | manual
            inside = manual
            if isinstance(node.op, ManualComputation):
                inside |= {axis.name for axis in node.op.manual_axes}
            for inner in node.regions:
                self._see(inner, inside)
            if isinstance(node.op, Call) and inside:
                self._see(self.module.function(node.op.callee).body, inside)

    def at(self, node: Node) -> Mesh:
        """The axes that a constraint of this node may name."""
        hidden = self.manual.get(node)
        if not hidden:
            return self.mesh
        return Mesh([(axis, size) for axis, size in self.mesh.axes if axis not in hidden])


def constraint_edits(module: Module, name: str, free: FreeAxes) -> Iterator[AnnotationEdit]:
    """Constraints of the program, each line's without it or with other axes."""
    constraints: dict[tuple[object, Sharding], Node] = {}
    for node in module.nodes():
        if isinstance(node.op, ShardingConstraint):
            constraints.setdefault((node.loc.text, node.op.sharding), node)
    for (text, sharding), node in constraints.items():
        type = node.results[0].type
        if not isinstance(type, TensorType) or len(sharding.dims) != type.rank:
            continue
        if all(dim.is_open and not dim.axes for dim in sharding.dims):
            continue  # it splits nothing, and JAX writes one for each value of a `shard_map`
        remove = _Constraints(str(text), sharding, None)
        spec = spec_text(split_dims(sharding, type.rank))
        message = f"remove the constraint {spec}{place(node.loc)}"
        lines = frozenset([node.loc.line])
        yield AnnotationEdit("removal", node.loc, message, remove, lines, type.nbytes)
        for split in other_splits(type, split_dims(sharding, type.rank), free.at(node)):
            other = Sharding(name, tuple([DimSharding(axes) for axes in split]))
            message = f"write {spec_text(split)} in the constraint{place(node.loc)}"
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


def addition_edits(
    module: Module, name: str, free: FreeAxes, lines: Sequence[object]
) -> Iterator[AnnotationEdit]:
    """New constraints on the results of some lines."""
    seen: set[object] = set()
    at_line: dict[object, list[Node]] = {}
    inner: set[Value] = set()  # values that the same expression reads, too
    for node in module.nodes():
        at_line.setdefault(node.loc.line, []).append(node)
        inner.update([v for v in node.operands if v.node is not None and _is_one(v.node, node)])
    for line in lines:
        for node in at_line.get(line, ()):
            key, type = _Place.of(node), _constrainable(node)
            if key in seen or type is None:
                continue
            seen.add(key)
            code = "" if node.results[0] in inner or _is_gradient(node) else _code(node)
            on = place(node.loc) if code else f" on {described(node)}"
            for split in other_splits(type, ((),) * type.rank, free.at(node)):
                sharding = Sharding(name, tuple([DimSharding(axes) for axes in split]))
                message = f"weft.constrain({code or '...'}, {spec_text(split)}){on}"
                change = _Adding(key, sharding)
                yield AnnotationEdit(
                    "addition", node.loc, message, change, frozenset([line]), type.nbytes
                )


def _code(node: Node) -> str:
    expression = node.loc.expression
    return expression if len(expression) <= _LONGEST else ""


def _is_one(node: Node, other: Node) -> bool:
    """Whether two nodes are of one expression of the source."""
    return node.loc.frames[:1] == other.loc.frames[:1]


def _is_gradient(node: Node) -> bool:
    return "transpose(" in (node.loc.name or "")


def described(node: Node) -> str:
    """`the dot_general 16x10 at mlp.py:6`; of a module `the dot_general 16x10 of *.up`."""
    type = node.results[0].type
    shape = "x".join(map(str, type.shape)) if isinstance(type, TensorType) else str(type)
    where = " in the gradient" if _is_gradient(node) else ""
    scope = (node.loc.name or "").rpartition("/")
    if scope[2].startswith("aten.") and scope[0]:
        where = f" of {NUMBER.sub('*', scope[0])}"
    return f"the {node.op.name.partition('.')[2]} {shape}{where}{place(node.loc)}"


@dataclass(frozen=True, slots=True)
class _Place:
    """The values of one expression in all layers, which one constraint in the source splits."""

    scope: str
    frames: tuple[object, ...]
    op: str
    types: object

    @classmethod
    def of(cls, node: Node) -> _Place:
        """The place of a node."""
        loc = node.loc
        scope = NUMBER.sub("*", loc.name or loc.text) if loc.frames else loc.text
        return cls(scope, loc.frames[:1], node.op.name, node.types)


def _constrainable(node: Node) -> TensorType | None:
    """The type of a result that a constraint may split."""
    type = node.results[0].type if len(node.results) == 1 else None
    # A vector is small.
    if not isinstance(type, TensorType) or type.rank < 2 or node.regions:
        return None
    # The value that an op only rearranges is the better place, but for dims that a reshape parts:
    # only there can the minor one of them be split.
    if node.op.name in CARRIES:
        return type if parts_dims(node) else None
    # Of the elementwise ops of a line the first, and none of an argument: splits propagate.
    is_later = any(
        (value.node is None or value.node.loc.line == node.loc.line)
        and isinstance(value.type, TensorType)
        and value.type.shape == type.shape
        for value in node.operands
    )
    return None if node.op.elementwise and is_later else type


def parts_dims(node: Node) -> bool:
    """Whether a reshape makes more dims of one, as of a batch rounds of micro-batches."""
    if not isinstance(node.op, Reshape):
        return False
    before, after = node.operands[0].type, node.results[0].type
    if not isinstance(before, TensorType) or not isinstance(after, TensorType):
        return False
    return sum(size > 1 for size in after.sizes) > sum(size > 1 for size in before.sizes)


def lines_before(module: Module, lines: Sequence[object]) -> list[object]:
    """The lines of reshapes that part dims of what these lines read, as it is."""
    found: dict[object, None] = {}
    wanted = set(lines)
    for node in module.nodes():
        if node.loc.line not in wanted:
            continue
        for operand in node.operands:
            value: Value | None = operand
            while value is not None and value.node is not None:
                maker = value.node
                if maker.loc.line not in wanted and parts_dims(maker):
                    found[maker.loc.line] = None
                value = maker.operands[0] if maker.op.name in CARRIES else None
    return [line for line in found if line is not None]


@dataclass(frozen=True, slots=True)
class _Adding:
    """Adds a constraint to all results of one place."""

    place: _Place
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
        if node.op.name != edit.place.op or _Place.of(node) != edit.place:
            return
        (result,) = node.results
        constraint = apply(
            ShardingConstraint(edit.sharding), self.became.get(result, result), loc=node.loc
        )
        out.append(constraint)
        self.becomes(node, constraint.results)
