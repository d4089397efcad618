"""The parser subprocess: parses MLIR with jaxlib and answers with MLIR's generic text.

Run as a script. A request on standard input is 8 bytes of length and the program (text, bytecode or
portable artifact); an answer is 1 byte, `+` or `-`, 8 bytes of length, and the generic text or the
error. A crash inside the parser ends this process and no other.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

SECONDS, SECONDS_PER_MEGABYTE = 20.0, 60.0  # seconds of CPU time before a parse is killed
MAGIC = b"ML\xefR"
LARGE = 1 << 14  # bytes of a program above which printing through a file is faster
HEAVY = 1 << 18  # bytes of a program that may hold large constants
MANY = 1 << 12  # elements of a constant that does not become text
# Element types that numpy reads from MLIR.
LENT = frozenset(
    {"i1", "f16", "f32", "f64", *[f"{sign}i{n}" for sign in ("", "u") for n in (8, 16, 32, 64)]}
)
# Those whose bits it reads as integers, and their names in ml_dtypes.
NARROW = {
    "bf16": "bfloat16",
    "f8E3M4": "float8_e3m4",
    "f8E4M3": "float8_e4m3",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
    "f8E5M2": "float8_e5m2",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
    "f8E8M0FNU": "float8_e8m0fnu",
}
MUCH = 1 << 22  # bytes of programs parsed in one context before it is replaced


Lend: TypeAlias = Callable[[Any], str]  # an array -> its name


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
    """The producer string of MLIR bytecode, after the version."""
    end = program.find(b"\0", 5)
    return program[5:end] if end > 0 else b""


def generic_text(context: Any, program: bytes, lend: Lend | None = None) -> bytes:
    """A program in MLIR's generic form, with locations; `lend` takes large constants."""

    def parsed() -> Any:
        module = parse_module(context, program)
        if lend is not None and len(program) >= HEAVY:
            _lend_constants(context, module, lend)
        return module

    if len(program) >= LARGE:
        text = _printed_to_file(context, parsed())
        if text is not None:
            return text
    # Parsed again: the pass that printed it has changed it.
    text = parsed().operation.get_asm(
        print_generic_op_form=True, enable_debug_info=True, assume_verified=True, binary=True
    )
    assert isinstance(text, bytes)
    return text


def _lend_constants(context: Any, module: Any, lend: Lend) -> None:
    """Refer to large constants by the names that `lend` gives their arrays."""
    import numpy as np
    from jaxlib.mlir import ir

    def visit(op: Any) -> Any:
        if op.name == "stablehlo.constant":
            type = str(op.results[0].type)
            element = type.rpartition("x")[2].rstrip(">")
            # Before the value is looked at: Python cannot have those of every type.
            if element in LENT or element in NARROW:
                value = op.attributes["value"]
                is_dense = isinstance(value, ir.DenseElementsAttr)
                if is_dense and not value.is_splat and len(value) >= MANY:
                    array = np.array(value) if element in LENT else _narrow(op, NARROW[element])
                    text = f"dense_resource<{lend(array)}> : {type}"
                    op.attributes["value"] = ir.Attribute.parse(text, context)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _narrow(constant: Any, name: str) -> Any:
    """The array of a constant of narrow floats: MLIR has no buffer of it, but folds a bitcast."""
    import ml_dtypes
    import numpy as np
    from jaxlib.mlir import ir, passmanager
    from jaxlib.mlir.dialects import arith, func

    dtype = np.dtype(getattr(ml_dtypes, name))
    with constant.context, ir.Location.unknown():
        bits = ir.IntegerType.get_signless(8 * dtype.itemsize)
        bits_type = ir.RankedTensorType.get(
            ir.RankedTensorType(constant.results[0].type).shape, bits
        )
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("bits", ((), (bits_type,)))
            with ir.InsertionPoint(function.add_entry_block()):
                copy = constant.operation.clone()
                func.ReturnOp([arith.BitcastOp(bits_type, copy.results[0]).result])
        passmanager.PassManager.parse("builtin.module(canonicalize)").run(module.operation)
        folded = module.body.operations[0].regions[0].blocks[0].operations[0]
        return np.array(folded.attributes["value"]).view(dtype)


def _printed_to_file(context: Any, module: Any) -> bytes | None:
    """The generic text that MLIR writes to a file before a pass; None if there is no such file.

    `get_asm` calls Python for every token, so a file is about five times faster.
    """
    from jaxlib.mlir import passmanager

    with tempfile.TemporaryDirectory() as folder:
        manager = passmanager.PassManager.parse("builtin.module(symbol-privatize)", context)
        manager.enable_verifier(False)
        manager.enable_ir_printing(
            print_before_all=True,
            print_after_all=False,
            enable_debug_info=True,
            print_generic_op_form=True,
            tree_printing_dir_path=folder,
        )
        manager.run(module.operation)
        for file in Path(folder).rglob("*.mlir"):
            return file.read_bytes().partition(b"\n")[2]  # after a line that names the pass
    return None


class MlirReader:
    """Reads programs in one MLIR context, replaced when it is large: contexts never free memory."""

    def __init__(self) -> None:
        self._context: Any = None
        self._met = 0  # bytes of programs

    def text(self, program: bytes, lend: Lend | None = None) -> bytes:
        """A program in MLIR's generic form."""
        if self._context is None:
            self._context, self._met = make_context(), 0
        self._met += len(program)
        try:
            return generic_text(self._context, program, lend)
        finally:
            if self._met > MUCH:
                self._context = None


_IN_PROCESS = MlirReader()
_LOCK = threading.RLock()


def read_in_process(program: bytes, lend: Lend | None = None) -> str:
    """A trusted program in MLIR's generic form, parsed in this process.

    `lend` takes the array of a large constant, and returns its name in the text.
    """
    with _LOCK:
        return _IN_PROCESS.text(program, lend).decode("utf-8", "replace")


def answer(reader: MlirReader, program: bytes) -> tuple[bytes, bytes]:
    """The generic text of a program, or the parser's error."""
    try:
        return b"+", reader.text(program)
    except Exception as error:  # noqa: BLE001  # whatever the parser raises is the answer
        return b"-", str(error).encode("utf-8", "replace")


@contextmanager
def time_limit(program: bytes) -> Iterator[None]:
    """Set a CPU time limit for a parse, in proportion to the program's size.

    Damaged bytecode can make MLIR loop forever in native code; the default action of SIGPROF ends
    the process even there.
    """
    seconds = SECONDS + SECONDS_PER_MEGABYTE * len(program) / 1e6
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until end of file."""
    reader = MlirReader()
    while len(header := requests.read(8)) == 8:
        program = requests.read(int.from_bytes(header, "little"))
        with time_limit(program):
            status, text = answer(reader, program)
        answers.write(status + len(text).to_bytes(8, "little"))
        answers.write(text)
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
