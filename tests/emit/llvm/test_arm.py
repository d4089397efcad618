"""Kernels for 64-bit ARM: all compile for Linux and macOS, and a sample runs under qemu."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.emit.llvm.arm_linking import Object, link
from tests.emit.llvm.corpus import corpus
from tests.emit.llvm.product.products import product
from tests.kernels.chains import CHAINS
from tests.tolerance import assert_close
from weft.emit.llvm.emitted import symbol
from weft.emit.llvm.jit.machine_code import Compiler, compile_text
from weft.emit.llvm.jit.processor import ARM_LINUX, ARM_MACOS, ARM_SERVER, Processor
from weft.emit.llvm.pool.state import PoolState, ThreadState
from weft.emit.llvm.pool.text import pool_text
from weft.emit.llvm.texts import emitted_for
from weft.ir.types import DTYPES, F32, I32, Array
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Kernel

# What objects may leave to others: the C library's, which every system has. None of a compiler's.
LIBRARY = {*"memcpy memset memmove fmod fmodf cosf cos sinf sin tan".split()}
QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
GCC = shutil.which("aarch64-linux-gnu-gcc")
emulated = pytest.mark.skipif(QEMU is None, reason="qemu-aarch64 is not installed")


@pytest.mark.parametrize(
    "processor, every",
    [
        (ARM_LINUX, 1),
        (ARM_MACOS, 7),  # the same instructions in files of another kind
        pytest.param(ARM_MACOS, 1, marks=pytest.mark.long),
        pytest.param(ARM_SERVER, 1, marks=pytest.mark.long),
    ],
    ids=lambda given: given.cpu if isinstance(given, Processor) else f"every {given}",
)
def test_every_kind_of_kernel_compiles(processor: Processor, every: int) -> None:
    compiler, count = Compiler(processor), 0
    for name, kernel in list(corpus())[::every]:
        text = emitted_for(kernel, processor).text
        assert "x86" not in text, f"{name} has instructions of another processor"
        made = compiler.object(text)
        count += 1
        if processor is ARM_LINUX:
            missing = Object(made).missing
            assert missing <= LIBRARY, f"{name} calls {missing - LIBRARY}"
    assert count > 100 // every


def test_half_floats_and_products_of_bytes_have_instructions_where_they_are() -> None:
    half = emitted_for(CHAINS["swiglu"](5, 112, DTYPES["f16"]).kernel(), ARM_SERVER)
    assert "fcvt" in Compiler(ARM_SERVER).assembly(half.text)


# The instructions of a system call: LLVM's package has no assembler for other processors.
SYSTEM = (0xAA0003E8, 0xAA0103E0, 0xAA0203E1, 0xAA0303E2, 0xD4000001, 0xD65F03C0)
MEMORY = """
define ptr @memcpy(ptr %to, ptr %from, i64 %count) {
entry:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %out, label %head
head:
  %n = phi i64 [0, %entry], [%next, %head]
  %source = getelementptr i8, ptr %from, i64 %n
  %target = getelementptr i8, ptr %to, i64 %n
  %byte = load volatile i8, ptr %source
  store volatile i8 %byte, ptr %target
  %next = add i64 %n, 1
  %done = icmp eq i64 %next, %count
  br i1 %done, label %out, label %head
out:
  ret ptr %to
}
define ptr @memset(ptr %to, i32 %value, i64 %count) {
entry:
  %fill = trunc i32 %value to i8
  %none = icmp eq i64 %count, 0
  br i1 %none, label %out, label %head
head:
  %n = phi i64 [0, %entry], [%next, %head]
  %target = getelementptr i8, ptr %to, i64 %n
  store volatile i8 %fill, ptr %target
  %next = add i64 %n, 1
  %done = icmp eq i64 %next, %count
  br i1 %done, label %out, label %head
out:
  ret ptr %to
}
"""


def program(kernel: Kernel, sizes: Sequence[int], processor: Processor) -> bytes:
    """A program that reads operands, runs a kernel on them, and writes them."""
    made = emitted_for(kernel, processor)
    places = np.cumsum([0, *[-(-size // 64) * 64 for size in sizes]]).tolist()
    total = places[-1]
    operands = [f"ptr getelementptr (i8, ptr @data, i64 {at})" for at in places[:-1]]
    operands += ["ptr @shared"]
    calls, declared = [], []
    for phase in made.phases:
        name = symbol(phase.function, made.text)
        declared.append(f'declare void @"{name}"(ptr, ptr, i64, i64)')
        calls.append(f'call void @"{name}"(ptr @operands, ptr @scratch, i64 0, i64 {phase.tasks})')
    system = "call i64 (i64, i64, ptr, i64) @system"
    lines = "\n  ".join(calls)
    text = f"""
