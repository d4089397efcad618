"""The text of kernels, and what is read of it."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emit.llvm.corpus import corpus
from tests.kernels import attention_cases, random_kernels
from tests.kernels.building import Building
from weft.errors import WeftError
from weft.ir.types import DTYPES, F32, I32, TensorType
from weft.kernels.attention import Access, Attention, Gradients, Window
from weft.kernels.kernel import Fill, Operand, Shift
from weft.kernels.read import parse_kernel
from weft.kernels.single_node import SingleNode
from weft.kernels.text import kernel_text
from weft.ops.combiners import combiner
from weft.ops.elementwise.convert import Convert, ReducePrecision
from weft.ops.elementwise.pointwise import Add, Compare, Divide, Maximum, Multiply, Subtract
from weft.ops.elementwise.transcendental import Exponential
from weft.ops.reduce import Reduce
from weft.ops.shape import BitcastConvert, Reverse

CORPUS = [kernel for _, kernel in corpus()]
COMPLEX = DTYPES["complex<f32>"]


def same(kernel):
    """The text, after it was seen to be read back as the kernel."""
    text = kernel_text(kernel)
    assert parse_kernel(text) == kernel, text
    assert kernel_text(parse_kernel(text)) == text
    return text


def test_a_product():
    k = Building(i=4, j=8, k=16)
    made = k.apply(Maximum(), k.contract(k.read("ik"), k.read("kj"), "k"), k.fill(0.0))
    k.write("ij", made)
    assert same(k.kernel("packed", task=4)) == (
        """\
kernel kernel(in0: f32[4,16], in1: f32[16,8], out2: f32[4,8])
  for i[4] j[8] k[16]
  packed: i | j k task=4
    out2[i, j] = maximum(dot[k](in0[i, k], in1[k, j]), 0.0)"""
    )


def test_a_chain_with_a_reduction():
    k = Building(i=4, j=8)
    x = k.read("ij")
    powers = k.apply(Exponential(), k.apply(Subtract(), x, k.reduce("max", x, "j")))
    k.write("ij", powers)
    made = replace(k.kernel(width=16), excess_precision=False)
    assert same(made) == (
        """\
