"""Signatures are read back exactly, say what is wrong with them, and bind a call's arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft import P
from weft.capture.signature import signature_of
from weft.errors import WeftError
from weft.executable import call
from weft.executable.signature import (
    Parameter,
    Signature,
    ValueSpec,
    flat_signature,
    parse_signature,
)
from weft.executable.structure import parse_structure
from weft.ir.types import DTYPES, TensorType, tensor
from weft.mesh import Mesh
from weft.mesh.pieces import local_shape
from weft.run import run

F32 = np.float32
GOLDEN = Path(__file__).parent.parent / "golden" / "executable"


def signature_for(fn, *args, static=(), donate=(), mesh=None, shardings=None, **kwargs):
    """The signature that a function's program has."""
    options = {"static_argnums": static, "donate_argnums": donate, "in_shardings": shardings}
    compiled = weft.compile(fn, *args, mesh=mesh, target="numpy", **options, **kwargs)
    ready, program = compiled._last, compiled.program
    main = program.module.function("main")
    return signature_of(
        compiled.__name__,
        ready.captured,
        main,
        program.local.mesh,
        program.module.meshes,
    )


def step(params, x, steps, rate=0.1, *, scale):
    return {"y": jnp.tanh(x @ params["w"]) * steps * rate, "s": (params["w"].sum() * scale, None)}


ARGS = ({"w": np.ones((8, 16), F32)}, np.ones((4, 8), F32), 3)


@pytest.fixture(scope="module")
def stepped() -> Signature:
    shardings = ({"w": P(None, "model")}, P("data"))
    mesh = Mesh(data=2, model=4)
    rest = {"rate": np.float32(0.5), "scale": 2.0}
    return signature_for(step, *ARGS, static=2, donate=0, mesh=mesh, shardings=shardings, **rest)


def test_a_person_can_read_it(stepped, golden):
    golden(GOLDEN / "signature.txt", str(stepped))
    assert parse_signature(str(stepped)) == stepped


names = st.text(max_size=8)
dtypes = st.sampled_from([*DTYPES.values()])
PLACES = st.permutations(["x", "y", None, None])


@st.composite
def specs(draw):
    mesh = Mesh(x=2, y=3)
    rank = draw(st.integers(0, 3))
    type = TensorType(tuple(draw(st.integers(0, 7)) for _ in range(rank)), draw(dtypes))
    sharding = P(*draw(PLACES)[:rank]).sharding(rank, mesh, draw(st.sampled_from([None, "m"])))
    sharding = draw(st.sampled_from([None, sharding]))
    return ValueSpec(
        draw(names),
        type,
        type.with_shape(local_shape(type.sizes, sharding, mesh)),
        sharding,
        draw(st.none() | st.permutations(range(rank)).map(tuple)),
        draw(st.sampled_from(["device", "pinned_host"])),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from(["", "key<fry>", "float0"])),
        tuple(draw(st.lists(st.tuples(names, names), max_size=2))),
    )


@given(names, st.lists(specs(), max_size=3), st.lists(specs(), max_size=3))
def test_text_is_read_back_exactly(name, arguments, results):
    mesh = Mesh(x=2, y=3)
    made = flat_signature(name, mesh, arguments, results, {"m": mesh})
    assert parse_signature(str(made)) == made
    assert str(parse_signature(str(made))) == str(made)


@given(st.data())
def test_damaged_text_is_refused_or_means_what_it_says(data):
    text = str(EXAMPLE)
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(len(text), at + 6)))
    changed = text[:at] + data.draw(st.text(max_size=4)) + text[end:]
    try:
        made = parse_signature(changed)
    except WeftError as error:
        assert error.help
    else:
        assert parse_signature(str(made)) == made


EXAMPLE = Signature(
    "step",
    Mesh((("x", 2), ("y", 2)), (3, 1, 2, 0)),
    parse_structure('(([*, *],), {"k": State(a=*)})'),
    parse_structure("*"),
    (
        ValueSpec("a", tensor(4, 6), tensor(2, 6), P("x").sharding(2, Mesh(x=2, y=2), "m")),
        ValueSpec("b", tensor(4, dtype="bf16"), tensor(4, dtype="bf16"), layout=(0,), donated=True),
        ValueSpec("k.a", tensor(), tensor(), weak=True, memory="pinned_host"),
    ),
    (ValueSpec("result", tensor(3), tensor(3), attrs=(("weft.order", "[1, 0]"),)),),
    (Parameter("list"), Parameter("n", "static", (1, "a"), True), Parameter("c", "static")),
    (("m", Mesh(x=2, y=2)),),
)


