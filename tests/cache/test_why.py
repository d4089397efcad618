"""Why something was not in the cache, and the ledger that knows."""

from __future__ import annotations

import os
import time

import pytest

from weft.cache.entry import Key
from weft.cache.store import DiskStore
from weft.cache.why import why

PARTS = {"text": "a" * 64, "cpu": "haswell", "features": "+avx,+avx2,-sse4a", "LLVM version": "22"}


def key(name="softmax", kind="kernel", **changed):
    return Key(
        kind, name, tuple((PARTS | {n.replace("_", " "): v for n, v in changed.items()}).items())
    )


@pytest.fixture
def store(tmp_path):
    return DiskStore(tmp_path)


def reason(store):
    page = store.ledger.page()
    return why(page.missed[-1], page, store.entries())


def test_nothing_was_there(store):
    assert store.get(key()) is None
    store.put(key(), b"made after the miss")
    assert reason(store).sentence == "there was no entry of the kind kernel yet"


def test_it_was_cleared(store):
    store.put(key(), b"1")
    store.clear()
    store.get(key())
    assert (
        reason(store).sentence
        == "there was no entry of the kind kernel since the cache was cleared"
    )


def test_one_part_differs(store):
    store.put(key(LLVM_version="21"), b"1")
    store.put(key(LLVM_version="20", cpu="skylake"), b"1")
    store.get(key())
    found = reason(store)
    assert found.sentence == "the nearest entry differs in its LLVM version"
    (difference,) = found.differences
    assert (difference.wanted, difference.there) == ("22", "21")


def test_features_are_compared_one_by_one(store):
    store.put(key(features="+avx,-avx2,-sse4a"), b"1")
    store.get(key())
    (difference,) = reason(store).differences
    assert (difference.part, difference.wanted, difference.there) == ("features", "+avx2", "-avx2")


def test_the_same_name_is_nearer(store):
    store.put(key("softmax", text="b" * 64), b"1")
    store.put(key("gelu", text="c" * 64), b"1")
    store.get(key("softmax"))
    found = reason(store)
    assert found.nearest is not None and found.nearest.record.key.name == "softmax"
    assert found.sentence == "the nearest entry differs in its text"
    store.get(key("layer_norm"))
    assert reason(store).sentence.startswith("nothing of the name layer_norm was there yet; the")


def test_shape_classes(store):
    parts = {"what is chosen": "gemm", "machine": "m"}
    store.put(Key("choice", "gemm a", (*parts.items(), ("shape class", "a"))), b"1")
    store.get(Key("choice", "gemm b", (*parts.items(), ("shape class", "b"))))
    (difference,) = reason(store).differences
    assert difference.part == "shape class"


def test_it_was_damaged_or_evicted_or_unreadable(tmp_path):
    store = DiskStore(tmp_path, limit=3000)
    store.put(key(), bytes(500))
    (entry,) = store.entries()
    entry.path.write_bytes(b"?")
    with pytest.warns(RuntimeWarning):
        store.get(key())
    assert "its checksum was wrong" in reason(store).sentence
    store.put(key(), bytes(500))
    os.utime(entry.path, (0, 0))
    for n in range(9):
        store.put(key(f"k{n}", text=str(n)), bytes(500))
    store.get(key())
    assert "the longest unused" in reason(store).sentence
    entry.path.unlink(missing_ok=True)
    entry.path.mkdir()
    with pytest.warns(RuntimeWarning, match="cannot read its cache"):
        store.get(key())
    assert "could not be read" in reason(store).sentence


# The ledger


def test_counts_of_all_processes(tmp_path):
    first, second = DiskStore(tmp_path), DiskStore(tmp_path)
    first.put(key(), b"1")
    for store in (first, second):
        store.get(key())
        store.get(key(cpu="other"))
    page = first.ledger.page()
    assert page.hits["kernel"] == 1  # the second has not written yet
    page = second.ledger.page()
    assert page.hits["kernel"] == 2 and page.misses["kernel"] == 2
    assert len(page.missed) == 2
    assert [m.time for m in page.missed] == sorted(m.time for m in page.missed)


def test_a_forked_child_counts_for_itself(tmp_path):
    store = DiskStore(tmp_path)
    store.get(key())
    child = os.fork()
    if child == 0:
        store.get(key())
        store.get(key())
        store.ledger.write()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert store.ledger.page().misses["kernel"] == 3


@pytest.mark.parametrize("content", ["", "{", "[]", '{"hits": 3}', '{"hits": {"kernel": "x"}}'])
def test_a_damaged_ledger_begins_anew(tmp_path, content):
    store = DiskStore(tmp_path)
    (tmp_path / "ledger.json").write_text(content)
    store.get(key())
    assert store.ledger.page().misses["kernel"] == 1


def test_it_is_written_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.cache.ledger._WRITE_EVERY", 0.01)
    store = DiskStore(tmp_path)
    store.get(key())
    time.sleep(0.02)
    store.get(key())
    assert DiskStore(tmp_path).ledger.page().misses["kernel"] == 2
    for n in range(300):
        store.get(key(text=str(n)))
    assert len(store.ledger.page().missed) == 64
