"""The control plane: who is there, who is late, and who runs another program."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from tests.run.collectives import Case
from tests.workers.conftest import joined
from tests.workers.gloo_processes import GlooProcesses
from weft.errors import WeftError, WeftWarning
from weft.mesh import Axis, Mesh
from weft.workers import agree_on_arguments
from weft.workers.agreement import BLOCK_BYTES, CHECKED_BLOCKS, are_close, checksum, sketch
from weft.workers.cluster import Cluster
from weft.workers.failure import WorkerLost, note_of
from weft.workers.launch import free_port
from weft.workers.member import WorkerRank

T = TypeVar("T")


def each(works: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Results or errors of functions that run at the same time."""

    def caught(work: Callable[[], T]) -> T | Exception:
        try:
            return work()
        except Exception as error:  # noqa: BLE001  # compared by the tests
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        return [*pool.map(caught, works)]


def test_workers_know_each_other(clusters: list[Cluster]):
    for cluster in clusters:
        assert [worker.rank for worker in cluster.workers] == [*range(len(clusters))]
    assert len({worker.incarnation for worker in clusters[0].workers}) == len(clusters)


def test_a_rank_that_is_taken():
    port = free_port()
    me = WorkerRank(0, 2, "127.0.0.1", port, 0, 2, "a test")
    same = [WorkerRank(1, 2, "127.0.0.1", port, 1, 2, name) for name in "xy"]
    made = each([lambda m=m: Cluster(m, 3.0) for m in (me, *same)])
    errors = [str(error) for error in made if isinstance(error, WeftError)]
    assert len(errors) == 1 and "worker 1 has joined twice" in errors[0]


def test_a_worker_that_never_joins():
    me = WorkerRank(0, 3, "127.0.0.1", free_port(), 0, 3, "a test")
    with pytest.raises(WeftError, match="workers 1, 2 of 3 have not joined within 0.5 s"):
        Cluster(me, 0.5)


@pytest.fixture(scope="module")
def pair() -> list[Cluster]:
    """Two workers with little patience."""
    return joined(2, timeout=1.0)


@pytest.fixture(scope="module")
def patient() -> list[Cluster]:
    """Two workers that wait for each other however slow this machine is."""
    return joined(2, timeout=60.0)


def test_programs_that_differ(pair: list[Cluster]):
    names = ("train", "evaluate")
    made = each(
        [lambda c=c, n=n: c.coordination.agree(n, n) for c, n in zip(pair, names, strict=True)]
    )
    assert "worker 0 has compiled train, and worker 1 another program: evaluate" in str(made[0])
    assert "worker 1 has compiled evaluate, and worker 0 another program: train" in str(made[1])
    assert each([lambda c=c: c.coordination.agree("train", "same") for c in pair]) == [None, None]


def test_arguments_that_differ(patient: list[Cluster]):
    weights = [np.arange(100_000.0), np.arange(100_000.0)]
    weights[1][[5, 7]] = 7, 5  # two elements have changed places
    made = each([lambda c=c, w=w: agree_on_arguments(c, "step", {"x": np.ones(3), "w": w})
                 for c, w in zip(patient, weights, strict=True)])  # fmt: skip
    assert "argument w of step has other values in worker 1 than in worker 0" in str(made[0])
    assert isinstance(made[0], WorkerLost) and not isinstance(made[1], WorkerLost)
    for same in (np.zeros((0, 2)), np.array(True), np.ones((3, 1 << 14), "c8").T):
        made = each([lambda c=c, a=same: agree_on_arguments(c, "step", {"x": a}) for c in patient])
        assert made == [None, None]


def rounded_differently(array: np.ndarray) -> np.ndarray:
    """The same values, of which every third has another last bit."""
    other = array.copy()
    bits = other.reshape(-1).view(f"u{array.dtype.itemsize}")
    bits[::3] ^= 1
    return other


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_floats_that_other_processors_round_differently(dtype: str, patient: list[Cluster]):
    weights = np.random.default_rng(0).standard_normal((300, 1000)).astype(np.dtype(dtype)) / 30
    weights[0, :9] = np.inf
    given = (weights, rounded_differently(weights))
    given[1][0, :9] = np.inf
    with pytest.warns(WeftWarning, match="w of step: last bits differ between worker 1 and worker"):
        made = each([lambda c=c, w=w: agree_on_arguments(c, "step", {"w": w})
                     for c, w in zip(patient, given, strict=True)])  # fmt: skip
    assert made == [None, None]