def test_the_example_is_read_back():
    assert parse_signature(str(EXAMPLE)) == EXAMPLE


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("takes", "takse", "line 7 begins with 'takse'"),
        ('gives *\n', "", "it has 0 lines 'gives'"),
        ("gives *", "gives (*, *)", "3 arguments and 1 results for 3 and 2 leaves"),
        ("local tensor<2x6xf32>", "local tensor<3x6xf32>", "argument a has pieces of [3, 6], not"),
        ("local tensor<2x6xf32>", "local tensor<2x6xf64>", "argument a is of f32, but on devices"),
        ('@m, [{"x"}', '@n, [{"x"}', "has no mesh 'n'"),
        ('[{"x"}, {}]', '[{"z"}, {}]', "no axis 'z'"),
        ('[{"x"}, {}]', '[{"x"}]', "for 1 dims, but the tensor has 2"),
        ('[{"x"}, {}]', '[{"x"}, {}] junk', "expected"),
        ("layout [0]", "layout [1]", "has the layout [1], which is not a permutation of 1 dims"),
        ("layout [0]", "layout 0", "is damaged"),
        ("layout [0]", "lay [0]", "unknown 'lay [0]'"),
        ('"x"=2, "y"=2], device', '"x"=2, "y"=3], device', "6 devices, but 4 device ids"),
        ('"x"=2', '"x"=99999999999999', "too large"),
        ("([*, *],)", "([*, *], *)", "3 parameters do not fit"),
        ("(([*, *],), {", "([*, *], [", "expected"),
        ('"n" static', '"n" statick', "parameter"),
        ("tensor<4x6xf32>", "tensor<4x6xf31>", "unknown element type"),
        ("tensor<4x6xf32>", "tuple<" * 2000, "damaged"),
        ('signature "step"', "signature " + "[" * 100_000, "damaged"),
        ('"pinned_host"', "{" * 100_000, "damaged"),
        ("(([*, *],)", "[" * 100_000, "levels of nesting"),
        ("weak", "weak 1", "unknown 'weak 1'"),
        ("tensor<4x6xf32>", "tensor<" + "9" * 5000 + "xf32>", "damaged"),
    ],
)  # fmt: skip
def test_a_contradiction_is_named(old, new, message):
    text = str(EXAMPLE)
    assert old in text
    with pytest.raises(WeftError) as caught:
        parse_signature(text.replace(old, new, 1))
    assert message in caught.value.message


# Calls


def values(found):
    return [np.asarray(value).tolist() for value in found]


def test_calls_bind_as_the_compiled_function_does(stepped):
    params, x, steps = {"w": 1}, 2, 3
    wanted = [1, 2, 5, 7]
    for args, kwargs in (
        ((params, x, steps, 5), {"scale": 7}),
        ((params, x, steps), {"rate": 5, "scale": 7}),
        ((params, x), {"rate": 5, "scale": 7}),  # what is static is left out
        ((params, x, 5), {"scale": 7}),
        ((params,), {"x": x, "rate": 5, "scale": 7}),
        ((params,), {"x": x, "steps": 3, "rate": 5, "scale": 7}),
        ((), {"scale": 7, "rate": 5, "x": x, "params": params}),
    ):
        assert call.leaves(stepped, args, kwargs) == wanted


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (({"w": 1}, 2, 4), {"rate": 5, "scale": 7}, "steps is static: the program was compiled fo"),
        (({"w": 1}, 2, 3.0), {"rate": 5, "scale": 7}, "steps is static"),
        (({"w": 1}, 2), {"steps": 4, "rate": 5, "scale": 7}, "steps is static"),
        (({"w": 1}, 2, 3, 5, 6), {"scale": 7}, "step takes 4 positional arguments, 5 given"),
        (({"w": 1}, 2, 3, 5), {"scale": 7, "x": 2}, "step takes 4 positional arguments, 5 given"),
        ((2, 3, 5), {"params": {"w": 1}, "scale": 7}, "step got params by keyword, and later arg"),
        (({"w": 1}, 2), {"scale": 7}, "rate is missing"),
        (({"w": 1}, 2, 3, 5), {}, "scale is missing"),
        (({"w": 1}, 2, 3, 5), {"scale": 7, "more": 1}, "more is not an argument of the program"),
        (({"v": 1}, 2, 3, 5), {"scale": 7}, "params['w'] is missing"),
        (({"w": [1]}, 2, 3, 5), {"scale": 7}, "params['w'] is a list, but the program takes an a"),
    ],
)
def test_wrong_calls_are_named(stepped, args, kwargs, message):
    with pytest.raises(WeftError) as caught:
        call.leaves(stepped, args, kwargs)
    assert caught.value.message.startswith(message)


def test_a_static_value_that_no_file_holds_is_left_out():
    @dataclass(frozen=True)
    class Config:
        scale: float

    made = signature_for(lambda config, x: x * config.scale, Config(2.0), F32(1), static=0)
    assert made.parameters == (Parameter("config", "static"), Parameter("x"))
    assert call.leaves(made, (5,), {}) == call.leaves(made, (), {"x": 5}) == [5]
    with pytest.raises(WeftError, match="config is static") as caught:
        call.leaves(made, (Config(2.0), 5), {})
    assert caught.value.help == "leave it out of the call"


def test_a_module_takes_arrays_one_after_another():
    made = flat_signature("main", Mesh(d=1), [EXAMPLE.arguments[2]] * 2, [EXAMPLE.results[0]])
    assert call.leaves(made, (1, 2), {}) == [1, 2]
    assert call.results(made, [3]) == (3,)
    for args, kwargs in (((1,), {}), ((1, 2, 3), {}), ((1, 2), {"a": 1}), ((1, None), {})):
        with pytest.raises(WeftError):
            call.leaves(made, args, kwargs)


