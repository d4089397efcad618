"""Weft's side of the tables of compile, lockstep, cpu and jax_door, for `against.py`.

`rows` lists what is measured. A maker builds one side in a process of its own, out of the functions
that the benchmark scripts of the tree under test have: `benchmarks.cpu_chains.weft_side`,
`benchmarks.lockstep.Ours` and so on. This file is always the working tree's, so those names and
their parameters are what revisions that are compared have to agree on.
"""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Side = tuple[Callable[[], object], dict[str, Any]]
STEPS, DOOR = "benchmarks.cpu_steps", "benchmarks.jax_door"
TABLES = ("compile", "lockstep", "cpu", "jax_door")
WARM = "Compiling a training step of {} layers, warm cache"
COLD = "Compiling a training step of {} layers, cold cache"


@dataclass(frozen=True, slots=True)
class Measured:
    """One side to be measured; it makes several rows where it gives seconds by name."""

    table: str  # the title of the table
    case: str
    shape: str
    maker: str
    given: tuple[Any, ...]
    env: tuple[tuple[str, str], ...] = ()
    is_cold: bool = False  # every turn is a process of its own, with an empty cache


def rows(table: str, quick: bool) -> Iterator[Measured]:
    """What a script's tables consist of."""
    makers = {"compile": compiling, "lockstep": lockstep, "cpu": cpu, "jax_door": jax_door}
    return makers[table](quick)


