"""Workers in a Ray cluster of two nodes give the numbers of lockstep, and name what failed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.conftest import CORPUS, ZOO
from weft.cli import main

SCRIPT = Path(__file__).parent / "launched.py"
ROOT = SCRIPT.parent.parent.parent


def launched(address: str, *line: str, **more: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "weft", "launch", "--ray", address, *line],
        env={**os.environ, "PYTHONPATH": path, **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_two_nodes(cluster):
    """The script of tests/workers/test_launch.py, with the same numbers."""
    ran = launched(cluster, "--workers", "2", "--ray-strategy", "STRICT_SPREAD", str(SCRIPT), "-")
    assert ran.returncode == 0, ran.stderr
    lines = sorted(ran.stdout.splitlines())
    assert lines == [f"[{rank}] devices 2 sum 72188.0" for rank in range(2)]


def test_a_killed_worker_and_a_restart(cluster):
    ran = launched(cluster, "--workers", "2", "--restarts", "1", str(SCRIPT), "killed")
    assert ran.returncode == 0, ran.stderr
    assert "worker 1 was killed by SIGKILL: all workers start again, 0 restarts left" in ran.stderr
    assert ran.stdout.count("devices 2") == 2


def test_no_room(cluster):
    line = ("--workers", "2", "--ray-cpus", "4", str(SCRIPT), "-")
    ran = launched(cluster, *line, WEFT_TIMEOUT="3")
    assert ran.returncode == 1
    assert re.search(r"no room for 2 workers of CPU 4 each within 3 s: CPU \d are free", ran.stderr)


@pytest.mark.long
def test_the_corpus_of_jax_programs(cluster, lockstep):
    ran = launched(cluster, "--workers", "4", str(CORPUS), str(lockstep))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("programs are equal") == 4


@pytest.mark.long
@pytest.mark.parametrize("workers", ["2", "4"])
def test_a_sample_of_the_zoo(cluster, workers):
    pytest.importorskip("transformers")
    line = ("-m", "weft", "zoo", *ZOO, "--mesh", "4", "--dtype", "f32")
    ran = launched(cluster, "--workers", workers, *line)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.long
def test_an_exception_names_its_worker(cluster):
    ran = launched(cluster, "--workers", "2", str(SCRIPT), "raises")
    assert ran.returncode == 1
    assert "error: worker 1 exited with status 1" in ran.stderr
    assert "ValueError: no more data" in ran.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("workers", "script"), [("4", ["launched_training.py"]), ("2", ["launched_table.py", "5"])]
)
def test_training_and_the_table_of_collectives(cluster, workers, script):
    name, *rest = script
    ran = launched(cluster, "--workers", workers, str(SCRIPT.with_name(name)), *rest)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (["--hosts", "2", "--master", "10.0.0.1:1"], "are not for workers in a Ray cluster"),
        (["--start", "spawn"], "are not for workers in a Ray cluster"),
        (["--ray-cpus", "-1"], "a worker needs a negative resource"),
    ],
)
def test_options_that_do_not_go_together(line, error, capsys):
    assert main(["launch", "--ray", "auto", *line, str(SCRIPT)]) == 1
    assert error in capsys.readouterr().err


def test_without_ray(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["launch", "--ray", "auto", "--workers", "2", str(SCRIPT)]) == 1
    assert "pip install 'weft[cluster]'" in capsys.readouterr().err
