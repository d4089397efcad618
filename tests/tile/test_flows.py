"""Control flow of small kernels as one kernel: the same bits, in one launch."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jax import lax

import weft
from tests.run.stacks import MESH, along, shared, vary
from weft.array.stacked import stack
from weft.capture import parse
from weft.emit.llvm.target import LLVM
from weft.errors import WeftError
from weft.executable.items import Branch, DivergentBranch, DivergentLoop, Launch, Loop, all_items
from weft.kernels.flow import ControlFlow, FlowBlock, FlowLoop, KernelRun, statements_in
from weft.kernels.flow_buffers import Buffers
from weft.kernels.read import parse_kernel
from weft.kernels.text import kernel_text
from weft.kernels.verify import verify_kernel
from weft.pipeline import local_program
from weft.target import Options

EXACT = Options(excess_precision=False)


@dataclass(frozen=True)
class Apart(LLVM):
    """The same target without flows: every kernel is a launch of its own."""

    def unsupported_kernel(self, kernel: Any) -> str | None:
        """Refuse flows."""
        return (
            "flows are left apart"
            if isinstance(kernel, ControlFlow)
            else super().unsupported_kernel(kernel)
        )


# Compiling takes long: what fails is shown as it was drawn.
DRAWN: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": (Phase.explicit, Phase.reuse, Phase.generate),
}

# Nests that are drawn: lists of ("op", which) and of control flow with lists inside.

LEAVES = st.tuples(st.just("op"), st.integers(0, 8))


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    listed = st.lists(inner, min_size=1, max_size=3)
    counts = st.sampled_from([0, 1, 2, 5])
    return st.one_of(
        st.tuples(st.just("fori"), counts, listed),
        st.tuples(st.just("while"), counts, listed),
        st.tuples(st.just("cond"), listed, listed),
        st.tuples(st.just("switch"), listed, listed, listed),
        st.tuples(st.just("scan"), st.sampled_from([1, 2, 4]), listed),
    )


NESTS = st.lists(_nested(st.recursive(LEAVES, _nested, max_leaves=5)), min_size=1, max_size=2)


def step(nest: Any, state: Any) -> Any:
    """What one entry of a nest makes of (i, x, y)."""
    match nest:
        case ("op", which):
            return leaf(which, state)
        case ("fori", count, inner):
            return lax.fori_loop(0, count, lambda n, s: all_steps(inner, (s[0] + n, *s[1:])), state)
        case ("while", count, inner):
            first = state[0]

            def more(s: Any) -> Any:
                return (s[0] - first < count) & (s[0] >= first)

            def work(s: Any) -> Any:
                made = all_steps(inner, s)
                return (s[0] + 1, *made[1:])

            return lax.while_loop(more, work, state)
        case ("cond", yes, no):
            chosen = (state[0] % 2 == 0) | (state[1][0] == 0)
            return lax.cond(chosen, lambda s: all_steps(yes, s), lambda s: all_steps(no, s), state)
        case ("switch", *parts):
            ways = [lambda s, p=part: all_steps(p, s) for part in parts]
            return lax.switch(state[0] - 1, ways, state)
        case ("scan", count, inner):

            def round_(s: Any, t: Any) -> Any:
                made = all_steps(inner, (s[0] + t, *s[1:]))
                return made, made[1][-1]

            state, ys = lax.scan(round_, state, jnp.arange(count, dtype=jnp.int32))
            return (*state[:2], state[2] + ys.sum().astype(state[2].dtype))
    raise AssertionError(nest)


def all_steps(nests: Any, state: Any) -> Any:
    for nest in nests:
        state = step(nest, state)
    return state


def leaf(which: int, state: Any) -> Any:
    i, x, y = state
    size = x.shape[0]
    two = jnp.asarray(2, x.dtype)
    match which:
        case 0:
            return i, x * two + y, y
        case 1:
            return i, y, x  # buffers change places
        case 2:
            return i + 1, x, y - x
        case 3:
            return i, x.at[jnp.abs(i) % size].set(y[0]), y
        case 4:
            return i, jnp.roll(x, 1), y
        case 5:
            return i, jnp.where(x > y, x, y) if x.dtype != jnp.complex64 else x + y, x
        case 6:
            return i, x, x
        case 7:
            return i, x, y.at[0].set(x.sum())
    return i, lax.dynamic_slice(jnp.concatenate([x, y]), (jnp.abs(i) % size,), (size,)), y


def module_of(nests: Any, dtype: str, size: int) -> Any:
    """A module that takes i, x and y, and gives what they become."""
    given = (np.int32(0), np.zeros(size, dtype), np.zeros(size, dtype))
    lowered = jax.jit(lambda i, x, y: all_steps(nests, (i, x, y))).lower(*given)
    return parse(lowered.as_text())


def arguments(dtype: str, size: int, seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    x, y = (random.integers(-3, 4, size).astype(dtype) for _ in range(2))
    if np.dtype(dtype).kind == "f":
        x[0] = np.nan if seed % 3 == 0 else x[0]
    return [np.int32(random.integers(0, 4)), x, y]


def flows(program: Any) -> list[ControlFlow]:
    items = [i for i in all_items(program.tiled.block) if isinstance(i, Launch)]
    return [item.kernel for item in items if isinstance(item.kernel, ControlFlow)]


def assert_is_native(program: Any) -> None:
    """No control flow is left, and the texts of flows say all there is of them."""
    left = (Loop, Branch, DivergentLoop, DivergentBranch)
    assert not [i for i in all_items(program.tiled.block) if isinstance(i, left)]
    for flow in flows(program):
        read = parse_kernel(kernel_text(flow))
        assert read == flow and kernel_text(read) == kernel_text(flow)
        verify_kernel(read)


def bits(results: Any) -> list[bytes]:
    return [np.ascontiguousarray(made.on_host().data).tobytes() for made in results]


DTYPES = ("float32", "int32", "float16", "complex64", "uint8", "float64")


def compare(nests: Any, dtype: str, size: int, seed: int) -> None:
    with jax.enable_x64(dtype == "float64"):
        module = module_of(nests, dtype, size)
    together = local_program(module, target=LLVM(EXACT))
    apart = local_program(module, target=Apart(EXACT))
    if size > 1:  # of one element, parts are empty, and numpy looks after these
        assert_is_native(together)
    stacks = [stack(np.asarray(a)[None], together.sub_axes) for a in arguments(dtype, size, seed)]
    assert bits(together(*stacks)) == bits(apart(*stacks))
    assert bits(together(*stacks)) == bits(apart(*stacks))  # again, into the same memory


@settings(max_examples=12, **DRAWN)
@given(NESTS, st.sampled_from(DTYPES), st.sampled_from([1, 3, 50]), st.integers(0, 5))
def test_nests_give_the_same_bits(nests, dtype, size, seed):
    """Loops and branches inside of each other are one launch, with the bits of single kernels."""
    compare(nests, dtype, size, seed)


@pytest.mark.long
@settings(max_examples=300, **DRAWN)
@given(NESTS, st.sampled_from(DTYPES), st.sampled_from([1, 3, 50, 700]), st.integers(0, 5))
def test_many_nests_give_the_same_bits(nests, dtype, size, seed):
    compare(nests, dtype, size, seed)


@pytest.mark.parametrize("size", [3, 50, 700])
@pytest.mark.parametrize("body", [[("op", 1)], [("op", 1), ("op", 0)], [("op", 6), ("op", 8)]])
@pytest.mark.parametrize("kind", ["fori", "while"])
def test_buffers_that_change_places(size, body, kind):
    """Few bytes are copied at the end of a round, and buffers of more change places."""
    for count in (0, 1, 2, 5):
        compare([(kind, count, body)], "float32", size, 1)


def _twice(x):
    """Carries one value under two names, one of which stays where it is."""

    def body(_, held):
        x, _, _ = held
        y = x * 0.5 + 1
        return y, y, y[::-1]

    return lax.fori_loop(0, 3, body, (x, x * 2, x * 3))


def _views(x):
    """Carries what is a view of another shape, and of another type."""

    def body(_, held):
        x, flat, bits = held
        word = lax.bitcast_convert_type(x * 2, jnp.uint32)
        return (flat * 0.5).reshape(x.shape), x.reshape(-1) + 1, bits ^ word

    start = lax.bitcast_convert_type(x, jnp.uint32)
    return lax.fori_loop(0, 4, body, (x, x.reshape(-1), start))


@pytest.mark.parametrize("program", [_twice, _views])
@pytest.mark.parametrize("size", [2, 64])
def test_values_that_share_their_memory(program, size):
    """Buffers of few bytes are copied at the end of a round, others change places."""
    x = np.linspace(0, 1, size * 4, dtype=np.float32).reshape(4, size)
    compiled = weft.compile(program, x, excess_precision=False)
    assert "flow" in compiled.text("tiled")
    plain = weft.compile(program, x, target="numpy")
    for made, expected in zip(compiled(x), plain(x), strict=True):
        np.testing.assert_array_equal(np.asarray(made), np.asarray(expected))


@settings(max_examples=6, **DRAWN)
@given(NESTS, st.sampled_from([("a", "b"), ("a",), ("b",), ()]), st.integers(0, 5))
def test_devices_go_different_ways(nests, axes, seed):
    """Where predicates vary, every device goes through a flow by itself."""
    module = along(module_of(nests, "int32", 3), [axes, ("a", "b"), ("a",)])
    together = local_program(module, target=LLVM(EXACT))
    by_numpy = local_program(module)
    listed = zip(arguments("int32", 3, seed), (axes, ("a", "b"), ("a",)), strict=True)
    pieces = [vary(np.asarray(a), varied) for a, varied in listed]
    pieces[0] = (np.arange(MESH.size, dtype=np.int32) % 3) if axes == ("a", "b") else pieces[0]
    given_ = [shared(together, n, a) for n, a in enumerate(pieces)]
    assert bits(together(*given_)) == bits(by_numpy(*given_))


def test_every_device_has_a_turn():
    """A loop that devices leave at different times is a launch with a task for each device."""
    module = along(module_of([("while", 5, [("op", 0)])], "int32", 3), [("a", "b")] * 3)
    program = local_program(module, target=LLVM(EXACT))
    (flow,) = flows(program)
    assert flow.devices == (2, 3)
    assert "each 2, 3" in kernel_text(flow)
    assert_is_native(program)


def test_collectives_keep_devices_together():
    """Devices that meet in a loop do not go through it one by one."""
    text = """module {
  sdy.mesh @mesh = <["a"=2, "b"=3]>
  func.func @main(%n: tensor<i32>, %x: tensor<4xf32>) -> tensor<4xf32> {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %r:2 = stablehlo.while(%c = %n, %v = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %go = stablehlo.compare GT, %c, %zero, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %less = stablehlo.subtract %c, %one : tensor<i32>
      %s = "stablehlo.all_reduce"(%v) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [
          #stablehlo.axis_ref<name = "b">]>, use_global_device_ids}> ({
      ^bb0(%l: tensor<f32>, %q: tensor<f32>):
        %sum = stablehlo.add %l, %q : tensor<f32>
        stablehlo.return %sum : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %less, %s : tensor<i32>, tensor<4xf32>
    }
    return %r#1 : tensor<4xf32>
  }
}"""
    module = along(parse(text), [("a",), ("a", "b")])
    program = local_program(module, target=LLVM(EXACT))
    assert not [flow for flow in flows(program) if flow.devices]
    given_ = [np.array([1, 1, 1, 2, 2, 2], np.int32), np.ones((6, 4), np.float32)]
    (made,) = program(*[shared(program, n, a) for n, a in enumerate(given_)])
    want = np.repeat(np.float32([3, 9]), 3)[:, None] * np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(made.pieces(), want)


# What is around flows


def newton(x: Any) -> Any:
    return lax.while_loop(
        lambda c: jnp.abs(c * c - x).max() > 1e-5, lambda c: 0.5 * (c + x / c), jnp.ones_like(x)
    )


def test_a_program_is_one_call():
    """A loop of small kernels is one native call, which takes stacks as they are."""
    compiled = weft.compile(newton, np.float32([2, 3]))
    assert compiled.program.local.direct is not None and compiled.program.local.is_brief
    np.testing.assert_allclose(compiled(np.float32([2, 3])), np.sqrt(np.float32([2, 3])), 1e-6)
    assert "steps" in compiled.text("tiled") and "loop v" in compiled.text("tiled")
    assert "weft_goes_on" in compiled.text("emitted")


@pytest.mark.parametrize("trust", [False, True])
def test_saved_flows_run(tmp_path, trust):
    """A saved program has its flows, and its machine code where that is trusted."""
    x = np.float32([2, 3, 5])
    compiled = weft.compile(newton, x)
    compiled.save(tmp_path / "newton.weft", code=True)
    loaded = weft.load(tmp_path / "newton.weft", trust=trust)
    np.testing.assert_array_equal(loaded(x), compiled(x))


def test_donated_memory():
    """What is donated is not written over while the loop may read it."""

    def twice(x: Any, y: Any) -> Any:
        return lax.fori_loop(0, 3, lambda n, c: (c[1] + x, c[0] * 2), (x, y))

    x, y = np.arange(60, dtype=np.float32), np.ones(60, np.float32)
    want = jax.tree.map(np.asarray, jax.jit(twice)(x, y))
    compiled = weft.compile(twice, x, y, donate_argnums=(0, 1))
    for a, b in zip(compiled(x.copy(), y.copy()), want, strict=True):
        np.testing.assert_array_equal(a, b)


def endless(x: Any) -> Any:
    return lax.while_loop(lambda c: c[1] >= 0, lambda c: (c[0] + 1, c[1]), (x, x * 0))


def test_a_signal_ends_a_loop():
    """Ctrl-C ends a loop that runs without Python, and the next run is not affected."""
    program = weft.compile(endless, np.int32(0)).program.local
    finite = weft.compile(newton, np.float32([2, 3]))

    class Enough(Exception):
        """What the handler raises."""

    def handler(number: int, frame: Any) -> None:
        raise Enough

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        begin = time.monotonic()
        with pytest.raises(Enough):
            program(stack(np.zeros((1,), np.int32), program.sub_axes))
        assert time.monotonic() - begin < 20
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_allclose(finite(np.float32([2, 3])), np.sqrt(np.float32([2, 3])), 1e-6)


def test_a_signals_handler_computes():
    """A handler that runs programs inside of a loop leaves the loop's memory alone."""

    def turns(most: Any, x: Any) -> Any:
        def turn(c: Any) -> Any:
            return c[0] + 1, jnp.roll(c[1], 1) * 0.5 + 1, jnp.flip(c[2]) - c[1]

        return lax.while_loop(lambda c: c[0] < most, turn, (0, x, x))[1:]

    x, ran = np.arange(1000, dtype=np.float32), 0
    compiled = weft.compile(turns, np.int32(0), x)
    other = weft.compile(lambda x: turns(np.int32(9), x + 3), x)
    large = weft.compile(lambda a: jnp.sort(a @ a, axis=0), np.ones((200, 200), np.float32))

    def handler(number: int, frame: Any) -> None:
        nonlocal ran
        other(x), large(np.ones((200, 200), np.float32))
        ran += 1

    most = np.int32(5_000_000)  # half a second: several checks for signals
    want = [np.asarray(made) for made in compiled(most, x)]
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.06, 0.06)
        got = [np.asarray(made) for made in compiled(most, x)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ran
    for made, wanted in zip(got, want, strict=True):
        np.testing.assert_array_equal(made, wanted)


def test_threads_run_flows_at_once():
    """Each run has memory of its own."""
    compiled = weft.compile(newton, np.float32([2, 3]))
    given_ = [np.float32([n + 2, n + 3]) for n in range(8)]
    wrong: list[Any] = []

    def work(x: Any) -> None:
        for _ in range(50):
            if not np.allclose(compiled(x), np.sqrt(x), 1e-5):
                wrong.append(x)

    threads = [threading.Thread(target=work, args=(x,)) for x in given_]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_large_kernel_stays_apart():
    """A kernel that threads share keeps its loop out of a flow, but not what is small in it."""

    def f(x: Any) -> Any:
        def body(n: Any, x: Any) -> Any:
            x = jnp.tanh(x @ x)
            return lax.cond(x[0, 0] > 0, lambda x: x * 2, lambda x: x, x)

        return lax.fori_loop(0, 3, body, x)

    x = np.eye(400, dtype=np.float32)
    compiled = weft.compile(f, x)
    assert any(isinstance(i, Loop) for i in compiled.program.local.tiled.block.items)
    np.testing.assert_allclose(compiled(x), np.asarray(jax.jit(f)(x)), rtol=1e-5)


# Flows that are none


def a_flow() -> ControlFlow:
    (flow,) = flows(weft.compile(newton, np.float32([2, 3])).program.local)
    return flow


def changed(flow: ControlFlow, **parts: Any) -> ControlFlow:
    (loop,) = [s for s in flow.body.statements if isinstance(s, FlowLoop)]
    made = replace(loop, **parts)
    listed = tuple([made if s is loop else s for s in flow.body.statements])
    return replace(flow, body=replace(flow.body, statements=listed))


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda f: replace(f, body=FlowBlock((), f.body.results)), "read before it is made"),
        (lambda f: replace(f, body=replace(f.body, results=())), "not of the size"),
        (lambda f: replace(f, body=replace(f.body, results=(999,))), "before it is made"),
        (lambda f: changed(f, made=f.body.statements[-1].carried), "made twice"),
        (lambda f: changed(f, carried=f.outputs), "made twice"),
        (lambda f: replace(f, inner=(*f.inner[:-1], replace(f.inner[-1], shape=(1, 7)))), "size"),
        (lambda f: replace(f, devices=(3,)), "other devices"),
    ],
)
def test_flows_that_are_none(change, why):
    """A flow from a file is refused where its kernels would not find what they expect."""
    with pytest.raises(WeftError, match=why):
        verify_kernel(change(a_flow()))


@pytest.mark.parametrize(
    "old, new",
    [
        ("loop v", "lop v"),
        ("yield", "yeld"),
        ("run 0", "run 77"),
        ("test", "rest"),
    ],
)
def test_texts_that_are_none(old, new):
    text = kernel_text(a_flow())
    with pytest.raises(WeftError):
        parse_kernel(text.replace(old, new, 1))


def test_what_loops_carry_is_not_copied():
    """A stack of results is written in place, whatever loops are around it."""

    def f(x: Any) -> Any:
        def outer(c: Any, t: Any) -> Any:
            return lax.fori_loop(0, 4, lambda n, c: c.at[n].set(c[n] * 2 + t), c), None

        return lax.scan(outer, x, jnp.arange(3.0))[0]

    program = weft.compile(f, np.ones((4, 50), np.float32)).program.local
    (flow,) = flows(program)
    buffers = Buffers(flow)
    large = {id(buffers.of[n]) for n, v in enumerate(flow.values) if v.shape == (1, 4, 50)}
    assert len(large) == 2  # what is given, and what is made
    assert [s for s in statements_in(flow.body) if isinstance(s, KernelRun)]
