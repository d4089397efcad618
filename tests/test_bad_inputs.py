"""What weft.compile, put, constrain, Mesh and P say of what they cannot use."""

from __future__ import annotations

import re
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import weft
from weft import Mesh, P, WeftError

X = np.arange(12, dtype=np.float32).reshape(3, 4)
ADD = """func.func @main(%a: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %0 = stablehlo.add %a, %a : tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}"""


def double(x):
    return x + x


def scaled(x, *, factor=2.0):
    return x * factor


def anything(x, **given):
    return x + given["in_sharding"]


@pytest.mark.parametrize(
    ("call", "message", "help"),
    [
        (
            lambda: weft.compile(3),
            "int 3 cannot be compiled",
            "give a function of JAX or PyTorch",
        ),
        (
            lambda: weft.compile(None),
            "NoneType None cannot be compiled",
            "give a function of JAX or PyTorch",
        ),
        (lambda: weft.parse([1]), "list [1] is not a program", "give the path"),
        (lambda: weft.parse("a\0b"), "cannot read a\0b: embedded null byte", "give the path"),
        (
            lambda: weft.evaluate(ADD, X),
            "evaluate: str is not a module",
            "weft.parse",
        ),
        (lambda: weft.compile(double, X, machine=3), "machine=3 is not a machine", "host, b200"),
        (lambda: weft.compile(ADD, static_argnums=0), "static_argnums of a module", "leave it out"),
        (lambda: weft.compile(ADD, X, X), "the program takes 1 arguments, not 2", "one array"),
        (lambda: weft.compile(ADD, in_sharding=P()), "no option 'in_sharding'", "in_shardings?"),
        (
            lambda: weft.compile(double, X, in_sharding=P("data")),
            "no option 'in_sharding', and double takes no argument of that name",
            "did you mean in_shardings? options are mesh, ",
        ),
        (lambda: weft.compile(scaled, X, facter=2), "no option 'facter'", "options are mesh"),
    ],
)
def test_compile(call, message, help):
    with pytest.raises(WeftError, match=re.escape(message)) as caught:
        call()
    assert help in caught.value.help


def test_keywords_of_the_function_are_its_own():
    assert weft.compile(scaled, X, factor=3.0)(X, factor=3.0).numpy()[0, 1] == 3
    assert weft.compile(anything, X, in_sharding=X)(X, in_sharding=X).numpy()[0, 1] == 2


# Positions


@pytest.mark.parametrize("program", [double, ADD], ids=["function", "module"])
@pytest.mark.parametrize("given", ["x", 0.5, True, (0, "x"), [None], (0.0,), {"x": 1}, object()])
def test_donations_that_are_no_numbers(program, given):
    with pytest.raises(WeftError, match="donate_argnums is .*not positions of arguments"):
        weft.compile(program, donate_argnums=given)


@pytest.mark.parametrize("program", [double, ADD], ids=["function", "module"])
@pytest.mark.parametrize("given", [1, -2, (0, 5), [10**20]])
def test_donations_that_are_out_of_range(program, given):
    with pytest.raises(WeftError, match="donate_argnums names argument .* 1 positional argument"):
        weft.compile(program, X, donate_argnums=given)


@pytest.mark.parametrize("program", [double, ADD], ids=["function", "module"])
@pytest.mark.parametrize("given", [0, -1, (0, 0), (0, -1), [0], np.int64(0), range(1)])
def test_donations_that_jax_takes_too(program, given):
    made = weft.compile(program, X, donate_argnums=given)
    assert "jax.buffer_donor" in made.text("captured")


def test_no_donation():
    for given in (None, (), []):
        assert "jax.buffer_donor" not in weft.compile(double, X, donate_argnums=given).text()


@pytest.mark.parametrize("static", [1, (1,), -1])
def test_static_and_donated(static):
    with pytest.raises(WeftError, match="argument 1 is both static and donated"):
        weft.compile(lambda x, n: x * n, X, 2, static_argnums=static, donate_argnums=(0, 1))


def test_static_arguments_that_are_no_numbers():
    with pytest.raises(WeftError, match="static_argnums is str 'n', not positions"):
        weft.compile(lambda x, n: x * n, static_argnums="n")


# Meshes


