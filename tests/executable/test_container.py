"""Containers: every version is read, newer ones say what is lacking, and damage is named."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.executable.write_data import (
    CONSTANTS,
    DATA,
    SECTIONS,
    SIGNATURE,
    TILED,
    edited,
    joined,
    split,
)
from weft.errors import WeftError
from weft.executable import container as containers
from weft.executable.container import FORMAT, MAGIC, Container, open_container, read_constants
from weft.executable.container_writing import (
    Section,
    container_bytes,
    write_constants,
    write_container,
)
from weft.ir.types import DTYPES

WHOLE = container_bytes(SECTIONS, made_by="weft 9.9")


def same(held: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether two arrays have the same bits."""
    alike = held.dtype == wanted.dtype and held.shape == wanted.shape
    return alike and held.tobytes() == np.ascontiguousarray(wanted).tobytes()


def check_content(found: Container) -> None:
    """Whether a container holds what `write_data` has written."""
    assert found.signature() == SIGNATURE
    assert found.text("tiled") == TILED
    assert [*found.constants] == [*CONSTANTS]
    for name, held in found.constants.items():
        assert same(held, CONSTANTS[name]), name
        assert not held.flags.writeable
        assert held.ctypes.data % 64 == 0 or held.size == 0
    assert found.read("note", "door") == b"options"
    found.check()


@pytest.mark.parametrize("version", range(1, FORMAT + 1))
def test_files_of_every_version_are_read(version):
    check_content(open_container(DATA / f"v{version}.weft"))


def test_this_version_writes_the_same_bytes_as_ever():
    written = container_bytes(SECTIONS, made_by="weft 0.1.0")
    assert written == (DATA / f"v{FORMAT}.weft").read_bytes()


def test_bytes_are_opened_as_files_are():
    check_content(open_container(WHOLE))
    check_content(open_container(b"" + bytes(bytearray(WHOLE))))


def test_a_newer_file_that_needs_no_more_is_read():
    found = open_container(DATA / "newer_readable.weft")
    assert found.format == 7
    check_content(found)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            "newer",
            "is of format 7, with grid-of-tiles: it needs a reader of format 5, and this Weft "
            f"reads formats up to {FORMAT}",
        ),
        ("newer_feature", "uses what this Weft does not know: grid-of-tiles"),
    ],
)
def test_an_older_reader_says_what_it_lacks(file, message):
    path = DATA / f"{file}.weft"
    with pytest.raises(WeftError) as caught:
        open_container(path)
    assert caught.value.message == f"{path} {message}"
    assert caught.value.help == (
        "install a newer Weft (weft 9.9 has written it), or save the program with this one"
    )


def test_a_far_newer_file_says_its_version():
    data = MAGIC + b"format 40 reader 31 and something else\nthat we do not know"
    with pytest.raises(WeftError, match="needs a reader of format 31"):
        open_container(data)


def test_features_are_listed(monkeypatch):
    monkeypatch.setitem(containers.FEATURES, "loops", "loops")
    data = container_bytes(SECTIONS, ["loops", "loops"])
    assert open_container(data).features == ("loops",)
    monkeypatch.delitem(containers.FEATURES, "loops")
    with pytest.raises(WeftError, match="does not know: loops"):
        open_container(data)


@pytest.mark.parametrize("kind", ["emitted", "code"])
def test_what_would_run_needs_trust(kind):
    name = "llvm" if kind == "emitted" else "llvm/x86-64"
    with pytest.raises(WeftError, match="pass trust=True"):
        open_container(WHOLE).read(kind, name)
    held = open_container(WHOLE, trust=True).read(kind, name)
    assert held == next(s.data for s in SECTIONS if s.kind == kind)


def test_constants_are_mapped_from_the_file(tmp_path):
    path = tmp_path / "program.weft"
    write_container(path, SECTIONS)
    held = open_container(path).constant("w0")
    base = held
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, memoryview) and type(base.obj).__name__ == "mmap"
    write_container(path, [])  # a new file: what is mapped stays
    path.unlink()
    assert same(held, CONSTANTS["w0"])


