"""Programs through every door, in one process on Weft's devices; prints what each of them gives.

`weft.compile` takes the function or the module, `weft run` the file of its StableHLO, and JAX
itself, whose platform is Weft, hands over what it has lowered.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SQUARE = np.arange(64, dtype=np.float32).reshape(8, 8)
SIX = np.arange(36, dtype=np.float32).reshape(6, 6)
HOLES = np.where(SQUARE % 3 == 0, np.nan, np.where(SQUARE % 5 == 0, np.inf, SQUARE))
DOORS = ("compile", "file", "plugin")

HEAD = 'module attributes {mhlo.num_partitions = 4 : i32} {\n  sdy.mesh @mesh = <["x"=2, "y"=2]>\n'
PRODUCT = "%m = stablehlo.dot %a, %b : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>\n"
# What is said of the operand, or of both factors of a product, and the collective.
COLLECTIVES = {
    "all_gather": ('[{"x"}, {}]', 'sdy.all_gather [{"x"}, {}] %m out_sharding=<@mesh, [{}, {}]>'),
    "all_slice": ("[{}, {}]", 'sdy.all_slice [{}, {"x"}] %m out_sharding=<@mesh, [{}, {"x"}]>'),
    "all_to_all": (
        '[{"x"}, {}]',
        'sdy.all_to_all [{"x"}: 0->1] %m out_sharding=<@mesh, [{}, {"x"}]>',
    ),
    "collective_permute": (
        '[{"x"}, {}]',
        'sdy.collective_permute %m out_sharding=<@mesh, [{"y"}, {}]>',
    ),
    "replicated_to_unreduced": (
        "[{}, {}]",
        'sdy.replicated_to_unreduced {"x"} %m out_sharding=<@mesh, [{}, {}], unreduced={"x"}>',
    ),
    "sharded_to_unreduced": (
        '[{"x"}, {}]',
        'sdy.sharded_to_unreduced [{"x"}, {}] %m out_sharding=<@mesh, [{}, {}], unreduced={"x"}>',
    ),
    "all_reduce": ('[{}, {"x"}]', 'sdy.all_reduce {"x"} %m out_sharding=<@mesh, [{}, {}]>'),
    "reduce_scatter": (
        '[{}, {"x"}]',
        'sdy.reduce_scatter [{"x"}, {}] %m out_sharding=<@mesh, [{"x"}, {}]>',
    ),
}
IDS = """%p = stablehlo.partition_id : tensor<ui32>
%f = stablehlo.convert %p : (tensor<ui32>) -> tensor<f32>
%0 = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<8x8xf32>"""

ORDERS = """module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  sdy.mesh @back = <["x"=2, "y"=2], device_ids=[3, 1, 2, 0]>
  func.func @main(
    %a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
    %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@back, [{"x"}, {"y"}]>}
  ) -> tensor<8x8xf32> {
    %m = stablehlo.dot %a, %b : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %0 = sdy.sharding_constraint %m <@back, [{}, {"x"}]> : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}
