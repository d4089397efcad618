"""Reading programs: from text, bytes and files, through a process that may die."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.oracles.forms import binary_forms
from tests.threads import in_threads
from weft.capture import parse
from weft.capture.stablehlo import bytecode
from weft.capture.stablehlo.check_dialect import generic_checks
from weft.capture.stablehlo.parser import PARSER
from weft.errors import Unsupported, WeftError
from weft.evaluate import evaluate
from weft.ir import dense
from weft.ir.module import Module
from weft.ir.read import read_module
from weft.ops.shape import Constant

TEXT = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""


def test_every_form_gives_the_same_program(tmp_path: Path):
    expected = parse(TEXT).text()
    bytecode, artifact = binary_forms(TEXT)
    file = tmp_path / "program.mlir"
    file.write_text(TEXT)
    binary = tmp_path / "program.mlirbc"
    binary.write_bytes(bytecode)
    for given in (TEXT.encode(), bytecode, artifact, file, str(file), binary):
        assert parse(given).text() == expected


def test_locations_point_into_the_file(tmp_path: Path):
    file = tmp_path / "a b.mlir"
    file.write_text(TEXT)
    (node,) = parse(file).nodes()
    assert node.loc.line == (str(file), 2)
    assert node.loc.describe() == f"{file}:2:8  %0 = stablehlo.add %x, %x : tensor<2xf32>"


@pytest.mark.parametrize(
    "text, line, message",
    [
        ("func.func @main() {\n  return\n", 2, "expected"),
        ("module {\n  what\n}\n", 2, "what|expected"),
        (TEXT.replace("%x, %x", "%x, %y"), 2, "undeclared SSA value"),
        (TEXT.replace("stablehlo.add", "arith.addf"), 2, "unknown op|arith"),
        (TEXT.replace("stablehlo.add", "stablehlo.addd"), 2, "addd"),
    ],
)
def test_errors_have_the_place(tmp_path: Path, text: str, line: int, message: str):
    file = tmp_path / "wrong.mlir"
    file.write_text(text)
    with pytest.raises(WeftError, match=message) as caught:
        parse(file)
    assert caught.value.loc is not None and caught.value.loc.line == (str(file), line)
    assert f"{file}:{line}" in str(caught.value)
    with pytest.raises(WeftError, match=message) as caught:
        parse(text)
    assert caught.value.loc is not None and caught.value.loc.line == ("-", line)


def test_missing_files_are_named(tmp_path: Path):
    with pytest.raises(WeftError, match=r"cannot read .*nowhere\.mlir: No such file"):
        parse(tmp_path / "nowhere.mlir")
    with pytest.raises(WeftError, match="Is a directory"):
        parse(tmp_path)


def test_damaged_bytecode_is_refused():
    bytecode, artifact = binary_forms(TEXT)
    for raw in (bytecode[:40], artifact[:60], b"ML\xefR", bytecode[:9] + b"\xff" * 50):
        with pytest.raises(WeftError) as caught:
            parse(raw)
        assert caught.value.message and caught.value.help


def test_no_text_is_an_empty_program():
    assert parse("").functions == {} and parse("\n// nothing\n").functions == {}


# The parser's process


def test_a_dead_parser_is_started_again():
    parse(TEXT)
    process = PARSER._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert parse(TEXT).text()
    assert PARSER._process is not process


def test_a_crash_is_an_error_and_the_next_program_is_read():
    deep = "module {\n" * 30_000 + "}\n" * 30_000
    with pytest.raises(WeftError, match=r"MLIR.s parser|nested"):
        parse(deep)
    assert parse(TEXT).text()


def test_an_interrupted_question_does_not_answer_the_next():
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    long = "\n".join(f"  %{n} = stablehlo.add %x, %x : tensor<2xf32>" for n in range(40_000))
    program = TEXT.replace("  %0 =", f"{long.replace('%0 =', '%y =')}\n  %z =").replace(
        "return %0", "return %z"
    )
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            parse(program)
            raise KeyboardInterrupt  # a machine that is faster than the alarm
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert sum(1 for _ in parse(TEXT).nodes()) == 1


def test_threads_take_turns():
    texts = [TEXT.replace("2xf32", f"{n}xf32") for n in range(2, 10)]
    found: dict[int, str] = {}

    def read(n: int) -> None:
        found[n] = parse(texts[n]).text()

    in_threads(read, len(texts))
    assert [found[n] for n in range(len(texts))] == [parse(t).text() for t in texts]


def test_a_forked_child_has_a_parser_of_its_own():
    parse(TEXT)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if parse(TEXT).text() else 2
            PARSER.close()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert parse(TEXT).text()


# The check dialect, which jaxlib does not know


@pytest.mark.parametrize(
    "pretty, generic",
    [
        (
            "check.expect_eq %0, %1 : tensor<2xf32>",
            '"check.expect_eq"(%0, %1) : (tensor<2xf32>, tensor<2xf32>) -> ()',
        ),
        (
            "check.expect_eq_const %0, dense<[1, 2]> : tensor<2xi64>",
            '"check.expect_eq_const"(%0) {value = dense<[1, 2]> : tensor<2xi64>} '
            ": (tensor<2xi64>) -> ()",
        ),
        (
            "check.expect_close %0, %1, max_ulp_difference = 3 : tensor<f32>, tensor<f32>",
            '"check.expect_close"(%0, %1) {max_ulp_difference = 3 : i64} '
            ": (tensor<f32>, tensor<f32>) -> ()",
        ),
    ],
)
def test_checks_are_made_generic(pretty: str, generic: str):
    assert generic_checks(f"  {pretty}\n").strip() == generic
    assert generic_checks(f"// {pretty}\n") == f"// {pretty}\n"


def test_checks_keep_the_lines():
    text = "  check.expect_eq %0,\n    %1 : tensor<2xf32>\n  return\n"
    assert generic_checks(text).splitlines()[2] == "  return"


@pytest.mark.parametrize(
    "text", ["check.expect_eq", "check.expect_eq %0", "check.expect_eq_const %0, "]
)
def test_damaged_checks_are_left_to_mlir(text: str):
    program = f"func.func @main() {{\n  {text} \n  return\n}}\n"
    with pytest.raises(WeftError) as caught:
        parse(program)
    assert caught.value.loc is not None and caught.value.loc.line is not None


def test_checks_run():
    text = """func.func @main(%x: tensor<2xi32>) {
  check.expect_eq_const %x, dense<[1, 2]> : tensor<2xi32>
  return
}
"""
    import numpy as np

    evaluate(parse(text), np.array([1, 2], np.int32))
    with pytest.raises(WeftError, match="check failed: element") as caught:
        evaluate(parse(text), np.array([1, 3], np.int32))
    assert caught.value.loc is not None and caught.value.loc.line == ("-", 2)


def test_quantized_types_are_unsupported():
    text = TEXT.replace("2xf32", "2x!quant.uniform<i8:f32, 1.0>")
    with pytest.raises(WeftError, match="quant"):
        parse(text)
    assert issubclass(Unsupported, WeftError)


def dense_bits(dtype: str) -> int:
    """The bits of an element in MLIR's memory."""
    return 1 if dtype == "bool" else 8 * np.dtype(dtype).itemsize


