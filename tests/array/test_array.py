"""Arrays: put, pieces, the whole again, other packages, and what holds when they are gone."""

from __future__ import annotations

import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.array import Array, devices, put
from weft.array.future import StackFuture
from weft.array.host import HOST_MEMORY
from weft.array.stacked import Stacked, one_for_all, stack
from weft.errors import WeftError
from weft.mesh import Mesh, P
from weft.mesh.pieces import pieces
from weft.mesh.sub_axes import SubAxes, common_refinement, sub_axes_of

MESH = Mesh(x=2, y=4)
X = np.arange(96, dtype=np.float32).reshape(8, 12)


@pytest.mark.parametrize(
    "spec",
    [
        P(),
        P("x"),
        P("x", "y"),
        P("y", "x"),
        P(("x", "y")),
        P(("y", "x")),
        P(None, "y"),
        P("y:(1)2", "y:(2)2"),
        P("y:(2)2"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("shape", [(8, 12), (7, 10), (1, 1), (0, 4)])
def test_every_device_holds_its_piece_and_together_they_are_the_whole(spec, shape):
    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    array = put(whole, spec, MESH)
    assert np.array_equal(array.numpy(), whole)
    for shard, piece in zip(array.shards, pieces(shape, array.sharding, MESH), strict=True):
        assert shard.index == tuple(slice(a, b) for a, b in piece.bounds)
        assert np.array_equal(shard.data, whole[shard.index])
        assert shard.device.id == piece.device


def test_nothing_is_copied_unless_it_must_be():
    for spec in (P(), P("x"), P("x", "y"), P(None, "y")):
        array = put(X, spec, MESH)
        assert np.shares_memory(array.stacked.data, X), spec
        assert np.shares_memory(array.numpy(), X), spec
    assert not np.shares_memory(put(X[:7], P("x"), MESH).stacked.data, X)


def test_equal_parts_are_held_once():
    assert put(X, P(), MESH).stacked.nbytes == X.nbytes
    assert put(X, P("y"), MESH).stacked.data.shape == (1, 4, 2, 12)


def test_values_that_owe_a_reduction_are_added_up():
    array = put(X, P(), MESH)
    unreduced = P(unreduced=["x"]).sharding(2, MESH)
    twice = Stacked(np.stack([X, X])[:, None], array.stacked.sub_axes)
    assert np.array_equal(Array(X.shape, array.element_type, unreduced, MESH, twice).numpy(), 2 * X)


def test_arrays_look_like_numpys():
    array = put(X, P("x"), MESH)
    assert (array.shape, array.ndim, array.size, len(array)) == ((8, 12), 2, 96, 8)
    assert array.dtype == np.float32 and array.nbytes == 384
    assert np.array_equal(np.asarray(array), X)
    assert np.array_equal(array[1:3], X[1:3])
    assert float(put(2.5)) == 2.5 and int(put(3)) == 3 and bool(put(True))
    assert np.asarray(array, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        array.__array__(np.float64, copy=False)
    assert repr(array) == '<weft.Array 8x12xf32 <mesh<["x"=2, "y"=4]>, [{"x"}, {}]>>'


def test_numbers_of_python_get_the_types_of_jax():
    assert [put(v).dtype.name for v in (1, 1.0, True, 1j)] == [
        "int32",
        "float32",
        "bool",
        "complex64",
    ]


def test_other_packages_share_the_memory():
    jax = pytest.importorskip("jax")
    theirs = jax.numpy.asarray(X)
    assert np.array_equal(put(theirs, P("x"), MESH).numpy(), X)
    assert np.array_equal(put(X, P("x"), MESH).to_jax(), X)
    array = put(X.copy(), P("x"), MESH)
    shared = np.from_dlpack(array)
    assert np.shares_memory(shared, array.numpy())
    half = put(X.astype(ml_dtypes.bfloat16), P("x"), MESH)
    assert half.element_type.name == "bf16" and half.to_jax().dtype == jax.numpy.bfloat16


def test_adopted_tensors_are_aligned():
    torch = pytest.importorskip("torch")
    from weft.array.torch_memory import ALIGNED, torch_memory

    memory, whole = torch_memory("cpu"), torch.arange(40.0)
    for first in range(5):
        held = memory.adopt(whole[first:])
        assert held is not None
        assert memory.start(held.block.raw) % ALIGNED == 0
        np.testing.assert_array_equal(held.numpy(), whole[first:].numpy())


def test_adopted_views_are_what_they_show():
    torch = pytest.importorskip("torch")
    from weft.array.torch_memory import torch_memory

    whole = torch.complex(torch.arange(24.0), torch.ones(24))
    turned = whole.conj()
    for view in (turned, turned.imag, turned._neg_view(), turned[1:], whole.view(4, 6).mT):
        for tensor in (view, view.clone().requires_grad_().conj()):
            held = torch_memory("cpu").adopt(tensor)
            np.testing.assert_array_equal(
                held.numpy(), tensor.detach().resolve_conj().resolve_neg()
            )


def test_arrays_of_this_device_are_adopted_by_dlpack():
    jax, _ = pytest.importorskip("jax"), pytest.importorskip("torch")
    from weft.array.torch_memory import torch_memory

    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    memory = torch_memory("cpu")
    held = memory.adopt(jax.numpy.arange(6.0))
    assert held is not None
    np.testing.assert_array_equal(held.numpy(), np.arange(6.0, dtype=np.float32))
    for foreign in (np.arange(6.0), [1.0, 2.0], Elsewhere()):
        assert memory.adopt(foreign) is None


def test_torch_shares_the_memory():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6.0)
    array = put(tensor)
    assert np.shares_memory(array.numpy(), tensor.numpy())
    assert put(tensor.bfloat16()).element_type.name == "bf16"
    for kind in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e8m0fnu):
        there = tensor.to(kind)
        back = put(there).to_torch()
        assert back.dtype is kind and torch.equal(back.float(), there.float())
    with pytest.raises(WeftError, match="no tensors of float8_e4m3"):
        put(np.ones(3, ml_dtypes.float8_e4m3)).to_torch()


def test_a_deleted_array_says_so():
    array = put(X, P("x"), MESH)
    array.delete()
    array.delete()
    assert array.is_deleted and "deleted" in repr(array)
    with pytest.raises(WeftError, match="this array was deleted"):
        array.numpy()


def test_waiting_may_end_before_the_array_is_ready():
    array = put(X)
    pending = Array(X.shape, array.element_type, array.sharding, array.mesh)
    with pytest.raises(WeftError, match="not ready after"):
        pending.wait(0.01)
    pending.resolve(array.stacked)
    assert pending.numpy() is not None


@pytest.mark.parametrize(
    "given, message",
    [
        ((X, P("x")), "has no mesh"),
        ((X, P("x", "y", "x"), MESH), "is for 3 dims|twice"),
        ((X, P("z"), MESH), "no axis 'z'"),
        ((np.array(["2020"], "M8[D]"), P(), MESH), "no StableHLO element type"),
    ],
)
def test_what_cannot_be_put_is_refused(given, message):
    with pytest.raises(WeftError, match=message):
        put(*given)


def test_devices():
    assert len(devices()) == 1
    assert [d.position for d in devices("a=2,b=1")] == [
        (("a", 0), ("b", 0)),
        (("a", 1), ("b", 0)),
    ]
    with pytest.raises(WeftError, match="0 devices"):
        devices(0)
    (device,) = devices()
    assert (device.id, device.process_index, device.memories) == (0, 0, (device.memory(),))
    assert device.memory("device") is HOST_MEMORY
    with pytest.raises(WeftError, match="device 0 has no memory 'fast'"):
        device.memory("fast")


# Sub-axes


def test_sub_axes_of_axes_and_parts():
    sub_axes = sub_axes_of(24, [(4, 6), (1, 4), (1, 2), (8, 3)])
    assert sub_axes.sizes == (3, 2, 2, 2) and sub_axes.strides == (8, 4, 2, 1)
    assert sub_axes.dims((4, 6)) == (0, 1) and sub_axes.dims((1, 4)) == (2, 3)
    assert sub_axes.dims((2, 3)) is None
    # What crosses a run that was named before is left out.
    assert sub_axes_of(6, [(3, 2), (2, 3)]).sizes == (2, 3)


sizes = st.lists(st.sampled_from([2, 3]), min_size=1, max_size=4)


@given(sizes, st.data())
def test_a_stack_is_the_same_in_other_sub_axes(parts, data):
    count = int(np.prod(parts))
    fine = SubAxes(tuple(parts))
    cuts = data.draw(st.lists(st.sampled_from(list(fine.strides)), max_size=2))
    coarse = sub_axes_of(count, [(c, 1) for c in cuts])
    equal = data.draw(st.lists(st.booleans(), min_size=len(parts), max_size=len(parts)))
    head = [1 if e else s for e, s in zip(equal, parts, strict=True)]
    value = Stacked(np.arange(np.prod(head) * 2).reshape(*head, 2), fine)
    there = value.to(coarse)
    assert np.array_equal(there.pieces(), value.pieces())
    assert np.array_equal(there.to(fine).pieces(), value.pieces())
    assert common_refinement(fine, coarse) == fine
    assert all(np.array_equal(value.piece(n), value.pieces()[n]) for n in range(count))


def test_stacks_from_pieces():
    sub_axes = SubAxes((2, 3))
    assert stack(np.arange(12).reshape(6, 2), sub_axes).data.shape == (2, 3, 2)
    assert one_for_all(np.arange(2), sub_axes).data.shape == (1, 1, 2)


@pytest.mark.parametrize("claims", [0, 1, 2])
@pytest.mark.parametrize("is_late", [False, True])
def test_claimed_elements_live_until_the_last_consumer(claims: int, is_late: bool):
    future = StackFuture()
    elements = put(np.arange(4.0)).stacked
    alive = weakref.ref(elements.data)
    for _ in range(claims):
        future.claim()
    if is_late:
        future.delete()
    future.resolve(elements)
    future.delete()
    for _ in range(claims):
        assert future.take_claimed() is elements
    del elements
    assert alive() is None
