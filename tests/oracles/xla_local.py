"""XLA runs a local program of ours on forced host devices, as the body of one manual computation.

The program reads and writes stacks of pieces: argument and result have a leading dim of devices,
split along the one axis of a mesh that XLA is given. Inside, nothing is left for it to partition.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.oracles.process import Oracle, serve
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.types import DTYPES, Array, TensorType, dtype_of
from weft.mesh import Axis, DimSharding, Mesh, Sharding
from weft.ops.distributed.sharding import ManualComputation
from weft.ops.shape import Reshape
from weft.partition.expand_groups import expand_groups

ORACLE = Oracle("tests.oracles.xla_local", timeout=300.0)
MOST = 32  # devices
_MESH, _AXIS = "devices", "device"


def evaluated(local: Module, stacked: Sequence[Array], devices: int) -> tuple[Array, ...]:
    """What a local program gives on so many devices, arguments and results stacked."""
    text = wrapped(expand_groups(local), devices).text()
    answer = ORACLE.ask({"text": text, "devices": devices, "arrays": [_sent(a) for a in stacked]})
    return tuple(_received(*each) for each in answer)


def wrapped(local: Module, devices: int) -> Module:
    """A global program on stacks, which runs the local one on every device."""
    main = local.function("main")
    args = tuple(Value(_stacked(v.type, devices), None, n) for n, v in enumerate(main.body.args))
    region = _on_pieces(main.body)
    types = tuple(_stacked(v.type, devices) for v in main.body.results)
    ins, outs = tuple(_split(v.type) for v in args), tuple(_split(t) for t in types)
    op = ManualComputation(ins, outs, (Axis(_AXIS),), types)
    node = Node(op, args, types, (region,))
    # Written at the ends, too: XLA forgets how unread arguments are split.
    given = tuple((("sdy.sharding", str(s)),) for s in ins)
    told = tuple((("sdy.sharding", str(s)),) for s in outs)
    made = Function("main", Region(args, [node], node.results), "public", given, told)
    attrs = tuple(a for a in local.attrs if not a[0].startswith("mhlo.num_"))
    meshes = {_MESH: Mesh(((_AXIS, devices),))}
    return replace(local, functions={**local.functions, "main": made}, meshes=meshes, attrs=attrs)


def _stacked(type: Any, devices: int) -> TensorType:
    assert isinstance(type, TensorType)
    return type.with_shape((devices, *type.shape))


def _split(type: Any) -> Sharding:
    return Sharding(_MESH, (DimSharding((Axis(_AXIS),)), *(DimSharding(),) * (type.rank - 1)))


def _on_pieces(body: Region) -> Region:
    """The body on values with a leading dim of 1."""
    args = tuple(Value(_stacked(v.type, 1), None, n) for n, v in enumerate(body.args))
    heads = [apply(Reshape(v.type), a) for v, a in zip(body.args, args, strict=True)]
    became = {v: head.results[0] for v, head in zip(body.args, heads, strict=True)}
    nodes = [*heads, *_copied(body.nodes, became)]
    tails = [apply(Reshape(_stacked(v.type, 1)), became.get(v, v)) for v in body.results]
    return Region(args, [*nodes, *tails], tuple(t.results[0] for t in tails))


def _copied(nodes: list[Node], became: dict[Value, Value]) -> list[Node]:
    made = []
    for node in nodes:
        regions = tuple(
            Region(
                r.args,
                _copied(r.nodes, became),
                tuple(became.get(v, v) for v in r.results),
                r.loc,
                r.arg_locs,
            )
            for r in node.regions
        )
        copy = node.rebuilt(tuple(became.get(v, v) for v in node.operands), regions)
        became.update(zip(node.results, copy.results, strict=True))
        made.append(copy)
    return made


def _sent(array: Array) -> tuple[str, tuple[int, ...], str]:
    return dtype_of(array.dtype).name, array.shape, base64.b64encode(array.tobytes()).decode()


def _received(name: str, shape: Sequence[int], raw: str) -> Array:
    return np.frombuffer(base64.b64decode(raw), DTYPES[name].numpy).reshape(shape)


# Inside the oracle's process


def options(devices: int) -> Any:
    """How JAX compiles a program for so many devices, with Shardy."""
    from jax._src.lib import xla_client

    made = xla_client.CompileOptions()
    made.num_partitions, made.num_replicas = devices, 1
    build = made.executable_build_options
    build.num_partitions, build.num_replicas = devices, 1
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = True
    ids = np.arange(devices).reshape(1, devices)
    build.device_assignment = xla_client.DeviceAssignment.create(ids)
    return made


def main() -> None:
    """Answer programs and stacks with stacks."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={MOST}"
    import jax
    from jax._src.lib import xla_client
    from jax.sharding import Mesh as JaxMesh
    from jax.sharding import NamedSharding, PartitionSpec

    jax.config.update("jax_enable_x64", True)
    everyone = jax.devices("cpu")

    def answer(request: dict[str, Any]) -> list[tuple[str, tuple[int, ...], str]]:
        devices = everyone[: request["devices"]]
        client: Any = devices[0].client
        program = client.compile_and_load(
            request["text"], xla_client.DeviceList(tuple(devices)), options(len(devices))
        )
        split = NamedSharding(JaxMesh(np.array(devices), ("device",)), PartitionSpec("device"))
        given = [jax.device_put(_received(*each), split) for each in request["arrays"]]
        results = program.execute_sharded(given).disassemble_into_single_device_arrays()
        return [_sent(np.concatenate([np.asarray(p) for p in result])) for result in results]

    serve(answer)


if __name__ == "__main__":
    main()
