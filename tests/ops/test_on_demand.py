"""Ops by name, of families that are imported when one of their ops is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weft.ops import BY_NAME, ON_DEMAND

SOURCE = """
import sys
from weft.ops import ON_DEMAND
assert ON_DEMAND["stablehlo.add"].name == "stablehlo.add"
print("weft.ops.scatter" in sys.modules, "weft.ops.custom_calls.checks" in sys.modules)
assert ON_DEMAND["stablehlo.scatter"].name == "stablehlo.scatter"
print("weft.ops.scatter" in sys.modules, "weft.ops.custom_calls.checks" in sys.modules)
assert "stablehlo.nothing" not in ON_DEMAND
print("weft.ops.custom_calls.checks" in sys.modules)
"""


def test_every_op_has_its_name():
    assert {name: ON_DEMAND[name] for name in ON_DEMAND} == BY_NAME
    assert len(ON_DEMAND) == len(BY_NAME)
    assert "stablehlo.nothing" not in ON_DEMAND
    with pytest.raises(KeyError, match="nothing"):
        ON_DEMAND["stablehlo.nothing"]


def test_families_are_imported_one_by_one():
    done = subprocess.run([sys.executable, "-c", SOURCE], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False", "True", "False", "True"], done.stderr
