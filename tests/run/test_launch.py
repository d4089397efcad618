"""Kernels of a target: one call for many, memory that is theirs, and values from anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.run.stacks import assert_same, run_often
from tests.threads import in_threads
from tests.tolerance import assert_close
from weft.array.host import HOST_MEMORY, SMALL
from weft.array.stacked import Stacked, one_for_all
from weft.capture import parse
from weft.evaluate import evaluate
from weft.native.cpython import address_of
from weft.ops.custom_calls.callbacks import HOST_CALL, HostFunction
from weft.ops.custom_calls.declaration import config_text
from weft.pipeline import local_program
from weft.run import LocalProgram, loop_buffers, run

pytestmark = pytest.mark.parametrize("target", ["toy", "llvm"], indirect=True)


def on_one(text: str, **options) -> LocalProgram:
    return local_program(parse(text), devices=1, **options)


def given_to(program: LocalProgram, *arrays: np.ndarray, owned: bool = False) -> list[Stacked]:
    return [one_for_all(np.asarray(a), program.sub_axes, owned) for a in arrays]


CHAIN = """func.func @main(%x: tensor<5x7xf32>, %y: tensor<5x7xf32>)
    -> (tensor<5x7xf32>, tensor<5x7xf32>) {
  %0 = stablehlo.add %x, %y : tensor<5x7xf32>
  %1 = stablehlo.multiply %0, %x : tensor<5x7xf32>
  %2 = stablehlo.negate %1 : tensor<5x7xf32>
  %3 = stablehlo.subtract %2, %y : tensor<5x7xf32>
  %4 = stablehlo.maximum %3, %0 : tensor<5x7xf32>
  return %4, %2 : tensor<5x7xf32>, tensor<5x7xf32>
}"""
X = np.linspace(-1, 1, 35, dtype=np.float32).reshape(5, 7)


def expected(text: str, *arrays: np.ndarray) -> list[np.ndarray]:
    return [a[0] for a in evaluate(parse(text), *[a[None] for a in arrays], devices=1)]


def test_a_program_of_kernels_is_one_call():
    program = on_one(CHAIN)
    assert len(program.code.units) == 1 and program.is_native and program.is_brief
    made = run_often(program, given_to(program, X, X + 1))
    for ours, theirs in zip(made, expected(CHAIN, X, X + 1), strict=True):
        assert_close(ours.piece(0), theirs)


# Arguments


@pytest.mark.parametrize(
    "odd",
    [
        np.asfortranarray(X),
        np.repeat(X, 2, axis=1)[:, ::2],
        X[::-1][::-1],
        np.broadcast_to(X[:1], (5, 7)),
        np.ndarray((5, 7), np.float32, bytes(1) + X.tobytes(), 1),
    ],
    ids=["columns", "strided", "twice turned", "repeated", "between elements"],
)
def test_arguments_may_lie_in_any_way(odd):
    program = on_one(CHAIN)
    stacks = given_to(program, odd, X)
    for _ in range(2):
        made = program(*stacks)
        for ours, theirs in zip(made, expected(CHAIN, np.array(odd), X), strict=True):
            assert_close(ours.piece(0), theirs)


def test_an_argument_is_copied_once():
    program = on_one(CHAIN)
    stacks = given_to(program, np.asfortranarray(X), X)
    program(*stacks)
    kept = stacks[0].data
    program(*stacks)
    assert stacks[0].data is kept and kept.flags.c_contiguous
    assert stacks[0].kind is not None and stacks[0].locate() == address_of(kept)


def test_what_is_equal_everywhere_may_be_given_once():
    """The program takes it to vary, and is given one for all."""
    module = parse(CHAIN)
    program = local_program(module, devices=3)
    made = program(*given_to(program, X, X + 1))
    for ours, theirs in zip(made, expected(CHAIN, X, X + 1), strict=True):
        assert_close(ours.pieces(), np.stack([theirs] * 3))


def test_an_argument_may_be_a_result_and_so_may_a_constant():
    text = """func.func @main(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) {
      %c = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
      %s = stablehlo.constant dense<2.0> : tensor<3xf32>
      %0 = stablehlo.multiply %c, %s : tensor<3xf32>
      %1 = stablehlo.add %x, %0 : tensor<3xf32>
      return %x, %c, %1 : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
    }"""
    program = on_one(text, donate=(0,))
    x = np.ones(3, np.float32)
    same, constant, made = (s.piece(0) for s in program(*given_to(program, x.copy(), owned=True)))
    assert same.tolist() == [1, 1, 1] and constant.tolist() == [1, 2, 3]
    assert made.tolist() == [3, 5, 7]


@pytest.mark.parametrize("shape", ["0", "0x3", "4x0", "1x1", ""])
def test_sizes_of_nothing_and_of_one(shape):
    type = f"tensor<{shape}{'x' if shape else ''}f32>"
    text = f"""func.func @main(%x: {type}) -> ({type}, {type}) {{
      %0 = stablehlo.add %x, %x : {type}
      %1 = stablehlo.tanh %0 : {type}
      return %0, %1 : {type}, {type}
    }}"""
    sizes = tuple(int(n) for n in shape.split("x") if n)
    x = np.full((2, *sizes), 0.5, np.float32)
    assert_same(parse(text), x, devices=2)


# Results


def test_results_have_memory_of_their_own():
    program = on_one(CHAIN)
    first = program(*given_to(program, X, X))
    kept = [s.data.copy() for s in first]
    program(*given_to(program, X + 3, X))
    assert all(np.array_equal(s.data, k) for s, k in zip(first, kept, strict=True))


LARGE = CHAIN.replace("5x7", "128x256")


def test_memory_of_results_that_are_gone_is_used_again():
    HOST_MEMORY.clear()
    program = on_one(LARGE)
    x = np.ones((128, 256), np.float32)
    assert x.nbytes >= SMALL
    stacks = given_to(program, x, x)
    before = {address_of(s.data) for s in program(*stacks)}
    after = {address_of(s.data) for s in program(*stacks)}
    assert before == after
    held = program(*stacks)
    assert not {address_of(s.data) for s in held} & {address_of(s.data) for s in program(*stacks)}


STEP = """func.func @main(%w: tensor<NxDTYPE>, %g: tensor<NxDTYPE>) -> tensor<NxDTYPE> {
  %0 = stablehlo.add %w, %g : tensor<NxDTYPE>
  %1 = stablehlo.multiply %0, %w : tensor<NxDTYPE>
  return %1 : tensor<NxDTYPE>
}"""


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 70), st.sampled_from(["f32", "f64", "i32", "i8", "bf16"]))
def test_a_result_is_written_over_a_donated_argument(size, dtype):
    """Element by element, whatever the size: nothing is read after it was written."""
    from ml_dtypes import bfloat16

    kinds = {"f32": "f4", "f64": "f8", "i32": "i4", "i8": "i1", "bf16": bfloat16}
    program = on_one(STEP.replace("DTYPE", dtype).replace("N", str(size)), donate=(0,))
    w = (np.arange(size) % 5).astype(kinds[dtype])
    g = (np.arange(size) % 3).astype(kinds[dtype])
    stacks = given_to(program, w.copy(), g, owned=True)
    where = address_of(stacks[0].data)
    (made,) = program(*stacks)
    assert address_of(made.data) == where and made.owned
    assert_close(made.piece(0), (w + g) * w)
    memory = program.memory()
    assert memory.reused == memory.results and memory.peak == memory.arguments


def test_not_where_somebody_else_holds_the_argument():
    program = on_one(STEP.replace("DTYPE", "f32").replace("N", "4"), donate=(0,))
    w = np.arange(4, dtype=np.float32)
    for stacks in (given_to(program, w, w + 1), [*given_to(program, w, owned=True)] * 2):
        before = w.copy()
        (made,) = program(*stacks)
        assert np.array_equal(w, before)
        assert not np.shares_memory(made.data, w)


def test_donated_memory_is_taken_after_its_last_read():
    text = """func.func @main(%a: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.add %a, %b : tensor<8xf32>
      %1 = "stablehlo.sort"(%0) <{dimension = 0 : i64}> ({
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %c = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }) : (tensor<8xf32>) -> tensor<8xf32>
      %2 = stablehlo.tanh %1 : tensor<8xf32>
      return %2 : tensor<8xf32>
    }"""
    program = on_one(text, donate=(0, 1))
    a, b = np.arange(8, dtype=np.float32), -2 * np.arange(8, dtype=np.float32)
    stacks = given_to(program, a.copy(), b.copy(), owned=True)
    held = {address_of(s.data) for s in stacks}
    (made,) = program(*stacks)
    assert_close(made.piece(0), np.tanh(np.sort(a + b)))
    assert address_of(made.data) in held


# Between kernels


def test_numpy_and_kernels_read_each_other():
    function = HostFunction(lambda x: (np.asfortranarray(x * 2),))
    config = config_text(function=function.number)
    text = f"""func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {{
      %0 = stablehlo.add %x, %x : tensor<4x4xf32>
      %1 = stablehlo.custom_call @{HOST_CALL}(%0)
        {{backend_config = {config}, api_version = 4 : i32, has_side_effect = true}}
        : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %2 = stablehlo.subtract %1, %x : tensor<4x4xf32>
      return %2 : tensor<4x4xf32>
    }}"""
    program = on_one(text)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    for _ in range(2):
        (made,) = program(*given_to(program, x))
        assert np.array_equal(made.piece(0), 3 * x)
    assert not program.is_native


def test_frames_are_for_one_run_at_a_time():
    program = on_one(LARGE)
    inputs = [np.full((128, 256), n, np.float32) for n in range(6)]
    right = [[s.data.copy() for s in program(*given_to(program, x, x))] for x in inputs]
    wrong: list[int] = []

    def work(n: int) -> None:
        stacks = given_to(program, inputs[n], inputs[n])
        for _ in range(20):
            made = program(*stacks)
            if not all(np.array_equal(s.data, r) for s, r in zip(made, right[n], strict=True)):
                wrong.append(n)

    in_threads(work, 6)
    assert not wrong


def test_what_is_brief_runs_at_once_and_in_order():
    program = on_one(STEP.replace("DTYPE", "f32").replace("N", "4"))
    w = np.arange(4, dtype=np.float32)
    (out,) = run(program, w, w)
    assert out.is_ready
    for _ in range(20):
        (out,) = run(program, out, w * 0)
    assert np.isfinite(out.numpy()).all() or out.is_ready


# Loops


LOOP = """func.func @main(%x: tensor<3xf32>, %n: tensor<i32>) -> (tensor<3xf32>, tensor<3xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %first = stablehlo.add %x, %x : tensor<3xf32>
  %r:3 = stablehlo.while(%i = %zero, %a = %first, %b = %x)
      : tensor<i32>, tensor<3xf32>, tensor<3xf32>
  cond {
    %go = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %next = stablehlo.add %i, %one : tensor<i32>
    BODY
    stablehlo.return %next, %c, %d : tensor<i32>, tensor<3xf32>, tensor<3xf32>
  }
  END
}"""
BODIES = {
    "each by itself": "%c = stablehlo.negate %a : T\n%d = stablehlo.add %b, %x : T",
    "each from both": "%c = stablehlo.add %a, %b : T\n%d = stablehlo.subtract %a, %b : T",
    "handed over": "%c = stablehlo.add %b, %b : T\n%d = stablehlo.add %a, %zero_ : T",
    "one is the other": "%c = stablehlo.add %a, %b : T\n%d = stablehlo.negate %c : T",
    "the one before": "%c = stablehlo.add %a, %b : T\n%d = stablehlo.abs %a : T",
    "turned": "%c = stablehlo.reverse %b, dims = [0] : T\n%d = stablehlo.add %a, %b : T",
}
ENDS = {
    "results": "return %r#1, %r#2 : tensor<3xf32>, tensor<3xf32>",
    "read": """%s = stablehlo.add %r#1, %r#2 : tensor<3xf32>
  %t = stablehlo.multiply %s, %first : tensor<3xf32>
  return %s, %t : tensor<3xf32>, tensor<3xf32>""",
}


@pytest.mark.parametrize("end", list(ENDS))
@pytest.mark.parametrize("body", list(BODIES))
def test_loops_of_kernels(body, end):
    """Whatever is carried to whom, for no rounds, one, and many."""
    zero = "%zero_ = stablehlo.constant dense<0.0> : T\n" if "zero_" in BODIES[body] else ""
    text = LOOP.replace("BODY", zero + BODIES[body]).replace("END", ENDS[end])
    module = parse(text.replace(": T", ": tensor<3xf32>"))
    x = np.array([[1, 2, 3], [0.5, 0, -1]], np.float32)
    for rounds in (0, 1, 2, 5):
        assert_same(module, x, np.array([rounds] * 2, np.int32), length=8)


@pytest.mark.parametrize("body", ["each by itself", "each from both"])
def test_loops_come_back_to_python_now_and_then(body, monkeypatch):
    monkeypatch.setattr(loop_buffers, "AT_ONCE", 3)
    text = LOOP.replace("BODY", BODIES[body]).replace("END", ENDS["results"])
    module = parse(text.replace(": T", ": tensor<3xf32>"))
    x = np.array([[1, 2, 3]], np.float32)
    for rounds in (2, 3, 4, 6, 7):
        assert_same(module, x, np.array([rounds], np.int32), length=8)


@pytest.mark.parametrize("results", ["%b, %w", "%w, %a"])
@pytest.mark.parametrize("end", list(ENDS))
def test_what_is_carried_for_several_rounds(results, end, monkeypatch):
    """(a, b) -> (b, a + b), and the like: all in one native call."""
    monkeypatch.setattr(loop_buffers, "AT_ONCE", 4)
    text = LOOP.replace("%c, %d :", f"{results} :").replace("END", ENDS[end])
    module = parse(text.replace("BODY", "%w = stablehlo.add %a, %b : tensor<3xf32>"))
    program = local_program(module, devices=1)
    for rotations in program.plan.rotations.values():  # none of a loop that is one kernel
        assert sorted(len(rotation.slots) for rotation in rotations) == [1, 2]
    x = np.array([[1, 2, 3]], np.float32)
    for rounds in (0, 1, 2, 3, 4, 5, 9):
        assert_same(module, x, np.array([rounds], np.int32), length=8)


def test_what_is_swapped_is_swapped():
    text = LOOP.replace("%c, %d :", "%b, %a :").replace("BODY", "").replace("END", ENDS["results"])
    x = np.array([[1, 2, 3]], np.float32)
    for rounds in (0, 1, 2, 3):
        assert_same(parse(text), x, np.array([rounds], np.int32))


def test_loops_in_loops_and_branches():
    inner = """
    %p = stablehlo.compare GT, %i, %one, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %in:2 = stablehlo.while(%j = %zero, %v = %a) : tensor<i32>, tensor<3xf32>
    cond {
      %on = stablehlo.compare LT, %j, %i, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %on : tensor<i1>
    } do {
      %more = stablehlo.add %j, %one : tensor<i32>
      %w = stablehlo.add %v, %b : tensor<3xf32>
      stablehlo.return %more, %w : tensor<i32>, tensor<3xf32>
    }
    %c = "stablehlo.if"(%p) ({
      %q = stablehlo.negate %in#1 : tensor<3xf32>
      stablehlo.return %q : tensor<3xf32>
    }, {
      stablehlo.return %a : tensor<3xf32>
    }) : (tensor<i1>) -> tensor<3xf32>
    %d = stablehlo.add %b, %in#1 : tensor<3xf32>"""
    text = LOOP.replace("BODY", inner).replace("END", ENDS["read"])
    x = np.array([[1, 2, 3]], np.float32)
    for rounds in (0, 1, 4):
        assert_same(parse(text), x, np.array([rounds], np.int32), length=64)


