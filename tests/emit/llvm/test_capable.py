"""What the llvm target says it supports is what it emits: every op and type, and kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from tests.emit.llvm.corpus import corpus
from tests.emit.llvm.math.test_pointwise import instances, types_of
from tests.emit.llvm.single.lone_nodes import combiner, lone_kernel
from tests.kernels import attention_cases
from tests.kernels.building import Building
from tests.ops.catalogue import EXAMPLES
from tests.ops.examples.custom import decomposition
from weft.emit.llvm.capable import unsupported_kernel, unsupported_op
from weft.emit.llvm.jit.processor import host
from weft.emit.llvm.math.pointwise import EMIT, UNSUPPORTED, apply, refuses
from weft.emit.llvm.schedule import OPTIONS
from weft.emit.llvm.single import emit as single
from weft.emit.llvm.texts import emitted_for
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.storage import load
from weft.emit.llvm.writer.vector import Vectors
from weft.errors import Unsupported, WeftError
from weft.ir.module import Value
from weft.ir.module import apply as apply_node
from weft.ir.op import Op
from weft.ir.types import BOOL, DTYPES, F32, I32, DType, TensorType, tensor
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import refuses_options
from weft.ops import contract
from weft.ops.combiners import BY_OP
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.elementwise import pointwise, special, transcendental
from weft.ops.elementwise.convert import Convert
from weft.ops.reduce import Reduce
from weft.ops.shape import BitcastConvert
from weft.ops.slicing import Slice

TYPES = [dtype for dtype in DTYPES.values() if not dtype.is_complex or dtype.bits <= 128]
NAMES = st.sampled_from([dtype.name for dtype in TYPES])


def is_emitted(kernel: AnyKernel) -> bool:
    """Whether the text of a kernel can be written."""
    try:
        emitted_for(kernel, host())
    except Unsupported:
        return False
    return True


def computes(op: Op, given: tuple[DType, ...], made: DType) -> bool:
    """Whether an op can be written on vectors."""
    vectors = Vectors(Writer("probe", ["ptr %p"]), 4)
    try:
        args = [load(vectors, "%p", "0", dtype) for dtype in given]
        apply(vectors, op, args, given, made)
    except Unsupported:
        return False
    return True


@pytest.mark.parametrize("kind", [*EMIT, *UNSUPPORTED], ids=lambda kind: kind.name)
def test_ops_are_emitted_of_just_the_types_that_it_says(kind: type[Op]):
    for op, arity in instances(kind):
        for dtype in TYPES:
            found = types_of(op, arity, dtype)
            if found is not None:
                given, made = tuple(found[0]), found[1]
                assert (refuses(op, given, made) is None) == computes(op, given, made), dtype


@pytest.mark.parametrize("given", TYPES, ids=str)
def test_conversions_are_emitted_of_just_the_types_that_it_says(given: DType):
    for made in TYPES:
        for op in (Convert(tensor(dtype=made)), BitcastConvert(tensor(dtype=made))):
            assert (unsupported_op(op, (given,), (made,)) is None) == computes(
                op, (given,), made
            ), made


def test_reasons():
    f8, i4 = DTYPES["f8E8M0FNU"], DTYPES["i4"]
    assert unsupported_op(pointwise.Add(), (F32, F32), (F32,)) is None
    assert unsupported_op(pointwise.Add(), (f8, f8), (f8,)) == "of f8E8M0FNU"
    assert unsupported_op(transcendental.Tanh(), (i4,), (i4,)) == "of i4"
    c64 = DTYPES["complex<f32>"]
    assert unsupported_op(special.AsinAcosKernel(), (c64,), (c64,)) is not None
    complex64 = DTYPES["complex<f32>"]
    dot = contract.Dot(tensor(2, 2))
    assert unsupported_op(dot, (F32, F32), (F32,)) is None
    assert "no product is added up in" in str(unsupported_op(dot, (complex64,) * 2, (complex64,)))
    assert unsupported_op(Slice((0,), (1,), (1,)), (BOOL,), (BOOL,)) is None


def test_the_corpus_is_taken():
    for name, kernel in corpus():
        assert unsupported_kernel(kernel) is None, name


@st.composite
def loops(draw: st.DrawFn) -> AnyKernel:
    """Ops, reductions and picks of any element type, perhaps such as no kernel has."""
    dtype = DTYPES[draw(NAMES)]
    b = Building(i=3, j=5)
    x = b.read("ij", dtype)
    unary = [pointwise.Negate, transcendental.Tanh, transcendental.Exponential]
    if not dtype.is_complex:  # the magnitude of a complex number is a float
        unary.append(pointwise.Abs)
    binary = (pointwise.Add, pointwise.Multiply, pointwise.Maximum, pointwise.Remainder)
    for _ in range(draw(st.integers(0, 2))):
        if draw(st.booleans()):
            x = b.apply(draw(st.sampled_from(unary))(), x, dtype=dtype)
        else:
            x = b.apply(draw(st.sampled_from(binary))(), x, x, dtype=dtype)
    match draw(st.sampled_from(["map", "reduce", "pick"])):
        case "map":
            b.write("ij", x, dtype)
        case "reduce":
            how = draw(st.sampled_from(sorted(BY_OP.values())))
            b.write("i", b.reduce(how, x, "j"), dtype)  # type: ignore[arg-type]
        case _:
            where = b.position(b.affine(j=1), I32)
            b.write("i", b.pick("max", x, where, "j"), I32)
    return b.kernel()


@given(loops())
def test_kernels_of_loops_are_taken_if_they_are_emitted(kernel: AnyKernel):
    assert (unsupported_kernel(kernel) is None) == is_emitted(kernel)


@given(NAMES, st.sampled_from(["f32", "f64", "i32", "ui64", "bf16", "i8"]), st.booleans())
def test_products_are_taken_if_they_are_emitted(name: str, held: str, late: bool):
    b = Building(m=4, n=6, k=8)
    total = b.contract(b.read("mk"), b.read("kn"), "k", DTYPES[held])
    made = b.convert(total, DTYPES[name])
    if late:
        b.write("m", b.reduce("add", made, "n"), DTYPES[name])
    b.write("mn", b.apply(pointwise.Multiply(), made, made, dtype=DTYPES[name]), DTYPES[name])
    kernel = b.kernel("packed")
    assert (unsupported_kernel(kernel) is None) == is_emitted(kernel)


@pytest.mark.parametrize("op", single.EMIT, ids=lambda op: op.name)
@settings(suppress_health_check=list(HealthCheck), max_examples=10)
@given(data=st.data())
def test_single_nodes_are_taken_if_they_are_emitted(op: type[Op], data: st.DataObject):
    examples = decomposition() if op is CustomCall else EXAMPLES[op]
    kernel = lone_kernel(data.draw(examples).node())
    assert (unsupported_kernel(kernel) is None) == is_emitted(kernel)


COMBINERS = (pointwise.Add, pointwise.Maximum, pointwise.Power, pointwise.And, transcendental.Atan2)


@given(NAMES, st.sampled_from(COMBINERS), st.sampled_from([(3, 4), (0, 4), (3, 0)]))
def test_what_a_region_computes_is_looked_at(name: str, op: type[Op], shape: tuple[int, int]):
    dtype = DTYPES[name]
    values = [Value(TensorType(shape, dtype), None, 0), Value(tensor(dtype=dtype), None, 1)]
    try:
        regions = (combiner(op(), dtype),)
        node = apply_node(Reduce((1,), (TensorType(shape[:1], dtype),)), *values, regions=regions)
    except WeftError:
        reject()
    kernel = lone_kernel(node)
    assert (unsupported_kernel(kernel) is None) == is_emitted(kernel)


def loops_as(kind: str, **options: int) -> AnyKernel:
    """A plain kernel that says that it runs so."""
    b = Building(i=4, j=8)
    b.write("ij", b.read("ij"))
    return b.kernel(kind, **options)


def attention_as(**options: int) -> AnyKernel:
    """Attention with options."""
    sizes = attention_cases.Sizes((2,), (False,), 20, 33, 16, 8)
    return replace(attention_cases.forward(sizes), options=tuple(options.items()))


SCHEDULES = {
    "unknown schedule 'in_order'": loops_as("in_order"),
    "unknown schedule ''": loops_as(""),
    "unknown option 'vector'": loops_as("rows", vector=7),
    "option width cannot be 3": loops_as("columns", width=3),
    "option task cannot be 0": loops_as("rows", task=0),
    "a packed kernel has one Contract, this one has 0": loops_as("packed"),
    "unknown option 'blas'": loops_as("packed", blas=0),
    "option block_k cannot be 0": loops_as("packed", block_k=0),
    "unknown option 'rows'": attention_as(rows=3),
    "option vectors cannot be 99": attention_as(vectors=99),
    "option keys cannot be 0": attention_as(keys=0),
}


@pytest.mark.parametrize("reason", SCHEDULES)
def test_schedules_that_no_cpu_has_are_refused(reason: str):
    assert (
        unsupported_kernel(loops_as("rows", width=8))
        is unsupported_kernel(attention_as(keys=32))
        is None
    )
    assert unsupported_kernel(SCHEDULES[reason]) == reason


# A processor without llvmlite groups programs for this target all the same.
GROUPS = """
import sys
sys.modules["llvmlite"] = None
from weft.emit.llvm.target import LLVM
from weft.ir.module import Value, apply
from weft.ir.types import tensor
from weft.kernels.stacked_node import StackedNode
from weft.ops.contract import Dot
from weft.ops.elementwise.pointwise import Add
from weft.target import Options
from weft.tile import group

