"""Attention is found where programs write it, forward and backward, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import weft
from tests.kernels.interpret_attention import interpret_attention
from tests.ops.example import Example
from tests.ops.examples.attention import EXAMPLES
from tests.tile.attention.programs import FORWARD, OTHERS, WITH_GRADIENTS, B, D, H, squares
from tests.tolerance import assert_close
from weft.capture import parse
from weft.evaluate import evaluate
from weft.ir.module import Function, Module, Region, Value, apply, tensor_of
from weft.ir.types import BOOL, F32, TensorType
from weft.kernels.attention import Attention, Window
from weft.kernels.group import Group
from weft.kernels.stacked_node import StackedNode
from weft.ops import attention as composite
from weft.ops.shape import BroadcastInDim
from weft.pipeline import compile_module
from weft.run.parts import parts_of
from weft.tile.attention.fuse import attention_groups


def groups_of(module: Module) -> list[Group]:
    """The groups of attention of a program for one device."""
    body = module.function("main").body
    placed = [
        StackedNode(node, (0,) * len(node.operands), (0,) * len(node.results))
        for node in body.nodes
    ]
    return attention_groups(placed, (), body.results)


def found_in(fn: Callable[..., Any], arrays: Sequence[np.ndarray]) -> list[Attention]:
    """The kernels that are found; the program runs, and gives what JAX gives."""
    made = weft.compile(fn, *arrays)
    wanted = jax.tree.leaves(jax.jit(fn)(*arrays))
    for got, want in zip(jax.tree.leaves(made(*arrays)), wanted, strict=True):
        low = any(a.dtype == jnp.bfloat16 for a in arrays)
        kind = jnp.bfloat16 if low else np.asarray(want).dtype
        got, want = np.asarray(got).astype(kind), np.asarray(want).astype(kind)
        assert_close(got, want, 4096 if low else 64, least=1.0)
    kernels = [g.kernel for g in groups_of(made.program.module)]
    return [k for k in kernels if isinstance(k, Attention)]


@cache
def forward_of(name: str) -> list[Attention]:
    """The kernels of a program."""
    return found_in(*FORWARD[name])


@pytest.mark.parametrize("name", FORWARD)
def test_forward_is_found(name: str):
    kernels = forward_of(name)
    assert len(kernels) == (2 if name == "two_layers" else 1)
    assert all(k.gradients is None and k.lse is None for k in kernels)


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_backward_is_found(name: str):
    fn, arrays = FORWARD[name]
    forward, backward = found_in(squares(fn), arrays)
    assert forward.lse is not None and forward.gradients is None
    assert backward.gradients is not None


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_not(name: str):
    assert found_in(*OTHERS[name]) == []


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("plain", Window()),
        ("causal_by_hand", Window(None, 0)),
        ("scaled_first", Window(None, 0)),
        ("merged_heads", Window(None, 0)),
        ("windowed", Window(5, 2)),
        ("library_causal", Window(None, 0)),
        ("library_window", Window(3, 1)),
    ],
)
def test_windows_are_recognized(name: str, window: Window):
    (kernel,) = forward_of(name)
    assert kernel.window == window and kernel.mask is None and kernel.bias is None


LONG = 40  # masks of so many queries and keys are not folded to constants
# Masks of query i and key j, and their windows; None: the mask stays an operand.
MASKS: dict[str, tuple[Callable[..., Any], Window | None]] = {
    "i >= j": (lambda i, j: i >= j, Window(None, 0)),
    "i > j": (lambda i, j: i > j, Window(None, -1)),
    "i <= j": (lambda i, j: i <= j, Window(0, None)),
    "i < j": (lambda i, j: i < j, Window(-1, None)),
    "j <= i": (lambda i, j: j <= i, Window(None, 0)),
    "j < i + 3": (lambda i, j: j < i + 3, Window(None, 2)),
    "j > i - 3": (lambda i, j: j > i - 3, Window(2, None)),
    "j == i + 1": (lambda i, j: j == i + 1, Window(-1, 1)),
    "i - j < 4": (lambda i, j: i - j < 4, Window(3, None)),
    "-(j - i) >= -2": (lambda i, j: -(j - i) >= -2, Window(None, 2)),
    "not j > i": (lambda i, j: ~(j > i), Window(None, 0)),
    "not j < i - 1": (lambda i, j: ~(j < i - 1), Window(1, None)),
    "both bounds": (lambda i, j: (j <= i + 1) & (i <= j + 2), Window(2, 1)),
    "the tighter bounds": (
        lambda i, j: (j <= i + 1) & (j <= i + 4) & (i <= j + 2) & (i <= j + 3),
        Window(2, 1),
    ),
    "chosen": (lambda i, j: jnp.where(j > i, False, True), Window(None, 0)),
    "a matrix": (lambda i, j: jnp.asarray(np.tri(LONG, k=2, dtype=bool)), Window(None, 2)),
    "a matrix with two bounds": (
        lambda i, j: jnp.asarray(np.tri(LONG, k=2, dtype=bool) & ~np.tri(LONG, k=-4, dtype=bool)),
        Window(3, 2),
    ),
    "a matrix in half steps": (lambda i, j: jnp.asarray(np.tri(2 * LONG, dtype=bool)[::2, ::2]),
                               Window(None, 0)),
    "not the diagonal": (lambda i, j: i != j, None),
    "2 i >= j": (lambda i, j: 2 * i >= j, None),
    "2 i + 3 >= 2 j": (lambda i, j: 2 * i + 3 >= 2 * j, None),
    "i + j >= 5": (lambda i, j: i + j >= 5, None),
    "keys alone": (lambda i, j: (j < 5) & (i >= 0), None),
    "one or the other": (lambda i, j: (i >= j) | (j > i + 5), None),
    "outside of a band": (lambda i, j: ~((j <= i + 1) & (i <= j + 2)), None),
    "a matrix with holes": (
        lambda i, j: jnp.asarray(np.tri(LONG, dtype=bool) & (np.arange(LONG) != 3)),
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_windows_of_masks(name: str):
    mask, window = MASKS[name]

    def masked(q, k, v):
        at = jnp.arange(LONG)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        scores = jnp.where(mask(at[:, None], at[None]), scores, -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)

    shape = jax.ShapeDtypeStruct((B, LONG, H, D), jnp.float32)
    lowered = jax.jit(masked).lower(shape, shape, shape)
    module = compile_module(parse(lowered.as_text()), to="optimized", target="llvm").module
    (kernel,) = [g.kernel for g in groups_of(module) if isinstance(g.kernel, Attention)]
    assert kernel.window == (window or Window())
    assert (kernel.mask is None) is (window is not None)


def test_shared_heads_are_read_once():
    for name in ("library_shared", "repeated_heads"):
        (kernel,) = forward_of(name)
        assert kernel.k.outer[-1] == kernel.v.outer[-1] == 0, name
        assert sorted(kernel.outer) == [2, 2, 2]


def test_masks_that_are_arguments_stay_operands():
    (kernel,) = forward_of("library_mask")
    assert kernel.mask is not None and 0 in kernel.mask.access.outer
    (kernel,) = forward_of("key_padding")
    assert kernel.mask is not None and kernel.mask.access.row == 0


@given(EXAMPLES[composite.Attention])
@settings(max_examples=40, deadline=None)
def test_the_composite_is_a_kernel(example: Example):
    module = example.module()
    body = module.function("main").body
    groups = groups_of(module)
    wanted = example.op.reference(*example.arrays)
    if not groups:
        assert any(n == 1 for t in body.args for n in tensor_of(t).sizes)
    for group in groups:
        assert isinstance(group.kernel, Attention)
        given_arrays = [example.arrays[body.args.index(v)] for v in group.inputs]
        made = interpret_attention(group.kernel, given_arrays)
        for got, want in zip(made, wanted, strict=True):
            assert_close(got.reshape(want.shape), want, 16, least=1.0)


def test_composites_may_share_a_mask():
    """A view that two of them look through is in neither's kernel, and both are kernels."""
    types = TensorType((2, 3, 4, 5), F32), TensorType((4, 4), BOOL)
    args = tuple([Value(t, None, n) for n, t in enumerate(types)])
    mask = apply(BroadcastInDim((2, 3), TensorType((2, 1, 4, 4), BOOL)), args[1])
    op = composite.Attention(scale=0.5, masked=True)
    first = apply(op, args[0], args[0], args[0], *mask.results)
    second = apply(op, *first.results, *first.results, args[0], *mask.results)
    body = Region(args, [mask, first, second], second.results)
    module = Module({"main": Function("main", body)})
    assert [type(group.kernel) for group in groups_of(module)] == [Attention, Attention]
    x = np.linspace(-2, 2, 120, dtype=np.float32).reshape(2, 3, 4, 5)
    m = np.tri(4, dtype=bool)
    (want,) = evaluate(module, x, m)
    (made,) = weft.compile(module)(x, m)
    assert_close(np.asarray(made), want, 64, least=1.0)


