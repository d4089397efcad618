"""A client drives a server's devices: arrays, programs, results, errors."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from tests.threads import in_threads
from weft import Mesh, P, WeftError
from weft.ir.types import DTYPES
from weft.ops.custom_calls.callbacks import HostFunction
from weft.ops.custom_calls.declaration import config_text
from weft.remote.array import RemoteArray
from weft.remote.client import connect
from weft.remote.wire import CHUNK, INLINE

ROOT = Path(__file__).parent.parent.parent
MESH = Mesh(data=2, model=2)
RANDOM = np.random.default_rng(0)


def step(params, x):
    y = jnp.tanh(x @ params["w"] + params["b"])
    return {"w": params["w"] - 0.1, "b": params["b"] * 2}, y.sum()


PARAMS = {"w": RANDOM.standard_normal((8, 6), "f"), "b": RANDOM.standard_normal(6, "f")}
X = RANDOM.standard_normal((4, 8), "f")


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_elements_of_every_type_arrive_unchanged(client, name):
    dtype = DTYPES[name].numpy
    if dtype.itemsize == 0 or name == "token":
        pytest.skip("no elements")
    for shape in ((), (0, 3), (3, 5, 7), (INLINE // dtype.itemsize + 3,)):
        bits = RANDOM.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
        if DTYPES[name].bits < 8:
            bits &= (1 << DTYPES[name].bits) - 1
        given = bits.reshape(-1).view(dtype).reshape(shape)  # NaNs of every kind among them
        made = client.put(given)
        got = np.asarray(made)
        assert (got.shape, got.dtype) == (shape, dtype)
        assert got.tobytes() == given.tobytes()


def test_a_large_array_travels_in_chunks(client):
    given = RANDOM.integers(0, 256, (3 * CHUNK + 5,), np.uint8)
    np.testing.assert_array_equal(np.asarray(client.put(given)), given)


@pytest.mark.parametrize("spec", [P(), P("data"), P("model", "data"), P(None, ("data", "model"))])
def test_shards_are_those_of_the_sharding(client, spec):
    given = RANDOM.standard_normal((5, 6), "f")
    ours, theirs = weft.put(given, spec, MESH), client.put(given, spec, MESH)
    assert isinstance(theirs, weft.Array) and isinstance(theirs, np.ndarray)
    for mine, other in zip(ours.shards, theirs.shards, strict=True):
        assert (mine.device, mine.index) == (other.device, other.index)
        np.testing.assert_array_equal(mine.data, other.data)


def test_resharding_happens_at_the_server(client):
    given = client.put(np.arange(12.0).reshape(3, 4), P("data"), MESH)
    moved = client.put(given, P(None, "model"))
    assert moved.handle != given.handle and moved.sharding != given.sharding
    np.testing.assert_array_equal(moved, given)
    assert client.put(given) is given


def test_a_function_gives_what_it_gives_here(client):
    shardings = ({"w": P(None, "model"), "b": P("model")}, P("data"))
    here = weft.compile(step, PARAMS, X, mesh=MESH, in_shardings=shardings)
    there = client.compile(step, PARAMS, X, mesh=MESH, in_shardings=shardings)
    params, other = PARAMS, PARAMS
    for _ in range(3):
        (params, loss), (other, loss_there) = here(params, X), there(other, X)
        assert type(loss_there) is RemoteArray
        np.testing.assert_array_equal(loss, loss_there)
    for name in PARAMS:
        assert other[name].sharding == params[name].sharding
        np.testing.assert_array_equal(params[name], other[name])


def test_approximate_functions_are_asked_for_there(client):
    function, x = (lambda x: 1 / x), np.linspace(1, 9, 640, dtype="f")
    near = client.compile(function, x, approximate="reciprocal")(x)
    np.testing.assert_array_equal(near, weft.compile(function, x, approximate="reciprocal")(x))
    with pytest.raises(weft.WeftError, match="no approximate function 'log'"):
        client.compile(function, x, approximate="log")


def test_types_static_arguments_and_scalars_make_programs(client):
    scale = client.compile(lambda x, n, by: x * by + n, static_argnums=1)
    np.testing.assert_array_equal(scale(np.ones(3, "f"), 2, 4.0), np.full(3, 6, "f"))
    np.testing.assert_array_equal(scale(np.ones((2, 2), "i"), 3, 2), np.full((2, 2), 5, "i"))


def test_donated_arrays_are_gone(client):
    double = client.compile(lambda x: x * 2, donate_argnums=0)
    given = client.put(np.ones(5, "f"))
    made = double(given)
    with pytest.raises(WeftError, match="donated to a program"):
        np.asarray(given)
    with pytest.raises(WeftError, match="donated to a program"):
        double(given)
    np.testing.assert_array_equal(made, np.full(5, 2, "f"))
    np.testing.assert_array_equal(double(np.ones(5, "f")), made)


def test_results_are_asynchronous_and_ready_in_order(client):
    power = client.compile(lambda x: x @ x * 1e-3)
    made = client.put(np.ones((300, 300), "f"))
    for _ in range(30):
        made = power(made)
    assert made.shape == (300, 300)  # known before it is computed
    made.block_until_ready()
    assert made.is_ready and made.held is None


def test_modules_and_saved_executables(client, tmp_path):
    text = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %y = stablehlo.add %x, %x : tensor<3xf32>
      return %y : tensor<3xf32>
    }"""
    (made,) = client.compile(text)(np.arange(3, dtype="f"))
    np.testing.assert_array_equal(made, [0, 2, 4])
    compiled = weft.compile(step, PARAMS, X)
    compiled.save(tmp_path / "step.weft")
    for given in (tmp_path / "step.weft", (tmp_path / "step.weft").read_bytes()):
        params, loss = client.load(given)(PARAMS, x=X)
        np.testing.assert_array_equal(loss, compiled(PARAMS, X)[1])
        assert {*params} == {"w", "b"}


