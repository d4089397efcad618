"""Mutants of kernels that verify and are taken, run between pages that cannot be touched.

    python -m tests.emit.llvm.fenced FIRST COUNT

prints the number of each mutant before it runs, so that the last one is what a crash is about.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tests.emit.llvm.corpus import corpus
from weft.emit.llvm.capable import unsupported_kernel
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.jit.processor import host
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.texts import emitted_for
from weft.errors import WeftError
from weft.ir.types import DTYPES
from weft.kernels.attention import Attention
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Kernel, Operand
from weft.kernels.read import parse_kernel
from weft.kernels.text import kernel_text
from weft.kernels.verify import verify_kernel

PAGE = mmap.PAGESIZE
MOST = 1 << 18  # points of a mutant that is run
OPTIONS = ("task=1", "task=40", "width=4", "width=64", "stream=0", "rows=3", "vectors=2", "keys=32")
OPTIONS += ("block_k=16", "parts=3", "unroll=2", "rhs=0", "rhs=1", "lhs=1", "inner=1", "tiles=0")
_LIBC = ctypes.CDLL(None, use_errno=True)
_WORD = re.compile(r"-?\d+|\b[a-z]+\d*\b|[-+*/]")


class Fenced:
    """A buffer between two pages that nothing may touch, at one of them."""

    def __init__(self, operand: Operand, rng: random.Random, *, at_end: bool) -> None:
        pages = max(1, -(-operand.nbytes // PAGE))
        self.memory = mmap.mmap(-1, (pages + 2) * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for fence in (start, start + (pages + 1) * PAGE):
            assert _LIBC.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(PAGE), 0) == 0
        inside = pages * PAGE - operand.nbytes if at_end else 0
        self.address = start + PAGE + inside
        size, offset = operand.size, PAGE + inside
        if size and not operand.output:
            held = np.frombuffer(self.memory, operand.dtype.numpy, size, offset)
            held[:] = _elements(operand, rng)


def _elements(operand: Operand, rng: random.Random) -> np.ndarray:
    """Anything: small numbers, large ones, and for floats all that is not one."""
    made = np.random.default_rng(rng.randrange(1 << 30))
    if operand.dtype.kind == "bool":
        return made.integers(0, 2, operand.size).astype(bool)
    if operand.dtype.is_integer:
        low, high = operand.dtype.limits
        wide = made.integers(max(low, -(1 << 62)), min(high, 1 << 62), operand.size)
        near = made.integers(max(low, -3), min(high, 9), operand.size)
        return np.where(made.random(operand.size) < 0.5, wide, near).astype(operand.dtype.numpy)
    numbers = made.standard_normal(operand.size)
    numbers[made.random(operand.size) < 0.1] = rng.choice((math.inf, math.nan, -0.0, 1e300))
    with np.errstate(all="ignore"):
        return numbers.astype(operand.dtype.numpy)


def mutant(text: str, rng: random.Random) -> str:
    """A text in which some numbers, names and operators are others."""
    for _ in range(rng.randint(1, 3)):
        words = [*_WORD.finditer(text)]
        word = rng.choice(words)
        found = word[0]
        if found.lstrip("-").isdigit():
            n = int(found)
            new = str(rng.choice((n + 1, n - 1, 0, 1, 2 * n, -n, n // 2, n + 7)))
        elif found in DTYPES:
            new = rng.choice(list(DTYPES))
        else:
            new = rng.choice(words)[0]
        text = text[: word.start()] + new + text[word.end() :]
    if rng.random() < 0.3:
        lines = text.split("\n")
        at = next((n for n, line in enumerate(lines) if re.match("  (rows|columns|pac)", line)), 0)
        lines[at] += f" {rng.choice(OPTIONS)}" if at else ""
        text = "\n".join(lines)
    return text


def points(kernel: AnyKernel) -> int:
    """About how much a kernel has to do."""
    room = sum(operand.size for operand in kernel.operands)
    if isinstance(kernel, Kernel):
        return room + math.prod([max(1, factor.size) for factor in kernel.factors])
    return room + kernel.points * kernel.depth if isinstance(kernel, Attention) else room


def launch(kernel: AnyKernel, rng: random.Random) -> None:
    """Run a kernel twice: its operands end at a fence, and then they begin at one."""
    (loaded,) = load([emitted_for(kernel, host())])
    for at_end in (True, False):
        buffers = [Fenced(operand, rng, at_end=at_end) for operand in kernel.operands]
        commands = CommandList()
        commands.kernel(loaded, [buffer.address for buffer in buffers])
        commands.run()


def run(first: int, count: int) -> Counter[str]:
    """What became of so many mutants."""
    found: Counter[str] = Counter()
    texts: Sequence[str] = [kernel_text(kernel) for _, kernel in corpus()]
    for number in range(first, first + count):
        rng = random.Random(number)
        text = mutant(rng.choice(texts), rng)
        try:
            kernel = parse_kernel(text)
            verify_kernel(kernel)
        except WeftError:
            found["refused"] += 1
            continue
        if unsupported_kernel(kernel) is not None:
            found["not taken"] += 1
            continue
        if text in texts or points(kernel) > MOST:
            found["left out"] += 1
            continue
        print(f"{number}\n{text}", flush=True)
        try:
            launch(kernel, rng)
        except WeftError:
            found["not emitted"] += 1
            continue
        found["run"] += 1
    return found


if __name__ == "__main__":
    print(dict(run(int(sys.argv[1]), int(sys.argv[2]))))
