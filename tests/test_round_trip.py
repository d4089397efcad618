"""JAX's programs in every form: read, printed, read again, and evaluated like JAX does."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tolerance import assert_close
from weft.capture import parse
from weft.compare.conformance import find_cases
from weft.emit import emit
from weft.emit.numpy import NumpyKernels
from weft.errors import Unsupported, WeftError
from weft.evaluate import evaluate
from weft.executable.executable import Executable
from weft.executable.read import read_tiled
from weft.executable.verify import verify_tiled
from weft.ir.module import Module
from weft.ir.types import Array, TensorType
from weft.ir.verify import verify
from weft.optimize import optimize
from weft.pipeline import STAGES, Program, compile_module
from weft.run import LocalProgram, run
from weft.targets import target_named

ROOT = Path(__file__).resolve().parents[1]
CONFORMANCE = ROOT.parent / "shared" / "conformance" / "stablehlo"
FORMS = ("mlir", "located.mlir", "mlirbc", "artifact")
NAMES = (
    "mlp_step",
    "transformer_step",
    "recurrent",
    "convolutional",
    "mixture_of_experts",
    "sorting",
    "transforms",
    "loops",
    "branches",
    "random_numbers",
    "functions",
    "element_types",
    "indexing",
    "rematerialized",
    "summed",
    "summed_along_one_axis",
    "largest",
    "gathered",
    "permuted",
    "exchanged",
    "scattered",
    "told_apart",
)
ROUNDINGS = 4096  # that add up in the longest of these programs


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all programs, written once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "programs"
    with (shared / "programs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            folder.mkdir(exist_ok=True)
            command = [sys.executable, "-m", "tests.programs", str(folder)]
            subprocess.run(command, cwd=ROOT, check=True)
            (folder / "done").touch()
    return folder


def load(folder: Path, name: str, what: str, module: Module) -> list[Array]:
    """The arguments or results that were written, as the program's types say."""
    main = module.function("main")
    types = main.arg_types if what == "arguments" else main.result_types
    with np.load(folder / f"{name}.{what}.npz") as file:
        arrays = [file[key] for key in file.files]
    held = [t.dtype.numpy for t in types if isinstance(t, TensorType)]
    return [a if a.dtype == h else a.view(h) for a, h in zip(arrays, held, strict=True)]