def test_arrays_of_a_server_are_arguments_here(client):
    there = client.put(np.arange(4, dtype="f"))
    np.testing.assert_array_equal(weft.compile(lambda x: x + 1)(there), [1, 2, 3, 4])
    np.testing.assert_array_equal(there * 2 + 1, [1, 3, 5, 7])
    np.testing.assert_array_equal(jnp.negative(there), -np.arange(4, dtype="f"))


def test_a_failure_is_carried_by_the_results_to_whoever_reads_them(client):
    program = client.compile(lambda x, y: x + y, np.ones(3, "f"), np.ones(3, "f"))
    ready = program._last.program
    x = client.put(np.ones(3, "f"))
    (bad,) = ready.run([x, client.put(np.ones(4, "f"))])
    (worse,) = ready.run([bad, x])
    for array in (worse, bad):
        with pytest.raises(WeftError, match=r"y has the shape \(4,\), but the program takes"):
            np.asarray(array)
        with pytest.raises(WeftError, match="has the shape"):
            array.block_until_ready()
    np.testing.assert_array_equal(program(x, x), [2, 2, 2])  # the session goes on


def test_a_failure_names_the_calls_it_went_through(client):
    program = client.compile(lambda x: x + 1, np.ones(3, "f"))._last
    (bad,) = program.program.run([client.put(np.ones(4, "f"))])  # the first cause
    (worse,) = program.program.run([bad])
    with pytest.raises(WeftError, match="has the shape") as caught:
        worse.block_until_ready()
    (note,) = caught.value.__notes__
    assert "(worse,) = program" in note
    with pytest.raises(WeftError) as caught:
        bad.block_until_ready()
    assert "the first cause" in caught.value.__notes__[0]