@data = internal global [{total} x i8] zeroinitializer, align 64
@shared = internal global [{made.shared + 64} x i8] zeroinitializer, align 64
@scratch = internal global [{made.scratch + 64} x i8] zeroinitializer, align 64
@operands = internal global [{len(operands)} x ptr] [{", ".join(operands)}], align 64
@system = internal global [6 x i32] [{", ".join(f"i32 {word}" for word in SYSTEM)}], align 4
{chr(10).join(declared)}
{MEMORY}
define void @begin() {{
entry:
  br label %read
read:
  %had = phi i64 [0, %entry], [%have, %read]
  %into = getelementptr i8, ptr @data, i64 %had
  %left = sub i64 {total}, %had
  %got = {system}(i64 63, i64 0, ptr %into, i64 %left)
  %have = add i64 %had, %got
  %more = icmp slt i64 %have, {total}
  %some = icmp sgt i64 %got, 0
  %again = and i1 %more, %some
  br i1 %again, label %read, label %run
run:
  {lines}
  %put = {system}(i64 64, i64 1, ptr @data, i64 {total})
  %end = {system}(i64 94, i64 0, ptr null, i64 0)
  unreachable
}}
"""
    compiler = Compiler(processor)
    objects = [compiler.object(text), compiler.object(made.text)]
    aliases = {name: symbol(name, text) for name in ("memcpy", "memset")}
    return link(objects, symbol("begin", text), aliases)


def run_emulated(
    kernel: Kernel, arrays: Sequence[Array], processor: Processor, folder: Path
) -> list[Array]:
    """What a kernel writes, under qemu."""
    given = iter(arrays)
    held = [
        np.zeros(o.size, o.dtype.numpy) if o.output else np.ravel(next(given)).copy()
        for o in kernel.operands
    ]
    file = folder / "program"
    file.write_bytes(program(kernel, [a.nbytes for a in held], processor))
    file.chmod(0o755)
    padded = b"".join([a.tobytes().ljust(-(-a.nbytes // 64) * 64, b"\0") for a in held])
    assert QEMU is not None
    done = subprocess.run(
        [QEMU, "-cpu", "max", str(file)], input=padded, capture_output=True, timeout=120, check=True
    )
    assert len(done.stdout) == len(padded), done.stderr
    made, at = [], 0
    for operand, array in zip(kernel.operands, held, strict=True):
        if operand.output:
            found = np.frombuffer(done.stdout[at : at + array.nbytes], array.dtype)
            made.append(found.reshape(operand.shape))
        at += -(-array.nbytes // 64) * 64
    return made


@emulated
@pytest.mark.parametrize("processor", [ARM_LINUX, ARM_SERVER], ids=lambda p: p.cpu)
@pytest.mark.parametrize("name", ["f32", "bf16", "f16", "i8"])
def test_a_sample_runs_under_qemu(name: str, processor: Processor, tmp_path: Path) -> None:
    dtype = DTYPES[name]
    held = I32 if dtype.is_integer else F32
    b, total = product(("mk", "kn", "mn"), {"m": 37, "n": 45, "k": 70}, dtype, held, held)
    b.write("mn", total)
    cases = [(b, b.kernel("packed"), 70)]
    if dtype.is_float:
        chains = [CHAINS[chain](5, 112, dtype) for chain in ("softmax", "layer_norm", "swiglu")]
        cases += [(chain, chain.kernel(), 112) for chain in chains]
    for built, kernel, length in cases:
        arrays = built.arrays()
        made = run_emulated(kernel, arrays, processor, tmp_path)
        for found, expected in zip(made, interpret(kernel, arrays), strict=True):
            assert_close(found, expected, length, f"{kernel.name} {name}")


POOL = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern int64_t start(void *, void *, int64_t), stop(void *, void *, int64_t);
extern int32_t run(void *, void *);
static void count(int64_t **operands, void *scratch, int64_t begin, int64_t end) {
  (void)scratch;
  for (int64_t n = begin; n < end; n++) operands[0][n] += n + 1;
}
static int64_t data[1000];
int main(void) {
  int64_t rounds = 300, tasks = 1000, *operands[] = {data};
  char *pool = aligned_alloc(128, %(pool)d), *threads = aligned_alloc(128, 4 * %(thread)d);
  memset(pool, 0, %(pool)d), memset(threads, 0, 4 * %(thread)d);
  int64_t made = start(pool, threads, 4);
  int64_t rows[16] = {1, 1000000, 0, 0, 0, 0, 0, 0, (int64_t)count, (int64_t)operands, tasks, 7};
  for (int64_t n = 0; n < rounds; n++) {
    *(int64_t *)(pool + %(spins)d) = n %% 3;
    if (run(pool, rows)) return 2;
  }
  for (int64_t n = 0; n < tasks; n++) if (data[n] != rounds * (n + 1)) return 3;
  stop(pool, threads, made);
  printf("%%ld threads", (long)made);
  return 0;
}
"""


@emulated
@pytest.mark.skipif(GCC is None, reason="aarch64-linux-gnu-gcc is not installed")
@pytest.mark.parametrize("futex", [True, False], ids=["futexes", "condition variables"])
def test_the_thread_pool_runs_under_qemu(futex: bool, tmp_path: Path) -> None:
    """With futexes as on Linux, and with condition variables as on macOS."""
    text = pool_text(ARM_LINUX.triple, futex=futex)
    (tmp_path / "pool.o").write_bytes(compile_text(text, ARM_LINUX))
    sizes = {
        "pool": PoolState.SIZE,
        "thread": ThreadState.SIZE,
        "spins": PoolState.spins.offset,
    }
    source = POOL % sizes
    for name in ("start", "stop", "run"):
        source = f"#define {name} {name}_\n{source}"
    (tmp_path / "main.c").write_text(source)
    names = [f"-Wl,--defsym={name}_={symbol(name, text)}" for name in ("start", "stop", "run")]
    assert GCC is not None and QEMU is not None
    command = [GCC, "-O1", "-static", "-pthread", "-o", "main", "main.c", "pool.o", *names]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(
        [QEMU, "./main"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "4 threads"


@pytest.mark.parametrize("processor", [ARM_LINUX, ARM_MACOS], ids=lambda p: p.triple)
def test_the_thread_pool_compiles(processor: Processor) -> None:
    text = pool_text(processor.triple)
    assert ("@syscall" in text) == (processor is ARM_LINUX), "macOS has no futexes"
    clock = 6 if processor is ARM_MACOS else 1
    assert f"@clock_gettime(i32 {clock}," in text
    assert compile_text(text, processor)
