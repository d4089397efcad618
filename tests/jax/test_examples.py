"""Real JAX programs run unmodified, and give what they give on JAX's own devices."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.jax.door import ROOT, run_on_cpu, run_on_weft

EXAMPLES = sorted((ROOT / "examples" / "jax").glob("*.py"))
_NUMBER = re.compile(r"-?\d+\.\d+")

# All in one process: most of the time would go into starting it.
SOURCE = """
import runpy, sys
for file in {files!r}:
    print("==", file)
    runpy.run_path(file, run_name="__main__")
"""


def outputs(text: str) -> dict[str, list[str]]:
    """The lines that each example has printed."""
    parts = text.split("== ")[1:]
    return {Path(part.splitlines()[0]).stem: part.splitlines()[1:] for part in parts}


@pytest.mark.parametrize("devices", [1, 8])
def test_examples_as_on_cpu(devices: int) -> None:
    source = SOURCE.format(files=[str(file) for file in EXAMPLES])
    ours = outputs(run_on_weft(source, devices=devices, timeout=900))
    theirs = outputs(run_on_cpu(source, devices=devices, timeout=900))
    assert [*ours] == [file.stem for file in EXAMPLES]
    for name, lines in theirs.items():
        assert len(ours[name]) == len(lines), name
        for mine, line in zip(ours[name], lines, strict=True):
            assert _NUMBER.sub("#", mine) == _NUMBER.sub("#", line), name
            numbers = [np.array(_NUMBER.findall(text), float) for text in (mine, line)]
            np.testing.assert_allclose(*numbers, rtol=2e-5, atol=2e-6, err_msg=name)
