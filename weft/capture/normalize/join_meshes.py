"""Programs on several meshes of the same devices, rewritten onto one mesh.

Meshes with the same device order become one whose axes are parts of theirs; a mesh of one device
splits nothing. Where axes do not subdivide each other, one mesh is kept, and values on the others
get their shardings by propagation.

Callers that pass global values need no more. For those that pass shards, as JAX does to a plugin,
values on the other meshes are passed as concatenated shards; where only the device order differs,
it is recorded on arguments and results: the caller permutes the shards, so nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from weft.capture.normalize.cross_meshes import Pieces, in_pieces
from weft.errors import Unsupported
from weft.ir.attrs import Attrs
from weft.ir.module import Module, Node, Value
from weft.ir.names import DEVICE_ORDER
from weft.ir.op import Op
from weft.ir.rebuild import rewrite
from weft.ir.types import TensorType
from weft.mesh import Axis, DimSharding, Mesh, MeshAxes, Sharding
from weft.mesh.algebra import in_mesh_order, size_of
from weft.mesh.sub_axes import SubAxes, mesh_spans, span_of, sub_axes_of
from weft.ops.distributed.annotations import all_shardings, replace_shardings, sharding_attribute
from weft.ops.distributed.sharding import ManualComputation, ShardingConstraint
from weft.ops.function_summaries import FunctionSummaries


def join_meshes(module: Module, *, pieces: bool = False) -> Module:
    """The module on one mesh; `pieces`: callers pass local shards."""
    surveys = FunctionSummaries()
    occurrences = [mesh for mesh in module.meshes.values() if mesh.axes]
    for sharding in all_shardings(module, surveys):
        if isinstance(sharding.mesh, Mesh) and sharding.mesh.axes:
            occurrences.append(sharding.mesh)
    meshes = [*dict.fromkeys(occurrences)]
    if len(meshes) < 2:
        return module
    # A mesh of one device has no order and splits nothing: it must not decide the common one.
    joining = _Joined(module, [mesh for mesh in meshes if mesh.size > 1] or meshes)
    # Device orders are recorded before shardings are rewritten: they are read from the old meshes.
    result = rewrite(
        joining.noted(module) if pieces else module, joining.manual, joining.collective
    )
    result = replace_shardings(result, surveys, joining.sharding)
    if pieces and any(map(joining.crosses, all_shardings(module, surveys))):
        main = module.function("main")
        inside = joining.crossing(main.arg_attrs, main.body.args)
        outside = joining.crossing(main.res_attrs, main.body.results)
        result = in_pieces(result, inside, outside, (joining.name, joining.mesh))
    without_axes = {name: mesh for name, mesh in module.meshes.items() if not mesh.axes}
    return replace(result, meshes={**without_axes, joining.name: joining.mesh})


class _Joined:
    """The common mesh, and the map of the other meshes' axes onto it."""

    def __init__(self, module: Module, meshes: Sequence[Mesh]) -> None:
        self.meshes = module.meshes
        # `rewrite` visits new nodes again, and axes of the common mesh must not be mapped twice.
        # The ops are kept alive here, so that an `id` is not reused.
        self.renamed: dict[int, Op] = {}  # manual computations that are already rewritten
        if len({mesh.size for mesh in meshes}) > 1:
            raise _refusal(meshes, "they have different numbers of devices")
        self.base = self._base(module, meshes)
        spans = [span for mesh in (self.base, *meshes) for span in mesh_spans(mesh)]
        self.sub_axes = sub_axes_of(self.base.size, spans)
        self.names = _axis_names(self.base, self.sub_axes)
        pairs = zip(self.names, self.sub_axes.sizes, strict=bool(self.names))
        self.mesh = Mesh(pairs, self.base.device_ids)
        # Its name is not another mesh's, unless shardings mean the same on both.
        fits = all(size == 1 or self.sub_axes.dims((stride, size)) for stride, size in spans)
        taken = {name for name, mesh in module.meshes.items() if not (fits and mesh.axes)}
        self.name = next(n for n in ("mesh", "mesh_of_all", "mesh_of_both") if n not in taken)

    def _base(self, module: Module, meshes: Sequence[Mesh]) -> Mesh:
        """The mesh whose device order is kept: that of manual computations, if any."""
        ops = (node.op for node in module.nodes())
        found = [self._mesh_of(op) for op in ops if isinstance(op, ManualComputation)]
        by_hand = [mesh for mesh in found if mesh in meshes]
        orders = {_order(mesh) for mesh in by_hand}
        if len(orders) > 1:
            raise _refusal(by_hand, "both are used by hand, and their devices differ in order")
        # A body by hand names its devices (axis_index, permutes), so its order cannot change. Else
        # a mesh in the natural order: fewer values need their shards permuted.
        return min(by_hand or meshes, key=lambda mesh: mesh.device_ids is not None)

    def _mesh_of(self, op: ManualComputation) -> Mesh:
        names = {axis.name for axis in op.manual_axes}
        for sharding in (*op.in_shardings, *op.out_shardings):
            # An op names its axes but not its mesh; its shardings do.
            if names <= sharding.resolve(self.meshes).axis_sizes.keys():
                return sharding.resolve(self.meshes)
        found = [mesh for mesh in self.meshes.values() if names <= mesh.axis_sizes.keys()]
        assert found, f"no mesh has the axes {', '.join(sorted(names))}"
        return found[0]

    def axes(self, axes: Sequence[Axis], mesh: Mesh) -> tuple[Axis, ...]:
        """Axes of one of the meshes as axes of the common mesh."""
        common_axes: list[Axis] = []
        for axis in axes:
            if size_of(axis, mesh) == 1:
                continue
            dims = self.sub_axes.dims(span_of(axis, mesh))
            if dims is None:
                raise _refusal([mesh, self.mesh], f"{axis} is only a part of an axis")
            common_axes += [Axis(self.names[dim]) for dim in dims]
        return tuple(common_axes)

    def crosses(self, given: Sharding) -> bool:
        """Whether a sharding uses axes that the common mesh cannot express."""
        mesh = given.resolve(self.meshes)
        spans = [span_of(axis, mesh) for dim in given.dims for axis in dim.axes]
        return any(
            size > 1 and self.sub_axes.dims((stride, size)) is None for stride, size in spans
        )

    def crossing(self, attrs: Sequence[Attrs], values: Sequence[Value]) -> dict[int, Pieces]:
        """The arguments or results with such shardings."""
        pieces: dict[int, Pieces] = {}
        for n, (shown, value) in enumerate(zip(attrs, values, strict=bool(attrs))):
            sharding = sharding_attribute(shown) or _constrained(value)
            if sharding is None or not self.crosses(sharding):
                continue
            mesh = sharding.resolve(self.meshes)
            # Concatenated shards are in one device order, and parts of axes would need their own
            # reshape.
            if _order(mesh) != _order(self.base) or any(
                a.size for d in sharding.dims for a in d.axes
            ):
                raise _refusal([mesh, self.base], "their axes do not subdivide each other")
            assert isinstance(value.type, TensorType), "only tensors are split"
            pieces[n] = Pieces(value.type, sharding, mesh)
        return pieces

    def sharding(self, sharding: Sharding) -> Sharding:
        """A sharding on the common mesh; open where that has no such axes."""
        mesh = sharding.resolve(self.meshes)
        if not mesh.axes:
            return sharding
        if self.crosses(sharding):
            # Open dims: propagation fills in what the neighbours want, instead of forcing a gather.
            return Sharding(self.name, (DimSharding((), is_open=True),) * len(sharding.dims))
        dims = [replace(dim, axes=self.axes(dim.axes, mesh)) for dim in sharding.dims]
        replicated, unreduced = (
            self.axes(a, mesh) for a in (sharding.replicated, sharding.unreduced)
        )
        return Sharding(self.name, tuple(dims), replicated, unreduced)

    def manual(self, node: Node) -> Node | None:
        """A manual computation over axes of the common mesh."""
        if not isinstance(node.op, ManualComputation) or id(node.op) in self.renamed:
            return None
        for given in (*node.op.in_shardings, *node.op.out_shardings):
            if self.crosses(given):
                raise _refusal([given.resolve(self.meshes), self.base], "one is used by hand")
        axes = in_mesh_order(self.axes(node.op.manual_axes, self._mesh_of(node.op)), self.mesh)
        if axes == node.op.manual_axes:
            return None
        op = node.op.replace(manual_axes=axes)
        self.renamed[id(op)] = op
        return Node(op, node.operands, node.types, node.regions, node.attrs, node.loc)

    def collective(self, node: Node) -> Node | None:
        """A collective along axes of one of the meshes (JAX 0.11 and later) -> lists of devices."""
        groups = getattr(node.op, "replica_groups", None)
        if not isinstance(groups, MeshAxes):
            return None
        op = node.op.replace(replica_groups=groups.lists(self.meshes))
        return Node(op, node.operands, node.types, node.regions, node.attrs, node.loc)

    def noted(self, module: Module) -> Module:
        """The module with the device order recorded on arguments and results where it differs."""
        main = module.functions.get("main")
        if main is None:
            return module
        arg_attrs, res_attrs = (
            tuple(map(self._with_order, attrs)) for attrs in (main.arg_attrs, main.res_attrs)
        )
        main = replace(main, arg_attrs=arg_attrs, res_attrs=res_attrs)
        return module.with_functions({**module.functions, "main": main})

    def _with_order(self, attrs: Attrs) -> Attrs:
        given = sharding_attribute(attrs)
        if given is None or not (mesh := given.resolve(self.meshes)).axes:
            return attrs
        if mesh.size == 1 or _order(mesh) == _order(self.base):
            return attrs
        return (*attrs, (DEVICE_ORDER, f'"{" ".join(map(str, _order(mesh)))}"'))


