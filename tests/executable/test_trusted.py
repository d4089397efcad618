"""Machine code that is kept with a program: in the user's cache, and in files that are trusted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import weft
from weft import Mesh, P
from weft.cache.store import the_store
from weft.emit.llvm.jit import packed
from weft.errors import WeftError, WeftWarning
from weft.executable.container import open_container
from weft.executable.container_writing import Section, container_bytes
from weft.loaded import _key

W = np.random.default_rng(0).standard_normal((16, 8)).astype("f")
X = np.random.default_rng(1).standard_normal((4, 16)).astype("f")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def made() -> weft.Compiled:
    options = {"mesh": Mesh(data=2), "in_shardings": (P("data"), P())}
    return weft.compile(lambda x, w: jnp.tanh(x @ w).sum(0), X, W, **options)


@pytest.fixture(scope="module")
def path(made: weft.Compiled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "step.weft"
    made.save(path, code=True)
    return path


def changed(path: Path, **others: bytes) -> bytes:
    """The file with other sections of some kinds, whose checksums are right."""
    held = open_container(path, trust=True)
    sections = []
    for kind, name in held.entries:
        data = held.constant(name) if kind == "constant" else held.read(kind, name)
        sections.append(Section(kind, others.get(kind, data), name))
    return container_bytes(sections)


def fail(*given: object) -> None:
    raise AssertionError("the code of a file was used")


def test_the_code_is_in_the_file_only_if_asked_for(made: weft.Compiled, tmp_path: Path) -> None:
    made.save(tmp_path / "plain.weft")
    assert not open_container(tmp_path / "plain.weft").names("code")
    made.save(tmp_path / "step.weft", code=True)
    held = open_container(tmp_path / "step.weft")
    assert held.names("code") == held.names("emitted") == ["llvm"]
    assert not held.features  # who does not know them, or does not trust, does without


def test_trusted_code_runs_and_nothing_is_emitted(made, path, cache, monkeypatch) -> None:
    expected = np.asarray(made(X, W))
    monkeypatch.setenv("WEFT_CACHE", str(cache.parent / "another"))
    monkeypatch.setattr("weft.loaded._emitted", fail)
    np.testing.assert_array_equal(weft.load(path, trust=True)(X, W), expected)
    assert not the_store().holds("program")  # what this installation did not emit is not kept


@pytest.mark.parametrize("kind", ["code", "emitted"])
def test_without_trust_it_is_never_looked_at(made, path, kind, monkeypatch) -> None:
    """Neither right nor tampered code is read, whether or not the cache has the program."""
    tampered = changed(path, **{kind: b"\x90" * 64})
    monkeypatch.setattr("weft.loaded._trusted", fail)
    monkeypatch.setattr("weft.loaded._adopted", fail)
    for _ in range(2):
        np.testing.assert_array_equal(weft.load(tampered)(X, W), made(X, W))
    with pytest.raises(WeftError, match="is native code"):
        open_container(tampered).read(kind, "llvm")


def test_tampered_code_that_is_trusted_is_an_error_where_it_can_be_seen(path, cache) -> None:
    with pytest.raises(WeftError, match="machine code of a program cannot be read"):
        weft.load(changed(path, code=b"{}\n"), trust=True)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    with pytest.raises(WeftError, match="does not match its checksum"):
        weft.load(bytes(data), trust=True)


def test_code_of_another_processor_is_emitted_anew(made, path, monkeypatch) -> None:
    """And that is said; the emitted text is still used where only LLVM is another."""
    monkeypatch.setattr(packed, "llvm_version", lambda: "1.2.3")
    loaded = weft.load(path, trust=True)
    np.testing.assert_array_equal(loaded(X, W), made(X, W))
    monkeypatch.setattr(packed, "code_digest", lambda: "of another version")
    with pytest.warns(WeftWarning, match="code and emitted are for another processor"):
        loaded = weft.load(path, trust=True)
    np.testing.assert_array_equal(loaded(X, W), made(X, W))


def test_what_was_verified_before_is_taken_from_the_cache(path, monkeypatch) -> None:
    first = np.asarray(weft.load(path)(X, W))
    monkeypatch.setattr("weft.loaded._verified", fail)
    loaded = weft.load(path)
    np.testing.assert_array_equal(loaded(X, W), first)
    tiled = open_container(path).read("tiled")
    other = changed(path, tiled=tiled.replace(b"f32[2|", b"f32[1|", 1))
    with pytest.raises(AssertionError):  # another text has to be verified by itself
        weft.load(other)


def test_code_in_the_cache_that_cannot_be_linked_is_made_anew(made, path) -> None:
    weft.load(path)
    key = _key(open_container(path))
    right = the_store().get(key)
    the_store().put(key, right[:-1])
    with pytest.warns(WeftWarning, match="damage in its cache"):
        loaded = weft.load(path)
    np.testing.assert_array_equal(loaded(X, W), made(X, W))
    assert the_store().get(key) == right


def test_large_constants_are_mapped_and_not_copied(tmp_path) -> None:
    table = np.arange(1 << 14, dtype=np.float32)
    weft.compile(lambda x: x + jnp.asarray(table)[::2].sum(), X).save(tmp_path / "table.weft")
    for _ in range(2):
        loaded = weft.load(tmp_path / "table.weft")
        (held,) = [c for c in loaded.program.template if isinstance(c, np.ndarray) and c.size > 99]
        base: object = held
        while isinstance(base, np.ndarray):
            base = base.base
        assert type(getattr(base, "obj", None)).__name__ == "mmap"
        np.testing.assert_array_equal(held.reshape(-1), table)
        np.testing.assert_array_equal(loaded(X), X + table[::2].sum())


def test_a_program_that_was_not_read_whole_is_when_it_is_looked_at(made, path) -> None:
    weft.load(path)
    loaded = weft.load(path)
    assert loaded.text() == made.text("tiled")
    assert loaded.memory() == made.program.local.memory_of_one()
    with pytest.raises(WeftError, match="cannot run op by op"):
        weft.run.run(loaded.program, X, W, sync_every_op=True)


LEAN = """
import sys
for name in ("jax", "jaxlib", "torch", "ml_dtypes"):  # numpy and llvmlite alone
    sys.modules[name] = None
