"""How many instructions of which kind kernels are made of, in tables.

What is done twice, or in a worse way, gives the same numbers. The tables show it. A checksum of the
text ends each row: constants, alignments and orders of instructions move no count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.checksums import checksum
from tests.emit.llvm.corpus import corpus
from tests.emit.llvm.product.products import product
from tests.emit.llvm.single.lone_nodes import lone_kernel
from tests.emit.llvm.test_tasks import OLD, TILES, WIDE, lone_nodes
from weft.emit.llvm.jit.processor import ARM_SERVER, Processor
from weft.emit.llvm.single import copies
from weft.emit.llvm.texts import emitted_for
from weft.ir.types import DTYPES, F32, I32
from weft.kernels.group import AnyKernel

GOLDEN = Path(__file__).parents[2] / "golden" / "emit"
OPCODE = re.compile(r"\s+(?:%\S+ = )?(?:tail )?(\w+)")
CALL = re.compile(r" call .*?@(?:llvm\.)?(?:weft\.)?([a-z_]+(?:\.[a-z]{2,}+)*)")
SHOWN = ("load", "store", "phi", "shufflevector", "fmul", "fadd", "add", "mul", "select")
LARGE = (" 9x131072", " 5000x90", " 64x40", " 64x40x40", " 3x1000", " 1x65536", " 5000")


def mix(text: str) -> str:
    """The number of instructions, of the kinds that matter most, and of calls by name."""
    codes = [m[1] for line in text.splitlines() if (m := OPCODE.match(line))]
    counts, calls = Counter(codes), Counter(CALL.findall(text))
    parts = [f"{counts[code]} {code}" for code in SHOWN if counts[code]]
    parts += [f"{count} {name}" for name, count in sorted(calls.items())]
    return f"{len(codes)}, {', '.join(parts)}, {checksum(text)}"


def ops() -> Iterator[tuple[str, AnyKernel, Processor]]:
    """Chains, products, attention, and an example of every op."""
    for name, kernel in corpus():
        yield name, kernel, WIDE


def processors() -> Iterator[tuple[str, AnyKernel, Processor]]:
    """Products and attention for other processors, and chains."""
    for name, kernel in corpus():
        if name.startswith(("product", "attention")) and "f64" not in name:
            yield f"tiles, {name}", kernel, TILES
        if name.startswith(("product", "attention")) and "16" not in name:
            yield f"old, {name}", kernel, OLD
        if not name.startswith(("chlo", "stablehlo")) and "16" not in name:
            yield f"arm, {name}", kernel, ARM_SERVER

    for rows in (2, 3, 16, 17):  # few rows swap sides, where the RHS can be read in place
        for name in ("bf16", "i8"):
            held = I32 if name == "i8" else F32
            sizes = {"m": rows, "n": 64, "k": 128}
            b, total = product(("mk", "nk", "mn"), sizes, DTYPES[name], held, held)
            b.write("mn", total)
            yield f"tiles, {rows} rows of {name}", b.kernel("packed"), TILES


def large() -> Iterator[tuple[str, AnyKernel, Processor]]:
    """Single nodes of large arrays, which have several phases."""
    for name, node in lone_nodes():
        if name.endswith(LARGE) or " 5000x90 along" in name or " 9x131072 along" in name:
            yield name, lone_kernel(node), WIDE


@pytest.mark.parametrize("kernels", [ops, processors, large], ids=lambda f: f.__name__)
def test_instructions(kernels, golden: Callable[[Path, str], None], monkeypatch):
    monkeypatch.setenv("WEFT_THREADS", "4")
    monkeypatch.setattr(copies, "host", lambda: WIDE)
    lines = [f"{name}: {mix(emitted_for(kernel, cpu).text)}" for name, kernel, cpu in kernels()]
    golden(GOLDEN / f"instructions-{kernels.__name__}.txt", "\n".join(lines) + "\n")
