"""What JAX asks about a compiled program: its text, its costs, its memory."""

from __future__ import annotations

import ctypes
from typing import Any

from weft.jax.abi import api
from weft.jax.compiling import Executable
from weft.jax.executables import Described
from weft.jax.handles import Handles, text_at
from weft.jax.shardings import argument_tiles, result_tiles
from weft.jax.slots import slot

_FORMAT: list[tuple[int, int]] = []


@slot("Executable_OptimizedProgram")
def _optimized(handles: Handles, args: Any) -> None:
    described: Described = handles.kept[args.executable]
    program: Any = api().structs["Program"].from_address(args.program)
    code = outline(described.executable).encode()
    if not _FORMAT:
        _FORMAT.append(text_at("mlir"))
    program.format, program.format_size = _FORMAT[0]
    if program.code:
        ctypes.memmove(program.code, code, len(code))
    program.code_size = len(code)


def outline(executable: Executable) -> str:
    """The program of one device as StableHLO: what it takes and gives, and how that is split."""
    local = executable.local
    takes, gives = local.arg_types, local.result_types
    given = ", ".join([f"%arg{n}: {type}" for n, type in enumerate(takes)])
    results = ", ".join(map(str, gives))
    names = ", ".join([f"%arg{n}" for n in range(len(takes))])
    call = f"stablehlo.custom_call @weft.program({names}) {{has_side_effect = true}} : "
    call += f"({', '.join(map(str, takes))}) -> ({results})"
    made = f"%made:{len(gives)} = " if gives else ""
    returned = ", ".join([f"%made#{n}" for n in range(len(gives))])
    back = f"return {returned} : {results}" if gives else "return"
    quoted = ", ".join([f'"{text}"' for text in argument_tiles(local)])
    whole = result_tiles(local)
    output = whole[0] if len(whole) == 1 else "{" + ", ".join(whole) + "}"
    attrs = [
        f"mhlo.num_partitions = {executable.asked.partitions} : i32",
        f"mhlo.num_replicas = {executable.asked.replicas} : i32",
        f"mhlo.spmd_parameters_shardings = [{quoted}]",
        f'mhlo.spmd_output_sharding = "{output}"',
    ]
    return "\n".join(
        [
            f"module @{executable.name} attributes {{{', '.join(attrs)}}} {{",
            f"  func.func public @main({given}) -> ({results}) {{",
            f"    {made}{call}",
            f"    {back}",
            "  }",
            "}",
        ]
    )
