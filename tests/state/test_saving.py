"""Checkpoints are replaced as a whole, in the background too, and written by several processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from weft import Mesh, P
from weft.errors import WeftError
from weft.state import save as saving
from weft.state.savers import JaxSavers, SaveGroup


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"model.safetensors.index.json"}


def test_a_checkpoint_is_replaced_as_a_whole(tmp_path: Path):
    weft.save_state({"w": np.ones(4), "b": np.zeros(2)}, tmp_path, file_bytes=16)
    assert len(files_in(tmp_path)) == 2
    early = weft.load_state(tmp_path)
    with pytest.raises(WeftError, match="no name for"):
        weft.save_state({"w": np.ones(4), "z": np.ones(2, np.complex128)}, tmp_path)
    assert np.array_equal(weft.load_state(tmp_path)["w"], np.ones(4))
    (tmp_path / ".dead-1.partial").write_text("of a process that was killed")
    for n in range(3):
        weft.save_state({"w": np.full(4, n)}, tmp_path)
        assert len(files_in(tmp_path)) == 1
        assert np.array_equal(weft.load_state(tmp_path)["w"], np.full(4, n))
    assert np.array_equal(early["w"], np.ones(4))  # a reader of the old files goes on


def test_files_that_are_not_of_the_checkpoint_stay(tmp_path: Path):
    weft.save_state({"w": np.ones(4)}, tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "safe").write_text("mine")
    index = tmp_path / "run" / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    listed["weight_map"]["v"] = "../safe"  # an index from elsewhere
    index.write_text(json.dumps(listed))
    weft.save_state({"w": np.ones(4)}, tmp_path / "run")
    assert (tmp_path / "run" / "notes.txt").exists() and (tmp_path / "safe").exists()


def test_the_program_goes_on_while_it_is_saved(tmp_path: Path):
    """What is saved is the state at the call, whatever is overwritten or donated after it."""
    torch = pytest.importorskip("torch")
    weights = np.arange(5.0)
    made = weft.save_state({"w": weights}, tmp_path / "numpy", background=True)
    weights[:] = 0
    made.wait()
    assert made.is_done
    assert np.array_equal(weft.load_state(tmp_path / "numpy")["w"], np.arange(5.0))
    layer = torch.nn.Linear(3, 2)
    before = layer.weight.detach().clone()
    made = weft.save_state(layer, tmp_path / "torch", background=True)
    layer.weight.data.zero_()
    made.wait()
    assert np.array_equal(weft.load_state(tmp_path / "torch")["weight"], before)
    array = weft.put(np.ones((8, 4), np.float32), P("x"), Mesh(x=4))
    grown = weft.compile(DOUBLE)
    made = weft.save_state({"w": array}, tmp_path / "weft", background=True)
    grown(array)
    assert array.is_deleted
    made.wait()
    assert np.array_equal(weft.load_state(tmp_path / "weft")["w"], np.ones((8, 4)))


DOUBLE = """
module @double {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%a: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>,
                                       tf.aliasing_output = 0 : i32})
      -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.add %a, %a : tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
}
"""


def test_an_error_in_the_background_is_raised(tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    made = weft.save_state({"w": np.ones(4)}, tmp_path / "file", background=True)
    with pytest.raises(FileExistsError):
        made.wait()
    weft.save_state({"w": np.ones(4)}, tmp_path / "file", background=True)
    with pytest.raises(FileExistsError):  # nobody has waited: the next one says it
        weft.save_state({"w": np.ones(4)}, tmp_path / "other")
    weft.save_state({"w": np.ones(4)}, tmp_path / "other")


class Threads:
    """Processes that are threads."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size, timeout=30)
        self.told: dict[int, list[str]] = {n: [] for n in range(size)}

    def each(self, rank: int) -> SaveGroup:
        def tell(what: str, text: str) -> Sequence[str]:
            self.told[rank].append(text)
            at = len(self.told[rank]) - 1
            self.barrier.wait()
            return [self.told[n][at] for n in range(self.size)]

        made: Any = SimpleNamespace(rank=rank, size=self.size, tell=tell)
        return made


