"""Programs that are one native call, which finds stacks by itself, on whatever it is given."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.tolerance import assert_close
from weft.array.host import HOST_MEMORY, SMALL
from weft.array.stacked import Stacked, one_for_all
from weft.capture import parse
from weft.emit.llvm.pool.call import StackObject
from weft.errors import WeftError
from weft.native.cpython import address_of
from weft.native.memory import Pointer, address
from weft.pipeline import local_program
from weft.run import LocalProgram

pytestmark = pytest.mark.parametrize("target", ["llvm"], indirect=True)

ADD = """func.func @main(%x: tensor<ROWSx8xf32>, %y: tensor<ROWSx8xf32>) -> tensor<ROWSx8xf32> {
  %0 = stablehlo.add %x, %y : tensor<ROWSx8xf32>
  return %0 : tensor<ROWSx8xf32>
}"""


def adding(rows: int = 4, **options: Any) -> LocalProgram:
    program = local_program(parse(ADD.replace("ROWS", str(rows))), devices=1, **options)
    assert program.direct is not None
    return program


def stack(program: LocalProgram, value: float, rows: int = 4, owned: bool = False) -> Stacked:
    return one_for_all(np.full((rows, 8), value, np.float32), program.sub_axes, owned)


def test_this_python_keeps_things_where_native_code_looks():
    program = adding()
    x = stack(program, 1)
    seen = StackObject(id(x))
    assert seen.type == Pointer(id(Stacked)) and seen.kind == Pointer(id(x.kind))
    assert address(seen.data.data) == x.data.ctypes.data


def test_an_unknown_python_gets_its_results_another_way(monkeypatch):
    monkeypatch.setattr("weft.run.direct.reads_objects", lambda: False)
    program = local_program(parse(ADD.replace("ROWS", "4")), devices=1)
    assert program.direct is None
    (made,) = program(stack(program, 1), stack(program, 2))
    assert (made.data == 3).all()


def test_one_program_takes_the_results_of_another():
    program = adding()
    x = stack(program, 1)
    for n in range(2, 20):
        (x,) = program(x, stack(program, 1))
        assert (x.data == n).all() and x.kind is program.arguments.listed[0][0]


def test_one_object_may_be_given_twice_and_with_other_elements():
    program = adding()
    x = stack(program, 3)
    assert (program(x, x)[0].data == 6).all()
    x.data[...] = 5
    assert (program(x, x)[0].data == 10).all()


@pytest.mark.parametrize(
    "wrong, what",
    [
        (lambda a: one_for_all(np.ones((4, 8), np.float64), a), "argument 1 holds float64"),
        (lambda a: one_for_all(np.ones((4, 9), np.float32), a), "argument 1 holds float32"),
        (lambda a: None, "argument 1 is missing"),
    ],
)
def test_what_does_not_fit_is_refused_however_often_it_has_fitted(wrong, what):
    program = adding()
    x = stack(program, 1)
    program(x, x)
    other = wrong(program.sub_axes)
    if other is not None:
        other.located()
    with pytest.raises(WeftError, match=what):
        program(x, other)
    with pytest.raises(WeftError, match="takes 2 arguments, 1 given"):
        program(x)
    assert (program(x, x)[0].data == 2).all()


def test_an_argument_is_taken_apart_only_once():
    program = adding()
    columns = one_for_all(np.asfortranarray(np.arange(32, dtype=np.float32).reshape(4, 8)),
                          program.sub_axes)  # fmt: skip
    for _ in range(2):
        (made,) = program(columns, stack(program, 1))
        assert_close(made.piece(0), np.arange(1, 33, dtype=np.float32).reshape(4, 8))
    assert columns.data.flags.c_contiguous


@pytest.mark.parametrize("rows", [4, SMALL // 16])
def test_a_donated_argument_is_written_over_unless_somebody_holds_it(rows):
    program = adding(rows, donate=(0,))
    y = stack(program, 1, rows)
    for owned in (True, False):
        x = stack(program, 1, rows, owned)
        before = address_of(x.data)
        (made,) = program(x, y)
        assert (made.data == 2).all()
        assert (address_of(made.data) == before) is owned
        assert owned or (x.data == 1).all()
    twice = stack(program, 4, rows, owned=True)
    (made,) = program(twice, twice)
    assert (made.data == 8).all() and (twice.data == 4).all()


def test_results_that_are_gone_leave_their_memory():
    rows = SMALL // 8
    program = adding(rows)
    x = stack(program, 1, rows)
    (made,) = program(x, x)
    where, used = address_of(made.data), HOST_MEMORY.used
    view = made.data[0, 3:, ::2]
    del made
    (other,) = program(x, x)
    assert address_of(other.data) != where and (view == 2).all()
    del view, other
    assert HOST_MEMORY.used == used - rows * 32
    assert address_of(program(x, x)[0].data) == where or HOST_MEMORY.kept >= 2 * rows * 32


def test_threads_may_call_one_program_at_once():
    program = adding(256)
    wrong: list[float] = []

    def work(number: int) -> None:
        x = stack(program, number, 256)
        y = stack(program, 1, 256)
        for n in range(1, 60):
            (x,) = program(x, y)
            if not (x.data == number + n).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(program.frames) <= 4


def test_many_arguments_and_results():
    names = [f"%x{n}" for n in range(40)]
    listed = ", ".join(f"{name}: tensor<3xf32>" for name in names)
    lines = "\n".join(
        f"  %y{n} = stablehlo.add {name}, {names[n - 1]} : tensor<3xf32>"
        for n, name in enumerate(names)
    )
    types = ", ".join(["tensor<3xf32>"] * 41)
    made = ", ".join([*(f"%y{n}" for n in range(40)), "%y0"])
    text = f"func.func @main({listed}) -> ({types}) {{\n{lines}\n  return {made} : {types}\n}}"
    program = local_program(parse(text), devices=1)
    assert program.direct is not None
    given = [one_for_all(np.full(3, n, np.float32), program.sub_axes) for n in range(40)]
    for _ in range(3):
        results = program(*given)
        for n, result in enumerate(results[:40]):
            assert (result.data == n + (n - 1) % 40).all()
        assert (results[40].data == results[0].data).all()


def test_memory_that_is_not_there_is_told(monkeypatch):
    program = adding(SMALL // 8)
    x = stack(program, 1, SMALL // 8)
    program(x, x)

    def none(*needed: object) -> None:
        raise MemoryError

    taken = [(none, needed, *rest) for _, needed, *rest in program.direct.taken]
    monkeypatch.setattr(program.direct, "taken", taken)
    with pytest.raises(WeftError, match="out of memory: a result of 256 KiB"):
        program(x, x)
    monkeypatch.undo()
    assert (program(x, x)[0].data == 2).all()


EIGH = """func.func @main(%x: tensor<2x3x3xf32>) -> (tensor<2x3xf32>, tensor<2x3x3xf32>) {
  %0:2 = stablehlo.custom_call @weft.eigh(%x) {api_version = 4 : i32, backend_config = {}} :
    (tensor<2x3x3xf32>) -> (tensor<2x3x3xf32>, tensor<2x3xf32>)
  return %0#1, %0#0 : tensor<2x3xf32>, tensor<2x3x3xf32>
}"""


def test_results_in_another_order_than_they_are_made():
    program = local_program(parse(EIGH), devices=1)
    assert program.direct is not None and program.direct.is_whole
    a = np.random.default_rng(0).standard_normal((2, 3, 3)).astype(np.float32)
    a += np.swapaxes(a, 1, 2)
    values, vectors = (made.data[0] for made in program(one_for_all(a, program.sub_axes)))
    assert values.shape == (2, 3) and vectors.shape == (2, 3, 3)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(a), atol=1e-5)
    np.testing.assert_allclose(vectors * values[:, None, :], a @ vectors, atol=1e-5)


VIEWS = """func.func @main(%x: tensor<2x6xf32>) -> (tensor<2x2x3xf32>, tensor<2x6xui32>) {
  %0 = "stablehlo.sort"(%x) <{dimension = 1 : i64, is_stable = false}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
  }) : (tensor<2x6xf32>) -> tensor<2x6xf32>
  %1 = stablehlo.reshape %0 : (tensor<2x6xf32>) -> tensor<2x2x3xf32>
  %2 = stablehlo.reverse %1, dims = [0] : tensor<2x2x3xf32>
  %3 = stablehlo.negate %x : tensor<2x6xf32>
  %4 = stablehlo.bitcast_convert %3 : (tensor<2x6xf32>) -> tensor<2x6xui32>
  %5 = stablehlo.not %4 : tensor<2x6xui32>
  return %2, %5 : tensor<2x2x3xf32>, tensor<2x6xui32>
}"""


def test_small_views_do_not_end_a_call():
    program = local_program(parse(VIEWS), devices=1)
    assert program.direct is not None
    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    x[0, 1], x[1, 2] = np.nan, -0.0
    turned, bits = (made.data[0] for made in program(one_for_all(x, program.sub_axes)))
    np.testing.assert_array_equal(turned, np.sort(x).reshape(2, 2, 3)[::-1])
    np.testing.assert_array_equal(bits, ~(-x).view(np.uint32))
