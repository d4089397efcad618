"""A process of its own that parses MLIR with jaxlib and answers with MLIR's generic text.

Run as a script. A request on standard input is 8 bytes of length and the program (text, bytecode or
portable artifact); an answer is 1 byte, `+` or `-`, 8 bytes of length, and the generic text or the
error. A crash inside the parser ends this process and no other.
"""

from __future__ import annotations

import sys
from typing import Any, BinaryIO

MAGIC = b"ML\xefR"


def make_context() -> Any:
    """An MLIR context that knows every dialect a StableHLO program may hold."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    sdy.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    stablehlo.register_interpreter_dialect(context)
    context.allow_unregistered_dialects = True
    context.enable_multithreading(False)
    return context


def parse_module(context: Any, program: bytes) -> Any:
    """A program in any of its forms as an MLIR module."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with context:
        if program.startswith(MAGIC) and _producer(program).startswith(b"StableHLO_v"):
            return stablehlo.deserialize_portable_artifact(context, program)
        return ir.Module.parse(program, context)


def _producer(program: bytes) -> bytes:
    """The name that the writer of MLIR bytecode left after the version."""
    end = program.find(b"\0", 5)
    return program[5:end] if end > 0 else b""


def generic_text(module: Any) -> str:
    """A module in MLIR's generic form, with locations."""
    text = module.operation.get_asm(
        print_generic_op_form=True, enable_debug_info=True, assume_verified=True
    )
    assert isinstance(text, str)
    return text


def answer(context: Any, program: bytes) -> tuple[bytes, bytes]:
    """The generic text of a program, or why it has none."""
    try:
        return b"+", generic_text(parse_module(context, program)).encode("utf-8", "replace")
    except Exception as error:  # noqa: BLE001  # whatever the parser raises is the answer
        return b"-", str(error).encode("utf-8", "replace")


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    context = make_context()
    while len(header := requests.read(8)) == 8:
        program = requests.read(int.from_bytes(header, "little"))
        status, text = answer(context, program)
        answers.write(status + len(text).to_bytes(8, "little"))
        answers.write(text)
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