kernel kernel(in0: f32[4,8], out1: f32[4,8]) rounded
  for i[4] j[8]
  rows: i | j width=16
    %0: f32 = in0[i, j]
    out1[i, j] = exponential(%0 - max[j](%0))"""
    )


def test_every_kind_of_step():
    k = Building(i=4, j=8)
    table, index = k.input(9, 8), k.read("i", I32)
    found = k.load(table, k.affine(j=1), [k.guard(0, 3, i=1)], [Shift(index, 8, 8, clamped=False)])
    zero = k.fill(0.0)
    total = k.reduce("add", found, "j", zero)
    padded = k.choose([k.guard(1, 5, 2, j=1)], found, zero)
    place = k.position(k.affine(j=1))
    first = k.pick("max", padded, place, "j")
    product = k.contract(k.apply(Multiply(), total, total), found, "j")
    k.apply(Compare("GT"), product, total)
    k.write("i", first)
    text = same(k.kernel(order="ij", tasks=0))
    assert text.splitlines()[2:] == [
        "  rows: | i j",
        "    %0: i32 = in1[i]",
        "    %1: f32 = in0[inside(%0, 8), j | 0 <= i < 3]",
        "    %2: f32 = 0.0",
        "    %3: f32 = sum[j](%1, %2)",
        "    %6: i32 = pick_max[j](where(1 <= j + 2 < 5, %1, %2), position(j, i32))",
        "    %9: i1 = compare<comparison_direction = #stablehlo<comparison_direction GT>>"
        "(dot[j](%3 * %3, %1), %3)",
        "    out2[i] = %6",
    ]


def test_operators_bind_as_they_are_written():
    k = Building(i=4)
    a, b, c = (k.read("i") for _ in range(3))
    k.write("i", k.apply(Subtract(), a, k.apply(Subtract(), b, c)))
    k.write("i", k.apply(Subtract(), k.apply(Subtract(), a, b), c))
    k.write("i", k.apply(Multiply(), k.apply(Add(), a, b), c))
    k.write("i", k.apply(Divide(), a, k.apply(Multiply(), b, c)))
    less = k.apply(Compare("LT", "FLOAT"), a, k.apply(Add(), b, k.fill(-1.0)))
    k.write("i", k.apply(Compare("NE", "UNSIGNED"), less, k.apply(Compare("LE", "FLOAT"), a, b)))
    lines = same(k.kernel()).splitlines()[-5:]
    assert [line.partition(" = ")[2] for line in lines] == [
        "%0 - (%1 - %2)",
        "%0 - %1 - %2",
        "(%0 + %1) * %2",
        "%0 / (%1 * %2)",
        "(%0 < %1 + -1.0) != (%0 <= %1)",
    ]


def test_types_that_cannot_be_inferred_are_said():
    k = Building(i=4)
    x = k.read("i")
    half = DTYPES["bf16"]
    small = k.apply(Convert(TensorType((), half)), x, dtype=half)
    bits = k.apply(BitcastConvert(TensorType((), DTYPES["i16"])), small, dtype=DTYPES["i16"])
    k.apply(ReducePrecision(5, 10), small)
    k.apply(Add(), k.fill(1, I32), k.fill(2, I32), dtype=F32)
    k.contract(small, small, "i", held=F32)
    k.write("i", bits)
    text = same(k.kernel())
    assert "bf16(in0[i])" in text
    assert "bitcast_convert<out = tensor<i16>>(%1)" in text
    assert "reduce_precision<exponent_bits = 5 : i32, mantissa_bits = 10 : i32>(%1)" in text
    assert "dot[i in f32](%1, %1)" in text


NUMBERS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-300, 3, -3, True, False, 1 << 63]
NUMBERS += [complex(0.0, -0.0), complex(-0.0, math.inf), complex(math.nan, 1.5)]


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("dtype", [F32, I32, COMPLEX])
def test_numbers(value, dtype):
    k = Building(i=4)
    k.write("i", k.apply(Add(), k.read("i", dtype), k.fill(value, dtype)))
    k.write("i", k.fill(value, dtype))
    back = parse_kernel(same(k.kernel()))
    for n in (1, 4):
        assert isinstance(back.steps[n], Fill)
        assert type(back.steps[n].value) is type(value)
        assert repr(back.steps[n].value) == repr(value)


@pytest.mark.parametrize(
    ("shape", "offset", "strides", "text"),
    [
        ((4, 8), 0, {"i": 8, "j": 1}, "in0[i, j]"),
        ((8, 4), 0, {"i": 1, "j": 4}, "in0[j, i]"),
        ((4, 8), 7, {"i": 8, "j": -1}, "in0[i, -j + 7]"),
        ((9, 17), 18, {"i": 34, "j": 2}, "in0[2*i + 1, 2*j + 1]"),
        ((4, 1, 8), -1, {"i": 8, "j": 1}, "in0[i, 0, j - 1]"),
        ((100,), 3, {"i": 10}, "in0[10*i + 3]"),
        ((), 0, {}, "in0[]"),
        ((), 0, {"i": 1}, "in0.flat[i]"),
        ((0, 5), 0, {"j": 1}, "in0[0, j]"),
        ((1, 1), 2, {}, "in0[0, 2]"),
    ],
)
def test_places(shape, offset, strides, text):
    k = Building(i=4, j=8)
    operand = k.input(*shape)
    k.write("ij", k.load(operand, k.affine(offset, **strides)))
    assert same(k.kernel()).endswith(f"out1[i, j] = {text}")


def test_a_place_whose_parts_are_no_dims_is_one_number():
    k = Building(i=4, j=8)
    operand = k.input(9, 8)
    index = k.read("i", I32)
    k.write("i", k.load(operand, k.affine(i=1), [], [Shift(index, 3, 9), Shift(index, 1, -8)]))
    assert "in0.flat[i + 9*clip(%0, 3) - 8*clip(%0, 1)]" in same(k.kernel())


def test_a_node_alone():
    stack = (Operand(F32, (4, 1, 8)), Operand(F32, (4, 1, 8), output=True))
    assert same(SingleNode("reverse", Reverse((0,)), stack, 2, known=(-0.0,))) == (
        """\
kernel reverse(in0: f32[4,1,8], out1: f32[4,1,8])
  alone lead=2 known=[-0.0]
    %0 = "stablehlo.reverse"(%arg0) <{dimensions = array<i64: 0>}> : \
(tensor<8xf32>) -> tensor<8xf32>"""
    )


def test_regions_of_a_node_alone_read_no_operand():
    """Of a damaged text, too: such a region has no kernel, and no text."""
    stack = (Operand(F32, (8,)), Operand(F32, ()), Operand(F32, (), output=True))
    scalar = TensorType((), F32)
    reduce = Reduce((0,), (scalar,))
    text = same(SingleNode("reduce", reduce, stack, 0, (combiner("add", scalar),), (None, None)))
    assert "stablehlo.add" in text and "(%arg2, %arg3)" in text
    with pytest.raises(WeftError, match="regions may capture constants only"):
        parse_kernel(text.replace("(%arg2, %arg3)", "(%arg2, %arg1)"))


def test_attention():
    operands = tuple([Operand(F32, (2, 8, 16), output=n == 3) for n in range(4)])
    q, k, v, out = (Access(n, (128,), 16, 1) for n in range(4))
    window = Window(left=2, right=-1, shift=4)
    made = Attention("a", (2,), 8, 8, 16, 16, operands, q, k, v, out, window=window)
    assert same(replace(made, options=(("keys", 4),))) == (
        """\
