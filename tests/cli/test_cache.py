"""The command `weft cache`."""

from __future__ import annotations

import json

import pytest

from weft.cache.choices import remember, remembered
from weft.cache.entry import Key
from weft.cache.store import the_store
from weft.cli import main


@pytest.fixture
def weft(tmp_path, monkeypatch, capsys):
    """Run a command line with a cache of its own; gives its status and what it prints."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")

    def run(*line):
        status = main(["cache", *line])
        return status, capsys.readouterr()

    return run


def kernel(name, text, version="22.1.0"):
    return Key("kernel", name, (("text", text), ("LLVM version", version)))


def test_an_empty_cache(weft):
    status, printed = weft()
    assert status == 0 and "kernel        0     0B     0       0" in printed.out
    status, printed = weft("why")
    assert status == 0 and "there was no miss yet" in printed.out
    assert weft("clear")[1].out == "removed 0 entries, 0B\n"


def test_the_table(weft):
    store = the_store()
    for n in range(3):
        store.get(kernel("softmax", str(n)))
        store.put(kernel("softmax", str(n)), bytes(1000))
    store.get(kernel("softmax", "1"))
    remember("gemm", "machine", "small", "12x32")
    assert remembered("gemm", "machine", "small") == "12x32"
    _, printed = weft()
    kinds = [line.split() for line in printed.out.splitlines()]
    assert kinds[1][:2] == ["kernel", "3"] and kinds[1][3:5] == ["1", "3"]
    assert kinds[2][:2] == ["choice", "1"] and kinds[2][3:5] == ["1", "0"]
    _, printed = weft("--json")
    said = json.loads(printed.out)
    assert said["kinds"]["kernel"] | {"used": 0, "bytes": 0} == {
        "entries": 3,
        "bytes": 0,
        "hits": 1,
        "misses": 3,
        "used": 0,
    }
    assert said["folder"].endswith("cache")


def test_measured_choices_are_told(weft):
    seconds = {"as modelled": 2e-3, "parts=2": 1e-3}
    told = {"best": "parts=2", "seconds": seconds, "tried": [*seconds]}
    remember("product", "machine", "float 1x64x64x64", told)
    assert "product float 1x64x64x64: parts=2" in weft()[1].out
    (choice,) = json.loads(weft("--json")[1].out)["choices"]
    assert choice["machine"] == "machine" and choice["seconds"] == seconds


def test_clearing_a_kind(weft):
    the_store().put(kernel("softmax", "a"), b"1")
    remember("gemm", "machine", "small", "12x32")
    status, printed = weft("clear", "kernels")
    assert status == 1 and "help: kinds are choice, kernel" in printed.err
    assert weft("clear", "kernel")[1].out.startswith("removed 1 entry, ")
    assert remembered("gemm", "machine", "small") == "12x32"
    assert json.loads(weft("clear", "--json")[1].out)["entries"] == 1
    assert remembered("gemm", "machine", "small") is None


def test_why(weft):
    store = the_store()
    store.put(kernel("softmax", "a" * 64, "21.0.0"), b"1")
    store.get(kernel("softmax", "a" * 64))
    store.get(kernel("gelu", "b" * 64))
    _, printed = weft("why", "softmax")
    assert "the nearest entry differs in its LLVM version" in printed.out
    assert "    LLVM version: wanted 22.1.0, there 21.0.0" in printed.out
    _, printed = weft("why")
    assert printed.out.startswith("kernel gelu: missed ")
    assert "text: wanted bbbbbbbbbbbb..., there aaaaaaaaaaaa..." in printed.out
    said = json.loads(weft("why", "softmax", "--json")[1].out)
    assert said["differences"] == {"LLVM version": {"wanted": "22.1.0", "there": "21.0.0"}}
    status, printed = weft("why", "sofmax")
    assert status == 1 and "did you mean softmax?" in printed.err


def test_a_wrong_word(weft, capsys):
    for line in (["claer"], ["show", "what"]):
        with pytest.raises(SystemExit):
            weft(*line)
        assert "error: unknown" in capsys.readouterr().err
