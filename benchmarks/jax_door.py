"""What the JAX door costs: the same JAX programs on Weft's devices and on JAX's own CPU devices.

    python benchmarks/jax_door.py [--only calls transfers steps] [--devices 1 8 64 256] [--quick]
                                  [--busy]

Calls that compute next to nothing, arrays that go to a device and back, and the whole steps of
`benchmarks/cpu_steps.py`. Each side runs in a process of its own, with `JAX_PLATFORMS` set to weft
or to cpu; the sides take turns, and the tables show medians. A ratio is the time of JAX's devices
over the time of Weft's: above 1, Weft is faster.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.cpu import machine_line, screen, show
from benchmarks.cpu_rows import Row, Runner, race_runners, use_busy
from benchmarks.cpu_steps import MESHES, SHAPES, alike

PARTS = ("calls", "transfers", "steps")
CALL, MANY, TRANSFER = 1 / 3, 1.0, 1 / 1.5  # what JAX's time over Weft's has to be at least
Side = tuple[Callable[[], object], dict[str, Any]]

# What is called: its name, how many devices it runs on, and the goal.
CALLS: dict[str, tuple[str, int, float]] = {
    "call": ("x + 1, 8 numbers", 1, CALL),
    "wait": ("the same, waited for", 1, CALL),
    "many": ("30 arguments and results", 1, CALL),
    "spread": ("x + 1 on 8 devices, waited for", 8, MANY),
    "spread-many": ("30 arguments and results on 8 devices", 8, MANY),
    "donated": ("x + 1 into the same memory", 1, CALL),
}
SIZES = {"32 B": 8, "4 KB": 1 << 10, "4 MB": 1 << 20}  # numbers of 4 bytes
TRANSFERS = {
    "put": "device_put",
    "get": "np.asarray of a result",
    "both": "device_put, then np.asarray",
}


# The sides


def call_side(case: str) -> Side:
    """A call of a small program."""
    import jax

    x = jax.device_put(np.ones(8, np.float32))
    if case.startswith("spread"):
        sharding = jax.NamedSharding(jax.make_mesh((8,), ("d",)), jax.P("d"))
        x = jax.device_put(np.ones(64, np.float32), sharding)
    one = jax.jit(lambda x: x + 1)
    several = jax.jit(lambda *xs: tuple([x + 1 for x in xs]))
    match case:
        case "call":
            return lambda: one(x), {}
        case "wait" | "spread":
            return lambda: one(x).block_until_ready(), {}
        case "many" | "spread-many":
            return lambda: jax.block_until_ready(several(*[x] * 30)), {}
        case _:
            return Donated(jax.jit(lambda x: x + 1, donate_argnums=0), x), {}


class Donated:
    """Calls a function with what it gave the last time."""

    def __init__(self, function: Callable[[Any], Any], x: Any) -> None:
        self.function, self.x = function, x

    def __call__(self) -> None:
        self.x = self.function(self.x)


def transfer_side(case: str, size: int) -> Side:
    """An array to the device, or back, or both."""
    import jax

    host = np.ones(size, np.float32)
    device, copy = jax.devices()[0], jax.jit(lambda x: x + 1)
    x = jax.device_put(host)
    match case:
        case "put":
            return lambda: jax.device_put(host, device).block_until_ready(), {}
        case "get":
            return lambda: np.asarray(copy(x)), {}
        case _:
            return lambda: np.asarray(jax.device_put(host, device)), {}


# The tables


def both(maker: str, given: Sequence[Any], devices: int) -> dict[str, Runner]:
    """The two sides of a race."""
    flags = {
        "WEFT_DEVICES": str(devices),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    return {
        name: Runner(maker, given, flags | {"JAX_PLATFORMS": platform})
        for name, platform in (("weft", "weft"), ("JAX", "cpu"))
    }


def raced(sides: dict[str, Runner], rounds: int) -> tuple[float, dict[str, float]]:
    """The seconds of Weft, and of the other side."""
    times = race_runners(sides, rounds)
    for side in sides.values():
        side.close()
    return times.pop("weft"), times


def calls(rounds: int) -> Iterator[Row]:
    """Calls that compute next to nothing."""
    for case, (what, devices, goal) in CALLS.items():
        sides = both("benchmarks.jax_door:call_side", (case,), devices)
        shape = f"{devices} device{'s' if devices > 1 else ''}"
        yield Row("Small calls through the JAX door", what, shape, *raced(sides, rounds), goal)


def transfers(rounds: int) -> Iterator[Row]:
    """Arrays to the device and back."""
    for case, what in TRANSFERS.items():
        for shape, size in SIZES.items():
            sides = both("benchmarks.jax_door:transfer_side", (case, size), 1)
            yield Row(
                "Arrays through the JAX door", what, shape, *raced(sides, rounds), TRANSFER
            )  # fmt: skip


def steps(rounds: int, counts: Sequence[int]) -> Iterator[Row]:
    """Whole steps."""
    for name, shape in SHAPES.items():
        for count in counts:
            sides = both("benchmarks.cpu_steps:jax_side", (name, count), count)
            checks = {label: side.facts["check"] for label, side in sides.items()}
            if not alike(checks["weft"], checks["JAX"]):
                raise SystemExit(f"{name} on {count} devices: the sides differ: {checks}")
            goal = shape.goals[list(MESHES).index(count)]
            devices = f"{count} device{'s' if count > 1 else ''}"
            yield Row(f"{shape.title}, JAX door", name, devices, *raced(sides, rounds), goal)


def main() -> None:
    """Measure what is asked for and print the tables."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", nargs="*", default=list(PARTS), choices=PARTS)
    options.add_argument("--devices", nargs="*", type=int, default=list(MESHES), choices=MESHES)
    options.add_argument("--quick", action="store_true", help="fewer rounds")
    options.add_argument("--busy", action="store_true", help="seconds of the processor")
    given = options.parse_args()
    if given.busy:
        use_busy()
    rounds = 3 if given.quick else 9
    screen().print(f"python benchmarks/jax_door.py {' '.join(sys.argv[1:])}\n{machine_line()}\n")
    if "calls" in given.only:
        show(calls(rounds))
    if "transfers" in given.only:
        show(transfers(rounds))
    if "steps" in given.only:
        show(steps(rounds, given.devices))


if __name__ == "__main__":
    main()
