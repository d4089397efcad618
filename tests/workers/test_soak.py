"""Jobs that are killed at random end with the loss curve of a job without kills."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.workers.test_launch import weft_launch

pytest.importorskip("torch")
SCRIPT = str(Path(__file__).parent / "launched_soak.py")
STEPS = int(os.environ.get("SOAK_STEPS", "24"))  # 2,000 take about half an hour on 16 cores


def curve(folder: Path, chance: float, *options: str) -> tuple[dict[int, set[float]], int]:
    """The losses of every step in all attempts, and the number of attempts."""
    folder.mkdir()
    line = ["--restarts", str(60 + STEPS), *options, SCRIPT, str(folder), str(STEPS), str(chance)]
    ran = weft_launch(*line, timeout=300 + 20 * STEPS)
    assert ran.returncode == 0, ran.stderr
    found: dict[int, set[float]] = {}
    attempts = set()
    for text in (folder / "losses.txt").read_text().splitlines():
        step, loss, attempt = text.split()
        found.setdefault(int(step), set()).add(float.fromhex(loss))
        attempts.add(attempt)
    assert sorted(found) == [*range(STEPS)]
    return found, len(attempts)


@pytest.mark.long
def test_a_soak_with_random_kills(tmp_path: Path):
    wanted, _ = curve(tmp_path / "calm", 0.0, "--workers", "2")
    found, attempts = curve(tmp_path / "killed", 0.1, "--workers", "2")
    assert attempts > 2 and found == wanted, "to the bit"


@pytest.mark.long
def test_a_soak_on_ever_fewer_workers(tmp_path: Path):
    wanted, _ = curve(tmp_path / "calm", 0.0, "--workers", "1")
    found, attempts = curve(tmp_path / "killed", 0.1, "--workers", "4", "--min-workers", "1")
    assert attempts > 2
    for step, losses in found.items():
        np.testing.assert_allclose([*losses], *wanted[step], rtol=1e-5, atol=1e-4)
