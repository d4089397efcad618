"""Executables in files: saved by one process, loaded by another, damaged by a third."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from tests.executable.write_data import DATA
from weft import Mesh, P
from weft.errors import WeftError
from weft.executable.container import FORMAT, open_container
from weft.executable.files import read
from weft.executable.read import read_tiled
from weft.executable.verify import verify_tiled

TABLE = np.arange(700, dtype=np.float32) / 700  # which is kept beside the text


def step(params, x, rounds, *, scale):
    """Products that sum over devices, a sort, a loop, numpy's part, a large constant."""
    y = jnp.tanh(x @ params["w0"]) @ params["w1"]
    ordered = jnp.sort(y, -1)
    _, z = jax.lax.while_loop(
        lambda c: c[0] < rounds, lambda c: (c[0] + 1, c[1] * 0.5 + ordered), (0, y)
    )
    transformed = jnp.fft.fft(y.astype(jnp.complex64)).real * scale
    return {"z": z, "rest": (transformed, None, [jnp.asarray(TABLE)[:4] + y.sum()])}


RNG = np.random.default_rng(0)
PARAMS = {
    "w0": RNG.standard_normal((16, 32)).astype("f"),
    "w1": RNG.standard_normal((32, 8)).astype("f"),
}
X = RNG.standard_normal((8, 16)).astype("f")
LOADED = """
import sys
for name in ("jax", "jaxlib", "torch"):
    sys.modules[name] = None
import numpy as np
import weft
program = weft.load(sys.argv[1])
given = np.load(sys.argv[2])
made = program({"w0": given["w0"], "w1": given["w1"]}, given["x"], 3, scale=2.0)
transformed, nothing, (sums,) = made["rest"]
assert nothing is None
np.savez(sys.argv[3], made["z"], transformed, sums)
"""


@pytest.fixture(scope="module", params=["llvm", "numpy"])
def saved(request: pytest.FixtureRequest, tmp_path_factory) -> tuple[weft.Compiled, Path]:
    shardings = ({"w0": P(None, "model"), "w1": P("model")}, P("data"), P())
    options = {"mesh": Mesh(data=2, model=2), "in_shardings": shardings, "target": request.param}
    made = weft.compile(step, PARAMS, X, 3, scale=2.0, **options)
    path = tmp_path_factory.mktemp("saved") / f"{request.param}.weft"
    made.save(path)
    return made, path


def leaves(made) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves((made["z"], made["rest"]))]


def test_a_loaded_program_is_called_like_the_compiled_one(saved) -> None:
    made, path = saved
    loaded = weft.load(path)
    expected, found = (program(PARAMS, X, 3, scale=2.0) for program in (made, loaded))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(leaves(expected), leaves(found), strict=True):
        np.testing.assert_array_equal(one, other)
    by_name = loaded(PARAMS, rounds=3, x=X, scale=2.0)
    np.testing.assert_array_equal(by_name["z"], found["z"])
    assert loaded.signature == made.signature
    assert loaded.memory() == made.program.local.memory_of_one()
    assert loaded.text() == made.text("tiled")


def test_programs_of_earlier_versions_run(saved) -> None:
    """A file of each format that was ever written, of this file's `step` on one mesh."""
    expected = leaves(saved[0](PARAMS, X, 3, scale=2.0))
    files = sorted(DATA.glob("program_v*.weft"))
    assert [path.stem for path in files] == [f"program_v{n}" for n in range(1, FORMAT + 1)]
    for path in files:
        made = leaves(weft.load(path)(PARAMS, X, 3, scale=2.0))
        for left, right in zip(made, expected, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


def test_where_neither_jax_nor_torch_is_installed(saved, tmp_path: Path) -> None:
    made, path = saved
    np.savez(tmp_path / "in.npz", x=X, **PARAMS)
    names = [str(path), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")]
    subprocess.run([sys.executable, "-c", LOADED, *names], check=True, timeout=120)
    found = np.load(tmp_path / "out.npz")
    for one, other in zip(leaves(made(PARAMS, X, 3, scale=2.0)), found.values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_shardings_and_donation_are_kept(tmp_path: Path) -> None:
    mesh = Mesh(data=4)
    options = {"mesh": mesh, "in_shardings": P("data"), "donate_argnums": 0}
    made = weft.compile(lambda x: x * 2, np.ones((7, 4), np.float32), **options)
    made.save(tmp_path / "twice.weft")
    loaded = weft.load(tmp_path / "twice.weft")
    given = weft.put(np.ones((7, 4), np.float32), P("data"), mesh=mesh)
    result = loaded(given)
    np.testing.assert_array_equal(result, np.full((7, 4), 2, np.float32))
    assert result.sharding == made(np.ones((7, 4), np.float32)).sharding
    with pytest.raises(WeftError, match="donated"):
        given.numpy()


def test_wrong_arguments_are_named(saved) -> None:
    loaded = weft.load(saved[1])
    with pytest.raises(WeftError, match=r"params\['w1'\]"):
        loaded({"w0": PARAMS["w0"]}, X, 3, scale=2.0)
    with pytest.raises(WeftError, match="x"):
        loaded(PARAMS, X[:4], 3, scale=2.0)


def test_what_calls_python_is_refused_by_its_line(tmp_path: Path) -> None:
    def shown(x):
        jax.debug.print("{}", x)
        return x + 1

    made = weft.compile(shown, np.ones(3, np.float32))
    with pytest.raises(WeftError, match="calls Python functions cannot be saved") as refused:
        made.save(tmp_path / "shown.weft")
    assert "test_saved.py" in str(refused.value)
    assert not (tmp_path / "shown.weft").exists()


def test_a_file_cannot_name_python_functions(saved) -> None:
    """A host node of another program becomes a call: it is refused before anything runs."""
    container = open_container(saved[1])
    text = container.text("tiled").replace('"stablehlo.fft"', '"stablehlo.custom_call"')
    with pytest.raises(WeftError):
        verify_tiled(*read_tiled(text, container.constants))


def mutated(text: str, rng: random.Random) -> str:
    """The text with a few numbers, words or lines changed."""
    lines = text.splitlines()
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        line = lines[at]
        match rng.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[rng.randrange(len(lines))])
            case 2:
                words = line.split(" ")
                words[rng.randrange(len(words))] = rng.choice(lines).split(" ")[-1]
                lines[at] = " ".join(words)
            case _:
                digits = [n for n, c in enumerate(line) if c.isdigit()]
                if digits:
                    place = rng.choice(digits)
                    lines[at] = line[:place] + rng.choice("0123456789-x") + line[place + 1 :]
        if not lines:
            return ""
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.long)])
def test_damaged_programs_are_refused_or_sound(saved, count: int) -> None:
    """Whatever a text says: it is refused with a reason, or nothing in it leaves its buffers."""
    container = open_container(saved[1])
    text, constants = container.text("tiled"), container.constants
    refused, rng = 0, random.Random(count)
    for _ in range(count):
        try:
            verify_tiled(*read_tiled(mutated(text, rng), constants))
        except WeftError as error:
            assert error.help
            refused += 1
    assert refused > count // 4


def test_a_file_of_a_target_that_is_not_here(saved, tmp_path: Path) -> None:
    made = read(open_container(saved[1]))
    assert made.target in ("llvm", "numpy")
    assert weft.load(saved[1].read_bytes()).signature.name == "step"
