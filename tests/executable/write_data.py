"""Writes the files of tests/executable/data: two of this format version, and made-up newer ones.

    python -m tests.executable.write_data

The files of a version are kept once that version is released: every later reader has to read them.
`program_v1.weft` is a whole program, that of tests/executable/test_saved.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import ml_dtypes
import numpy as np

import weft
from weft.executable.container import FORMAT, open_container
from weft.executable.container_writing import Section, container_bytes
from weft.executable.container_writing import head_bytes as head
from weft.executable.signature import Parameter, Signature, ValueSpec
from weft.executable.structure import parse_structure
from weft.ir.types import tensor
from weft.mesh import Mesh, P

DATA = Path(__file__).parent / "data"
HERE = f"{Path(__file__).parents[2]}/".encode()
MESH = Mesh(data=2, model=4)
SIGNATURE = Signature(
    "step",
    MESH,
    parse_structure('(({"w": *}, [*, None]), {"rate": *})'),
    parse_structure("(State(count=*), *)"),
    (
        ValueSpec(
            "params['w']",
            tensor(8, 16),
            tensor(8, 4),
            P(None, "model").sharding(2, MESH, "mesh"),
            donated=True,
        ),
        ValueSpec("x[0]", tensor(4, 8, dtype="bf16"), tensor(4, 8, dtype="bf16"), layout=(0, 1)),
        ValueSpec("rate", tensor(), tensor(), weak=True, memory="pinned_host"),
    ),
    (
        ValueSpec("result[0].count", tensor(dtype="i32"), tensor(dtype="i32")),
        ValueSpec("result[1]", tensor(5), tensor(3), P("data").sharding(1, MESH, "mesh")),
    ),
    (Parameter("params"), Parameter("steps", "static", (3, "a"), True), Parameter("x")),
    (("mesh", MESH),),
    narrows=True,
)
TILED = "tiled @step  the text of a program: launches, loops, buffers; é\n" * 3
CONSTANTS = {
    "w0": np.arange(600, dtype=np.float32).reshape(20, 30),
    "bits": np.array([True, False, True]),
    "i4": np.array([-8, -1, 0, 7], ml_dtypes.int4),
    "bf16": np.arange(7).astype(ml_dtypes.bfloat16),
    "scalar": np.array(2.5 - 1j, np.complex64),
    "none": np.zeros((0, 3), np.int64),
}
SECTIONS = (
    Section("signature", str(SIGNATURE).encode()),
    Section("tiled", TILED.encode()),
    *[Section("constant", held, name) for name, held in CONSTANTS.items()],
    Section("note", b"options", "door"),
    Section("emitted", b"define void @kernel()", "llvm"),
    Section("code", bytes(range(256)), "llvm/x86-64"),
)


def edited(format: int, reader: int, extra: Sequence[str] = (), made_by: str = "weft 9.9") -> bytes:
    """The same file as another version would write it, with more lines in its table."""
    whole = container_bytes(SECTIONS, made_by=made_by)
    _, table, rest = split(whole)
    return joined(format, reader, [*table.decode().splitlines(), *extra], rest)


def split(whole: bytes) -> tuple[bytes, bytes, bytes]:
    """A container's first lines, its table, and all that follows."""
    begin = whole.index(b"\n", whole.index(b"format")) + 1
    length = int(whole[:begin].split(b" header ")[1].split(b" ")[0])
    end = begin + length
    return whole[:begin], whole[begin:end], whole[end + -end % 64 :]


def joined(format: object, reader: object, lines: Sequence[str], rest: bytes) -> bytes:
    """A container with a right checksum."""
    return b"".join([*head(format, reader, lines), rest])  # type: ignore[arg-type]


def program_bytes() -> bytes:
    """A saved program, without this machine's folders in its source locations."""
    from tests.executable.test_saved import PARAMS, X, step  # which needs JAX, and these files

    shardings = ({"w0": P(None, "model"), "w1": P("model")}, P("data"), P())
    options = {"mesh": Mesh(data=2, model=2), "in_shardings": shardings, "target": "llvm"}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "program.weft"
        weft.compile(step, PARAMS, X, 3, scale=2.0, **options).save(path)
        found = open_container(path)
        sections = [
            Section(entry.kind, found.read(entry.kind, entry.name).replace(HERE, b""), entry.name)
            for entry in found.entries.values()
        ]
    return container_bytes(sections, made_by=f"weft {weft.__version__}")


def main() -> None:
    """Write what is not there yet, and the made-up files anew."""
    DATA.mkdir(exist_ok=True)
    current = DATA / f"v{FORMAT}.weft"
    if not current.exists():
        current.write_bytes(container_bytes(SECTIONS, made_by="weft 0.1.0"))
    program = DATA / f"program_v{FORMAT}.weft"
    if not program.exists():
        program.write_bytes(program_bytes())
    (DATA / "newer.weft").write_bytes(edited(7, 5, ["feature grid-of-tiles"]))
    (DATA / "newer_feature.weft").write_bytes(edited(7, 1, ["feature grid-of-tiles"]))
    lines = [
        "hint what older readers may skip",
        f"section profile main 3904 0 {sha256().hexdigest()}",
    ]
    (DATA / "newer_readable.weft").write_bytes(edited(7, 1, lines))


if __name__ == "__main__":
    main()