kernel a(in0: f32[2,8,16], in1: f32[2,8,16], in2: f32[2,8,16], out3: f32[2,8,16])
  attention outer=[2] queries=8 keys=8 depth=16 value_depth=16 scale=1.0 bias_scale=1.0 \
left=2 right=-1 shift=4 empty=zero
  options keys=4
    q = in0[o0, row, column]
    k = in1[o0, row, column]
    v = in2[o0, row, column]
    out = out3[o0, row, column]"""
    )


@pytest.mark.parametrize("kernel", CORPUS, ids=lambda kernel: kernel.name)
def test_the_corpus(kernel):
    same(kernel)


@settings(max_examples=100)
@given(random_kernels.kernels(), st.booleans())
def test_random_kernels(made, excess):
    same(replace(made[1], excess_precision=excess))


@settings(max_examples=30)
@given(attention_cases.kernels(lse=True), st.booleans(), st.none() | st.floats(allow_nan=False))
def test_random_attention(kernel, bias, scale):
    same(kernel)
    made = attention_cases.backward(kernel, bias=bias)
    assert isinstance(made.gradients, Gradients)
    same(replace(made, gradients=replace(made.gradients, q_scale=scale)))


# Text that is no kernel's


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kernel kernel", "kernel ker-nel", "expected '(', found '-'"),
        ("f32[4,8]", "f31[4,8]", "unknown element type 'f31'"),
        ("in0: ", "in1: ", "operand 0 cannot be called 'in1'"),
        ("i[4] j[8]", "i[4] i[8]", "duplicate factor 'i'"),
        ("rows: i | j", "rows: i j", "expected '|' after the task factors of the schedule"),
        ("[i, j] = exp", "[i, l] = exp", "unknown factor 'l'"),
        ("%0: f32 =", "%1: f32 =", "this is step 0, not 1"),
        ("max[j](%0)", "max[j](%7)", "step %7 is not defined before its use"),
        ("exponential", "exponentiall", "unknown op 'exponentiall'"),
        ("exponential", "exponential<a = 1>", "exponential has no attribute 'a'"),
        ("(%0 - max[j](%0))", "(" * 60, "expressions are nested too deeply"),
        ("max[j](%0)", "max[j](%0", "expected ',', found 'the end of the line'"),
        ("= in0[i, j]", "= 0.5 + 0.5", "a literal without typed operands beside it needs a type"),
        ("out1[i, j]", "out7[i, j]", "unknown operand 'out7'"),
    ],
)
def test_an_error_names_the_line(old, new, message):
    k = Building(i=4, j=8)
    x = k.read("ij")
    k.write("ij", k.apply(Exponential(), k.apply(Subtract(), x, k.reduce("max", x, "j"))))
    text = kernel_text(k.kernel())
    assert old in text
    with pytest.raises(WeftError) as caught:
        parse_kernel(text.replace(old, new, 1))
    assert message in caught.value.message
    number = text[: text.index(old)].count("\n") + 1
    assert caught.value.node.startswith(f"line {number}: ")


def mutant(text: str, rng: random.Random) -> str:
    """A text with some characters, words or lines lost, doubled, swapped or changed."""
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.2:
            lines = text.split("\n")
            one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[one] = rng.choice(["", lines[other], lines[one] + lines[other]])
            text = "\n".join(lines)
            continue
        begin = rng.randrange(len(text) + 1)
        end = min(len(text), begin + rng.choice((0, 1, 1, 5)))
        text = text[:begin] + rng.choice(MARKS) + text[end:]
    return text


MARKS = ["", "", *"0179-+*/%()[]<>{}=:,.|\"'#@ \n\0é٣", "%0", "in0", "inf", "1e999", "-1"]
MARKS += ["99999999999999999999", "tensor<", "dense<", "complex<f32>", "array<i64: "]


def test_mutants_are_read_or_refused():
    rng = random.Random(0)
    texts = [kernel_text(kernel) for kernel in CORPUS]
    refused = 0
    for n in range(4000):
        text = mutant(texts[n % len(texts)], rng)
        try:
            parse_kernel(text)
        except WeftError as error:
            refused += 1
            assert error.message and error.help and error.node
    assert 2000 < refused < 4000


def test_it_needs_no_other_package():
    code = (
        "import sys\n"
        "for name in ('jax', 'jaxlib', 'llvmlite', 'torch'): sys.modules[name] = None\n"
        "from weft.kernels.read import parse_kernel\n"
        "from weft.kernels.text import kernel_text\n"
        "text = sys.stdin.read()\n"
        "assert kernel_text(parse_kernel(text)) == text\n"
    )
    text = next(kernel_text(k) for k in CORPUS if isinstance(k, SingleNode) and k.regions)
    subprocess.run([sys.executable, "-c", code], input=text, text=True, check=True)