def _constrained(value: Value) -> Sharding | None:
    """The sharding of a constraint on a value."""
    op = value.node.op if value.node is not None else None
    return op.sharding if isinstance(op, ShardingConstraint) else None


def _order(mesh: Mesh) -> tuple[int, ...]:
    """The devices of a mesh."""
    return tuple(mesh.devices().reshape(-1).tolist())


def _axis_names(mesh: Mesh, sub_axes: SubAxes) -> list[str]:
    """Names for the sub-axes: those of the axes, numbered where one is of several sub-axes."""
    names: dict[int, str] = {}
    for name, size in mesh.axes:
        dims = (sub_axes.dims(span_of(Axis(name), mesh)) or ()) if size > 1 else ()
        names |= {dim: name if len(dims) == 1 else f"{name}.{n}" for n, dim in enumerate(dims)}
    return [names[n] for n in range(len(names))]


def _refusal(meshes: Sequence[Mesh], why: str) -> Unsupported:
    return Unsupported(
        f"the program has the meshes {' and '.join(map(str, dict.fromkeys(meshes)))}: {why}",
        help="write it on one mesh, or put the arrays onto one before",
    )


def noted_order(attrs: Attrs) -> tuple[int, ...] | None:
    """The recorded device order of an argument or a result, as positions of shards in a stack."""
    text = dict(attrs).get(DEVICE_ORDER)
    if text is None:
        return None
    devices = np.array([int(word) for word in text.strip('"').split()])
    return tuple(np.argsort(devices, kind="stable").tolist())