@pytest.mark.parametrize("mesh", ["data=1000000000000", {"a": 10**6, "b": 10**6}, Mesh(a=10**9)])
def test_meshes_that_are_too_large(mesh):
    with pytest.raises(WeftError, match="devices is too large") as caught:
        weft.compile(double, X, mesh=mesh)(X)
    assert "at most 16,777,216 devices" in caught.value.help


def test_meshes_that_are_too_large_to_be_listed():
    for call in (weft.devices, lambda mesh: weft.put(X, P("a"), mesh)):
        with pytest.raises(WeftError, match="1,000,000,000 devices is too large to be listed"):
            call(Mesh(a=10**9))
    with pytest.raises(WeftError, match="too large"):
        weft.devices(10**10)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Mesh(a=True),
        lambda: Mesh(a=2.0),
        lambda: Mesh(a="2"),
        lambda: Mesh((("", 2),)),
        lambda: Mesh((("a", 2),), device_ids=4),
        lambda: Mesh((("a", 2),), device_ids=(0, 0)),
        lambda: Mesh((("a", 2),), device_ids=(0, -1)),
        lambda: Mesh((("a", 2),), device_ids=("x", "y")),
        lambda: P("a", priorities=3),
        lambda: P("a", priorities=("x",)),
        lambda: P("a", replicated=3),
        lambda: P("a", unreduced="ab"),
    ],
)
def test_meshes_and_specs(call):
    with pytest.raises(WeftError):
        call()


def test_sizes_of_numpy():
    assert Mesh(a=np.int64(2)) == Mesh(a=2) and type(Mesh(a=np.int64(2)).axes[0][1]) is int


# Arrays


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i4", ">i2", ">c8", ">u8", ">f2"])
@pytest.mark.parametrize("program", [True, False], ids=["function", "module"])
def test_bytes_in_the_other_order(dtype, program):
    given, native = X.astype(dtype), X.astype(np.dtype(dtype).newbyteorder("="))
    assert (weft.put(given).numpy() == native).all() and weft.put(given).dtype == native.dtype
    if program:
        expected = np.asarray(jnp.asarray(native) + jnp.asarray(native))
        assert np.asarray(weft.compile(double, given)(given)).tobytes() == expected.tobytes()
    elif dtype == ">f4":
        assert (weft.compile(ADD)(given)[0].numpy() == native + native).all()
        assert (weft.evaluate(weft.parse(ADD), given)[0] == native + native).all()


@pytest.mark.parametrize("dtype", [object, "M8[D]", [("a", "f4")], "S2"])
def test_arrays_of_other_things(dtype):
    given = np.zeros(3, dtype)
    with pytest.raises(WeftError) as caught:
        weft.put(given)
    assert "convert" in caught.value.help
    with pytest.raises(
        WeftError, match="argument x is an array of .*unsupported element type"
    ) as caught:
        weft.compile(double)(given)
    assert "x.astype(numpy.float32)" in caught.value.help


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "NoneType None holds Python objects"),
        ([[1, 2], [3]], "list [[1, 2], [3]] is not an array"),
        ({"a": 1}, "dict {'a': 1} holds Python objects"),
    ],
)
def test_put(given, message):
    with pytest.raises(WeftError, match=re.escape(message)):
        weft.put(given)


# constrain


def test_constrain_without_a_mesh_says_that_it_has_no_effect():
    with pytest.warns(RuntimeWarning, match=r'P\("nope"\) has no effect here') as caught:
        weft.constrain(jnp.ones(4), P("nope"))
    assert caught[0].filename == __file__
    with pytest.warns(RuntimeWarning, match="has no effect here"):
        weft.compile(lambda x: weft.constrain(x, P("nope")), X)


def test_constrain_without_axes_has_no_effect_anywhere():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for sharding in (None, P(), P(None, ...)):
            assert weft.constrain(X, sharding) is X


@pytest.mark.parametrize(
    ("value", "sharding", "message"),
    [
        (X, P(None, None, None), "is for 3 dims, but the tensor has 2"),
        (X, 3, "int 3 is not a sharding"),
        ("x", P(), "argument of constrain is str 'x', which is not an array"),
        (weft.put(X, P(), Mesh(data=2)), P("nope"), "the mesh has no axis 'nope'"),
        ({"a": X}, {"b": P()}, "constrain does not fit"),
    ],
)
def test_constrain_without_a_mesh_refuses_what_cannot_be_right(value, sharding, message):
    with pytest.raises(WeftError, match=re.escape(message)):
        weft.constrain(value, sharding)
