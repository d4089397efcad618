"""Checkpoints: written on one mesh, read on another; by modules, training steps and pytrees."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft import Mesh, P
from weft.array.safetensors import TensorFile, UnsavedTensor, fill_file, make_file
from weft.errors import WeftError
from weft.ir.types import DTYPES, dtype_of

NAMES = "i1 i8 i16 i32 i64 ui8 ui16 ui32 ui64 f16 bf16 f32 f64 f8E4M3FN f8E5M2 complex<f32>"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES.split()), st.lists(st.integers(0, 3), max_size=3)),
                max_size=4))  # fmt: skip
def test_files_hold_every_type_and_shape(tmp_path_factory, listed) -> None:
    path = tmp_path_factory.mktemp("files") / "some.safetensors"
    arrays = {
        f"t{n}": np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(DTYPES[name].numpy)
        for n, (name, shape) in enumerate(listed)
    }
    tensors = [
        UnsavedTensor(n, dtype_of(a.dtype), a.shape, [((...,), a)]) for n, a in arrays.items()
    ]
    make_file(path, tensors)
    fill_file(path, tensors)
    file = TensorFile(path)
    assert [*file.tensors] == [*arrays]
    for name, array in arrays.items():
        made = file.array(name)
        assert made.dtype == array.dtype and made.shape == array.shape
        assert made.tobytes() == array.tobytes() and not made.flags.writeable


@pytest.mark.skipif(not Path("/dev/shm").is_mount(), reason="a file system of known size")
def test_a_disk_without_room() -> None:
    """An error, where writing to a mapped file would kill the process."""
    path = Path(f"/dev/shm/weft-test-{os.getpid()}")
    found = os.statvfs(path.parent)
    size = found.f_blocks * found.f_frsize
    try:
        with pytest.raises(WeftError, match="/dev/shm has no room for a file of .* bytes: No spa"):
            make_file(path, [UnsavedTensor("w", DTYPES["i8"], (2 * size,), [])])
    finally:
        path.unlink()


def test_a_file_has_the_bytes_of_the_format(tmp_path) -> None:
    """By the format's own description, not by our reader."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    weft.save_state({"w": array}, tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert header["w"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert raw[8 + length :] == array.tobytes() and (8 + length) % 8 == 0
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {"w": path.name} and index["metadata"]["total_size"] == 24


def test_arrays_change_their_mesh(tmp_path) -> None:
    """Written by pieces on 2 x 4, read on 8; every file but the last is full."""
    values = {"a": np.arange(64.0).reshape(8, 8), "b": np.arange(10), "c": np.float32(3)}
    old = Mesh(data=2, model=4)
    spread = {"a": P("model", "data"), "b": P("model"), "c": P()}  # b is padded
    state = {name: weft.put(value, spread[name], old) for name, value in values.items()}
    weft.save_state({"net": state}, tmp_path, file_bytes=512)
    assert len([*tmp_path.glob("*.safetensors")]) == 2
    new = Mesh(x=8)
    found = weft.load_state(tmp_path, mesh=new, plan={"net.a": P(None, "x"), "*.b": P("x")})
    for name, value in values.items():
        made = found[f"net.{name}"]
        assert made.mesh == new and np.array_equal(made.numpy(), value)
    assert found["net.a"].local_shape == (8, 1) and found["net.b"].local_shape == (2,)
    base = found["net.a"].stacked.data
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap) or type(base).__name__ == "mmap"  # no second copy
    like = {"net": {**state, "c": 0.5}}
    again = weft.load_state(tmp_path, like)["net"]
    assert again["a"].sharding == state["a"].sharding and again["c"] == 3
    assert np.array_equal(again["a"].numpy(), values["a"])


def test_trees_of_jax(tmp_path) -> None:
    jax = pytest.importorskip("jax")
    tree = {"layers": [{"w": jax.numpy.ones((2, 3), "bfloat16")}, None], "step": jax.numpy.int32(4)}
    weft.save_state(tree, tmp_path)
    assert set(weft.load_state(tmp_path)) == {"layers.0.w", "step"}
    made = weft.load_state(tmp_path, jax.eval_shape(lambda: tree))
    jax.tree.map(np.testing.assert_array_equal, made, tree)


def test_refusals(tmp_path) -> None:
    with pytest.raises(WeftError, match="holds no checkpoint"):
        weft.load_state(tmp_path)
    weft.save_state({"w": np.ones(4, np.float32)}, tmp_path)
    with pytest.raises(WeftError, match="has no v"):
        weft.load_state(tmp_path, {"v": np.ones(4)})
    with pytest.raises(WeftError, match=r"w is float32\[4\] in the checkpoint, and float64\[4\]"):
        weft.load_state(tmp_path, {"w": np.ones(4)})
    with pytest.raises(WeftError, match="two arrays have the name a.b"):
        weft.save_state({"a": {"b": np.ones(1)}, "a.b": np.ones(1)}, tmp_path)
    with pytest.raises(WeftError, match="name is a str; a checkpoint holds arrays and numbers"):
        weft.save_state({"name": "run 7", "w": np.ones(2)}, tmp_path / "words")
    with pytest.raises(WeftError, match="no name for"):
        weft.save_state({"w": np.ones(1, np.complex128)}, tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:4], b"\xff" * 16, whole.replace(b"F32", b"F33")):
        path.write_bytes(damaged)
        with pytest.raises(WeftError, match="is damaged|elements of F33"):
            weft.load_state(tmp_path)
    assert not [*tmp_path.glob("*partial*")]