x = Value(tensor(64, 64))
nodes = [apply(Dot(tensor(64, 64)), x, x)]
for _ in range(400):
    nodes.append(apply(Add(), nodes[-1].results[0], x))
placed = [StackedNode(node, (0, 0), (0,)) for node in nodes]
target = LLVM(Options(tune="remembered"))
groups = group(placed, (), nodes[-1].results, target)
kinds = [g.kernel.schedule.kind for g in groups]
assert "packed" in kinds and "rows" in kinds, kinds
assert all(target.unsupported_kernel(g.kernel) is None for g in groups)
assert "llvmlite.binding" not in sys.modules
print(len(groups))
"""


def test_grouping_needs_no_llvmlite(tmp_path: Path):
    settings = os.environ | {"WEFT_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", GROUPS]
    ran = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 1


@pytest.mark.parametrize(
    ("kind", "option", "least", "most", "between"),
    [
        ("rows", "task", 1, (1 << 40) - 1, ()),
        ("rows", "width", 1, 256, (3, 129)),
        ("columns", "stream", 0, (1 << 48) - 1, ()),
        ("packed", "block_k", 1, (1 << 40) - 1, ()),
        ("packed", "rows", 1, 16, ()),
        ("packed", "vectors", 1, 16, ()),
        ("packed", "unroll", 1, 4, (3,)),
        ("packed", "rhs", 0, 2, ()),
        ("packed", "inner", 0, 1, ()),
    ],
)
def test_options_of_schedules_have_ranges(kind, option, least, most, between):
    for value in (least, most):
        assert refuses_options(((option, value),), OPTIONS[kind]) is None
    for value in (least - 1, *between, most + 1):
        assert refuses_options(((option, value),), OPTIONS[kind])
    assert refuses_options((("unknown", 1),), OPTIONS[kind])
