"""`jax.debug.inspect_array_sharding`: callbacks that receive a value's final sharding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from weft.array.tiles import tiles
from weft.capture.jax.calls import custom_call
from weft.ir.module import Module
from weft.ir.write import SHARDINGS
from weft.jax.questions.shardings import proto
from weft.mesh import Sharding
from weft.ops.custom_calls.callbacks import INSPECT, HostFunction, host_function
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.custom_calls.declaration import config_of
from weft.pipeline import Program


def inspect_lowering(ctx: Any, value: Any, *, callback: Callable[..., Any]) -> list[Any]:
    """A custom call with the callback; if all axes are manual, or on one device, it is called here.

    In a partially manual region, values are split by the remaining axes.
    """
    from jax._src import sharding_impls

    where = ctx.module_context.axis_context
    if isinstance(where, sharding_impls.SPMDAxisContext):
        mesh, devices = where.mesh, where.mesh._flat_devices_tuple
        if where.manual_axes == frozenset(mesh.axis_names):
            callback(sharding_impls.NamedSharding(mesh, sharding_impls.PartitionSpec()))
            return []
    else:
        devices = where.device_assignment
        mesh = _mesh(where.abstract_mesh, devices)
    tell = partial(_tell, callback, mesh, devices)
    if len(devices) == 1:
        tell(b"")
        return []
    function = HostFunction(tell)
    ctx.module_context.add_keepalive(function)
    config = {"function": function.number}
    return custom_call(ctx, INSPECT, [value], config, has_side_effect=True)


def _mesh(abstract: Any, devices: Any) -> Any:
    """The mesh of the reported sharding."""
    from jax._src import mesh

    if abstract is None:
        return mesh.thread_resources.env.physical_mesh
    return mesh.Mesh(np.array(devices).reshape(abstract.axis_sizes), abstract.axis_names)


def _tell(callback: Callable[..., Any], mesh: Any, devices: Any, proto: bytes) -> None:
    """Call back with a JAX sharding; an empty message means replicated."""
    from jax._src import sharding_impls
    from jax._src.lib import xla_client

    read = xla_client.OpSharding()
    read.ParseFromString(proto)
    sharding = xla_client.HloSharding.from_proto(read)
    if mesh.empty:
        callback(sharding_impls.GSPMDSharding(devices, sharding))
    else:
        split = sharding_impls.parse_flatten_op_sharding(sharding, mesh)[0]
        callback(sharding_impls.NamedSharding(mesh, split))


def tell_shardings(program: Program) -> None:
    """Call back with the shardings of inspected values."""
    sharded = program.stage("sharded")
    for node in sharded.nodes():
        if isinstance(node.op, CustomCall) and node.op.call_target_name == INSPECT:
            number = config_of(node.op.backend_config)["function"]
            sharding = sharded.tables.get(SHARDINGS, {}).get(node.operands[0])
            assert sharding is None or isinstance(sharding, Sharding), "the table of shardings"
            host_function(number).call(_proto(program, sharded, sharding))


def _proto(program: Program, sharded: Module, sharding: Sharding | None) -> bytes:
    if sharding is None:
        return b""
    order = np.argsort(sharding.resolve(sharded.meshes).devices().reshape(-1), kind="stable")
    return proto(tiles(sharding, program.local.mesh, tuple(order.tolist())))