def test_floats_that_differ_in_more_than_rounding():
    one = np.random.default_rng(0).standard_normal(20_000).astype("f4")
    changed, masked, ones = one.copy(), one.copy(), np.ones(3, "f4")
    changed[77] += 0.1
    masked[77] = np.nan
    assert are_close(sketch(one), sketch(rounded_differently(one)))
    for other in (changed, masked, one[::-1], one * np.float32(1.0001), -one):
        assert not are_close(sketch(one), sketch(other))
    assert not are_close(sketch(0 * ones), sketch(1e-30 * ones))
    assert are_close(sketch(1j * one), sketch(1j * rounded_differently(one)))
    assert sketch(np.arange(3)) is None and not are_close(None, None)


@pytest.mark.parametrize("size", [1, 7, BLOCK_BYTES * CHECKED_BLOCKS * 3 + 5])
def test_checksums_of_large_arguments_see_other_seeds_and_ends(size: int):
    one, other = (np.random.default_rng(seed).standard_normal(size) for seed in (0, 1))
    changed = one.copy()
    changed[-1] += 1
    assert checksum(one) == checksum(one.copy())
    assert len({checksum(each) for each in (one, other, changed)}) == 3


def test_a_worker_that_does_not_come(pair: list[Cluster]):
    pair[1].coordination.activity.doing = "reads its data"
    pair[1].coordination.activity.step = 7
    pair[1].coordination.barriers += 1  # it is not in this barrier
    _beaten(pair[1])
    with pytest.raises(WeftError) as error:
        pair[0].barrier("the checkpoint")
    assert "worker 1 of 2 has not reached the checkpoint within 1 s" in str(error.value)
    assert "worker 1 is alive; at step 7 it reads its data" in str(error.value)


@pytest.mark.parametrize("shares", [True, False])
def test_a_worker_that_has_failed(shares: bool):
    """What waits ends at once, although its process lives: in a collective, and at a barrier."""
    two = joined(2, timeout=60.0, shares=shares)
    case = Case("all_reduce add", Mesh(x=2), (Axis("x"),), (Axis("x"),))
    processes = GlooProcesses(case.module(), [], two)
    began = time.monotonic()
    threading.Timer(0.2, two[1].coordination.fail, [note_of(1, ValueError("no file"))]).start()
    waits = (
        lambda: processes.programs[0](*processes.given(0, case.pieces())),
        lambda: two[0].barrier("the checkpoint"),
    )
    for error, text in zip(
        each(waits),
        (
            "the process with devices [1] is gone",
            "not all workers have reached the checkpoint: worker 1 has failed",
        ),
        strict=True,
    ):
        assert isinstance(error, WorkerLost) and error.rank == 1
        assert text in str(error) and "ValueError: no file" in error.help
    assert time.monotonic() - began < 30


def test_a_worker_that_waits_for_another_than_the_failed_one():
    four = joined(4, timeout=60.0)
    four[3].coordination.fail(note_of(3, ValueError("no file")))
    case = Case("all_reduce add", Mesh(x=4), (Axis("x"),), (Axis("x"),))
    processes = GlooProcesses(case.module(), [], four)
    with pytest.raises(WorkerLost, match="waits for worker 1: worker 3 has failed") as error:
        processes.programs[0](*processes.given(0, case.pieces()))
    assert error.value.rank == 3 and "--> model.py:7" in str(error.value)


def test_a_collective_that_a_worker_never_reaches():
    two = joined(2, timeout=0.5)
    case = Case("all_reduce add", Mesh(x=2), (Axis("x"),), (Axis("x"),))
    processes = GlooProcesses(case.module(), [], two)
    two[1].coordination.activity.doing = "sleeps"
    _beaten(two[1])
    with pytest.raises(WeftError) as error:
        processes.programs[0](*processes.given(0, case.pieces()))
    assert "devices [1] of the group [0, 1] never came, in 0.5 s" in str(error.value)
    assert "--> model.py:7" in str(error.value)
    assert "worker 1 is alive; at step 0 it sleeps" in error.value.help


