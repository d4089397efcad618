"""Functions that may be approximate: off by default, by name, and within the stated error."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from weft.capture import parse
from weft.cli import main
from weft.emit.triton.target import Triton
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.kernels.kernel import Kernel
from weft.kernels.read import parse_kernel
from weft.kernels.text import kernel_text
from weft.ops.elementwise.approximate import APPROXIMABLE, TOLERANT
from weft.pipeline import compile_module

RELATIVE, SUBNORMAL = 2.0**-13, 2.0**-126
STEP = 8191  # of the bit patterns of f32 that are tried: all exponents, half a million numbers


def logistic(x):
    return 1 / (1 + jnp.exp(-x))


LOGISTIC = """func.func @main(%x: tensor<300xf32>) -> tensor<300xf32> {
  %0 = stablehlo.logistic %x : tensor<300xf32>
  return %0 : tensor<300xf32>
}"""


# Each function, the name that makes it approximate, and Triton's words for it.
CASES = {
    "exp": (jnp.exp, "exp", "p.fast_exp("),
    "logistic": (logistic, "exp", "p.fast_exp("),
    "tanh": (jnp.tanh, "exp", "p.fast_tanh("),
    "one plus tanh": (lambda x: 1 + jnp.tanh(x), "exp", "p.fast_tanh("),
    "rsqrt": (jax.lax.rsqrt, "rsqrt", "tl.rsqrt("),
    "reciprocal": (lambda x: 1 / x, "reciprocal", " / "),
}


def patterns(step: int) -> np.ndarray:
    """Bit patterns of f32, with all special ones."""
    special = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 88.7, -87.4, -103.9, -104])
    edges = np.array([1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7FC00001, 0x80000001], np.uint32)
    every = np.arange(0, 1 << 32, step, np.uint32)
    return np.concatenate([special, edges.view("f4"), every.view("f4")])


def exact(name: str, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        wide = x.astype("f8")
        return {
            "exp": lambda: np.exp(wide),
            "logistic": lambda: 1 / (1 + np.exp(-wide)),
            "tanh": lambda: np.tanh(wide),
            "one plus tanh": lambda: 2 / (1 + np.exp(-2 * wide)),
            "rsqrt": lambda: 1 / np.sqrt(wide),
            "reciprocal": lambda: 1 / wide,
        }[name]()


def check(name: str, x: np.ndarray, made: np.ndarray) -> None:
    """Special values as they are, all others within the error."""
    wanted, most = exact(name, x), float(np.finfo("f4").max)
    # 2^n / (1 + ..) is 0 from where 2^n / 2 is subnormal.
    small = 2 * SUBNORMAL if name == "one plus tanh" else SUBNORMAL
    with np.errstate(all="ignore"):
        error = np.abs(made.astype("f8") - wanted)
        good = error <= np.maximum(RELATIVE * np.abs(wanted), small)
        good |= np.isnan(wanted) & np.isnan(made)
        # What overflows, or is as near to it as the error, may be infinite.
        good |= (
            np.isinf(made)
            & (np.sign(made) == np.sign(wanted))
            & (np.abs(wanted) >= most * (1 - RELATIVE))
        )
        good |= (np.abs(wanted) > most) & (np.abs(made) >= most * (1 - RELATIVE))
    assert good.all(), (name, x[~good][:4], made[~good][:4], wanted[~good][:4])
    assert (np.signbit(made) == np.signbit(wanted))[(wanted == 0) | np.isinf(wanted)].all()


@pytest.mark.parametrize("name", CASES)
def test_results_are_within_the_stated_error(name):
    function, option, _ = CASES[name]
    x = patterns(STEP)
    check(name, x, np.asarray(weft.compile(function, x, approximate=option)(x)))


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_many_results_are_within_the_stated_error(name):
    function, option, _ = CASES[name]
    x = patterns(127)
    check(name, x, np.asarray(weft.compile(function, x, approximate=option)(x)))


def chain(x):
    return 1 / x + jnp.exp(x) + jnp.tanh(x) * jax.nn.sigmoid(x) + jax.lax.rsqrt(x)


def marks(made: weft.Compiled) -> int:
    return made.text("tiled").count("TOLERANCE")


def test_off_by_default_and_by_name():
    x = np.linspace(0.1, 9, 4000, dtype="f4")
    off, none = weft.compile(chain, x), weft.compile(chain, x, approximate=())
    assert off.text("emitted") == none.text("emitted") and marks(off) == 0
    # sigmoid is a reciprocal of an exponential.
    for names, count in (("exp", 3), ("rsqrt", 1), (["reciprocal"], 2), ("exp, rsqrt", 4)):
        made = weft.compile(chain, x, approximate=names)
        assert marks(made) == count and off.text("optimized") == made.text("optimized")
        assert off.program.digest() != made.program.digest()
        assert not np.array_equal(np.asarray(off(x)), np.asarray(made(x)))
    assert marks(weft.compile(lambda a: a / x, x, approximate="reciprocal")) == 0


def test_a_saved_program_has_it(tmp_path):
    x = np.linspace(-9, 9, 4000, dtype="f4")
    made = weft.compile(chain, x, approximate=[*APPROXIMABLE])
    made.save(tmp_path / "p.weft")
    np.testing.assert_array_equal(
        np.asarray(weft.load(tmp_path / "p.weft")(x)), np.asarray(made(x))
    )


def test_other_types_are_not_approximate():
    for dtype in ("f8", "f2", jnp.bfloat16):
        x = np.ones(64, dtype)
        with jax.enable_x64(True):
            assert marks(weft.compile(chain, x, approximate=[*APPROXIMABLE])) == 0


def test_other_names_are_refused():
    known = "expected exp, rsqrt, reciprocal"
    for given in ("log", ["exp", "sqrt"], [3]):
        with pytest.raises(WeftError, match="no approximate function") as caught:
            weft.compile(jnp.exp, approximate=given)
        assert caught.value.help == known


def test_a_programs_own_accuracy_is_kept():
    text = """func.func @main(%x: tensor<99xf32>) -> tensor<99xf32> {
  %0 = stablehlo.exponential %x {result_accuracy = #stablehlo.result_accuracy<mode = \
#stablehlo.result_accuracy_mode<HIGHEST>>} : tensor<99xf32>
  return %0 : tensor<99xf32>
}"""
    x = np.linspace(-9, 9, 99, dtype="f4")
    on, off = (weft.compile(text, approximate=names) for names in ("exp", ""))
    assert marks(on) == 0
    np.testing.assert_array_equal(np.asarray(on(x)), np.asarray(off(x)))


def test_loops_and_reductions_have_it_too():
    def program(x):
        x = jax.lax.fori_loop(0, 3, lambda n, a: jnp.exp(-a), x)
        return jax.nn.softmax(x.reshape(20, 50)) * jax.lax.rsqrt(jnp.sum(x * x))

    x = np.linspace(0, 3, 1000, dtype="f4")
    made = weft.compile(program, x, approximate=["exp", "rsqrt"])
    (wanted,) = evaluate(parse(made.text("captured")), x)
    np.testing.assert_allclose(np.asarray(made(x)), wanted, rtol=1e-3)
    assert marks(made) >= 3


def kernels(name: str, **options) -> list[Kernel]:
    """The kernels of a case for Triton, which need not be installed."""
    program = CASES[name][0], np.zeros(300, "f4")
    return triton_kernels(weft.compile(*program, target="numpy").text("captured"), **options)


def triton_kernels(text: str, **options) -> list[Kernel]:
    made = compile_module(parse(text), target="triton", to="tiled", **options)
    return [k for k in made.executable.kernels() if isinstance(k, Kernel)]


@pytest.mark.parametrize("name", CASES)
def test_triton_calls_the_fast_function(name):
    _, option, words = CASES[name]
    (off,), (on,) = kernels(name), kernels(name, approximate=[option])
    assert words not in Triton().text(off).split("tl.load", 1)[1]
    assert words in Triton().text(on).split("tl.load", 1)[1]
    assert "fast_logistic" in Triton().text(*triton_kernels(LOGISTIC, approximate=["exp"]))
    assert TOLERANT in kernel_text(on) and parse_kernel(kernel_text(on)) == on


def test_the_command_line_has_it(tmp_path, capsys):
    x = np.zeros(64, "f4")
    program, tiled = tmp_path / "p.mlir", tmp_path / "p.tiled"
    program.write_text(weft.compile(jnp.exp, x).text("captured"))
    options = ["--approximate", "exp,rsqrt"]
    assert main(["compile", str(program), "--to", "tiled", *options, "-o", str(tiled)]) == 0
    assert tiled.read_text().count("TOLERANCE") == 1
    assert main(["compile", str(tiled), "--from", "tiled", "--to", "emitted"]) == 0
    assert main(["run", str(program), *options]) == 0
    capsys.readouterr()
    assert main(["run", str(program), "--approximate", "log"]) == 1
    assert "expected exp, rsqrt, reciprocal" in capsys.readouterr().err
