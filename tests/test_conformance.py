"""Running conformance cases: every way a file can end, also with the process that runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft.compare.conformance
from weft.cli import main
from weft.compare.conformance import TARGETS, Outcome, find_cases, run_file, run_files
from weft.errors import WeftError
from weft.run import LocalProgram
from weft.run.parts import parts_of

ROOT = Path(__file__).parent.parent
GOOD = """// RUN: something of another tool
func.func @main() {
  %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %1 = stablehlo.add %0, %0 : tensor<2xi32>
  check.expect_eq_const %1, dense<[2, 4]> : tensor<2xi32>
  return
}
"""
BAD = GOOD.replace("[2, 4]", "[2, 5]")
REFUSED = GOOD.replace(
    "check.expect_eq_const %1, dense<[2, 4]> : tensor<2xi32>",
    "%2 = stablehlo.custom_call @mystery(%1) : (tensor<2xi32>) -> tensor<2xi32>",
)


@pytest.fixture
def case(tmp_path):
    """Write a case and run it in this process."""

    def write_and_run(text: str, name: str = "case.mlir") -> Outcome:
        (tmp_path / name).write_text(text)
        return run_file(tmp_path / name)

    return write_and_run


def test_a_good_case_passes(case):
    assert case(GOOD) == Outcome("case.mlir", "pass")


def test_a_bad_case_names_the_first_difference(case):
    outcome = case(BAD)
    assert outcome.status == "fail"
    assert outcome.detail == (
        "check failed: element [1] is not equal: 4, expected 5 (1 of 2 elements differ) (line 5)"
    )


def test_what_weft_does_not_do_is_refused(case):
    outcome = case(REFUSED)
    assert outcome.status == "refused"
    assert "unknown custom call 'mystery'" in outcome.detail


@pytest.mark.parametrize("mark", ["RUN-DISABLED(inaccurate):", "RUN-DISABLED(inaccurate)"])
def test_a_disabled_case_is_not_run(case, mark):
    outcome = case(BAD.replace("RUN:", mark))
    assert outcome == Outcome("case.mlir", "refused", "disabled upstream (inaccurate)")


def test_a_comment_further_down_disables_nothing(case):
    assert case(GOOD + "// RUN-DISABLED(no)\n").status == "pass"


def test_every_section_is_run(case):
    assert case(f"{GOOD}// -----\n{GOOD}").status == "pass"
    outcome = case(f"{GOOD}\n// -----\n\n{BAD}\n// -----\n// nothing but a comment\n")
    assert outcome.status == "fail"
    assert "(line 15)" in outcome.detail


def test_a_failure_outweighs_a_refusal(case):
    assert case(f"{REFUSED}// -----\n{BAD}").status == "fail"
    assert case(f"{REFUSED}// -----\n{GOOD}").status == "refused"


def test_without_main_all_that_take_no_arguments_are_run(case):
    others = GOOD.replace("@main", "@a") + "func.func @b(%a: tensor<i32>) { return }\n"
    assert case(others).status == "pass"
    assert case(others + BAD.replace("@main", "@c")).status == "fail"


def test_the_only_function_may_have_any_name(case):
    assert case(BAD.replace("@main", "@x")).status == "fail"
    outcome = case("func.func @x(%a: tensor<i32>) { return }\n")
    assert outcome.status == "refused"
    assert "@x takes 1 arguments, but a conformance case has none" in outcome.detail


def test_what_does_not_parse_fails(case):
    outcome = case("func.func @main() { return %x }\n")
    assert outcome.status == "fail"


def test_a_bug_is_a_failure(case, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(weft.compare.conformance, "evaluate", broken)
    assert case(GOOD).detail == "bug in weft: ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("file", "op"),
    [
        ("scatter_add_float32_1_125_float32_1.mlir", "scatter_add"),
        ("add_any_bfloat16_20_20.mlir", "add_any"),
        ("select_n_bool_2_3_uint8_2_3_uint8_2_3.mlir", "select_n"),
        ("tan_complex64_20_20_chlo.mlir", "tan"),
        ("iota_2x32_shape_.mlir", "iota_2x32_shape"),
        ("interpret/add.mlir", "add"),
    ],
)
def test_files_are_counted_by_op(file, op):
    assert Outcome(file, "pass").op == op


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "add_int32_1.mlir").write_text(GOOD)
    (tmp_path / "add_int32_2.mlir").write_text(BAD)
    (tmp_path / "more" / "sub_int32_1.mlir").write_text(REFUSED)
    return tmp_path


def test_files_are_chosen_by_pattern(folder):
    assert [f.name for f in find_cases(folder, "add")] == ["add_int32_1.mlir", "add_int32_2.mlir"]
    assert [f.name for f in find_cases(folder, "*_1.mlir")] == [
        "add_int32_1.mlir",
        "sub_int32_1.mlir",
    ]
    assert find_cases(folder / "add_int32_1.mlir") == [folder / "add_int32_1.mlir"]
    with pytest.raises(WeftError, match=r"no \.mlir files that match 'nothing'"):
        find_cases(folder, "nothing")
    with pytest.raises(WeftError, match="does not exist"):
        find_cases(folder / "nothing")


def test_the_command_reports_every_file(folder, capsys):
    report = folder / "report.json"
    assert main(["conformance", str(folder), "--json", str(report)]) == 1
    out = capsys.readouterr().out
    assert "pass    add_int32_1.mlir\n" in out
    assert "fail    add_int32_2.mlir  check failed: element [1] is not equal" in out
    assert "refused more/sub_int32_1.mlir  unknown custom call 'mystery'" in out
    assert "3 files: 1 pass, 1 fail, 1 refused" in out
    rows = json.loads(report.read_text())
    assert [(row["file"], row["status"]) for row in rows] == [
        ("add_int32_1.mlir", "pass"),
        ("add_int32_2.mlir", "fail"),
        ("more/sub_int32_1.mlir", "refused"),
    ]
    assert all(set(row) == {"file", "status", "detail"} for row in rows)


def test_kernels_run_what_the_reference_runs(tmp_path):
    (tmp_path / "good.mlir").write_text(GOOD)
    (tmp_path / "bad.mlir").write_text(f"{GOOD}// -----\n{BAD}")
    assert run_file(tmp_path / "good.mlir", target="llvm") == Outcome("good.mlir", "pass")
    outcome = run_file(tmp_path / "bad.mlir", target="llvm")
    assert outcome.status == "fail"
    assert "element [1] is not equal: 4, expected 5" in outcome.detail


def test_constants_are_given_to_kernels_as_arguments(tmp_path, monkeypatch):
    called = GOOD.replace(
        "%0 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>",
        "%0 = func.call @inputs() : () -> tensor<2xi32>",
    )
    inputs = """func.func private @inputs() -> tensor<2xi32> {
  %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  return %0 : tensor<2xi32>
}
"""
    (tmp_path / "case.mlir").write_text(called + inputs)
    made: list[int] = []

    class Seen(LocalProgram):
        def __call__(self, *stacks):
            made.append(len(stacks))
            assert any(part.group is not None for part in parts_of(self))
            return super().__call__(*stacks)

    monkeypatch.setattr(weft.pipeline, "LocalProgram", Seen)
    assert run_file(tmp_path / "case.mlir", target="llvm").status == "pass"
    assert made == [1]


def test_what_kernels_leave_to_numpy_is_told(tmp_path):
    text = """