import numpy as np
import weft
x, w = np.load(sys.argv[2]).values()
np.asarray(weft.load(sys.argv[1])(x, w))
makers = ("capture", "optimize", "partition", "shard", "tile", "kernels.read", "kernels.verify")
makers += ("emit.llvm.loops", "emit.llvm.product", "emit.llvm.target", "emit.llvm.jit.machine_code")
print([m for m in sys.modules if m.startswith(tuple("weft." + name for name in makers))])
ours = [m for m in sys.modules if m.startswith("weft")]
print(len(ours))
made = [c for m in ours for c in vars(sys.modules[m]).values() if isinstance(c, type)]
eager = {c for c in made if "__dataclass_params__" in vars(c) and c.__dataclass_params__.init}
print(sorted(c.__name__ for c in eager if c.__module__.startswith("weft")))
"""


def test_a_program_that_was_loaded_before_imports_nothing_that_makes_kernels(path) -> None:
    np.savez(path.with_suffix(".npz"), X, W)
    line = [sys.executable, "-c", LEAN, str(path), str(path.with_suffix(".npz"))]
    for warm in (False, True):
        done = subprocess.run(line, capture_output=True, text=True, timeout=120)
        makers, count, eager = done.stdout.splitlines() or [done.stderr, "0", "[]"]
        assert (makers == "[]") is warm, makers
    assert int(count) <= 150
    # TorchDynamo traces code that makes these, and knows the standard library's alone.
    traced = "['Axis', 'DimSharding', 'Sharding']"
    assert eager == traced, f"methods compiled at import: use weft.records for {eager}"
