"""The store on disk: found again, healed, limited, and safe with many processes at once."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import threading
import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cache.choices import remember, remembered
from weft.cache.entry import Key, decode, encode, record_of
from weft.cache.store import DiskStore, _is_trusted, the_store
from weft.errors import WeftWarning


def key(name, kind="kernel", **parts):
    return Key(kind, name, tuple(parts.items()) or (("text", name),))


@pytest.fixture
def store(tmp_path):
    return DiskStore(tmp_path / "deep" / "cache")


def names(store):
    return sorted(entry.record.key.name for entry in store.entries())


def test_what_is_put_is_found(store):
    assert store.get(key("a")) is None
    store.put(key("a"), b"one\ntwo\n\x00\xff")
    store.put(key("b"), b"")
    assert store.get(key("a")) == b"one\ntwo\n\x00\xff"
    assert store.get(key("b")) == b""
    assert DiskStore(store.folder).get(key("a")) == b"one\ntwo\n\x00\xff"
    store.put(key("a"), b"another")
    assert store.get(key("a")) == b"another"
    assert names(store) == ["a", "b"]


def test_the_key_is_all_of_its_parts(store):
    store.put(key("a", text="x", cpu="y"), b"1")
    assert store.get(key("another name", text="x", cpu="y")) == b"1"
    assert store.get(key("a", text="x", cpu="z")) is None
    assert store.get(key("a", "choice", text="x", cpu="y")) is None
    assert store.get(key("a", text="x")) is None


def test_an_entry_can_be_read(store):
    store.put(key("softmax", text="abc", cpu="haswell"), b"data")
    (entry,) = store.entries()
    assert entry.record.key.parts == (("text", "abc"), ("cpu", "haswell"))
    assert abs(entry.record.made - time.time()) < 60
    lines = entry.path.read_bytes().split(b"\n")
    assert lines[0].startswith(b"weft-cache-1 ") and b'"cpu": "haswell"' in lines[1]


@given(st.binary(max_size=200), st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_damage_shows(data, where, bits):
    content = encode(key("a"), data)
    assert decode(content, key("a")) == data
    assert decode(content, key("b")) is None
    place = int(where * len(content))
    flipped = content[place] ^ bits
    assert decode(content[:place] + bytes([flipped]) + content[place + 1 :], key("a")) is None
    assert decode(content[:place], key("a")) is None
    record_of(content[:place])  # says something or None


@given(st.binary(max_size=300))
def test_any_bytes_are_no_entry(content):
    assert decode(content, key("a")) is None
    record_of(content)


@pytest.mark.parametrize("damage", [b"", b"weft-cache-1 ", b"garbage\n\n", None])
def test_a_damaged_file_is_healed_and_said_once(store, damage):
    for name in ("a", "b"):
        store.put(key(name), b"right")
    for entry in list(store.entries()):
        content = entry.path.read_bytes()
        entry.path.write_bytes(content[:-3] if damage is None else damage)
    with pytest.warns(RuntimeWarning, match="found damage in its cache"):
        assert store.get(key("a")) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get(key("b")) is None
        store.put(key("a"), b"right")
        assert store.get(key("a")) == b"right"
    assert [m.cause for m in store.ledger.page().missed] == ["damaged", "damaged"]


def test_the_longest_unused_go_first(tmp_path):
    store = DiskStore(tmp_path, limit=20_000)
    now = time.time()
    for n in range(30):
        store.put(key(f"k{n}"), bytes(1000))
        for entry in store.entries():
            if entry.record.key.name == f"k{n}":
                os.utime(entry.path, (now - 1000 + n, now - 1000 + n))
        store.get(key("k0"))  # in use all the time
    left = names(store)
    assert "k0" in left and "k29" in left and "k1" not in left
    assert sum(entry.nbytes for entry in store.entries()) <= 20_000
    assert key("k1").digest in store.ledger.page().evicted


def test_what_is_abandoned_is_removed(store):
    store.put(key("a"), b"1")
    (entry,) = store.entries()
    old, new = entry.path.parent / ".killed", entry.path.parent / ".writing"
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert names(store) == ["a"]
    DiskStore(store.folder).put(key("b"), b"2")
    assert old.exists()  # nobody looks so soon after another
    os.utime(store.folder / "size", (0, 0))
    DiskStore(store.folder).put(key("c"), b"3")
    assert not old.exists() and new.exists()


@pytest.mark.parametrize("said", [b"", b"-", b"1e3", b"99999999999"])
def test_what_another_says_of_the_size_is_not_trusted_far(tmp_path, said):
    (tmp_path / "size").write_bytes(said)
    store = DiskStore(tmp_path, limit=20_000)
    for n in range(40):
        store.put(key(f"k{n}"), bytes(1000))
    assert sum(entry.nbytes for entry in store.entries()) <= 20_000


def test_clearing(store):
    for name in ("a", "b"):
        store.put(key(name), b"12345")
    store.put(key("c", "choice"), b"1")
    store.get(key("a"))
    count, nbytes = store.clear("kernel")
    assert count == 2 and nbytes > 10
    assert names(store) == ["c"] and store.ledger.page().hits["kernel"] == 0
    store.put(key("a"), b"1")
    assert store.clear()[0] == 2 and names(store) == []
    assert store.clear() == (0, 0)


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = DiskStore(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="weft remembers nothing in .*cache: Not a directory"):
        assert store.get(key("a")) is None
        store.put(key("a"), b"1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put(key("b"), b"1")
        assert store.get(key("b")) is None
        assert not list(store.entries()) and store.clear() == (0, 0)
        store.ledger.page()


def test_a_full_disk_is_said_once(store, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        store.put(key("a"), b"1")
    assert not [f for f in store.folder.rglob("*") if f.is_file()]


def test_without_a_folder_nothing_is_found_and_that_is_said_once():
    store = DiskStore(None)
    assert store.get(key("a")) is None and not store.holds("kernel")
    with pytest.warns(RuntimeWarning, match="weft remembers nothing from run to run"):
        store.put(key("a"), b"1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put(key("a"), b"1")
        assert store.get(key("a")) is None and not list(store.entries())
        assert store.clear() == (0, 0) and not store.ledger.page().misses


def test_a_folder_that_may_not_be_looked_into(tmp_path):
    """A name that is too long stands for every reason other than absence."""
    store = DiskStore(tmp_path / ("x" * 300))
    assert not store.holds("kernel")
    with pytest.warns(RuntimeWarning, match="weft cannot read its cache: .*name too long"):
        assert store.get(key("a")) is None
    with pytest.warns(RuntimeWarning, match="weft remembers nothing in .*name too long"):
        store.put(key("a"), b"1")


def test_the_store_is_where_the_knob_says(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "one"))
    one = the_store()
    assert one is the_store() and one.folder == tmp_path / "one"
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "two"))
    assert the_store().folder == tmp_path / "two"


# Choices


def test_choices(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    assert remembered("gemm", "this machine", "m<64") is None
    remember("gemm", "this machine", "m<64", {"best": "12x32", "tried": [1, 2.5, "x"]})
    assert remembered("gemm", "this machine", "m<64") == {"best": "12x32", "tried": [1, 2.5, "x"]}
    assert remembered("gemm", "this machine", "m>=64") is None
    assert remembered("gemm", "another machine", "m<64") is None
    assert remembered("dot", "this machine", "m<64") is None


# Many at once


def run_all(work, count, folder):
    """Run a function in several processes at once, with a number and the folder."""
    context = multiprocessing.get_context("fork")
    made = [context.Process(target=work, args=(n, folder)) for n in range(count)]
    for process in made:
        process.start()
    for process in made:
        process.join(timeout=120)
    assert [process.exitcode for process in made] == [0] * count


def write_choices(me, folder):
    os.environ["WEFT_CACHE"] = str(folder)
    for n in range(40):
        remember("gemm", "machine", f"shape {me} {n}", [me, n])
        remember("gemm", "machine", "one for all", me)
        assert remembered("gemm", "machine", f"shape {me} {n}") == [me, n]
        assert remembered("gemm", "machine", "one for all") in range(8)
    the_store().ledger.write()


def test_eight_processes_write_choices_and_none_is_lost(tmp_path):
    run_all(write_choices, 8, tmp_path)
    store = DiskStore(tmp_path)
    assert len(list(store.entries("choice"))) == 8 * 40 + 1
    page = store.ledger.page()
    assert page.hits["choice"] == 8 * 80 and page.misses["choice"] == 0


def read_write_evict_and_clear(me, folder):
    warnings.simplefilter("error")
    store = DiskStore(folder, limit=60_000)
    rng = random.Random(me)
    for n in range(150):
        number = rng.randrange(40)
        data = bytes([number]) * (500 + 50 * number)
        found = store.get(key(f"k{number}"))
        assert found in (None, data), number
        if found is None:
            store.put(key(f"k{number}"), data)
        if me == 0 and n % 30 == 29:
            store.clear()
        if n % 25 == 0:
            list(store.entries())


def test_eight_processes_read_write_evict_and_clear(tmp_path):
    """Whatever happens, data is whole or absent."""
    run_all(read_write_evict_and_clear, 8, tmp_path)
    # Each looks at the size only now and then, so eight may be above the limit by so much.
    assert sum(e.nbytes for e in DiskStore(tmp_path).entries()) <= 60_000 * 1.5
    assert not [f for f in tmp_path.rglob(".*") if f.is_file()]


def write_for_ever(folder, ready):
    store = DiskStore(folder)
    ready.set()
    for n in itertools.cycle(range(5)):
        store.put(key(f"k{n}"), bytes([n]) * 300_000)


def test_a_writer_that_is_killed_leaves_nothing_wrong(tmp_path):
    context = multiprocessing.get_context("fork")
    for n in range(12):
        ready = context.Event()
        writer = context.Process(target=write_for_ever, args=(tmp_path, ready))
        writer.start()
        assert ready.wait(60)
        time.sleep(0.01 + 0.003 * n)
        writer.kill()
        writer.join()
    store = DiskStore(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is damaged
        for n in range(5):
            assert store.get(key(f"k{n}")) in (None, bytes([n]) * 300_000)


def test_threads_share_a_store(store):
    wrong = []

    def work(seed):
        for n in range(60):
            number = (seed * 7 + n) % 20
            found = store.get(key(f"k{number}"))
            if found not in (None, bytes([number]) * 99):
                wrong.append(number)
            store.put(key(f"k{number}"), bytes([number]) * 99)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    page = store.ledger.page()
    assert not wrong and page.hits["kernel"] + page.misses["kernel"] == 360


# Who may write to it


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_folder_that_others_write_to_is_not_used(store, mode):
    store.put(key("a"), b"1")
    os.chmod(store.folder, mode)
    other = DiskStore(store.folder)
    with pytest.warns(WeftWarning, match="others may write to .*chmod go-w"):
        assert other.get(key("a")) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was said
        other.put(key("b"), b"2")
        assert other.get(key("a")) is None
    os.chmod(store.folder, 0o755)
    assert DiskStore(store.folder).get(key("a")) == b"1"
    assert DiskStore(store.folder).get(key("b")) is None


def test_a_folder_of_another_user_is_not_used(store, monkeypatch):
    store.put(key("a"), b"1")
    owner = os.stat(store.folder).st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    expected = b"1" if owner == 0 else None  # root can do anything as it is
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert DiskStore(store.folder).get(key("a")) == expected
    status = os.stat(store.folder)
    stranger = os.stat_result((*status[:4], owner + 7, *status[5:]))
    assert not _is_trusted(stranger)


def test_an_entry_that_others_may_write_is_not_read(store):
    store.put(key("a"), b"1")
    (entry,) = store.entries()
    os.chmod(entry.path, 0o622)
    with pytest.warns(WeftWarning, match="found damage"):
        assert store.get(key("a")) is None
    store.put(key("a"), b"1")
    assert store.get(key("a")) == b"1"


def test_a_new_folder_is_the_users_alone(store):
    before = os.umask(0)
    try:
        store.put(key("a"), b"1")
    finally:
        os.umask(before)
    (entry,) = store.entries()
    assert os.stat(store.folder).st_mode & 0o777 == 0o700
    assert os.stat(entry.path).st_mode & 0o777 == 0o600
    assert DiskStore(store.folder).get(key("a")) == b"1"
