"""Running on arrays: enqueued work, errors that travel, donation, callbacks that call back."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import weft.array as wa
from tests.threads import in_threads
from weft.array import Array, put
from weft.array.stream import HostStream
from weft.capture import parse
from weft.errors import WeftError
from weft.mesh import Mesh, P
from weft.ops.custom_calls.callbacks import HOST_CALL, HostFunction
from weft.ops.custom_calls.declaration import config_text
from weft.pipeline import local_program
from weft.run import LocalProgram, run

MESH = Mesh(x=4)
STEP = """module {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%w: tensor<2x3xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>DONATED},
                  %g: tensor<2x3xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<2x3xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.subtract %w, %g : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
}"""
W = np.arange(24, dtype=np.float32).reshape(8, 3)


def step(donated: bool = False) -> LocalProgram:
    return local_program(
        parse(STEP.replace("DONATED", ", jax.buffer_donor = true" if donated else ""))
    )


def calling(function: HostFunction, result: str = "tensor<2xf32>") -> LocalProgram:
    """A program on two devices that calls Python."""
    config = config_text(function=function.number)
    return local_program(
        parse(f"""module {{
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<2xf32> {{weft.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}})
      -> ({result} {{weft.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}}) {{
    %0 = stablehlo.custom_call @{HOST_CALL}(%x)
      {{backend_config = {config}, api_version = 4 : i32, has_side_effect = true}}
      : (tensor<2xf32>) -> {result}
    return %0 : {result}
  }}
}}""")
    )


def test_results_are_arrays_with_the_sharding_of_the_program():
    (out,) = run(step(), put(W, P("x"), MESH), put(W / 2, P("x"), MESH))
    assert out.shape == (8, 3) and out.mesh == MESH
    assert np.array_equal(out.numpy(), W / 2)
    assert out.wait() is out and out.is_ready


def test_whole_arrays_are_put_where_the_program_wants_them():
    (out,) = run(step(), W, W / 2)
    assert np.array_equal(np.asarray(out), W / 2)


def test_tokens_are_neither_given_nor_taken():
    text = """func.func @main(%t: !stablehlo.token, %x: tensor<2xf32>)
      -> (tensor<2xf32>, !stablehlo.token) {
    %0 = stablehlo.after_all %t : !stablehlo.token
    %1 = stablehlo.add %x, %x : tensor<2xf32>
    return %1, %0 : tensor<2xf32>, !stablehlo.token
  }"""
    (out,) = run(local_program(parse(text), devices=2), np.ones(2, np.float32))
    assert out.numpy().tolist() == [2, 2]


def test_results_feed_programs_before_they_are_ready():
    gate = threading.Event()
    wait = HostFunction(lambda x: (gate.wait(5), (x + 1,))[1])
    program = calling(wait)
    (first,) = run(program, np.zeros(4, np.float32))
    (second,) = run(program, first)
    assert not first.is_ready and not second.is_ready
    assert "not ready" in repr(second)
    gate.set()
    assert second.numpy().tolist() == [2] * 4


def test_the_host_is_called_once_for_each_distinct_value():
    seen: list[float] = []
    note = HostFunction(lambda x: (seen.append(float(x[0])), (x,))[1])
    (out,) = run(calling(note), np.array([1, 2, 3, 4], np.float32))
    assert out.numpy().tolist() == [1, 2, 3, 4] and seen == [1, 3]


def test_an_error_reaches_whoever_uses_the_results():
    def fail(x):
        raise ZeroDivisionError("no such thing")

    program = calling(HostFunction(fail))
    (first,) = run(program, np.zeros(4, np.float32))
    (second,) = run(program, first)
    for out in (first, second):
        with pytest.raises(ZeroDivisionError) as caught:
            out.numpy()
        assert any("custom_call" in note for note in caught.value.__notes__)
    assert "failed" in repr(second)
    with pytest.raises(ZeroDivisionError):  # op by op, at once
        run(program, np.zeros(4, np.float32), sync_every_op=True)


def test_callbacks_may_run_programs_and_wait_for_them():
    inner = step()
    stream = HostStream()

    def call_back(x):
        (made,) = run(inner, W, W / 2, stream=stream)
        return (x + made.numpy()[0, 1],)

    def in_a_thread(x):
        found: list[float] = []
        thread = threading.Thread(target=lambda: found.append(call_back(x)[0]))
        thread.start()
        thread.join(5)
        return (found[0],)

    for function in (call_back, in_a_thread):
        program = calling(HostFunction(function))
        outs = [run(program, np.zeros(4, np.float32), stream=stream)[0] for _ in range(3)]
        assert all(out.wait(10).numpy().tolist() == [0.5] * 4 for out in outs)


def test_callbacks_of_several_runs_come_in_order():
    seen: list[float] = []

    def slow(x):
        time.sleep(0.01 if x[0] == 0 else 0)
        seen.append(float(x[0]))
        return (x,)

    program = calling(HostFunction(slow))
    outs = [run(program, np.full(4, n, np.float32))[0] for n in range(4)]
    for out in reversed(outs):
        out.wait(10)
    assert seen == sorted(seen)


def test_a_callback_may_wait_for_what_is_enqueued_behind_it():
    behind: list[Array] = []
    gate = threading.Event()

    def ask(x):
        gate.wait(5)
        return (x + behind[0].numpy()[0, 1],)

    stream = HostStream()
    (out,) = run(calling(HostFunction(ask)), np.zeros(4, np.float32), stream=stream)
    behind += run(step(), W, W / 2, stream=stream)
    gate.set()
    assert out.wait(10).numpy().tolist() == [0.5] * 4


def test_a_callback_that_waits_for_its_own_results_is_an_error():
    mine: list[Array] = []
    gate = threading.Event()

    def ask(x):
        gate.wait(5)
        return (mine[0].numpy(),)

    mine += run(calling(HostFunction(ask)), np.zeros(4, np.float32))
    gate.set()
    with pytest.raises(WeftError, match="waits for a result of the program that calls it"):
        mine[0].wait(10)


def test_donated_arrays_are_gone_and_their_memory_is_used_again():
    program = step(donated=True)
    (first,) = run(program, put(W, P("x"), MESH), W)
    pointer = first.wait().stacked.data.ctypes.data
    given = first
    (second,) = run(program, given, W)
    assert given.is_deleted
    with pytest.raises(WeftError, match="donated to a program"):
        given.numpy()
    assert second.wait().stacked.data.ctypes.data == pointer
    assert np.array_equal(second.numpy(), -W)


def test_an_array_may_be_read_and_then_donated_before_it_is_ready():
    gate = threading.Event()
    wait = HostFunction(lambda x: (gate.wait(5), (x + 1,))[1])
    (pending,) = run(calling(wait), np.zeros(4, np.float32))
    text = """module { sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<2xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}]>DONATED})
      -> (tensor<2xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
    %0 = stablehlo.add %x, %x : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}"""
    plain = local_program(parse(text.replace("DONATED", "")))
    taking = local_program(parse(text.replace("DONATED", ", jax.buffer_donor = true")))
    (read,), (taken,) = run(plain, pending), run(taking, pending)
    assert pending.is_deleted
    gate.set()
    assert read.numpy().tolist() == taken.numpy().tolist() == [2] * 4


def test_a_result_that_is_a_view_of_an_argument_outlives_its_donation():
    text = """module { sdy.mesh @mesh = <["x"=4]>
  func.func @main(%x: tensor<2x3xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<2x3xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
          tensor<6xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
    %0 = stablehlo.reshape %x : (tensor<2x3xf32>) -> tensor<6xf32>
    return %x, %0 : tensor<2x3xf32>, tensor<6xf32>
  }
}"""
    (made,) = run(step(donated=True), put(2 * W, P("x"), MESH), W)
    same, flat = run(local_program(parse(text)), made)
    (last,) = run(step(donated=True), made, W)
    assert np.array_equal(last.numpy(), 0 * W)
    assert np.array_equal(same.numpy(), W) and np.array_equal(flat.numpy(), W.reshape(-1))


def test_what_a_user_holds_is_never_written_over():
    mine = W.copy()
    (out,) = run(step(donated=True), put(mine, P("x"), MESH), W)
    assert np.array_equal(out.numpy(), 0 * W) and np.array_equal(mine, W)


def test_a_deleted_array_is_refused_at_once():
    array = put(W, P("x"), MESH)
    array.delete()
    with pytest.raises(WeftError, match="its elements are gone"):
        run(step(), array, W)


def test_wrong_arguments_are_refused_before_anything_runs():
    with pytest.raises(WeftError, match="takes 2 arguments, 1 given"):
        run(step(), W)
    (out,) = run(step(), W[:4], W)
    with pytest.raises(WeftError, match="argument 0 holds"):
        out.wait()


def test_many_threads_run_one_program():
    """The frames of a program, with their planned memory, go from hand to hand."""
    text = """module { sdy.mesh @mesh = <["x"=4]>
  func.func @main(%x: tensor<64x64xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<64x64xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.add %x, %x : tensor<64x64xf32>
    %1 = stablehlo.multiply %0, %x : tensor<64x64xf32>
    %2 = stablehlo.dot_general %1, %0, contracting_dims = [1] x [0] :
      (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %3 = stablehlo.subtract %2, %1 : tensor<64x64xf32>
    %4 = stablehlo.tanh %3 : tensor<64x64xf32>
    return %4 : tensor<64x64xf32>
  }
}"""
    program = local_program(parse(text))
    assert program.memory().arena > 0
    draw = np.random.default_rng(0)
    inputs = [draw.standard_normal((256, 64)).astype(np.float32) / 8 for _ in range(8)]
    expected = [run(program, x)[0].numpy().copy() for x in inputs]
    wrong: list[int] = []

    def work(n: int) -> None:
        stacked = put(inputs[n], P("x"), MESH).stacked
        for _ in range(25):
            (out,) = program(stacked)
            made = Array(
                (256, 64), put(inputs[n]).element_type, P("x").sharding(2, MESH), MESH, out
            )
            if not np.array_equal(made.numpy(), expected[n]):
                wrong.append(n)

    in_threads(work, 8)
    assert not wrong
    assert len(program.frames) <= 9


LAST = """
import threading, numpy as np
from tests.run.test_execute import calling
from weft.ops.custom_calls.callbacks import HostFunction
from weft.run import run

def late(x):
    threading.main_thread().join()
    print("called with", x[0], flush=True)
    return (x,)

program = calling(HostFunction(late))
for start in (1, 3):
    run(program, np.full(4, start, np.float32))
"""


def test_what_nobody_waits_for_is_done_before_the_process_ends():
    """The callbacks wait until the main thread has ended, so they cannot come early by chance."""
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", LAST], cwd=root, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["called with 1.0"] * 2 + ["called with 3.0"] * 2


def test_an_error_that_no_result_can_carry_is_told(monkeypatch):
    told: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_value))
    config = config_text(function=(fail := HostFunction(lambda x: 1 / 0)).number)
    text = f"""func.func @main(%x: tensor<2xf32>) {{
      stablehlo.custom_call @{HOST_CALL}(%x)
        {{backend_config = {config}, api_version = 4 : i32, has_side_effect = true}}
        : (tensor<2xf32>) -> ()
      return
    }}"""
    stream = HostStream()
    assert run(local_program(parse(text)), np.zeros(2, np.float32), stream=stream) == ()
    for _ in range(500):  # the call runs on the stream's thread
        if told:
            break
        time.sleep(0.02)
    assert fail is not None and isinstance(told[0], ZeroDivisionError)


def idle_stream(monkeypatch: pytest.MonkeyPatch) -> HostStream:
    """A stream whose own threads never come to work."""
    stream = HostStream()
    monkeypatch.setattr(stream, "_staff", lambda: None)
    return stream


def later() -> LocalProgram:
    """A program that is enqueued however short it is."""
    program = step()
    program.is_brief = False
    return program


def test_who_waits_does_what_nobody_has_begun(monkeypatch):
    stream, program = idle_stream(monkeypatch), later()
    (first,) = run(program, W, W / 2, stream=stream)
    (second,) = run(program, first, W / 2, stream=stream)
    (third,) = run(program, second, W / 2, stream=stream)
    assert not first.is_ready
    assert np.array_equal(second.numpy(), np.zeros_like(W))
    assert first.is_ready and not third.is_ready and not stream.busy
    assert np.array_equal(third.numpy(), -W / 2)
    assert stream.is_idle


def test_who_has_no_time_does_nothing_for_others(monkeypatch):
    stream = idle_stream(monkeypatch)
    (out,) = run(later(), W, W / 2, stream=stream)
    with pytest.raises(WeftError, match="not ready after"):
        out.wait(0.01)
    assert not out.is_ready and len(stream.tasks) == 1
    assert out.wait() is out


def test_callbacks_are_left_to_the_stream():
    stream, seen = HostStream(), []
    note = HostFunction(lambda x: (seen.append(threading.current_thread()), (x,))[1])
    (out,) = run(calling(note), np.zeros(4, np.float32), stream=stream)
    (behind,) = run(later(), W, W / 2, stream=stream)
    behind.wait()
    out.wait()  # what is behind may overtake it while it calls
    assert seen and threading.current_thread() not in seen


def test_an_error_in_what_is_taken_over_is_raised(monkeypatch):
    stream, program = idle_stream(monkeypatch), later()
    (out,) = run(program, W, W / 2, stream=stream)

    def fail() -> None:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr(stream.tasks[0], "_stacks", fail)
    with pytest.raises(ZeroDivisionError):
        out.wait()
    assert stream.is_idle


def test_an_interrupt_is_told_to_all_who_wait(monkeypatch):
    stream, program = idle_stream(monkeypatch), later()
    (out,) = run(program, W, W / 2, stream=stream)
    (behind,) = run(program, W, W / 4, stream=stream)

    def interrupted(task: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stream, "_do", interrupted)
        out.wait()
    assert isinstance(out.error, KeyboardInterrupt) and len(stream.tasks) == 1
    assert np.array_equal(behind.numpy(), W * 3 / 4) and stream.is_idle


def test_many_wait_for_the_same_stream():
    """Whoever does it, everything is done once and in order."""
    stream, program = HostStream(), later()
    wrong: list[int] = []

    def work(number: int) -> None:
        x = put(W * 0 + number, P("x"), MESH)
        one = put(W * 0 + 1, P("x"), MESH)
        for n in range(1, 40):
            (x,) = run(program, x, one, stream=stream)
            if n % 3 == 0 and not (x.numpy() == number - n).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_devices_are_listed():
    assert [d.id for d in wa.devices(3)] == [0, 1, 2]
    assert repr(wa.devices(Mesh(a=2, b=2))[3]) == "Device(3, a=1, b=1)"


REPLICATED = """module {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%x: tensor<2x3xf32> {weft.sharding = #sdy.sharding<@mesh, [GIVEN, {}]>})
      -> (tensor<2x3xf32> {weft.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
    %0 = stablehlo.add %x, %x : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
}"""


@pytest.mark.parametrize("target", ["numpy", "llvm", "device", "enqueued"], indirect=True)
def test_results_are_stored_once_for_devices_that_hold_the_same(target: str):
    """A program may compute them on each, as after an all_to_all; the next one takes one."""
    spread, once = (
        local_program(parse(REPLICATED.replace("GIVEN", given)))
        for given in ('{"x", "y"}', '{"y"}')
    )
    x = put(np.tile(W[:4], (2, 1)), P(("x", "y")), Mesh(x=2, y=2))  # equal along x
    (y,) = run(spread, x)
    assert y.wait().stacked.data.shape == (1, 2, 2, 3)
    for _ in range(3):
        (z,) = run(once, y)
        np.testing.assert_array_equal(z, 4 * W[:4])
        (y,) = run(spread, x)