def test_a_connection_that_was_closed_before_a_collective():
    """Gloo refuses to begin a send or a receive then, before anything is waited for."""
    two = joined(2, timeout=5.0, shares=False)
    case = Case("all_reduce add", Mesh(x=2), (Axis("x"),), (Axis("x"),))
    processes = GlooProcesses(case.module(), [], two)

    def refuse(*_: object) -> None:
        raise RuntimeError("Connection closed by peer")

    for name in ("send", "receive"):
        setattr(two[0].wire.bytes, name, refuse)
        with pytest.raises(WorkerLost) as error:
            processes.programs[0](*processes.given(0, case.pieces()))
        assert "devices [1] is gone: worker 1; this one is in step" in str(error.value)
        assert error.value.rank == 1 and "--> model.py:7" in str(error.value)


def test_workers_in_different_collectives():
    two = joined(2, timeout=1.0)
    cases = [Case(k, Mesh(x=2), (Axis("x"),), (Axis("x"),)) for k in ("all_gather", "broadcast")]
    both = [GlooProcesses(case.module(), [], two) for case in cases]
    made = each(
        [lambda n=n: both[n].programs[n](*both[n].given(n, cases[n].pieces())) for n in range(2)]
    )
    assert "devices [1] of the group [0, 1] never came" in str(made[0])
    assert "devices [0] are in stablehlo.all_gather of model.py:7" in str(made[1])


def _beaten(cluster: Cluster) -> None:
    """Wait until a worker has noted its progress."""
    for _ in range(100):
        key = f"beat/{cluster.rank}"
        if cluster.coordination.store.check([key]):
            beat = json.loads(cluster.coordination.store.get(key))
            if beat["doing"] == cluster.coordination.activity.doing:
                return
        time.sleep(0.05)
    raise AssertionError("no note of progress")


@pytest.mark.skipif(not Path("/proc/net/tcp6").exists(), reason="Linux tells who listens")
def test_the_store_of_one_host_is_closed_to_others():
    pytest.importorskip("torch")
    from weft.workers.gloo import tcp_store

    served = tcp_store("127.0.0.1", 0, 2, 10.0, serves=True)
    texts = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for text in texts for line in text.splitlines()]
    open_ones = [row[1] for row in rows if row[3] == "0A"]  # listening
    port = f":{served.port:04X}"
    assert [each for each in open_ones if each.endswith(port)] == [f"0100007F{port}"]
    other = tcp_store("127.0.0.1", served.port, 2, 10.0, serves=False)
    other.set("key", "value")
    assert served.get("key") == b"value"


def test_a_text_is_made_by_one_worker(pair: list[Cluster]):
    made: list[int] = []

    def make(rank: int) -> str:
        time.sleep(0.1)
        made.append(rank)
        return f"text of {rank}"

    texts = each(
        [lambda c=c: c.coordination.compute_once("key", lambda: make(c.rank)) for c in pair]
    )
    assert len(made) == 1 and texts == [f"text of {made[0]}"] * 2


def test_a_text_that_cannot_be_made(pair: list[Cluster]):
    def fail() -> str:
        raise ValueError("no such op")

    found = each([lambda c=c: c.coordination.compute_once("bad", fail) for c in pair])
    assert [str(error) for error in found] == ["no such op"] * 2


def test_a_store_that_does_not_answer():
    """A stopped worker 0, or one behind a cut: whatever is asked first, the error names it."""
    for ask in (
        lambda c: c.compute_once("key", lambda: "text"),
        lambda c: c.gather_texts("begun", "text"),
        lambda c: c.barrier(),
    ):
        one = joined(2, timeout=5.0)[1].coordination
        one.is_cut = True
        with pytest.raises(WorkerLost, match="worker 0 is gone, or stopped") as error:
            ask(one)
        assert error.value.rank == 0