SCALAR = ValueSpec("n", tensor(dtype="i8"), tensor(dtype="i8"))
VECTOR = ValueSpec("v", tensor(3), tensor(3))
KEY = ValueSpec("key", tensor(2, dtype="ui32"), tensor(2, dtype="ui32"), logical="key<fry>")


@pytest.mark.parametrize(
    ("value", "spec", "message"),
    [
        (128, SCALAR, "n: 128 does not fit into i8"),
        (-129, SCALAR, "n: -129 does not fit into i8"),
        (1.5, SCALAR, "n holds float, but the program takes int8"),
        (1, VECTOR, "v is a number, but the program takes an array of shape (3,)"),
        (np.ones(4, F32), VECTOR, "v has the shape (4,), but the program takes (3,)"),
        (np.ones(3, np.int32), VECTOR, "v holds int32, but the program takes float32"),
        (np.ones(3), VECTOR, "v holds float64, but the program takes float32"),
        (np.array(["a"] * 3), VECTOR, "v: "),
        (object(), VECTOR, "v: "),
        (10**400, replace(VECTOR, type=tensor(), local=tensor()), "v: an integer of 1329 bits"),
        (jax.random.key(0), KEY, "key holds random keys of JAX"),
    ],
)
def test_arguments_of_other_types_are_named(value, spec, message):
    with pytest.raises(WeftError) as caught:
        call.argument(value, spec)
    assert caught.value.message.startswith(message)


def test_arguments_take_the_programs_type():
    assert call.argument(7, SCALAR).dtype == np.int8
    assert call.argument(True, SCALAR) == 1
    given = np.ones(3, F32)
    taken = call.argument(given, VECTOR)
    given[0] = 5
    assert taken.tolist() == [1, 1, 1]
    assert call.argument(np.ones(3), VECTOR, narrows=True).dtype == F32
    assert call.argument(given.astype(">f4"), VECTOR).dtype == F32
    array = weft.put(np.ones(3, F32), P("d"), Mesh(d=3))
    assert call.argument(array, VECTOR) is array
    wide = weft.put(np.ones(3), P("d"), Mesh(d=3))
    assert call.argument(wide, VECTOR, narrows=True).dtype == F32
    assert call.argument(jax.random.key_data(jax.random.key(0)), KEY).shape == (2,)
    assert call.argument(jnp.ones(3), VECTOR).tolist() == [1, 1, 1]
    assert call.argument(2, replace(VECTOR, type=tensor(dtype="complex<f32>"))) == 2
    assert call.argument(1e300, replace(VECTOR, type=tensor(dtype="bf16"))) == np.inf


def test_gradients_of_integers_hold_nothing():
    spec = ValueSpec("r", tensor(2, dtype="i1"), tensor(2, dtype="i1"), logical="float0")
    made = flat_signature("main", Mesh(d=1), [], [spec])
    (found,) = call.results(made, [np.zeros(2, bool)])
    assert found.dtype == jax.dtypes.float0
    assert found.shape == (2,)


def test_arrays_of_a_call_are_checked_in_order(stepped):
    found = call.arguments(stepped, ARGS, {"rate": 0.5, "scale": 2})
    assert [a.dtype for a in found] == [F32] * 4
    assert values(found[2:]) == [0.5, 2.0]
    with pytest.raises(WeftError, match="params\\['w'\\] has the shape"):
        call.arguments(stepped, ({"w": np.ones(3, F32)}, *ARGS[1:]), {"rate": 0.5, "scale": 2})


def test_a_call_through_the_signature_is_the_call(stepped):
    """The signature, read back, is all that a call needs beside the program."""
    mesh, shardings = Mesh(data=2, model=4), ({"w": P(None, "model")}, P("data"))
    rng = np.random.default_rng(0)
    args = ({"w": rng.standard_normal((8, 16), F32)}, rng.standard_normal((4, 8), F32), 3)
    rest = {"rate": F32(0.5), "scale": 2.0}
    options = {"static_argnums": 2, "mesh": mesh, "in_shardings": shardings, "target": "numpy"}
    compiled = weft.compile(step, *args, **options, **rest)
    wanted = compiled(*args, **rest)
    made = parse_signature(str(stepped))
    found = call.results(made, run(compiled.program.local, *call.arguments(made, args, rest)))
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(wanted)
    np.testing.assert_array_equal(np.asarray(found["y"]), np.asarray(wanted["y"]))
    np.testing.assert_array_equal(np.asarray(found["s"][0]), np.asarray(wanted["s"][0]))


def test_keys_and_gradients_of_integers_are_described():
    def draw(key, n):
        return jax.random.uniform(key, (3,)), jax.grad(lambda n: 1.0, allow_int=True)(n)

    made = signature_for(draw, jax.random.key(0), np.int32(1))
    assert made.arguments[0].logical == "key<fry>"
    assert made.arguments[0].type is tensor(2, dtype="ui32")
    assert [spec.logical for spec in made.results] == ["", "float0"]
    assert parse_signature(str(made)) == made