def test_training_goes_on_on_another_mesh(tmp_path: Path) -> None:
    """Saved on 2 x 4 after two steps, resumed on 8: the losses are those of four steps."""
    torch = pytest.importorskip("torch")
    from torch import nn

    batches = [(torch.randn(8, 16), torch.randn(8, 16)) for _ in range(4)]

    def step_on(mesh: Mesh, plan: str):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 16))
        adam = torch.optim.AdamW(net.parameters(), lr=0.05)
        return weft.train_step(net, nn.functional.mse_loss, adam, mesh=mesh, plan=plan), adam

    first, adam = step_on(Mesh(fsdp=2, tp=4), "fsdp+tp")
    for group in adam.param_groups:
        group["lr"] = 0.01
    before = [float(first(*batch)) for batch in batches[:2]]
    weft.save_state(first, tmp_path)
    expected = [float(first(*batch)) for batch in batches[2:]]
    second, adam = step_on(Mesh(fsdp=8), "fsdp")
    assert weft.load_state(tmp_path, second) is second
    assert adam.param_groups[0]["lr"] == 0.01
    after = [float(second(*batch)) for batch in batches[2:]]
    np.testing.assert_allclose(after, expected, rtol=1e-4)
    assert before[0] != expected[0]
    fresh = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 16))
    weft.load_state(tmp_path, fresh)  # the module alone
    with pytest.raises(WeftError, match="is not of this Linear: it lacks weight, bias; it has"):
        weft.load_state(tmp_path, nn.Linear(2, 2))


def test_pytorch_in_a_pytree(tmp_path) -> None:
    """Tensors of every kind come back as they were; steps and modules are overwritten in place."""
    torch = pytest.importorskip("torch")
    tensors = {
        "bf16": torch.ones(3, dtype=torch.bfloat16),
        "f8": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
        "weight": torch.nn.Parameter(torch.ones(2, 2)),
        "cut": torch.arange(6.0).reshape(2, 3).T,
    }
    numbers = {"rate": 0.1, "seen": 2**40 + 1, "last": True}
    weft.save_state({**tensors, **numbers}, tmp_path)
    types = {name: tensor.to("meta") for name, tensor in tensors.items()}
    loaded = weft.load_state(tmp_path, {**types, "rate": 0.0, "seen": 0, "last": False})
    assert {name: loaded[name] for name in numbers} == numbers
    for name, tensor in tensors.items():
        got = loaded[name]
        assert got.dtype == tensor.dtype and got.requires_grad == tensor.requires_grad
        assert torch.equal(got.float(), tensor.float())
    with pytest.raises(WeftError, match=r"bf16 is bfloat16\[3\] in the checkpoint, and float32"):
        weft.load_state(tmp_path, {"bf16": torch.zeros(3)})


def test_a_training_step_in_a_pytree(tmp_path) -> None:
    torch = pytest.importorskip("torch")

    def made(seed: int):
        torch.manual_seed(seed)
        module = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1 * (seed + 1))
        return module, optimizer, weft.train_step(module, torch.nn.functional.mse_loss, optimizer)

    x = torch.randn(2, 4)
    module, optimizer, step = made(0)
    step(x, x)
    weft.save_state({"train": step, "best": module, "steps": 1}, tmp_path)
    other, others, again = made(1)
    loaded = weft.load_state(tmp_path, {"train": again, "steps": 0})
    assert loaded["train"] is again and loaded["steps"] == 1
    assert others.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert float(again(x, x)) == float(step(x, x)) and torch.equal(other.weight, module.weight)
    third, *_ = made(2)
    assert weft.load_state(tmp_path, {"best": third})["best"] is third


def test_arrays_of_a_key_that_are_not_loaded(tmp_path) -> None:
    """A part of a checkpoint is read without a word; a key that would lose arrays warns."""
    state = {"model": {"w": np.ones(2)}, "optimizer": {"m": np.ones(2), "v": np.ones(2)}}
    weft.save_state(state, tmp_path)
    assert [*weft.load_state(tmp_path, {"model": state["model"]})] == ["model"]
    with pytest.warns(weft.errors.WeftWarning, match="no such keys: optimizer.v"):
        weft.load_state(tmp_path, {"optimizer": {"m": np.ones(2)}})