def test_the_signature_is_read_without_the_rest(tmp_path):
    path = tmp_path / "large.weft"
    large = 1 << 36  # bytes, of a file with a hole
    _, table, rest = split(container_bytes(SECTIONS[:1]))
    lines = table.decode().splitlines()
    lines.append(f"section constant w 1024 {large} {'0' * 64} tensor<{large}xi8>")
    path.write_bytes(joined(FORMAT, 1, lines, rest))
    start = path.stat().st_size - len(rest)
    try:
        os.truncate(path, start + 1024 + large)
    except OSError:
        pytest.skip("no room for a file with a hole")
    begin = time.process_time()
    found = open_container(path)
    assert found.signature() == SIGNATURE
    assert found.names("constant") == ["w"]
    assert time.process_time() - begin < 1


def test_damaged_constants_do_not_keep_the_signature_from_being_read():
    data = bytearray(WHOLE)
    data[data.index(CONSTANTS["w0"].tobytes()) + 5] ^= 1
    found = open_container(bytes(data))
    assert found.signature() == SIGNATURE
    for use in (lambda: found.constant("w0"), found.check, lambda: dict(found.constants)):
        with pytest.raises(WeftError, match="the constant w0 does not match its checksum"):
            use()


@given(st.sampled_from([*DTYPES.values()]), st.lists(st.integers(0, 3), max_size=3), st.binary())
def test_constants_of_every_type_come_back(dtype, shape, seed):
    count = int(np.prod(shape, dtype=int)) * dtype.numpy.itemsize
    held = np.resize(np.frombuffer(seed or b"\0", np.uint8), count)
    if dtype.bits < 8:
        held = held & ((1 << dtype.bits) - 1)
    array = held.view(dtype.numpy).reshape(shape)
    found = open_container(container_bytes([Section("constant", array, "c")]))
    assert same(found.constant("c"), array)


def test_constants_need_not_lie_dense():
    array = np.arange(24, dtype=np.int16).reshape(4, 6)[::2, ::-1].T
    found = open_container(container_bytes([Section("constant", array, "c")]))
    assert same(found.constant("c"), array)


def test_small_elements_are_stored_in_low_bits():
    loose = np.array([255, 17, 3], np.uint8).view(ml_dtypes.int4)  # high bits mean nothing
    found = open_container(container_bytes([Section("constant", loose, "c")])).constant("c")
    assert found.tolist() == loose.tolist() == [-1, 1, 3]
    assert found.view(np.uint8).tolist() == [15, 1, 3]


