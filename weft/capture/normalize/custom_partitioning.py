"""JAX's `custom_partitioning`: functions with a partitioner of the user's.

JAX leaves a custom call in the program, with a sharding rule. Once the shardings of its operands
and results are known, a callback into JAX gives the program of one device, which becomes a manual
computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from weft.array.tiles import tiles
from weft.capture.stablehlo.bytecode import read_bytecode
from weft.errors import WeftError
from weft.ir.module import Module, Node, Region
from weft.ir.names import PARTITIONS
from weft.ir.rebuild import rewrite
from weft.ir.types import TensorType
from weft.ir.write import SHARDINGS
from weft.mesh import Axis, DimSharding, Mesh, Sharding
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.distributed.sharding import ManualComputation
from weft.ops.function_summaries import NAMING

_NAME = "CustomSPMDPartitioning"


def partition_by_hand(module: Module, shard: Callable[[Module], Module]) -> Module:
    """The module with manual computations in place of `custom_partitioning` calls.

    `shard` propagates shardings, so that those of a call's operands are known.
    """
    if not any(map(_is_asked, module.nodes())):
        return module
    sharded = shard(module)
    calls = {_key(node): node for node in sharded.nodes() if _is_asked(node)}
    table = sharded.tables[SHARDINGS]
    replacements = {
        key: _Partitioned(sharded, node, table) for key, node in reversed(calls.items())
    }

    def renew(node: Node) -> Node | None:
        return replacements[_key(node)].node(node) if _is_asked(node) else None

    functions = dict(module.functions)
    for each in replacements.values():
        functions |= each.added
    module = module.with_functions(functions)
    name, mesh = next(iter(replacements.values())).mesh
    return rewrite(replace(module, meshes={**module.meshes, name: mesh}), renew)


def _is_asked(node: Node) -> bool:
    return isinstance(node.op, CustomCall) and node.op.call_target_name == _NAME


def _key(node: Node) -> bytes:
    """JAX's key for the call."""
    assert isinstance(node.op, CustomCall)
    return (node.op.backend_config or "").strip('"').encode()


class _Partitioned:
    """JAX's partitioning of a call: the per-device program, and the shardings of its operands."""

    def __init__(self, module: Module, node: Node, table: Any) -> None:
        self.mesh = _mesh(module)
        self.key = _key(node)
        # HLO numbers partitions by device; the mesh lists its devices in the order of its axes.
        self.order = tuple(np.argsort(self.mesh[1].devices().reshape(-1)).tolist())
        code, inside, outside = self._ask(node, table)
        self.inside = [self._sharding(each) for each in inside]
        self.outside = [self._sharding(each) for each in outside]
        local = _renamed(read_bytecode(code), f"partitioned_{self.key.decode()}")
        self.body: Region = local.function("main").body
        self.added = {name: f for name, f in local.functions.items() if name != "main"}

    def _ask(self, node: Node, table: Any) -> tuple[bytes, list[Any], list[Any]]:
        """The per-device program as bytes, and its operand and result shardings."""
        from jax._src import custom_partitioning as theirs
        from jax._src.lib import xla_client

        shapes = [_shape(value.type) for value in (*node.operands, *node.results)]
        shardings = [self._tiles(table.get(v)) for v in (*node.operands, *node.results)]
        count = len(node.operands)
        whole, split = shapes[count], shardings[count]
        # XLA has one result, a tuple if need be: shapes and shardings of several are packed as one.
        if len(node.results) != 1:
            whole = xla_client.Shape.tuple_shape(shapes[count:])
            split = xla_client.HloSharding.tuple_sharding(whole, shardings[count:])
        try:
            code, inside, outside = theirs._custom_partitioning_partition(
                shapes[:count], shardings[:count], whole, split, self.key
            )
        except KeyError:
            raise WeftError(
                "a custom_partitioning callback is not registered in this process",
                help="compile it in the process that has traced it",
                loc=node.loc,
            ) from None
        results = [outside] if len(node.results) == 1 else outside.tuple_elements()
        return code, [*inside], [*results]

    def _tiles(self, sharding: Sharding | None) -> Any:
        from jax._src.lib import xla_client

        return xla_client.HloSharding.from_string(tiles(sharding, self.mesh[1], self.order).text())

    def _sharding(self, op_sharding: Any) -> Sharding:
        """A sharding of JAX's as `Sharding`."""
        from jax._src import mesh as meshes
        from jax._src import sharding_impls

        name, mesh = self.mesh
        sizes, names = [size for _, size in mesh.axes], [axis for axis, _ in mesh.axes]
        abstract = meshes.AbstractMesh(tuple(sizes), tuple(names))
        (spec,) = sharding_impls.parse_flatten_op_sharding(op_sharding, abstract)
        dims = [_axes(entry) for entry in spec]
        return Sharding(name, tuple([DimSharding(tuple(map(Axis, axes))) for axes in dims]))

    def node(self, call: Node) -> Node:
        """The manual computation in place of a call."""
        inside, outside = (
            tuple([_padded(s, v.type) for s, v in zip(found, values, strict=True)])
            for found, values in ((self.inside, call.operands), (self.outside, call.results))
        )
        # Manual over all axes: the callback's program sees shards of every dim, whatever splits
        # them.
        axes = tuple([Axis(name) for name, size in self.mesh[1].axes if size > 1])
        op = ManualComputation(inside, outside, axes, call.types)
        return Node(op, call.operands, call.types, (self.body,), (), call.loc)


def _mesh(module: Module) -> tuple[str, Mesh]:
    """The mesh of the module; one of a single axis if it has none."""
    for name, mesh in module.meshes.items():
        if mesh.axes:
            return name, mesh
    attrs = dict(module.attrs)
    count = int(attrs.get(PARTITIONS, "1").split(":")[0])
    return "mesh", Mesh((("device", count),))


def _shape(type: Any) -> Any:
    from jax._src.lib import xla_client

    assert isinstance(type, TensorType), "custom_partitioning takes no tokens"
    return xla_client.Shape.array_shape(type.dtype.numpy, type.sizes)


def _axes(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _padded(sharding: Sharding, type: Any) -> Sharding:
    """A sharding with an entry for every dim."""
    missing = type.rank - len(sharding.dims)
    return replace(sharding, dims=(*sharding.dims, *(DimSharding() for _ in range(missing))))


def _renamed(module: Module, prefix: str) -> Module:
    """The module with a unique prefix on the names of its private functions."""
    became = {name: f"{prefix}_{name}" for name in module.functions if name != "main"}
    if not became:
        return module

    def renew(node: Node) -> Node | None:
        field = NAMING.get(type(node.op))
        named = getattr(node.op, field) if field else None
        if named is None or not any(name in became for name in _flat(named)):
            return None
        changed = became[named] if isinstance(named, str) else tuple(became[n] for n in named)
        op = node.op.replace(**{str(field): changed})
        return Node(op, node.operands, node.types, node.regions, node.attrs, node.loc)

    result = rewrite(module, renew)
    functions = {
        became.get(n, n): replace(f, name=became.get(n, n)) for n, f in result.functions.items()
    }
    return result.with_functions(functions)


def _flat(named: Any) -> Iterator[str]:
    yield from (named,) if isinstance(named, str) else named
