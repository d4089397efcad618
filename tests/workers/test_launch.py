"""Launched workers give the numbers of lockstep; whatever befalls one is told, and ends all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.workers.conftest import CORPUS, SAMPLE, ZOO
from weft import Mesh, P
from weft.workers.forked import CAN_FORK

pytest.importorskip("torch")
SCRIPT = Path(__file__).parent / "launched.py"
ROOT = SCRIPT.parent.parent.parent


def weft_launch(*line: str, timeout: float = 300, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weft", "launch", *line],
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_two_workers_of_two_devices():
    ran = weft_launch("--workers", "2", str(SCRIPT), "nothing")
    assert ran.returncode == 0, ran.stderr
    lines = sorted(ran.stdout.splitlines())
    assert [line.split()[0] for line in lines] == ["[0]", "[1]"]
    assert lines[0][4:] == lines[1][4:] == "devices 2 sum 72188.0"


@pytest.mark.parametrize(
    ("workers", "programs"),
    [("2", SAMPLE), *[pytest.param(n, (), marks=pytest.mark.long) for n in "248"]],
)
def test_the_corpus_of_jax_programs(workers: str, programs: tuple[str, ...], lockstep: Path):
    """As in lockstep: to the bit where sums have the same order."""
    ran = weft_launch("--workers", workers, str(CORPUS), str(lockstep), *programs)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("programs are equal") == int(workers)


@pytest.mark.long
@pytest.mark.parametrize("workers", ["2", "4", "8"])
def test_a_sample_of_the_zoo(workers: str):
    pytest.importorskip("transformers")
    line = ("-m", "weft", "zoo", *ZOO, "--mesh", str(max(int(workers), 4)), "--dtype", "f32")
    ran = weft_launch("--workers", workers, *line, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("workers", "cases"),
    [("2", "4"), *[pytest.param(n, "20", marks=pytest.mark.long) for n in "24"]],
)
def test_odd_shapes(workers: str, cases: str, tmp_path: Path):
    """Uneven shards, axes of size 1, no elements; arguments with other shardings."""
    script = SCRIPT.parent / "launched_shapes.py"
    ran = weft_launch("--workers", workers, str(script), str(tmp_path), cases)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("cases are equal") == int(workers)


def test_a_job_that_starts_again():
    ran = weft_launch("--workers", "2", "--restarts", "1", str(SCRIPT), "killed")
    assert ran.returncode == 0, ran.stderr
    assert "the process with devices [2, 3] is gone" in ran.stderr
    assert "worker 1 was last heard of" in ran.stderr
    assert "worker 1 was killed by SIGKILL: all workers start again, 0 restarts left" in ran.stderr
    assert ran.stdout.count("devices 2") == 2


@pytest.mark.long
def test_a_job_whose_workers_are_new_interpreters():
    ran = weft_launch("--workers", "2", "--start", "spawn", str(SCRIPT), "killed")
    assert ran.returncode == 137, ran.stderr
    assert "error: worker 1 was killed by SIGKILL" in ran.stderr


@pytest.mark.skipif(not CAN_FORK, reason="workers are forked on Linux")
def test_forked_workers_are_like_new_interpreters(tmp_path: Path):
    """The script is __main__, its folder is on the path, and random numbers differ."""
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    script = tmp_path / "script.py"
    script.write_text(
        "import beside, sys, os, pickle, numpy as np\n"
        "class Kept: pass\n"
        "assert type(pickle.loads(pickle.dumps(Kept()))) is Kept\n"
        "print(__name__, beside.NAME, sys.argv[1:], sys.stdin.read(), np.random.rand())\n"
        "sys.exit(3 if os.environ['RANK'] == '1' else 0)\n"
    )
    ran = weft_launch("--workers", "2", "--json", str(script), "-x", "y")
    assert ran.returncode == 3, ran.stderr
    *lines, told = ran.stdout.splitlines()[:2], "".join(ran.stdout.splitlines()[2:])
    drawn = [line.split() for line in lines[0]]
    assert [" ".join(words[1:-1]) for words in drawn] == ["__main__ beside ['-x', 'y']"] * 2
    assert drawn[0][-1] != drawn[1][-1]
    assert json.loads(told)["rank"] == 1
    assert "error: worker 1 exited with status 3" in ran.stderr


@pytest.mark.skipif(not CAN_FORK, reason="workers are forked on Linux")
def test_a_worker_that_fails_before_it_joins(tmp_path: Path):
    """Its error is the last that is printed."""
    script = tmp_path / "script.py"
    script.write_text("raise ValueError('no data')")
    ran = weft_launch(str(script))
    assert ran.returncode == 1 and "fork_server" not in ran.stderr
    line = f"   |    --> {script}:1  raise ValueError('no data')\n"
    assert f"exited with status 1\n   |  ValueError: no data\n{line}help: " in ran.stderr


@pytest.mark.skipif(not CAN_FORK, reason="workers are forked on Linux")
def test_output_that_goes_to_a_file(tmp_path: Path):
    """Of the launcher: that of a worker is a pipe, which has no position."""
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.stdout.reconfigure(errors='replace')\nprint('é', end='')\n")
    line = [sys.executable, "-m", "weft", "launch", "--workers", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    with (tmp_path / "out").open("wb") as out:
        subprocess.run(line, env=environment, stdout=out, stderr=out, check=True, timeout=300)
    assert sorted((tmp_path / "out").read_text("utf-8").splitlines()) == ["[0] é", "[1] é"]


@pytest.mark.long
@pytest.mark.parametrize("workers", [2, 4])
def test_a_module_is_trained_on_workers(workers: int):
    ran = weft_launch("--workers", str(workers), str(SCRIPT.parent / "launched_training.py"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("trained") == workers


@pytest.mark.long
def test_a_killed_job_goes_on_from_its_checkpoint(tmp_path: Path):
    """Saved by two workers of two devices, read by one process: equal to a run without kills."""
    script = SCRIPT.parent / "launched_saving.py"
    ran = weft_launch("--workers", "2", "--restarts", "1", str(script), str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("resumed at 4") == 2 and ran.stdout.count("ended at 6") == 2
    wanted = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    for _ in range(6):
        wanted = np.tanh(wanted.T @ wanted)
    found = weft.load_state(tmp_path, mesh=Mesh(y=8), plan={"w": P(None, "y")})
    np.testing.assert_allclose(found["w"].numpy(), wanted, rtol=1e-4)
    assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.long
def test_every_collective_with_every_dtype():
    ran = weft_launch("--workers", "2", "-m", "tests.workers.launched_table", "1")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("collectives are equal") == 2


@pytest.mark.long
def test_torchrun():
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", SCRIPT, "nothing"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("devices 2 sum 72188.0") == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "status", "said", "other"),
    [
        ("killed", 137, "error: worker 1 was killed by SIGKILL", "[2, 3] is gone"),
        ("raises", 1, "ValueError: no more data", "[2, 3] is gone"),
        ("stuck", 1, "worker 1 is alive; at step 6", "group [0, 1, 2, 3] never came, in 20 s"),
    ],
)
def test_a_worker_with_a_fault(fault: str, status: int, said: str, other: str):
    ran = weft_launch("--workers", "2", str(SCRIPT), fault, WEFT_TIMEOUT="20")
    assert ran.returncode == status, ran.stderr
    assert said in ran.stderr and other in ran.stderr
    assert fault != "stuck" or ("; its script is at" in ran.stderr and "sleep(100)" in ran.stderr)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--workers", "0", str(SCRIPT)], "0 workers"),
        (["no_such.py"], "no such script: no_such.py"),
        (["--hosts", "2", str(SCRIPT)], "--master HOST:PORT"),
        (["--host", "1", str(SCRIPT)], "--host 1 is not one of 1 hosts"),
        (["--master", ":x", str(SCRIPT)], "--master :x is not an address"),
        (["--master", "h:70000", str(SCRIPT)], "--master h:70000 is not an address"),
        (["--min-workers", "3", str(SCRIPT)], "--min-workers 3 of 2 workers on 1 hosts"),
    ],
)
def test_lines_that_are_wrong(line: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    from weft.cli import main

    assert main(["launch", *line]) == 1
    assert said in capsys.readouterr().err


def test_a_line_without_a_script(capsys: pytest.CaptureFixture[str]):
    from weft.cli import main

    with pytest.raises(SystemExit):
        main(["launch", "--workers", "2"])
    assert "the following arguments are required: script\n" in capsys.readouterr().err
