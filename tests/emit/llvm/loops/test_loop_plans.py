"""What is chosen for loops: lanes, tasks, stages and streams, for kernels that tell them apart.

The choices decide how fast a kernel is, not what it computes: nothing else would show a changed
threshold. Whoever moves one sees here for which kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.checksums import checksum
from tests.kernels.building import Building
from weft.emit.llvm.jit.processor import ARM_SERVER, Processor
from weft.emit.llvm.loops.cost import nests, per_point, step_cost
from weft.emit.llvm.loops.emit import emit_loops, loop_plans
from weft.emit.llvm.loops.plan import LoopPlan
from weft.ir.op import Op
from weft.ir.types import DTYPES, F32, DType
from weft.kernels.kernel import Affine, Choose, Guard, Kernel, Load
from weft.ops.elementwise.pointwise import Add, Divide, Multiply, Power
from weft.ops.elementwise.transcendental import Exponential, Sqrt

WIDE = Processor("x86_64-unknown-linux-gnu", "skylake-avx512", "+avx512f,+avx2,+avx")
GOLDEN = Path(__file__).parents[3] / "golden" / "emit"


def pointwise(dims: str, out: str, inputs: int = 1, dtype: DType = F32, **sizes: int) -> Kernel:
    """The sum of some inputs, written in another order of dims."""
    b = Building(**sizes)
    total = b.read(dims, dtype)
    for _ in range(inputs - 1):
        total = b.apply(Add(), total, b.read(dims, dtype))
    b.write(out, total)
    return b.kernel()


def sums(dims: str, out: str, over: str, **sizes: int) -> Kernel:
    b = Building(**sizes)
    b.write(out, b.reduce("add", b.read(dims), over))
    return b.kernel()


def norm(**sizes: int) -> Kernel:
    """x / sqrt(sum of squares), a row at a time."""
    b = Building(**sizes)
    x = b.read("ij")
    square = b.reduce("add", b.apply(Multiply(), x, x), "j")
    b.write("ij", b.apply(Divide(), x, b.apply(Sqrt(), square)))
    return b.kernel()


def slow(op: Op, **sizes: int) -> Kernel:
    """A function of one or two numbers that takes long."""
    b = Building(**sizes)
    x = b.read("i")
    b.write("i", b.apply(op, *[x] * (2 if isinstance(op, Power) else 1)))
    return b.kernel()


def largest(**sizes: int) -> Kernel:
    """Where the largest element is."""
    b = Building(**sizes)
    index = b.position(b.affine(j=1))
    b.write("i", b.pick("max", b.read("ij"), index, "j"))
    return b.kernel()


def padded(**sizes: int) -> Kernel:
    b = Building(**sizes)
    rows, columns = sizes["i"], sizes["j"]
    x = b.input(rows, columns - 2)
    at = b.affine(-1, i=columns - 2, j=1)
    b.write("ij", b.load(x, at, [b.guard(1, columns - 1, j=1)]))
    return b.kernel()


def filters(**sizes: int) -> Kernel:
    """Several weighted sums of every window of padded numbers that are three apart."""
    b = Building(**sizes)
    inside = b.guard(0, sizes["i"], -1, i=1, k=1)
    windows = b.load(b.input(3 * sizes["i"]), b.affine(-3, i=3, k=3), [inside])
    b.write("ij", b.reduce("add", b.apply(Multiply(), windows, b.read("kj")), "k"))
    return b.kernel("columns")


def kernels() -> Iterator[tuple[str, Kernel]]:
    """Kernels by what they do and how large they are."""
    for n in (1, 3, 15, 16, 17, 63, 64, 65, 130, 4000, 1 << 14, 1 << 18, 1 << 20, 1 << 24):
        yield f"add {n}", pointwise("i", "i", 2, i=n)
    for name, inputs in (("f64", 2), ("bf16", 2), ("i8", 2), ("f32", 7), ("f32", 13), ("f32", 62)):
        yield f"add {inputs} of {name}", pointwise("i", "i", inputs, DTYPES[name], i=5000)
    for size in ((8, 8), (33, 65), (512, 512), (4, 4096), (4096, 4), (3000, 3001)):
        i, j = size
        yield f"turn {i}x{j}", pointwise("ij", "ji", i=i, j=j)
        yield f"sum {i}x{j} along rows", sums("ij", "i", "j", i=i, j=j)
        yield f"sum {i}x{j} along columns", sums("ij", "j", "i", i=i, j=j)
        yield f"sum {i}x{j}", sums("ij", "", "ij", i=i, j=j)
        yield f"norm {i}x{j}", norm(i=i, j=j)
    yield "turn 20x30x40 inside", pointwise("ijk", "ikj", i=20, j=30, k=40)
    yield "turn 20x30x40", pointwise("ijk", "kij", i=20, j=30, k=40)
    yield "sum 64x65x7 in the middle", sums("ijk", "ik", "j", i=64, j=65, k=7)
    yield "sum 20x300x40 along both ends", sums("ijk", "j", "ik", i=20, j=300, k=40)
    for size in (1 << 20, 1 << 22):
        yield f"sum {size}", sums("i", "", "i", i=size)
        yield f"norm 1x{size}", norm(i=1, j=size)
        yield f"largest 1x{size}", largest(i=1, j=size)
    yield "largest 300x200", largest(i=300, j=200)
    for count in (2, 9):
        yield f"{count} filters 28x5", filters(i=28, j=count, k=5)
    yield "pad 40x60", padded(i=40, j=60)
    yield "pad 3000x4096", padded(i=3000, j=4096)
    for name, op in (("exp", Exponential()), ("power", Power()), ("root", Sqrt())):
        for size in (3000, 40000):
            yield f"{name} {size}", slow(op, i=size)


def told(plan: LoopPlan) -> str:
    """A plan in a line."""
    factors = plan.kernel.factors
    names = "ijklmnopq"
    loops = " ".join(f"{names[n]}[{f.size}]" for n, f in enumerate(factors)) or "one point"
    parts = [loops]
    if plan.vector is not None:
        parts.append(f"lanes {names[plan.vector]}x{plan.width}")
    if plan.cut is not None:
        parts.append(f"cut {names[plan.cut[0]]} by {plan.cut[1]}")
    tasks = " ".join(f"{names[n]}/{block}" for n, block in plan.tasks)
    parts.append(f"tasks {tasks or 'one'}, {plan.chunk} at a time")
    if plan.transposed is not None:
        parts.append(
            f"transposed {names[plan.transposed.lines]}{' whole' if plan.transposed.whole else ''}"
        )
    if plan.spilled:
        parts.append("sums in scratch")
    if plan.streams:
        parts.append("past the caches")
    return ", ".join(parts)


def fetched(text: str) -> str:
    """Which bytes a kernel fetches early, counted from those that it reads."""
    found = re.findall(r"getelementptr i8, ptr \S+, i64 (\d+)\n *call void @llvm.prefetch", text)
    return f", fetches {' '.join(found)}" if found else ""


@pytest.mark.parametrize(("processor", "name"), [(WIDE, "wide"), (ARM_SERVER, "arm")])
def test_loops(processor: Processor, name: str, golden: Callable[[Path, str], None]):
    lines = []
    for about, kernel in kernels():
        plans = loop_plans(kernel, processor)
        text = emit_loops(kernel, processor).text
        lines.append(f"{about}: {told(plans[0])}{fetched(text)}, {checksum(text)}")
        lines += [f"{'then':>{len(about)}}: {told(plan)}" for plan in plans[1:]]
    golden(GOLDEN / f"loops_{name}.txt", "\n".join(lines) + "\n")


def test_costs(golden: Callable[[Path, str], None]):
    """The loops around each step, and the cost of a point by the factor that vectors are along."""
    lines = []
    for about, kernel in kernels():
        around = " ".join("".join(map(str, sorted(nest))) or "-" for nest in nests(kernel))
        costs = [f"{per_point(kernel, n):.4g}" for n in range(len(kernel.factors))]
        lines.append(f"{about}: loops {around}; costs {' '.join(costs)}")
    golden(GOLDEN / "loops_costs.txt", "\n".join(lines) + "\n")


def test_every_guard_of_a_choice_costs_as_much_as_that_of_a_load():
    at, guard = Affine((1,), 0), Guard(Affine((1,), 0), 0, 4)
    for count in range(3):
        guards = (guard,) * count
        assert step_cost(Load(0, at, F32, guards)) == 1 + 2 * count
        assert step_cost(Choose(guards, 0, 0, F32)) == 1 + 2 * count