func.func @main() {
  %0 = stablehlo.constant dense<0.0> : tensor<65537xf32>
  %1 = stablehlo.fft %0, type = RFFT, length = [65537]
     : (tensor<65537xf32>) -> tensor<32769xcomplex<f32>>
  check.expect_eq_const %1, dense<(0.0,0.0)> : tensor<32769xcomplex<f32>>
  return
}
"""
    (tmp_path / "fft_complex64.mlir").write_text(text)
    outcome = run_file(tmp_path / "fft_complex64.mlir", target="llvm")
    assert outcome == Outcome("fft_complex64.mlir", "pass", "by numpy: fft")


def test_the_command_takes_a_target(folder, capsys):
    assert main(["conformance", str(folder), "--target", "llvm", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert "3 files: 1 pass, 1 fail, 1 refused" in out


def test_counts_have_the_colour_of_their_status(folder, capsys, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert main(["conformance", str(folder), "--jobs", "1"]) == 1
    cells = re.findall(r"\033\[([\d;]+)m *(·|1) ", capsys.readouterr().out)
    assert {text: {style == "2" for style, t in cells if t == text} for text in "·1"} == {
        "·": {True},  # dim
        "1": {False},
    }


def test_the_command_ends_well_when_nothing_fails(folder, capsys):
    assert main(["conformance", str(folder), "--only", "*_1.mlir", "--json", "-"]) == 0
    assert [row["status"] for row in json.loads(capsys.readouterr().out)] == ["pass", "refused"]


DYING = """
import os, sys, time, pathlib
sys.path.insert(0, {root!r})
import weft.compare.conformance as conformance
run_file = conformance.run_file
def dangerous(path, **options):
    text = path.read_text()
    if "DIE" in text:
        os.abort()
    if "SLEEP" in text:
        time.sleep(600)
    print("a program that prints")
    return run_file(path, **options)