# Memory


def test_memory_of_one_device_and_of_all():
    text = """module {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%x: tensor<16x16xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                  %y: tensor<16x16xf32> {weft.sharding = #sdy.sharding<@mesh, [{}, {}]>})
      -> (tensor<16x16xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] :
      (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
    %1 = stablehlo.dot_general %0, %y, contracting_dims = [1] x [0] :
      (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
    %2 = stablehlo.tanh %1 : tensor<16x16xf32>
    return %2 : tensor<16x16xf32>
  }
}"""
    program = local_program(parse(text))
    square = 16 * 16 * 4
    whole, one = program.memory(), program.memory_of_one()
    assert (whole.arguments, whole.results) == (5 * square, 4 * square)
    assert (one.arguments, one.results) == (2 * square, square)
    assert one.arena + one.others in (square, 2 * square)
    assert whole.arena + whole.others == 4 * (one.arena + one.others)


SOFTMAX = """func.func @main(%x: tensor<RxCxf32>) -> tensor<RxCxf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1]
    : (tensor<RxCxf32>, tensor<f32>) -> tensor<Rxf32>
  %mm = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<Rxf32>) -> tensor<RxCxf32>
  %d = stablehlo.subtract %x, %mm : tensor<RxCxf32>
  %e = stablehlo.exponential %d : tensor<RxCxf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<RxCxf32>, tensor<f32>) -> tensor<Rxf32>
  %ss = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<Rxf32>) -> tensor<RxCxf32>
  %r = stablehlo.divide %e, %ss : tensor<RxCxf32>
  return %r : tensor<RxCxf32>
}"""
RESIDUAL = """func.func @main(%x: tensor<RxCxf32>, %a: tensor<RxKxf32>, %b: tensor<KxCxf32>)
    -> tensor<RxCxf32> {
  %p = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<RxKxf32>, tensor<KxCxf32>) -> tensor<RxCxf32>
  %r = stablehlo.add %p, %x : tensor<RxCxf32>
  return %r : tensor<RxCxf32>
}"""


@pytest.mark.parametrize("rows, columns", [(1, 1), (3, 17), (5, 64), (33, 130), (7, 1001)])
def test_rows_and_ends_of_products_are_written_over_donated_arguments(rows, columns):
    draw = np.random.default_rng(0)
    x = draw.standard_normal((rows, columns)).astype(np.float32)
    program = on_one(SOFTMAX.replace("R", str(rows)).replace("C", str(columns)), donate=(0,))
    (made,) = program(*given_to(program, x.copy(), owned=True))
    e = np.exp(x - x.max(1, keepdims=True))
    assert_close(made.piece(0), e / e.sum(1, keepdims=True), columns)
    for depth in (1, 19, 700):
        a = draw.standard_normal((rows, depth)).astype(np.float32)
        b = draw.standard_normal((depth, columns)).astype(np.float32)
        text = RESIDUAL.replace("R", str(rows)).replace("C", str(columns)).replace("K", str(depth))
        program = on_one(text, donate=(0,))
        stacks = [*given_to(program, x.copy(), owned=True), *given_to(program, a, b)]
        (made,) = program(*stacks)
        assert_close(made.piece(0), x + a @ b, depth)