def test_a_mesh_is_no_obstacle():
    """Heads and batch split over devices: device dims are outer dims."""
    fn, arrays = FORWARD["causal_by_hand"]
    mesh = weft.Mesh(data=2, model=2)
    spec = jax.sharding.PartitionSpec("data", None, "model")
    made = weft.compile(fn, *arrays, mesh=mesh, in_shardings=(spec, spec, spec))
    assert_close(np.asarray(made(*arrays)), np.asarray(fn(*arrays)), 64, least=1.0)


@pytest.mark.parametrize("outside", [False, True], ids=["mask inside", "mask outside"])
def test_gradients_of_a_scan_over_layers(outside: bool):
    """The masks that JAX takes out of a loop are seen in it; every turn leaves out half of all."""
    size, layers = 24, 2

    def block(x, w, mask):
        q, k, v, o = jnp.split(w, 4, -1)
        keep = jnp.tril(jnp.ones((size, size), bool)) if mask is None else mask
        scores = jnp.where(keep, (x @ q) @ (x @ k).swapaxes(-1, -2) * 0.3, -1e30)
        return x + jax.nn.softmax(scores) @ (x @ v) @ o

    def loss(w, x):
        mask = jnp.tril(jnp.ones((size, size), bool)) if outside else None
        turn = jax.checkpoint(lambda x, w: (block(x, w, mask), None))
        return (jax.lax.scan(turn, x, w)[0] ** 2).mean()

    w = np.random.default_rng(0).standard_normal((layers, 16, 64)).astype(np.float32) * 0.2
    x = np.random.default_rng(1).standard_normal((3, size, 16)).astype(np.float32)
    compiled = weft.compile(jax.value_and_grad(loss), w, x)
    wanted = jax.tree.leaves(jax.jit(jax.value_and_grad(loss))(w, x))
    for got, want in zip(jax.tree.leaves(compiled(w, x)), wanted, strict=True):
        assert_close(np.asarray(got), np.asarray(want), 256, least=1.0)
    groups = [part.group for part in parts_of(compiled.program.local) if part.group is not None]
    kernels = [k for g in groups for k in getattr(g.kernel, "kernels", (g.kernel,))]  # of flows
    found = [kernel for kernel in kernels if isinstance(kernel, Attention)]
    assert sum(k.gradients is not None for k in found) == 1 and len(found) == 3
    assert all(k.window == Window(None, 0) and k.mask is None for k in found)