conformance.run_file = dangerous
conformance._serve()
"""


@pytest.fixture
def dangerous(folder, monkeypatch):
    """Workers that die on some files and hang on others."""
    script = folder / "worker.py"
    script.write_text(DYING.format(root=str(ROOT)))
    popen = subprocess.Popen

    def start(command: list[str], **options: object) -> object:
        ours = command[-1] == "weft.compare.conformance"
        return popen([sys.executable, str(script)] if ours else command, **options)

    monkeypatch.setattr(weft.compare.conformance.subprocess, "Popen", start)
    return folder


def test_a_process_that_dies_fails_its_file_only(dangerous):
    (dangerous / "die.mlir").write_text("// DIE\n" + GOOD)
    files = find_cases(dangerous)
    outcomes = {o.file: o for o in run_files(files, dangerous, jobs=2)}
    assert outcomes["die.mlir"].status == "fail"
    assert outcomes["die.mlir"].detail == "the process that ran it died (signal SIGABRT)"
    assert outcomes["add_int32_1.mlir"].status == "pass"
    assert outcomes["add_int32_2.mlir"].status == "fail"
    assert outcomes["more/sub_int32_1.mlir"].status == "refused"
    assert len(outcomes) == 4


def test_a_process_that_hangs_is_ended(dangerous):
    (dangerous / "sleep.mlir").write_text("// SLEEP\n")
    (outcome,) = run_files([dangerous / "sleep.mlir"], dangerous, timeout=1)
    assert outcome == Outcome("sleep.mlir", "fail", "no result after 1 seconds")


def test_leaving_early_waits_for_nobody(dangerous):
    for name in ("sleep_1.mlir", "sleep_2.mlir", "sleep_3.mlir"):
        (dangerous / name).write_text("// SLEEP\n")
    cases = [dangerous / "add_int32_1.mlir", *find_cases(dangerous, "sleep")]
    found = run_files(cases, dangerous, jobs=2)
    assert next(found).status == "pass"
    found.close()


CASES = os.environ.get("WEFT_CONFORMANCE")


# Sums may be in any order, and this case asks for 3 ulp where numbers of both signs cancel.
ORDER = {"dot_general_int64_4_3_complex64_3_6.mlir"}


@pytest.mark.long
@pytest.mark.skipif(CASES is None, reason="WEFT_CONFORMANCE names no folder of cases")
@pytest.mark.parametrize("target", TARGETS)
def test_no_case_fails(target):
    root = Path(str(CASES))
    found = run_files(find_cases(root), root, target=target)
    failed = [o for o in found if o.status == "fail"]
    assert not [o for o in failed if target == "reference" or Path(o.file).name not in ORDER]
