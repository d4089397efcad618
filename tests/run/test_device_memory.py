"""Programs whose kernels run on memory that numpy cannot read: only what must be is copied."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.run.device_target import DeviceTarget, Enqueued
from tests.run.random_programs import Sample, programs
from tests.run.test_random_programs import check
from tests.tolerance import assert_close
from weft.array import put
from weft.array.memory import DeviceBuffer
from weft.capture import parse
from weft.compare import compare_kernels
from weft.errors import WeftError
from weft.mesh import Mesh, P
from weft.pipeline import compile_module, local_program
from weft.run import run
from weft.run.local import LocalProgram

pytestmark = pytest.mark.parametrize("target", ["device", "enqueued"], indirect=True)
MESH = Mesh(x=2)
A = np.linspace(-2, 2, 32, dtype=np.float32).reshape(8, 4)
HEAD = 'func.func @main(%a: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'
SQUARED = "%0 = stablehlo.multiply %a, %a : tensor<8x4xf32>"
SORTED = """%1 = "stablehlo.sort"(%0) <{dimension = 1 : i64}> ({
  ^bb0(%l: tensor<f32>, %r: tensor<f32>):
    %2 = stablehlo.compare LT, %l, %r : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %3 = stablehlo.add %1, %a : tensor<8x4xf32>"""


@pytest.fixture
def memory(target: str):
    """The memory of the target; what a test allocates is freed after it."""
    made = {"device": DeviceTarget, "enqueued": Enqueued}[target].memory
    before = {*made.alive}
    yield made
    gc.collect()
    assert {*made.alive} == before, "what nothing refers to is freed"


def program(body: str, result: str, arg: str = "") -> LocalProgram:
    """A program of a few lines on two devices, as `local_program` compiles it here."""
    head = HEAD.replace("f32> {", "f32> {" + arg)
    text = f"{head}) -> tensor<8x4xf32> {{\n  {body}\n  return {result} : tensor<8x4xf32>\n}}"
    module = parse('module {\n sdy.mesh @mesh = <["x"=2]>\n' + text + "\n}")
    return local_program(compile_module(module, to="optimized").module)


def test_arrays_stay_in_the_memory_of_the_device(memory):
    square, a = program(SQUARED, "%0"), put(A, P("x"), MESH)
    (once,) = run(square, a)
    assert isinstance(once.wait().stacked.data, DeviceBuffer) and once.stacked.memory is memory
    counts = memory.copied_in, memory.copied_out
    (twice,) = run(square, once)
    twice.wait()
    assert (memory.copied_in, memory.copied_out) == counts, "nothing goes through the host"
    assert_close(np.asarray(twice), A**4, 4)
    assert_close(twice.addressable_shards[1].data, A[4:] ** 4, 4)
    assert not np.asarray(twice).flags.writeable
    assert twice.__dlpack_device__() == (12, 0)
    with pytest.raises(BufferError, match="device='cpu'"):
        twice.__dlpack__()
    assert np.array_equal(np.from_dlpack(twice, device="cpu"), np.asarray(twice))
    assert np.array_equal(np.asarray(twice.copy()), np.asarray(twice))


def test_what_no_kernel_computes_is_copied_to_the_host_and_back(memory):
    sort, before = program(SQUARED + "\n" + SORTED, "%3"), memory.copied_out
    (made,) = run(sort, A)
    made.wait()
    assert memory.copied_out == before + 1
    assert_close(np.asarray(made), np.sort(A * A, 1) + A, 4)


def test_a_program_of_the_host_takes_what_a_device_has(memory):
    (made,) = run(program(SQUARED, "%0"), A)
    text = "func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> { return %a : tensor<8x4xf32> }"
    same = compile_module(parse(text), target="numpy").local
    assert np.array_equal(np.asarray(run(same, made)[0]), np.asarray(made))


def test_donated_memory_is_written_over_unless_it_is_read(memory):
    square = program(SQUARED, "%0", "tf.aliasing_output = 0 : i32, ")
    assert square.donated == (0,)
    (given,) = run(program(SQUARED, "%0"), A)
    where = memory.address(given.wait().stacked.data)
    (made,) = run(square, given)
    assert given.is_deleted and memory.address(made.wait().stacked.data) == where
    assert_close(np.asarray(made), A**4, 4)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(sample=programs())
def test_random_programs(memory, sample: Sample):
    check(sample)


def test_kernels_are_not_watched_there(memory):
    with pytest.raises(WeftError, match="cannot be watched"):
        compare_kernels(program(SQUARED, "%0"), [A])


def test_an_array_is_ready_when_the_device_is_done(memory, target: str):
    if target != "enqueued":
        return
    square, held, waited = program(SQUARED, "%0"), threading.Event(), []
    (given,) = run(square, A)
    given.wait()
    memory.stream.enqueue(Holding(held))
    (made,) = run(square, given)
    thread = threading.Thread(target=lambda: waited.append(made.wait()))
    thread.start()
    thread.join(0.05)
    assert not waited, "the device has not begun"
    held.set()
    thread.join(30)
    assert waited == [made]


class Holding:
    """A task that ends when it is told to."""

    calls_host, is_ready = True, True

    def __init__(self, held: threading.Event) -> None:
        self.held = held

    def __call__(self) -> None:
        assert self.held.wait(30)
