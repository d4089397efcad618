"""What the stages make of programs: the sizes of programs, kernels and memory, in a table.

A rule that no longer applies, or applies twice, seldom makes a result wrong: it makes a program
larger. The table shows where. Checksums of the texts end each row: what is in another order, at
another offset or of another choice has the same size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checksums import checksum
from tests.partition.lean import by_kind
from tests.shard.corpus import annotated
from weft.cost.sent import bytes_sent
from weft.executable.executable import Executable
from weft.executable.items import Host, Launch, all_items
from weft.ir.module import Module
from weft.kernels.kernel import Kernel
from weft.pipeline import Program, compile_module

GOLDEN = Path(__file__).parent / "golden" / "stages"
PROGRAMS = {
    "mlp": ("batch", "priorities", "results"),
    "forward 1": ("tensor", "zero"),
    "scan": ("layers",),
    "experts": ("batch", "experts", "priorities"),
    "convolutional": ("batch", "channels", "space"),
    "windowed": ("sequence",),
    "embedding": ("batch", "vocabulary", "priorities"),
    "sorts": ("rows", "reduced"),
    "reshapes": ("outer", "all", "priorities"),
    "loops": ("both", "reduced", "priorities"),
    "calls": ("both", "open"),
    "slices": ("rows", "reduced", "priorities"),
    "constrained": ("both", "reduced"),
    "mapped": ("rows", "reduced", "priorities"),
}
KEYS = [(name, "2x4", how) for name, listed in PROGRAMS.items() for how in listed]


def of_module(module: Module) -> str:
    """The nodes of a partitioned program, and the bytes that a device sends."""
    sent = by_kind(bytes_sent(module))
    return ", ".join([f"{len([*module.nodes()])} nodes", *(f"{n} {b:g}" for n, b in sent.items())])


def of_tiled(executable: Executable) -> str:
    """The items of a tiled program, the points of its kernels by steps, and its memory."""
    counts: Counter[str] = Counter()
    steps = work = 0
    for item in all_items(executable.tiled.block):
        match item:
            case Launch(kernel=Kernel() as kernel):
                counts["kernels"] += 1
                steps += len(kernel.steps)
                work += len(kernel.steps) * kernel.points
            case Launch():
                counts[type(item.kernel).__name__] += 1
            case Host():
                counts[item.node.op.name.partition(".")[2]] += 1
            case _:
                counts[type(item).__name__] += 1
    items = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{items}, {steps} steps, work {work}, peak {executable.memory().peak}"


def checksums(program: Program, *stages: str) -> str:
    """A number of the text of each stage."""
    return checksum(*[program.text(stage) for stage in stages])


def test_partitioned_and_optimized(golden: Callable[[Path, str], None]):
    lines = []
    for key in KEYS:
        program = compile_module(annotated(*key), target="numpy", to="optimized")
        stages = [of_module(program.stage(name)) for name in ("partitioned", "optimized")]
        texts = checksums(program, "sharded", "partitioned", "optimized")
        lines.append(f"{key[0]} by {key[2]}: " + "; ".join([*dict.fromkeys(stages), texts]))
    golden(GOLDEN / "sizes-optimized.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("name", "target", "stacked", "keys"),
    [
        ("llvm", "llvm", None, KEYS),
        ("triton", "triton", None, KEYS[::2]),
        ("unstacked", "llvm", (), KEYS[1::2]),
    ],
)
def test_tiled(name, target, stacked, keys, golden: Callable[[Path, str], None]):
    lines = []
    for key in keys:
        program = compile_module(annotated(*key), target=target, stacked=stacked, to="tiled")
        texts = checksums(program, "tiled")
        lines.append(f"{key[0]} by {key[2]}: {of_tiled(program.executable)}; {texts}")
    golden(GOLDEN / f"sizes-{name}.txt", "\n".join(lines) + "\n")
