"""What print(compiled) and print(compiled.memory()) show."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import Mesh, P
from weft.machine import bytes_text


def layer(params, x):
    return {"out": x @ params["w"], "total": (x @ params["w"]).sum()}


def compiled(**options):
    params = {"w": np.ones((16, 32), np.float32)}
    x = np.ones((8, 16), np.float32)
    return weft.compile(layer, params, x, mesh=Mesh(data=2, model=4), **options)


def test_a_program():
    made = compiled(in_shardings=({"w": P(None, "model")}, P("data")), donate_argnums=1)
    text = str(made)
    assert text.startswith(
        "layer on 8 devices, data=2 x model=4\n"
        "  arguments\n"
        "    params['w']  16x32xf32  P(None, \"model\")\n"
        '    x            8x16xf32   P("data", None) donated\n'
        "  results\n"
        '    result[\'out\']    8x32xf32  P("data", "model")\n'
        "    result['total']  f32\n"
        "  nodes        captured "
    )
    assert "collectives  1, " in text and " sent by each device" in text
    assert repr(made) == "<weft.Compiled layer on 8 devices, data=2 x model=4>"
    assert bytes_text(made.memory().peak) in text


def test_before_the_first_call_and_after_others():
    made = weft.compile(lambda x: x + 1)
    assert str(made) == "<lambda>: compiled when it is first called"
    assert repr(made) == "<weft.Compiled <lambda>, for no arguments yet>"
    made(np.ones(2))
    assert "on 1 device" in str(made) and "latest" not in str(made)
    made(np.ones(3))
    assert "    x  3xf32\n" in str(made) and str(made).endswith("(the latest of 2 programs)")


def test_a_program_of_nothing():
    made = weft.compile(lambda: None)
    assert "  arguments\n    none\n  results\n    none\n" in str(made)
    assert str(made.memory()).splitlines()[0] == "main: 0 B on each device"


def test_memory_is_a_table():
    made = compiled(in_shardings=({"w": P(None, "model")}, P("data")))
    lines = str(made.memory()).splitlines()
    assert lines[1].split() == ["arguments", "768", "B"]
    assert "  in use at the peak, the largest first:" in lines
    assert any(
        "argument" in line and "params['w']" in line and "16x8xf32" in line for line in lines
    )


@pytest.mark.parametrize("count", [1, 40])
def test_many_long_names_fit_the_screen(count):
    tree = {f"a name that goes on and on and on and on {n}": np.ones((2, 3)) for n in range(count)}
    made = weft.compile(lambda t: {k: v + 1 for k, v in t.items()}, tree)
    lines = [*str(made).splitlines(), *str(made.memory()).splitlines()]
    assert max(map(len, lines)) <= 80
    assert ("    and 28 more" in lines) is (count == 40)
    assert any("on and on 0']" in line for line in lines)
