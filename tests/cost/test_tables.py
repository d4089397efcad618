"""Golden tables of predicted seconds: collectives on machines, kernels with work and terms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.cost.test_kernels import bf16_add, bf16_product, bf16_rms_norm, units
from weft.capture import parse
from weft.cli.calibration_products import attention_program, product_program
from weft.cli.calibration_programs import columns_program, rows_program
from weft.cli.calibration_single import sort_program
from weft.cost import GroupExtent, copies, multi_domain_estimates, travel_estimate
from weft.cost.collective_time import OP_NAMES
from weft.cost.kernels import kernel_seconds
from weft.cost.measured import Estimate
from weft.executable.items import Launch
from weft.kernels.group import AnyKernel
from weft.kernels.work import product_flops, work_of
from weft.machine import H100, HOST, Machine, machine
from weft.machine.machine import OVERHEADS
from weft.pipeline import compile_module

GOLDEN = Path(__file__).parents[1] / "golden" / "cost"
SIZES = (1 << 12, 5 << 20, 1 << 30)
REACHES = {
    "host": (GroupExtent(2), GroupExtent(8)),
    "h100": (
        GroupExtent(2),
        GroupExtent(8),
        GroupExtent(16, 2),
        GroupExtent(16, 16),
        GroupExtent(20, 3),
    ),
    "gb200": (GroupExtent(4), GroupExtent(72), GroupExtent(144, 2)),
    "tpu-v5p": (GroupExtent(4), GroupExtent(28), GroupExtent(560), GroupExtent(8960)),
    "tpu-v6e": (GroupExtent(16), GroupExtent(256)),
}


def microseconds(made: Estimate) -> str:
    """An estimate with its interval and source."""
    low, seconds, high = (f"{1e6 * s:.4g}" for s in (made.low, made.seconds, made.high))
    return f"{seconds} us ({low} to {high}), {made.source}"


def collectives() -> Iterator[str]:
    for name, reaches in REACHES.items():
        on = machine(name)
        for where in reaches:
            for kind in OP_NAMES:
                for size in SIZES:
                    made = travel_estimate(kind, size, where, on, "bf16", "mutual")
                    place = f"{where.devices} devices in {where.domains} domains of {name}"
                    yield f"{kind} of {size} bytes, {place}: {microseconds(made)}"
    for kind in OP_NAMES:
        for made in multi_domain_estimates(kind, 3 << 22, GroupExtent(24, 3), H100):
            yield f"{kind} across 3 domains: {microseconds(made)}"
    yield f"copies: {microseconds(copies(1 << 20, 8, H100))}"


def test_collectives(golden):
    golden(GOLDEN / "collectives.txt", "".join(f"{line}\n" for line in collectives()))


# Overheads of which no two are multiples of each other, so that each is told from the others.
PRICED = replace(
    HOST,
    threads=4,
    overheads=tuple((name, 1e-9 * (n + 1.13) ** 2) for n, name in enumerate(OVERHEADS)),
)
CPU_PROGRAMS = {
    "product": product_program(2, 24, 40, 72),
    "few rows": product_program(1, 1, 64, 48),
    "rows": rows_program(8, 20),
    "columns": columns_program(24, 40),
    "attention": attention_program(4, 24, 24, 16),
    "sort": sort_program(8, 20, 1),
}
GPU_PROGRAMS = {
    "few": bf16_add(4096),
    "many": bf16_add(1 << 22),
    "short rows": bf16_rms_norm(16, 4096),
    "long rows": bf16_rms_norm(8, 1 << 16),
    "narrow product": bf16_product(16, 4096, 4096),
    "square product": bf16_product(4096, 4096, 4096),
    "product and rows": product_program(8, 64, 128, 128),
    "heads": attention_program(16, 256, 256, 64),
    "sorted": sort_program(256, 512, 1),
}


def kernels(text: str, target: str) -> list[AnyKernel]:
    """The kernels of a program, before any is emitted."""
    made = compile_module(parse(text), target=target, to="tiled", tune="off").executable
    assert made is not None
    return [item.kernel for item in made.tiled.block.items if isinstance(item, Launch)]


def lines(name: str, text: str, target: str, machines: dict[str, Machine]) -> Iterator[str]:
    for kernel in kernels(text, target):
        work = work_of(kernel)
        flops = " ".join(f"{n:g} {dtype}" for dtype, n in product_flops(kernel).items())
        yield f"{name}: {work.flops:g} flops ({flops or 'none'} of products)"
        yield f"  {work.transcendentals:g} transcendentals, {work.bytes:g} bytes"
        if target == "llvm":
            counted = [f"{n:.6g} {unit}" for unit, n in sorted(units(kernel).items())]
            yield f"  {', '.join(counted)}"
        for on, made in machines.items():
            yield f"  {1e6 * kernel_seconds(kernel, made, units):.5g} us on {on}"


def test_kernels(golden):
    hosts = {"host": HOST, "a priced host": PRICED, "one thread": replace(PRICED, threads=1)}
    gpus = {name: machine(name) for name in ("h100", "h200")}
    made = [x for n, text in CPU_PROGRAMS.items() for x in lines(n, text, "llvm", hosts)]
    made += [x for n, text in GPU_PROGRAMS.items() for x in lines(n, text, "triton", gpus)]
    golden(GOLDEN / "kernels.txt", "".join(f"{line}\n" for line in made))