def test_callbacks_are_refused_at_the_users_line_on_both_sides(client):
    def shout(x):
        jax.debug.print("{}", x)
        return x

    with pytest.raises(weft.Unsupported, match="calls Python functions"):
        client.compile(shout, np.ones(3))
    called: list[object] = []
    function = HostFunction(called.append)  # of this process, which is the server's, too
    for name in ("weft.host_call", "weft.host_call_on_pieces", "weft.inspect_sharding"):
        text = f"""func.func @main(%x: tensor<f32>) -> tensor<f32> {{
          %y = stablehlo.custom_call @{name}(%x)
            {{api_version = 4 : i32, backend_config = {config_text(function=function.number)}}} :
            (tensor<f32>) -> tensor<f32> loc("train.py":41:7)
          return %y : tensor<f32>
        }}"""
        with pytest.raises(WeftError, match="cannot call Python functions") as caught:
            client.send_program("module", text.encode(), {})
        assert caught.value.loc.line == ("train.py", 41)
    assert not called


def test_errors_of_the_compiler_come_back(client):
    with pytest.raises(WeftError, match="unknown option of a program: speed"):
        client.send_program("module", b"module {}", {"speed": 9})
    with pytest.raises(WeftError, match="unknown option of a program: level"):
        client.send_program("module", b"module {}", {"level": "9"})
    with pytest.raises(WeftError, match="expected"):
        client.send_program("module", b"func.func @main( {", {})
    with pytest.raises(WeftError, match="not a Weft executable"):
        client.send_program("executable", b"what is this", {})
    with pytest.raises(WeftError, match="not a Weft executable"):
        client.load(b"nothing")


def test_dropped_arrays_and_programs_are_freed_there(serving):
    server, address = serving()
    with connect(address) as client:
        (session,) = server.sessions.values()
        kept = client.put(np.ones(100_000))
        assert session.held == kept.nbytes
        double = client.compile(lambda x: x * 2)
        for _ in range(5):
            made = double(kept)
        made.block_until_ready()
        made.delete()
        made.delete()
        for use in (type(made).wait, np.asarray, lambda a: a + 1):
            with pytest.raises(WeftError, match="this array was deleted"):
                use(made)
        with pytest.raises(WeftError, match="this array was deleted"):
            double(made)
        del made, double
        gc.collect()
        client.connection.request("free").wait()  # all that was sent before is done
        assert {*session.arrays} >= {kept.handle} and len(session.arrays) <= 3
        assert not session.programs and session.held <= kept.nbytes + 16
    for _ in range(200):
        if not server.sessions:
            break
        threading.Event().wait(0.01)
    assert not server.sessions and not session.arrays and session.held == 0


def test_threads_share_a_client(client):
    add = client.compile(lambda x, n: x + n)
    add(np.zeros(10), 0.0)
    wrong: list[object] = []

    def work(n: int) -> None:
        made = client.put(np.full(10, float(n)))
        for _ in range(20):
            made = add(made, 1.0)
        if not np.array_equal(made, np.full(10, n + 20.0)):
            wrong.append(n)

    in_threads(work, 6)
    assert not wrong


def test_a_client_needs_neither_compiler_nor_framework(address, tmp_path):
    weft.compile(lambda x: x * 2 + 1, np.ones(3, "f")).save(tmp_path / "f.weft")
    script = f"""
import sys
for name in ("jax", "jaxlib", "llvmlite", "torch"):
    sys.modules[name] = None
import numpy as np, weft
with weft.connect({address!r}) as client:
    program = client.load({str(tmp_path / "f.weft")!r})
    print(np.asarray(program(client.put(np.arange(3, dtype="f")))).tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[1.0, 3.0, 5.0]\n", "")


def test_devices(client):
    assert [d.platform for d in client.devices(MESH)] == ["remote"] * 4
    assert client.devices(MESH)[3].position == (("data", 1), ("model", 1))
    assert len(client.devices()) == 1
    with pytest.raises(WeftError, match="the server has 1,024 devices"):
        client.devices(2000)
