"""Scripts on a Python that counts as one that was not tried, whichever it is."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]

# Before Weft is imported: which Python it is, is asked then.
UNTRIED = """
from importlib.machinery import SourceFileLoader
load = SourceFileLoader.get_code

def get_code(loader, name):
    if name != "weft.native.cpython":
        return load(loader, name)
    source = loader.get_source(name)
    changed = source.replace("TRIED = ((3, 11), (3, 12), (3, 13))", "TRIED = ((3, 0),)")
    assert changed != source
    return compile(changed, loader.path, "exec")

SourceFileLoader.get_code = get_code
"""
