"""Scripts on a Python that counts as one that was not tried, whichever it is."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]

# Before Weft is imported: which Python it is, is asked then.
UNTRIED = f"""
import importlib.util, sys
path = {str(ROOT / "weft/array/cpython.py")!r}
spec = importlib.util.spec_from_file_location("weft.array.cpython", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.TRIED = ((3, 0),)
sys.modules["weft.array.cpython"] = module
"""