def test_constants_beside_a_text(tmp_path):
    path = tmp_path / "tiled.txt"
    write_constants(path, CONSTANTS)
    assert [file.name for file in tmp_path.iterdir()] == ["tiled.txt.constants"]
    found = read_constants(path)
    assert len(found) == len(CONSTANTS)
    assert all(same(found[name], held) for name, held in CONSTANTS.items())
    assert "w9" not in found
    with pytest.raises(KeyError):
        found["w9"]
    with pytest.raises(WeftError, match="has no constant w9") as caught:
        open_container(f"{path}.constants").constant("w9")
    assert caught.value.help.startswith("known: w0, bits, i4")


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "program.weft"
    write_container(path, SECTIONS)
    before = path.read_bytes()

    def fail(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(WeftError, match="cannot write .*: No space left on device"):
        write_container(path, [])
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("path", ["", "missing/program.weft", "a\0b", "."])
def test_files_that_cannot_be(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeftError, match="cannot write"):
        write_container(path, [])
    with pytest.raises(WeftError):
        open_container(path)
    assert not [*tmp_path.iterdir()]


def test_pipes_and_devices_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(WeftError, match="is not a regular file"):
            open_container(path)


def test_names_are_distinct_and_plain():
    for names in (("a", "a"), ("a b",), ("",), ("x" * 201,), ("a\nb",)):
        with pytest.raises(WeftError, match="cannot be called"):
            container_bytes([Section("note", b"", name) for name in names])


ZEROS = "0" * 64


def with_lines(change, format: int | str = FORMAT, reader: int | str = 1) -> bytes:
    """The whole container with another table, whose checksum is right."""
    _, table, rest = split(WHOLE)
    return joined(format, reader, change(table.decode().splitlines()), rest)


def adding(line: str) -> bytes:
    return with_lines(lambda lines: [*lines, line])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + WHOLE, "is not a Weft executable"),
        (WHOLE.replace(b"\r\n", b"\n"), "the ends of its lines were changed"),
        (WHOLE[:4], "is cut off: it has 4 of 8 bytes"),
        (WHOLE[:40], "first line cannot be read"),
        (WHOLE[:400], "is cut off: it has 400 of"),
        (WHOLE[:-1], f"is cut off: it has {len(WHOLE) - 1:,} of {len(WHOLE):,} bytes"),
        (WHOLE + b"\0", "has 1 bytes after its last section"),
        (
            WHOLE.replace(b"section tiled", b"section tyled", 1),
            "its table does not match its checks",
        ),
        (WHOLE.replace(b"header 11", b"header 9999911", 1), "its table has 999,991,1"),
        (edited(FORMAT, 0), f"is of format {FORMAT} for readers from 0"),
        (with_lines(lambda lines: lines, "NaN"), "first line cannot be read"),
        (with_lines(lambda lines: lines, "-1"), "first line cannot be read"),
        (with_lines(lambda lines: lines, "9" * 30), "first line cannot be read"),
        (adding("hint"), "its table has a line 'hint'"),
        (adding("section signature main 3904 0 " + ZEROS), "it has two sections signature main"),
        (adding(f"section note n 0 8 {ZEROS}"), "overlaps the section before it"),
        (adding(f"section note n 3905 8 {ZEROS}"), "is not aligned to 64 bytes"),
        (adding(f"section note n 3904 {10**17} {ZEROS}"), "is cut off"),
        (adding(f"section note n 3904 {10**30} {ZEROS}"), "its table has a line 'section note n"),
        (adding(f"section note n -64 8 {ZEROS}"), "its table has a line 'section note n"),
        (adding(f"section note n NaN 8 {ZEROS}"), "its table has a line 'section note n"),
        (adding(f"section new n 3904 0 {ZEROS}"), "it has a section of kind new"),
        (adding(f"section constant c 3904 0 {ZEROS}"), "the constant c is no"),
        (adding(f"section constant c 3904 0 {ZEROS} tensor<2xf32>"), "the constant c is no"),
        (adding(f"section constant c 3904 0 {ZEROS} tensor<?xf32>"), "the constant c is no"),
        (adding(f"section constant c 3904 0 {ZEROS} tensor<0xf31>"), "the constant c is no"),
        *[
            (adding(f"section constant c 3904 0 {ZEROS} {type}"), "the constant c is no")
            for type in (
                f"tensor<{'9' * 5000}x0xf32>",
                f"tensor<0x{1 << 63}xi8>",
                f"tensor<0x{1 << 40}x{1 << 40}xf32>",
                f"tensor<{'1x' * 64}0xf32>",
                f"tensor<{'1x' * 200_000}>",
                "tensor<00xf32>",
                "tensor<tensor<0xf32>>",
            )
        ],
    ],
)
def test_damage_is_named(data, message):
    with pytest.raises(WeftError) as caught:
        open_container(data)
    assert message in caught.value.message
    assert caught.value.message.startswith("the program ")
    assert caught.value.help


def test_text_that_is_none_is_named():
    data = container_bytes([Section("signature", b"\xff\xfe"), Section("tiled", b"a\xff")])
    for use in (Container.signature, lambda found: found.text("tiled")):
        with pytest.raises(WeftError, match="the program: the .* is not valid UTF-8 at byte"):
            use(open_container(data))


def test_truth_values_of_other_bytes_are_refused():
    held = bytes([0, 1, 2, 1])
    line = f"section constant c 0 4 {hashlib.sha256(held).hexdigest()} tensor<4xi1>"
    with pytest.raises(WeftError, match="the constant c has bytes that are not valid i1"):
        open_container(joined(FORMAT, 1, [line], held)).constant("c")


# Mutants

HOSTILE = ("0", "-1", "1", "63", "64", "9" * 18, "9" * 30, "NaN", "1e9", "0x40", "", "[" * 900)
LINES = (
    f"section note {'n' * 200} 0 0 {ZEROS}",
    f"section constant c 0 {1 << 50} {ZEROS} tensor<{1 << 50}xi8>",
    "feature " + "f" * 500,
    "made-by \x7f\t",
    "section",
    "",
)


def flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 4))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice((1, 64, 4096))) + data[at:]


def remove(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.choice((1, 64, 1000)) :]


def edit_fields(data: bytes, rng: random.Random) -> bytes:
    """Another word in the table, whose checksum is right."""
    _, table, rest = split(data)
    lines = table.decode().splitlines()
    at = rng.randrange(len(lines))
    words = lines[at].split(" ")
    words[rng.randrange(len(words))] = rng.choice((*HOSTILE, *words))
    lines[at] = " ".join(words)
    format, reader = rng.choice(((1, 1), (1, 1), (1, 1), (2, 1), (9, 9), ("", "0"), ("NaN", 1)))
    return joined(format, reader, lines, rest)


