"""The summary of a compiled program: signature, mesh, stages, collectives and memory."""

from __future__ import annotations

from collections.abc import Sequence

from weft.capture import Leaf
from weft.columns import Column, cut, table_lines
from weft.cost.sent import bytes_sent, total_sent
from weft.ir.types import Type
from weft.machine import bytes_text
from weft.mesh import Mesh, P, Sharding
from weft.pipeline import STAGES, Program

_LISTED = 12  # the most arguments, and results, with their own line
_NAME, _TYPE = 28, 22  # the widest columns


def described(
    name: str, program: Program, arguments: Sequence[Leaf], results: Sequence[Leaf]
) -> str:
    """The summary of a program, in 80 columns."""
    local = program.local
    mesh = next((m for m in program.module.meshes.values() if m.axes), None)
    shown = program.stages.get(STAGES[0], program.module).function("main")
    lines = [f"{name} on {mesh_text(mesh)}"]
    for word, leaves, types, shardings in (
        ("arguments", arguments, shown.arg_types, local.shardings),
        ("results", results, shown.result_types, local.result_shardings),
    ):
        lines += [f"  {word}", *_values(leaves, types, shardings)]
    counts = [
        f"{stage} {sum(1 for _ in module.nodes()):,}" for stage, module in program.stages.items()
    ]
    lines.append(f"  nodes        {', '.join(counts)}")
    rows = bytes_sent(program.module)
    sent = f", {bytes_text(round(total_sent(rows)))} sent by each device" if rows else ""
    lines.append(f"  collectives  {sum(row.count for row in rows):,}{sent}")
    lines.append(f"  memory       {bytes_text(local.memory_of_one().peak)} on each device")
    return "\n".join(lines)


def mesh_text(mesh: Mesh | None) -> str:
    """`8 devices, data=2 x model=4`."""
    if mesh is None or mesh.size == 1:
        return "1 device"
    return f"{mesh.size:,} devices, " + " x ".join(f"{axis}={size}" for axis, size in mesh.axes)


def _values(
    leaves: Sequence[Leaf], types: Sequence[Type], shardings: Sequence[Sharding | None]
) -> list[str]:
    rows = [
        (_end(leaf.name, _NAME), cut(_type_text(type), _TYPE), _split_text(sharding, leaf))
        for leaf, type, sharding in zip(leaves, types, shardings, strict=True)
    ]
    columns = (Column(), Column(), Column(fit="cut"))
    lines = [f"    {line}" for line in table_lines(columns, rows[:_LISTED])]
    more = len(rows) - _LISTED
    lines += [f"    and {more:,} more"] if more > 0 else []
    return lines or ["    none"]


def _type_text(type: Type) -> str:
    return str(type).removeprefix("tensor<").removesuffix(">")


def _split_text(sharding: Sharding | None, leaf: Leaf) -> str:
    donated = "donated" if leaf.donated else ""
    if sharding is None or not any(dim.axes for dim in sharding.dims):
        return donated
    return f"{P(*sharding.dims)} {donated}".rstrip()


def _end(text: str, width: int) -> str:
    """A name, truncated at its start: leaves of a tree share prefixes."""
    return text if len(text) <= width else f"…{text[1 - width :]}"
