"""What the fork server imports: by the import statements of a script and of its own modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from weft.workers.preload import COMPILER, JAX, TORCH, preloaded

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import numpy as np\nimport weft\nfrom weft import Mesh", ()),
        ("import os, json.decoder\nfrom __future__ import annotations", ()),
        ("import torch", TORCH),
        ("from torch.nn import Linear", TORCH),
        ("import unheard_of", TORCH),
        ("try:\n    import torch\nexcept ImportError:\n    pass", TORCH),
        ("if True:\n    import torch", TORCH),
        ("class A:\n    import torch", TORCH),
        ("def f():\n    import torch", ()),
        ("import jax", JAX),
        ("import jax.numpy as jnp\nimport torch", (*TORCH, *JAX)),
        ("import os\nos.environ['JAX_ENABLE_X64'] = '1'\nimport jax", ()),
        ("import os, jax\nos.environ.update({'JAX_X': '1'})", ()),
        ("import os, jax\nos.environ |= {'JAX_X': '1'}", ()),
        ("import os, jax\nos.environ.setdefault('JAX_X', '1')", ()),
        ("import os, jax\nos.environ['X'] = os.environ['JAX_X']", JAX),
        ("import beside", TORCH),
        ("from folder import inner", TORCH),
        ("import folder", ()),
        ("this is no Python", ()),
    ],
)
def test_by_a_script(text: str, found: tuple[str, ...], tmp_path: Path):
    (tmp_path / "beside.py").write_text("import os\nimport folder.inner")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__init__.py").write_text("")
    (tmp_path / "folder" / "inner.py").write_text("import torch")
    script = tmp_path / "script.py"
    script.write_text(text)
    assert preloaded([str(script)]) == (*found, *COMPILER)


def test_by_a_module():
    assert preloaded(["-m", "weft", "zoo"]) == (*TORCH, *COMPILER), "an installed package's"
    assert preloaded(["-m", "unheard_of"]) == (*TORCH, *COMPILER)
    assert preloaded(["-m", "tests.workers.launched_table"]) == COMPILER
    assert preloaded(["no_such_file.py"]) == COMPILER


@pytest.mark.parametrize(
    "script", ["tests/workers/launched_training.py", "benchmarks/workers_jax.py"]
)
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted by /proc")
def test_nothing_starts_a_thread(script: str):
    """A process with threads must not be forked."""
    text = "import os; from weft.workers.fork_server import preload\n"
    text += f"preload([{str(ROOT / script)!r}])\n"
    text += "print(len(os.listdir('/proc/self/task')))"
    line = [sys.executable, "-c", text]
    environment = {"OMP_NUM_THREADS": "1", "PATH": "", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "1\n"


def test_launchers_start_without_numpy():
    code = "import sys, weft.workers.launch; print('numpy' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