def edit_lines(data: bytes, rng: random.Random) -> bytes:
    """Lines of the table that are left out, doubled, in another order, or made up."""
    _, table, rest = split(data)
    lines = table.decode().splitlines()
    match rng.randrange(4):
        case 0:
            lines.pop(rng.randrange(len(lines)))
        case 1:
            lines.append(rng.choice(lines))
        case 2:
            rng.shuffle(lines)
        case 3:
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(LINES))
    return joined(1, 1, lines, rest)


def edit_signature(data: bytes, rng: random.Random) -> bytes:
    """A damaged signature in a container whose checksums are all right."""
    text = bytearray(str(SIGNATURE).encode())
    for _ in range(rng.choice((1, 2, 6))):
        at = rng.randrange(len(text))
        text[at : at + rng.choice((0, 1, 9))] = rng.choice(
            (
                *[word.encode() for word in HOSTILE],
                b"*",
                b"\n",
                b"\xff",
                b"{",
                b",",
                b'"',
                b"tensor<",
            )
        )
    return container_bytes([Section("signature", bytes(text)), *SECTIONS[1:]])


def edit_section(data: bytes, rng: random.Random) -> bytes:
    """Sections in another order, or empty."""
    sections = [s for s in SECTIONS if rng.random() < 0.8]
    rng.shuffle(sections)
    made = [Section(s.kind, b"", s.name) if s.kind != "constant" else s for s in sections]
    return container_bytes(rng.choice((sections, made)))


MUTATIONS = (flip, cut, insert, remove, edit_fields, edit_lines, edit_signature, edit_section)


def read_all(data: bytes) -> None:
    """Use everything that a container has, but what needs trust."""
    found = open_container(data)
    signature = found.signature()
    assert signature.check() == signature
    found.text("tiled")
    for name, held in found.constants.items():
        assert held.nbytes <= len(data), name
    found.check()


def refused(data: bytes) -> bool:
    """Whether a mutant is refused; any other error than Weft's own is one of the test."""
    try:
        read_all(data)
    except WeftError as error:
        assert error.message and error.help
        return True
    return False


def mutants(count: int, seed: int) -> tuple[int, float]:
    """How many of so many mutants are refused, and the longest that one has taken."""
    rng = random.Random(seed)
    longest, found = 0.0, 0
    for n in range(count):
        data = MUTATIONS[n % len(MUTATIONS)](WHOLE, rng)
        begin = time.process_time()
        found += refused(data)
        longest = max(longest, time.process_time() - begin)
    return found, longest


def check_mutants(count: int, seed: int) -> None:
    read_all(WHOLE)
    tracemalloc.start()
    try:
        found, longest = mutants(count, seed)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found > 0.7 * count, "mutations that change nothing"
    assert longest < 5, "a mutant that takes seconds"
    assert peak < 64 << 20, f"mutants took {peak:,} bytes"


def test_mutants_are_refused_with_weft_errors():
    check_mutants(500, 1)


@pytest.mark.long
def test_many_mutants_are_refused_with_weft_errors():
    check_mutants(10_000, 2)


def test_changed_bytes_are_seen():
    """Flipped bits and cuts, in all that a checksum covers, never read as something else."""
    rng = random.Random(3)
    for _ in range(200):
        for change in (flip, cut):
            data = change(WHOLE, rng)
            if data != WHOLE and not refused(data):
                check_content(open_container(data))  # only what lies between sections


NEITHER = """
import sys
for name in ("jax", "jaxlib", "torch", "llvmlite"):
    sys.modules[name] = None
from weft.executable.container import open_container
from weft.executable import call
import numpy as np
found = open_container(sys.argv[1])
signature = found.signature()
given = {"w": np.ones((8, 16), np.float32)}, [found.constant("w0")[:4, :8].astype("bfloat16"), None]
arrays = call.arguments(signature, given, {"rate": 2})
print(len(arrays), call.results(signature, [1, 2]))
"""


def test_neither_jax_nor_torch_is_needed():
    line = [sys.executable, "-c", NEITHER, str(DATA / "v1.weft")]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.stdout == "3 (State(count=1), 2)\n", done.stderr
