"""The Llama training step of the examples, saved here and started where there is no JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import weft
from weft import P

ROOT = Path(weft.__file__).parents[1]
PACKAGES = ("numpy", "llvmlite")
START = """
import importlib.util, sys
assert not [n for n in ("jax", "jaxlib", "torch", "ml_dtypes") if importlib.util.find_spec(n)]
import numpy as np
import weft
step = weft.load(sys.argv[1])
weights, tokens = step.signature.takes.unflatten([*np.load(sys.argv[2]).values()])[0]
for _ in range(3):
    weights, loss = step(weights, tokens)
leaves = step.signature.gives.flatten((weights, loss))
np.savez(sys.argv[3], *[np.asarray(leaf) for leaf in leaves])
print(any(name.startswith("weft.emit.llvm.loops") for name in sys.modules))
"""


def installed(folder: Path) -> str:
    """A Python with what Weft needs to run a program, in the versions that are here."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(folder / "bin" / "python")
    line = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-c"]
    line += [str(ROOT / "constraints.txt"), *PACKAGES]
    if subprocess.run(line, timeout=600).returncode:
        pytest.skip("packages cannot be installed here")
    return python


@pytest.mark.long
def test_the_llama_step_gives_the_same_numbers_where_there_is_no_jax(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import llama

    weights, tokens = llama.inputs()
    options = {"in_shardings": llama.shardings, "out_shardings": (llama.WEIGHTS, P())}
    options |= {"mesh": weft.Mesh(data=2, model=4), "donate_argnums": 0}
    step = weft.compile(llama.train_step, weights, tokens, **options)
    names = [str(tmp_path / name) for name in ("step.weft", "in.npz", "out.npz")]
    step.save(names[0])
    np.savez(names[1], *jax.tree.leaves((weights, tokens)))
    for _ in range(3):
        weights, loss = step(weights, tokens)
    python = installed(tmp_path / "venv")
    kept = {"PYTHONPATH": str(ROOT), "WEFT_CACHE": str(tmp_path / "cache")}
    for imports_makers in ("True\n", "False\n"):  # with a cold and with a warm cache
        line = [python, "-c", START, *names]
        done = subprocess.run(line, env=os.environ | kept, capture_output=True, text=True)
        assert done.stdout == imports_makers, done.stderr
        found = np.load(names[2]).values()
        for one, other in zip(jax.tree.leaves((weights, loss)), found, strict=True):
            np.testing.assert_array_equal(one, other)