@pytest.mark.parametrize(
    "dtype",
    [
        *("float32", "float64", "int8", "uint32", "int64", "bool", "half", "complex64"),
        *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
    ],
)
def test_large_constants_of_trusted_programs(dtype: str, monkeypatch: pytest.MonkeyPatch):
    """They reach the module bit by bit, and those of the usual types without becoming text."""
    texts: list[str] = []

    def read(text: str, *rest: Any) -> Module:
        texts.append(text)
        return read_module(text, *rest)

    monkeypatch.setattr(bytecode, "read_module", read)
    bits = dense_bits(dtype)
    held = np.random.default_rng(0).integers(0, 256, 1 << 22).astype(np.uint8)
    count = max(1 << 17, (1 << 21) // bits)  # as many as make a program heavy
    array = held[:count] > 99 if dtype == "bool" else held.view(np.dtype(dtype))[:count]
    array = array.reshape(2, -1)
    with jax.enable_x64(True):
        lowered = jax.jit(lambda x: (x + array, np.zeros((300, 300), dtype))).lower(array)
    buffer = io.BytesIO()
    lowered.compiler_ir().operation.write_bytecode(buffer)
    module = bytecode.read_bytecode(buffer.getvalue())
    found = [n.op.value for n in module.function("main").body.nodes if isinstance(n.op, Constant)]
    (large,) = [value for value in found if value.type.shape == array.shape]
    assert large.array.tobytes() == array.tobytes()
    is_lent = dtype != "complex64"  # MLIR does not let Python look at these
    assert (len(texts[0]) < 10_000) == is_lent
    assert not dense._RESOURCES, "what was lent is taken back"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ('"stablehlo.zzz"() : () -> ()', Unsupported),
        ("stablehlo.zzz", WeftError),
        ("foo.bar", WeftError),
        ("func.call @a_dialect() : () -> ()", WeftError),
        ("func.call @unregistered() : () -> ()", WeftError),
    ],
)
def test_ops_that_no_dialect_has_are_unsupported_and_other_errors_wrong(line, kind):
    with pytest.raises(WeftError) as caught:
        parse(f"func.func @main() {{\n  {line}\n  return\n}}")
    assert type(caught.value) is kind and caught.value.loc is not None
    assert ("only StableHLO" in caught.value.help) == (kind is Unsupported)