def save_by(count: int, states: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """Save by so many processes; what went wrong in each."""
    threads = Threads(count)

    def save(rank: int) -> str:
        together = threads.each(rank)
        tensors = [*saving._unsaved(states[rank], together)]
        try:
            saving._write(folder, [tensors], {}, together)
        except Exception as error:  # noqa: BLE001  # returned
            return str(error)
        return ""

    with ThreadPoolExecutor(count) as pool:
        return [*pool.map(save, range(count))]


def sharded(value: np.ndarray[Any, Any], rank: int, count: int) -> Any:
    """A value as JAX has it: columns over processes, whose last one is also of the first."""
    width = value.shape[1] // count
    cut = {n: (slice(None), slice(n * width, (n + 1) * width)) for n in range(count)}
    shards = [SimpleNamespace(index=cut[rank], data=value[cut[rank]], replica_id=0)]
    if rank == 0:
        last = cut[count - 1]
        shards.append(SimpleNamespace(index=last, data=value[last] * np.nan, replica_id=1))
    return SimpleNamespace(
        dtype=value.dtype, shape=value.shape, is_fully_addressable=False, addressable_shards=shards
    )


def test_processes_write_their_own_pieces(tmp_path: Path):
    w, whole = np.arange(24.0).reshape(4, 6), {f"t{n}": np.full(n + 1, n) for n in range(5)}
    assert save_by(3, [{"w": sharded(w, n, 3), **whole} for n in range(3)], tmp_path) == [""] * 3
    found = weft.load_state(tmp_path)
    assert {*found} == {"w", *whole} and np.array_equal(found["w"], w)
    for name, value in whole.items():
        assert np.array_equal(found[name], value)
    said = save_by(2, [{"w": w}, {"v": w}], tmp_path)
    assert all("saves another state than process" in text for text in said)
    assert np.array_equal(weft.load_state(tmp_path)["w"], w)
    assert len(files_in(tmp_path)) == 1


def test_a_process_that_fails_fails_the_others(tmp_path: Path):
    class Lost:
        def __array__(self, *_: object, **__: object) -> Any:
            raise ValueError("lost")

    def array(shards: Sequence[Any]) -> Any:
        return SimpleNamespace(
            dtype=np.dtype("f4"), shape=(2,), is_fully_addressable=False, addressable_shards=shards
        )

    lost = SimpleNamespace(index=(slice(0, 2),), data=Lost(), replica_id=0)
    first, second = save_by(2, [{"w": array([])}, {"w": array([lost])}], tmp_path)
    assert second == "lost" and "process 1 has not written its pieces: ValueError: lost" in first
    assert not [*tmp_path.iterdir()]


def test_torch_reads_it(tmp_path: Path):
    """By the reader of torch.distributed.checkpoint, onto tensors that are there."""
    pytest.importorskip("safetensors")
    torch = pytest.importorskip("torch")
    from torch.distributed import checkpoint

    layer = torch.nn.Linear(3, 2)
    weft.save_state(layer, tmp_path)
    state = {name: torch.zeros_like(value) for name, value in layer.state_dict().items()}
    reader = checkpoint.HuggingFaceStorageReader(str(tmp_path))
    checkpoint.load(state, storage_reader=reader, no_dist=True)
    assert all(torch.equal(state[name], value) for name, value in layer.state_dict().items())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_torch_distributed_checkpoint_writes_is_loaded(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    from torch.distributed import checkpoint

    def model():
        made = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32))
        return made.append(torch.nn.Linear(32, 8).to(torch.bfloat16))

    theirs, ours = model().state_dict(), model()
    writer = checkpoint.HuggingFaceStorageWriter(str(tmp_path), dict.fromkeys(theirs, 1))
    checkpoint.save(theirs, storage_writer=writer)
    weft.load_state(tmp_path, ours)
    for name, value in theirs.items():
        assert torch.equal(value, ours.state_dict()[name]), name


def test_processes_of_jax_tell_each_other_by_its_store(monkeypatch):
    """Keys are counted, waits are milliseconds of the knob, and a missing process is named."""
    monkeypatch.setenv("WEFT_TIMEOUT", "2.5")
    store, waits = {}, []

    class Client:
        def key_value_set(self, key: str, text: str) -> None:
            store[key] = text

        def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
            waits.append(milliseconds)
            return store[key]

    made = [
        JaxSavers(SimpleNamespace(process_id=n, num_processes=2, client=Client())) for n in (0, 1)
    ]
    assert [group.rank for group in made] == [0, 1] and made[0].size == 2
    with pytest.raises(WeftError, match=r"process 1 of 2 has not written within 2\.5 s"):
        made[0].tell("written", "a")
    assert made[1].tell("written", "b") == ["a", "b"]
    assert made[1].told == 1 and waits == [2500] * 4
    store["weft/save/1/0"] = "c"
    assert made[1].tell("written", "d") == ["c", "d"]