def check(folder: Path, name: str, module: Module) -> None:
    """Weft computes what JAX computes."""
    results = evaluate(module, *load(folder, name, "arguments", module))
    expected = load(folder, name, "results", module)
    for number, (a, b) in enumerate(zip(results, expected, strict=True)):
        assert_close(a, b, ROUNDINGS, f"{name}: result {number}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_program_is_read_and_printed(programs: Path, name: str, form: str):
    module = verify(parse(programs / f"{name}.{form}"))
    text = module.text()
    assert parse(text).text() == text
    located = module.text(locations=True)
    again = parse(located)
    assert again.text(locations=True) == located
    assert [n.loc for n in again.nodes()] == [n.loc for n in module.nodes()]


@pytest.mark.parametrize("name", NAMES)
def test_program_is_evaluated(programs: Path, name: str):
    module = parse(programs / f"{name}.mlirbc")
    check(programs, name, module)
    check(programs, name, parse(module.text()))


@pytest.mark.parametrize("name", NAMES)
def test_artifact_is_evaluated(programs: Path, name: str):
    check(programs, name, parse(programs / f"{name}.artifact"))


@pytest.mark.parametrize("name", NAMES)
def test_passes_keep_the_meaning(programs: Path, name: str):
    module = parse(programs / f"{name}.mlirbc")
    smaller = optimize(module)
    assert sum(1 for _ in smaller.nodes()) <= sum(1 for _ in module.nodes())
    check(programs, name, smaller)


@pytest.mark.parametrize("name", ["mlp_step", "transformer_step"])
def test_locations_point_at_the_users_lines(programs: Path, name: str):
    module = parse(programs / f"{name}.mlirbc")
    source = (ROOT / "tests" / "programs.py").read_text().splitlines()
    dots = [n for n in module.nodes() if n.op.name == "stablehlo.dot_general"]
    assert dots
    for node in dots:
        assert node.loc.line is not None
        file, line = node.loc.line
        assert file.endswith("tests/programs.py")
        assert "@" in source[line - 1], f"line {line}: {source[line - 1]}"
        assert f"programs.py:{line}  {source[line - 1].strip()}" in node.loc.describe()


def test_errors_show_the_users_line(programs: Path):
    module = parse(programs / "mlp_step.mlirbc")
    good = load(programs, "mlp_step", "arguments", module)
    with pytest.raises(WeftError, match="argument 1 has the shape"):
        evaluate(module, good[0], good[0], *good[2:])


# The texts of all stages

FEW = ("mlp_step", "mixture_of_experts", "loops", "branches", "element_types", "told_apart")
EXAMPLES = sorted((ROOT / "examples").glob("*.mlir"))
LATE = STAGES[4:]


def bits(program: LocalProgram, arrays: list[Array]) -> list[bytes]:
    """What a program computes, to the bit."""
    return [np.asarray(array).tobytes() for array in run(program, *arrays)]


def check_stages(module: Module, arrays: list[Array], since: str | None = None) -> None:
    """The text of every stage is the program again, and runs to the same bits."""
    target = target_named("llvm")
    whole = compile_module(module, target="llvm", since=since)
    expected = bits(whole.local, arrays)
    for stage in (*whole.stages, *LATE):
        text = whole.text(stage, locations=True)
        if stage in LATE:
            kept = whole.executable.text().resources
            tiled, plan = read_tiled(text, kept)
            verify_tiled(tiled, plan)
            made = emit(Executable(tiled, plan, "llvm"), target)
            again, local = Program({}, made), LocalProgram(tiled, plan, NumpyKernels(), target)
        else:
            again = compile_module(parse(text), target="llvm", since=stage)
            local = again.local
        assert again.text(stage, locations=True) == text, stage
        assert bits(local, arrays) == expected, stage


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_stages_of_examples_are_read_back(path: Path):
    module = parse(path)
    types = [t for t in module.function("main").arg_types if isinstance(t, TensorType)]
    draw = np.random.default_rng(0)
    arrays = [draw.integers(0, 4, t.sizes).astype(t.dtype.numpy) for t in types]
    check_stages(module, arrays, "partitioned" if path.stem == "all_reduce" else None)


def check_stages_of(programs: Path, name: str) -> None:
    module = parse(programs / f"{name}.mlirbc")
    check_stages(module, load(programs, name, "arguments", module))


@pytest.mark.parametrize("name", FEW)
def test_stages_are_read_back(programs: Path, name: str):
    check_stages_of(programs, name)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name not in FEW])
def test_stages_of_all_programs_are_read_back(programs: Path, name: str):
    check_stages_of(programs, name)


# StableHLO's own test files

CASES = find_cases(CONFORMANCE) if CONFORMANCE.is_dir() else []
SAMPLE = CASES[:: max(1, len(CASES) // 60)]
absent = pytest.mark.skipif(not CASES, reason="the conformance files are not here")


def check_case(path: Path) -> None:
    """A file is read, printed and read again; what Weft does not support says so."""
    try:
        module = verify(parse(path))
    except Unsupported:
        return
    text = module.text()
    assert parse(text).text() == text
    located = module.text(locations=True)
    assert parse(located).text(locations=True) == located


@absent
@pytest.mark.parametrize("path", SAMPLE, ids=lambda path: path.stem)
def test_conformance_file_is_printed(path: Path):
    check_case(path)


@absent
@pytest.mark.long
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_stages_of_a_conformance_file_are_read_back(path: Path):
    try:
        module = verify(parse(path))
        main = module.function("main")
        compile_module(module, target="llvm", to="tiled")
    except (Unsupported, WeftError) as error:
        pytest.skip(error.message)
    if main.arg_types or not all(isinstance(t, TensorType) for t in main.result_types):
        pytest.skip("it takes arguments")
    check_stages(module, [])


@absent
@pytest.mark.long
def test_every_conformance_file_is_printed():
    for path in CASES:
        check_case(path)