"""


def text_of(name: str) -> str:
    """The program of a collective, or one that asks for the number of its device."""
    first, op = COLLECTIVES.get(name, ("[{}, {}]", ""))
    made = f"%0 = {op} : tensor<8x8xf32>" if op else IDS
    if name == "two orders":
        return ORDERS
    if "reduce" in name and "un" not in name:
        made = PRODUCT + made
    elif op:
        split = f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {first}>]>}}"
        made = f"%m = stablehlo.abs %a {split} : tensor<8x8xf32>\n{made}"
    arguments = ", ".join(
        f"%{arg}: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}"
        for arg, sharding in (("a", first), ("b", '[{"x"}, {}]'))
    )
    main = f"  func.func @main({arguments}) -> tensor<8x8xf32> {{\n{made}\nreturn %0"
    return f"{HEAD}{main} : tensor<8x8xf32>\n  }}\n}}\n"


def expected_of(name: str) -> np.ndarray:
    """What it gives."""
    return SQUARE @ SQUARE if name in ("all_reduce", "reduce_scatter", "two orders") else SQUARE


def functions() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Functions, their arguments, and the options that jax.jit and weft.compile both take."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.custom_partitioning import custom_partitioning
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    devices = np.array(jax.devices())
    grid, line = Mesh(devices.reshape(4, 2), ("x", "y")), Mesh(devices, ("z",))
    back = Mesh(devices[::-1].reshape(4, 2), ("x", "y"))
    wide, high = (
        Mesh(devices[:6].reshape(s), n) for s, n in (((2, 3), ("p", "q")), ((3, 2), ("r", "s")))
    )

    def on(mesh: Mesh, *spec: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*spec))

    def both(x: Any, y: Any) -> Any:
        return x @ y, jnp.sqrt(x) + y

    def inside(x: Any) -> Any:
        split = jax.lax.with_sharding_constraint(x, on(grid, "y", "x"))
        return jax.lax.with_sharding_constraint(split * 2, on(line, None, "z"))

    def numbered(x: Any) -> Any:
        own = jax.shard_map(
            lambda a: a + jax.lax.axis_index("x") * 2 + jax.lax.axis_index("y"),
            mesh=back,
            in_specs=P("x", "y"),
            out_specs=P("x", "y"),
        )
        return own(x + 1) * 2

    @custom_partitioning
    def wave(a: Any) -> Any:
        return jnp.sqrt(a)

    def partition(mesh: Any, given: Any, result: Any) -> Any:
        # Something else than what is partitioned, so that one sees what ran.
        return mesh, lambda a: jnp.sqrt(a) + 10, result.sharding, (given[0].sharding,)

    wave.def_partition(partition=partition, sharding_rule="i j -> i j")

    def told(x: Any) -> Any:
        for n in range(3):
            kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
            x = jax.experimental.io_callback(lambda a, n=n: a * 2 + n, kind, x, ordered=True)
        return x

    flags = SQUARE % 2 == 0
    return {
        "flags": (lambda x, f: (x * f, f.astype(x.dtype) * x), (HOLES, flags), {}),
        "complex flags": (lambda x, f: jnp.real(x * f), (HOLES.astype(np.complex64), flags), {}),
        "split flags": (lambda x, f: x * f, (HOLES, flags), {"in_shardings": on(grid, "x", "y")}),
        "two meshes": (
            both,
            (SQUARE, SQUARE),
            {"in_shardings": (on(grid, "x", "y"), on(line, "z"))},
        ),
        "crossing meshes": (
            both,
            (SIX, SIX),
            {
                "in_shardings": (on(wide, "p", "q"), on(high, "r", "s")),
                "out_shardings": (on(high, "s"), on(wide, "q")),
            },
        ),
        "meshes inside": (inside, (SQUARE,), {"in_shardings": on(grid, "x", "y")}),
        "device numbers": (numbered, (SQUARE,), {"in_shardings": on(back, "x", "y")}),
        "top k": (lambda x: jax.lax.top_k(x, 3), (SQUARE,), {"in_shardings": on(grid, "x")}),
        "by hand": (wave, (SQUARE,), {"in_shardings": on(grid, "x", "y")}),
        "tokens": (told, (SQUARE,), {}),
    }


def through_doors(fn: Any, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """What a function gives through every door."""
    import jax

    import weft

    jitted = jax.jit(fn, **options)
    lowered = jitted.lower(*args)
    return {
        "compile": attempt(lambda: weft.compile(fn, *args, **options)(*args)),
        "file": attempt(lambda: run_file(lowered.as_text(debug_info=True), args)),
        "plugin": attempt(lambda: jitted(*args)),
    }


def text_through_doors(text: str, args: tuple[np.ndarray, ...]) -> dict[str, Any]:
    """What a text gives through every door."""
    import weft

    return {
        "compile": attempt(lambda: weft.compile(weft.parse(text))(*args)),
        "file": attempt(lambda: run_file(text, args)),
        "plugin": attempt(lambda: (receive if "@back" not in text else hand_over)(text, args)),
    }


def run_file(text: str, args: tuple[np.ndarray, ...]) -> list[Any]:
    """What `weft run` writes down."""
    from weft.cli import main

    with tempfile.TemporaryDirectory() as folder:
        program, given, out = (Path(folder, n) for n in ("p.mlir", "given.npz", "out.npz"))
        program.write_text(text)
        np.savez(given, **{f"arg{n}": arg for n, arg in enumerate(args)})
        told = io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            status = main(["run", str(program), str(given), "-o", str(out)])
        if status:
            raise RuntimeError(told.getvalue())
        with np.load(out) as found:
            return [found[name] for name in found.files]


def receive(text: str, args: tuple[np.ndarray, ...]) -> list[Any]:
    """What the plugin makes of a text: jaxlib hands Shardy's collectives over to no plugin."""
    from tests.oracles.xla_local import options
    from weft.jax.programs.compiling import compiled
    from weft.run import run

    asked = options(4)
    made = compiled(text.encode(), "mlir", asked.SerializeAsString())
    return [*run(made.local, *args)]


def hand_over(text: str, args: tuple[np.ndarray, ...]) -> list[Any]:
    """What Weft gives for a text that JAX hands over, by the shardings that JAX is told."""
    import jax
    from jax._src.lib import xla_client
    from jax._src.sharding_impls import GSPMDSharding

    from tests.oracles.xla_local import options

    devices = jax.devices()[:4]
    client: Any = devices[0].client
    listed = xla_client.DeviceList(tuple(devices))
    program = client.compile_and_load(text, listed, options(len(devices)))

    def on_devices(told: Any) -> GSPMDSharding:
        return GSPMDSharding(tuple(devices), told)

    split = [*map(on_devices, program.get_parameter_shardings())]
    given = [jax.device_put(arg, s) for arg, s in zip(args, split, strict=True)]
    (pieces,) = program.execute_sharded(given).disassemble_into_single_device_arrays()
    (out,) = map(on_devices, program.get_output_shardings())
    return [jax.make_array_from_single_device_arrays(args[0].shape, out, [*pieces])]


def attempt(run: Callable[[], Any]) -> Any:
    """What is given, as lists, or what is said instead."""
    import jax

    try:
        return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(run())]
    except Exception as error:  # noqa: BLE001  # whatever it says is compared
        return f"{type(error).__name__}: {error}"


def main() -> None:
    """Print the results of all cases by name and door."""
    found = {name: through_doors(*case) for name, case in functions().items()}
    for name in (*COLLECTIVES, "two orders", "device ids"):
        found[name] = text_through_doors(text_of(name), (SQUARE, SQUARE))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