def _devices(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"


# compile.py


def compiling(quick: bool) -> Iterator[Measured]:
    """The stages of a training step's compilation, with kernels in the cache and without."""
    layers = 4 if quick else 32
    yield Measured(WARM.format(layers), "", "", "sides:compile_warm", (layers,))
    yield Measured(COLD.format(layers), "", "", "sides:compile_cold", (layers,), is_cold=True)


def compile_warm(layers: int) -> Side:
    """All stages again and again."""
    from benchmarks.compile import program

    bytecode = program(layers)
    compile_times(bytecode)  # fills the cache
    return lambda: compile_times(bytecode), {"times_itself": True}


def compile_cold(layers: int) -> Side:
    """All stages once, with the imports of their modules: the times are facts.

    A stage imports some modules at its first use, and revisions differ in which: only the whole
    can be compared.
    """
    from benchmarks.compile import program, weft_times

    bytecode = program(layers)
    begin, busy = time.perf_counter(), time.process_time()
    weft_times(bytecode, 1)
    whole, processor = time.perf_counter() - begin, time.process_time() - busy
    return (lambda: None), {"times": {"processor": processor, "whole": whole}}


def compile_times(bytecode: bytes) -> dict[str, float]:
    """Seconds of every stage, and of the processor in all."""
    from benchmarks.compile import weft_times

    return {name: s for name, s in weft_times(bytecode, 1).items() if ", processor" not in name}


# lockstep.py


def lockstep(quick: bool) -> Iterator[Measured]:
    """Collectives and a transformer block on virtual devices."""
    for name in ("collectives", "block"):
        for count in (1, 8) if quick else (1, 8, 64, 256, 1024):
            yield Measured(
                "One run on virtual devices", name, _devices(count), "sides:lockstep_run",
                (name, count),
            )  # fmt: skip


def lockstep_run(name: str, count: int) -> Side:
    """One program in lockstep."""
    from benchmarks.lockstep import Ours

    ours = Ours(name, count)
    return lambda: ours.program(*ours.given), {}


# cpu.py


def cpu(quick: bool) -> Iterator[Measured]:
    """Chains, products, attention, irregular ops and whole steps."""
    from benchmarks import cpu_attention, cpu_chains, cpu_irregular, cpu_products, cpu_steps

    sizes = list(cpu_chains.SIZES)[: 1 if quick else 3]
    for kind in ("kernel", "call"):
        for name in cpu_chains.CHAINS:
            for dtype in ("f32", "bf16"):
                for size in sizes:
                    given = (kind, name, dtype, size)
                    yield Measured(
                        f"Fused chains: {kind}s", f"{name} {dtype}", size, "sides:chain", given
                    )
    for n, case in enumerate(cpu_products.cases(quick)):
        yield Measured("Products", case.name, case.text, "sides:product", (quick, n))
    for dtype in ("f32", "bf16"):
        for shape in cpu_attention.SHAPES[2 if quick else 0 :]:
            for window in cpu_attention.windows(shape[2]):
                for way in ("forward", "backward"):
                    yield Measured(
                        "Attention", f"{way} {window} {dtype}", "x".join(map(str, shape)),
                        "sides:attention", (way, window, dtype, shape),
                    )  # fmt: skip
    for n, op in enumerate(irregular_cases()):
        if not quick or n % 4 == 0:
            yield Measured(cpu_irregular.TABLE, op.name, op.shape, "sides:irregular", (n,))
    for name, shape in cpu_steps.SHAPES.items():
        for count in _counts(name, quick):
            yield Measured(
                shape.title, name, _devices(count), f"{STEPS}:weft_side", (name, count)
            )  # fmt: skip


def _counts(name: str, quick: bool) -> Sequence[int]:
    """On how many devices a step is measured."""
    if quick:
        return () if name == "forward-1024" else (8,)
    return (1, 8, 64, 256)


def chain(what: str, name: str, dtype: str, size: str) -> Side:
    """A chain as a kernel, or as a call."""
    from benchmarks import cpu_chains

    cpu_chains.keep_pages()
    count = cpu_chains.SIZES[size] // cpu_chains.ROW
    arrays = cpu_chains.inputs(name, dtype, count)
    if what == "call":
        return cpu_chains.weft_side(name, arrays), {}
    built = cpu_chains.CHAINS[name](count, cpu_chains.ROW, cpu_chains.dtype(dtype))
    return cpu_chains.kernel_side(built, arrays), {}


def product(quick: bool, n: int) -> Side:
    """A product on buffers that are there."""
    from benchmarks import cpu_products

    case = list(cpu_products.cases(quick))[n]
    return cpu_products.weft_side(case, cpu_products.operands(case)), {}


def attention(way: str, window: str, dtype: str, shape: Sequence[int]) -> Side:
    """Attention, or its gradients."""
    from benchmarks import cpu_attention as bench

    batch, heads, length, depth = shape
    sizes = bench.Sizes((batch, heads), (False, False), length, length, depth, depth)
    kind = bench.dtype(dtype)
    kernel = bench.forward(sizes, kind, lse=True, window=bench.windows(length)[window])
    arrays = [bench.held(a) for a in bench.inputs(kernel)]
    arrays += [bench.empty(kernel, n) for n, o in enumerate(kernel.operands) if o.output]
    if way == "backward":
        bench.weft_side(kernel, arrays)()  # whose results the gradients are computed from
        kernel = bench.backward(kernel)
        draw = bench.np.random.default_rng(9)
        arrays.append(bench.held(draw.standard_normal(shape).astype(arrays[1].dtype)))
        arrays += [bench.empty(kernel, n) for n, o in enumerate(kernel.operands) if o.output]
    return bench.weft_side(kernel, arrays), {}


def irregular(n: int) -> Side:
    """An op by itself."""
    from benchmarks.cpu_irregular import weft_side

    return weft_side(irregular_cases()[n]), {}


def irregular_cases() -> list[Any]:
    """The ops; their list names functions of torch, which need not be installed to make it."""
    from benchmarks.cpu_irregular import cases

    try:
        return list(cases())
    except ModuleNotFoundError:
        sys.modules["torch"] = types.ModuleType("torch")
        try:
            return list(cases())
        finally:
            del sys.modules["torch"]


# jax_door.py


def jax_door(quick: bool) -> Iterator[Measured]:
    """Small calls, transfers and whole steps through the JAX door."""
    from benchmarks import cpu_steps
    from benchmarks import jax_door as bench

    title = "Small calls through the JAX door"
    for case, (what, count, _) in bench.CALLS.items():
        yield _at_the_door(title, what, _devices(count), f"{DOOR}:call_side", (case,), count)
    for case, what in bench.TRANSFERS.items():
        for shape, size in bench.SIZES.items():
            yield _at_the_door(
                "Arrays through the JAX door", what, shape, f"{DOOR}:transfer_side", (case, size), 1
            )
    for name, shape in cpu_steps.SHAPES.items():
        for count in _counts(name, quick):
            title = f"{shape.title}, JAX door"
            yield _at_the_door(
                title, name, _devices(count), f"{STEPS}:jax_side", (name, count), count
            )  # fmt: skip


def _at_the_door(
    title: str, case: str, shape: str, maker: str, given: tuple[Any, ...], devices: int
) -> Measured:
    env = (("JAX_PLATFORMS", "weft"), ("WEFT_DEVICES", str(devices)))
    return Measured(title, case, shape, maker, given, env)


# OpenBLAS's threads look for work for a tenth of a second, while others are at their turn.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "8")
