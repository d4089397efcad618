"""Generate the description of a PJRT version: `python -m weft.jax.abi.generate pjrt_c_api.h`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

_KINDS = (
    (r".*\*$|.*Callback$|.*Visitor$|.*_cb$", "pointer"),
    (r"size_t|uint64_t|uintptr_t", "size"),
    (r"int64_t|intptr_t", "i64"),
    (r"int|int32_t|PJRT_\w*(Code|Type|Semantics|State)", "i32"),
    (r"bool", "bool"),
)


def described(header: str) -> str:
    """The slots and structs of a header, one a line."""
    source = re.sub(r"//[^\n]*", "", header)
    minor = re.search(r"PJRT_API_MINOR (\d+)", source)
    table = re.search(r"typedef struct PJRT_Api \{(.*?)\n\} PJRT_Api;", source, re.S)
    if minor is None or table is None:
        raise SystemExit("not a header of PJRT: PJRT_API_MINOR or PJRT_Api is missing")
    lines = [
        "# PJRT's C API: its slots in order, and the fields of its structures.",
        "# Written by `python -m weft.jax.abi.generate pjrt_c_api.h`.",
        f"version 0.{minor[1]}",
        "",
    ]
    names = re.findall(r"_PJRT_API_STRUCT_FIELD\(\s*PJRT_(\w+)\s*\)", table[1])
    lines += [f"slot {name}" for name in names]
    lines.append("")
    for name, body in re.findall(r"(?:typedef )?struct PJRT_(\w+) \{(.*?)\n\}", source, re.S):
        if name != "Api":
            lines.append(" ".join(["struct", name, *_fields(name, body)]))
    return "\n".join(lines) + "\n"


def _fields(name: str, body: str) -> Iterator[str]:
    listed = [*_declared(name, body)]
    if [field.partition(":")[0] for field in listed[:2]] == ["struct_size", "extension_start"]:
        listed[:2] = ["head"]
    yield from listed


def _declared(name: str, body: str) -> Iterator[str]:
    # Only tiled layouts are used, the larger member of the union.
    union = "tiled:Buffer_MemoryLayout_Tiled" if name == "Buffer_MemoryLayout" else "u:union"
    body = re.sub(r"union \{.*?\n?  \};", "UNION;", body, flags=re.S)
    body = re.sub(r"_PJRT_API_STRUCT_FIELD\(.*?\)", "", body)
    for line in (" ".join(part.split()) for part in body.split(";")):
        if line == "UNION":
            yield union
        elif function := re.match(r".*\(\*(\w+)\)\(", line):
            yield f"{function[1]}:pointer"
        elif line:
            kind, label = line.rsplit(None, 1)
            stars = len(label) - len(label.lstrip("*"))
            yield f"{label[stars:]}:{_kind(kind + '*' * stars)}"


def _kind(type: str) -> str:
    for pattern, word in _KINDS:
        if re.fullmatch(pattern, type):
            return word
    return type.removeprefix("PJRT_")


if __name__ == "__main__":
    print(described(Path(sys.argv[1]).read_text()), end="")
