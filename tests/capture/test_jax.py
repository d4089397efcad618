"""JAX functions, captured without devices and evaluated: what JAX computes on a CPU comes out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as JaxP

import weft
from tests.capture.jax_functions import CASES, RANDOM, normal, positive
from tests.tolerance import assert_close
from weft.capture import Captured, capture
from weft.capture.jax.lowerings import lowering_rules
from weft.capture.jax.values import from_physical, to_physical
from weft.errors import Unsupported, WeftError
from weft.evaluate import evaluate
from weft.ir.module import walk
from weft.mesh import Mesh, P

ROOT = Path(__file__).parent.parent.parent


def run(captured: Captured, *args: Any, **kwargs: Any) -> Any:
    """Evaluate a captured program on one device and give the results their form again."""
    values = jax.tree.leaves((args, kwargs))
    arrays = [to_physical(v, leaf) for v, leaf in zip(values, captured.arguments, strict=True)]
    results = evaluate(captured.module, *arrays)
    made = [from_physical(r, leaf) for r, leaf in zip(results, captured.results, strict=True)]
    return jax.tree.unflatten(captured.out_tree, made)


def assert_same(ours: Any, theirs: Any, length: int = 64) -> None:
    """Two pytrees of arrays are equal within the tolerance."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert_close(a, b, length, least=1.0)


@pytest.mark.parametrize("name", CASES)
def test_what_jax_computes_comes_out(name: str):
    fn, args = CASES[name]
    assert_same(run(capture(fn, args), *args), jax.jit(fn)(*args))


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_jaxs(name: str):
    fn, args = RANDOM[name]
    assert_same(run(capture(fn, args), *args), jax.jit(fn)(*args))


def test_no_library_of_a_platform_is_called():
    for fn, args in (*CASES.values(), *RANDOM.values()):
        for node in capture(fn, args).module.nodes():
            target = getattr(node.op, "call_target_name", "weft.")
            assert target.startswith("weft."), target


def test_sixty_four_bits():
    with jax.enable_x64(True):
        x = np.linspace(0, 1, 5)
        captured = capture(lambda x, n: (x * n, jnp.arange(3)), (x, 3))
        product, numbers = run(captured, x, 3)
    assert (product.dtype, numbers.dtype) == (np.float64, np.int64)
    np.testing.assert_array_equal(product, x * 3)


def test_a_scalar_that_does_not_fit_is_refused():
    captured = capture(lambda n: n + 1, (1,))
    with pytest.raises(OverflowError, match="argument n: 4294967296 does not fit into int32"):
        run(captured, 2**32)


# Arguments


def test_static_arguments_keywords_and_nothing():
    def fn(x, power, *, offset=0, extra=None):
        return x**power + offset, extra

    captured = capture(fn, (normal(3), 2), {"offset": 1.0}, static_argnums=-1)
    assert [leaf.name for leaf in captured.arguments] == ["x", "offset"]
    x = normal(3)
    values = jax.tree.leaves(((x,), {"offset": 1.0}))
    (result,) = evaluate(captured.module, values[0], np.float32(values[1]))
    assert_same(result, x**2 + 1)


def test_names_of_arguments():
    def fn(params, *rest, flag):
        return params["w"] + rest[0] + flag

    captured = capture(fn, ({"w": normal(2)}, normal(2)), {"flag": 1})
    assert [leaf.name for leaf in captured.arguments] == ["params['w']", "args[1]", "flag"]


def test_donated_arguments_are_marked():
    captured = capture(lambda x, y: x + y["a"], (normal(2), {"a": normal(2)}), donate_argnums=1)
    attrs = [dict(a) for a in captured.module.function("main").arg_attrs]
    assert ["jax.buffer_donor" in a for a in attrs] == [False, True]
    assert [leaf.donated for leaf in captured.arguments] == [False, True]


def test_types_alone_are_enough():
    captured = capture(lambda x: x + 1, (jax.ShapeDtypeStruct((2,), "float32"),))
    assert str(captured.module.function("main").arg_types[0]) == "tensor<2xf32>"


# Meshes and shardings


def sharding_texts(captured: Captured) -> list[str]:
    main = captured.module.function("main")
    return [dict(a).get("sdy.sharding", "") for a in (*main.arg_attrs, *main.res_attrs)]


@pytest.mark.parametrize(
    "spelled",
    [
        P("data", None),
        JaxP("data"),
        NamedSharding(AbstractMesh((64, 64), ("data", "model")), JaxP("data", None)),
        P("data", None).sharding(2, Mesh(data=64, model=64)),
    ],
)
def test_a_mesh_larger_than_the_machine(spelled: Any):
    assert len(jax.devices()) < 4096
    captured = capture(
        jnp.sin, (normal(128, 8),), mesh=Mesh(data=64, model=64), in_shardings=spelled
    )
    assert sharding_texts(captured) == ['#sdy.sharding<@mesh, [{"data"}, {}]>', ""]
    assert captured.module.meshes["mesh"] == Mesh(data=64, model=64)
    assert dict(captured.module.attrs)["mhlo.num_partitions"] == "4096 : i32"


def test_the_mesh_may_come_with_a_sharding():
    spelled = NamedSharding(AbstractMesh((2,), ("x",)), JaxP("x"))
    captured = capture(lambda x: x, (normal(4),), out_shardings=spelled)
    assert captured.mesh == Mesh(x=2)


def test_shardings_are_a_prefix_of_the_arguments():
    tree = {"a": normal(4, 4), "b": [normal(4), normal(4)]}
    captured = capture(
        lambda t, x: (t, x),
        (tree, normal(8)),
        mesh=Mesh(x=2, y=2),
        in_shardings=({"a": P("x", "y"), "b": P("x")}, None),
        out_shardings=(P("y"), None),
    )
    given = ['[{"x"}, {"y"}]', '[{"x"}]', '[{"x"}]', "", '[{"y"}, {}]', '[{"y"}]', '[{"y"}]', ""]
    assert sharding_texts(captured) == [f"#sdy.sharding<@mesh, {g}>" if g else "" for g in given]


def test_a_wrong_call_is_not_blamed_on_the_shardings():
    def product(x: Any, y: Any) -> Any:
        return x @ y

    x, shardings = normal(4, 4), (P("a"), P())
    compiled = weft.compile(product, x, x, mesh=Mesh(a=2), in_shardings=shardings)
    with pytest.raises(TypeError, match="product.*missing a required argument: 'y'"):
        compiled(x)
    with pytest.raises(TypeError, match="product.*too many positional arguments"):
        compiled(x, x, x)
    with pytest.raises(WeftError, match="by position, and y is by keyword"):
        compiled(x, y=x)


def test_open_dims_and_parts_of_axes_are_kept():
    captured = capture(lambda x: x, (normal(8, 8),), mesh=Mesh(x=4), in_shardings=P("x:(1)2", ...))
    assert sharding_texts(captured)[0] == '#sdy.sharding<@mesh, [{"x":(1)2}, {?}]>'


def test_sizes_that_do_not_divide_are_welcome():
    captured = capture(lambda x: x, (normal(7),), mesh=Mesh(x=4), in_shardings=P("x"))
    assert sharding_texts(captured)[0] == '#sdy.sharding<@mesh, [{"x"}]>'


def test_constraints_inside_need_no_devices():
    def fn(x):
        return jax.lax.with_sharding_constraint(x * 2, JaxP("model", None)) + 1

    captured = capture(fn, (normal(8, 4),), mesh=Mesh(data=2, model=4))
    assert '<@mesh, [{"model"}, {}]>' in captured.module.text()


def test_shard_map_inside():
    mesh = Mesh(x=2, y=2)

    def fn(x):
        inner = jax.shard_map(
            lambda a: jax.lax.psum(a, "x"), in_specs=JaxP("x", "y"), out_specs=JaxP(None, "y")
        )
        return inner(x)

    x = normal(4, 4)
    captured = capture(fn, (x,), mesh=mesh)
    assert "sdy.manual_computation" in captured.module.text()
    assert_same(run(captured, x), x[:2] + x[2:])


def test_an_explicit_mesh_of_jax():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))

    def fn(x):
        return jax.sharding.reshard(jnp.sin(x), JaxP(None))

    captured = capture(fn, (normal(4),), mesh=mesh, in_shardings=JaxP("x"))
    assert "sdy.sharding_constraint" in captured.module.text()


# Callbacks


def test_pure_callbacks_are_called():
    def double(x):
        return np.asarray(x) * 2

    def fn(x):
        return jax.pure_callback(double, x, x, vmap_method="sequential") + 1

    captured = capture(fn, (normal(3),))
    x = normal(3)
    assert_same(run(captured, x), x * 2 + 1)
    assert len(captured.host) == 1


def test_ordered_effects_keep_their_order():
    seen = []

    def fn(x):
        io_callback(lambda v: seen.append(("first", float(v))), None, x, ordered=True)
        jax.lax.fori_loop(
            0,
            3,
            lambda i, c: io_callback(lambda v: seen.append(int(v)), None, i, ordered=True),
            None,
        )
        return io_callback(
            lambda v: (seen.append("last"), np.float32(v + 1))[1],
            jax.ShapeDtypeStruct((), "float32"),
            x,
            ordered=True,
        )

    captured = capture(fn, (np.float32(1),))
    assert captured.module.text().count("stablehlo.create_token") == 1
    assert run(captured, np.float32(1)) == 2
    assert seen == [("first", 1.0), 0, 1, 2, "last"]


def test_debug_print(capsys):
    def fn(x):
        jax.debug.print("x is {x} of {n}", x=x, n=3)
        jax.debug.callback(lambda v: print("seen", v), x)
        return x

    run(capture(fn, (np.float32(2),)), np.float32(2))
    assert capsys.readouterr().out.splitlines() == ["x is 2.0 of 3", "seen 2.0"]


def test_a_callback_may_use_weft_again():
    inner = capture(lambda x: x * 3, (np.float32(0),))

    def fn(x):
        return jax.pure_callback(lambda v: run(inner, np.asarray(v)), x, x)

    assert run(capture(fn, (np.float32(2),)), np.float32(2)) == 6


def test_all_devices_share_one_call():
    calls = []

    def note(x):
        calls.append(1)
        return np.asarray(x)

    captured = capture(lambda x: jax.pure_callback(note, x, x), (normal(2),))
    evaluate(captured.module, np.stack([normal(2)] * 4), devices=4)
    assert len(calls) == 1


def test_a_second_capture_finds_the_functions_again():
    def fn(x):
        return jax.pure_callback(lambda v: np.asarray(v) + 1, x, x)

    for _ in range(2):
        assert run(capture(fn, (np.float32(1),)), np.float32(1)) == 2


def test_a_callback_that_breaks_its_promise_names_the_line():
    def fn(x):
        return jax.pure_callback(lambda v: np.zeros(3, np.float32), x, x)

    captured = capture(fn, (np.float32(1),))
    with pytest.raises(WeftError, match="float32\\[3\\] as result 0") as caught:
        run(captured, np.float32(1))
    assert "jax.pure_callback(lambda v: np.zeros" in str(caught.value)


# Lines


def test_every_node_knows_the_users_line():
    captured = capture(lambda x: jnp.sin(x) @ x, (normal(3, 3),))
    for node in captured.module.function("main").body.nodes:
        file, _ = node.loc.line
        assert file == __file__


def test_what_jaxs_own_functions_do_has_the_lines_of_their_calls():
    def fn(x):
        y = jnp.where(x > 0, x, 0.0)  # a function of JAX
        y = jax.nn.log_softmax(y) + jnp.where(y > 1, y, 0.0)  # the same one, and another
        return jax.lax.fori_loop(0, 3, lambda i, v: jnp.where(v > i, v, 1.0), y)

    module = capture(fn, (normal(4),)).module
    lines = {name: set[int]() for name in module.functions}
    for name, function in module.functions.items():
        for node in walk(function.body):
            assert node.loc.line is not None and node.loc.line[0] == __file__, node
            lines[name].update(line for _, line, _ in node.loc.frames)
    first = fn.__code__.co_firstlineno
    assert {first + 1, first + 2} <= lines["_where"]
    assert first + 2 in lines["log_softmax"]


def test_a_primitive_for_one_device_only_is_refused_at_its_line():
    def fn(q):
        return jax.nn.dot_product_attention(q, q, q, implementation="cudnn")

    with pytest.raises((Unsupported, RuntimeError, NotImplementedError)):
        capture(fn, (normal(1, 64, 2, 64, dtype=jnp.bfloat16),))


# Refusals

MESH = Mesh(data=2, model=4)
REFUSED = {
    "too many entries": {"in_shardings": (None, None, None)},
    "another tree": {"in_shardings": ({"a": P()}, None)},
    "the wrong rank": {"in_shardings": (P(None, None, "data"), None)},
    "an axis twice": {"in_shardings": (P("data", "data"), None)},
    "an unknown axis": {"in_shardings": (P("date"), None)},
    "another mesh": {"in_shardings": (NamedSharding(AbstractMesh((8,), ("z",)), JaxP("z")), None)},
    "out shardings of the wrong rank": {"out_shardings": P(None, None, "data")},
    "too many results": {"out_shardings": (P(), P())},
    "a static array": {"static_argnums": 0},
    "static and donated": {"static_argnums": 1, "donate_argnums": 1},
    "no such argument": {"donate_argnums": 2},
}


def test_refusals(golden, request):
    lines = []
    for name, options in REFUSED.items():
        with pytest.raises(WeftError) as caught:
            capture(lambda x, y: x @ y, (normal(2, 2), normal(2, 2)), mesh=MESH, **options)
        lines.append(f"# {name}\n{caught.value}\n")
    with pytest.raises(WeftError) as caught:
        capture(lambda x, y: x, ("text", 1))
    lines.append(f"# no array\n{caught.value}\n")
    golden(request.path.parent.parent / "golden" / "capture" / "refusals.txt", "\n".join(lines))


# Linear algebra: what has no lowering that runs everywhere

MATRIX, STACK = positive(4), normal(2, 4, 4)
LINALG = {
    "solve": (jnp.linalg.solve, (MATRIX, normal(4, 2))),
    "inverse": (jnp.linalg.inv, (STACK,)),
    "determinant": (jnp.linalg.slogdet, (STACK,)),
    "cholesky": (jnp.linalg.cholesky, (MATRIX,)),
    "cholesky solve": (
        lambda a, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), b),
        (MATRIX, normal(4)),
    ),
    "triangular solve": (jax.scipy.linalg.solve_triangular, (MATRIX, normal(4))),
    "qr": (jnp.linalg.qr, (normal(5, 3),)),
    "least squares": (lambda a, b: jnp.linalg.lstsq(a, b)[0], (normal(5, 3), normal(5))),
    "pivoted qr": (lambda a: jax.scipy.linalg.qr(a, pivoting=True), (normal(4, 4),)),
    "lu": (jax.scipy.linalg.lu, (normal(4, 4),)),
    "eigenvalues": (jnp.linalg.eigvalsh, (STACK + STACK.swapaxes(1, 2),)),
    "grad of eigenvalues": (jax.grad(lambda a: jnp.linalg.eigh(a)[0][0]), (MATRIX,)),
    "singular values": (lambda a: jnp.linalg.svd(a, compute_uv=False), (STACK,)),
    "low rank": (lambda a: jnp.linalg.pinv(a), (normal(5, 3),)),
    "matrix exponential": (jax.scipy.linalg.expm, (MATRIX / 4,)),
    "tridiagonal solve": (
        lambda d, b: jax.lax.linalg.tridiagonal_solve(d / 8, d + 4, d / 8, b),
        (normal(5), normal(5, 2)),
    ),
    "grad of tridiagonal solve": (
        jax.grad(lambda d, b: jax.lax.linalg.tridiagonal_solve(d, d * 0, d, b).sum()),
        (normal(6), normal(6, 2)),
    ),
    "hessenberg": (jax.scipy.linalg.hessenberg, (normal(4, 4),)),
    "grad of solve": (
        jax.grad(lambda a, b: jnp.linalg.solve(a, b).sum()),
        (MATRIX, normal(4, 2)),
    ),
}


@pytest.mark.parametrize("name", LINALG)
def test_linear_algebra(name: str):
    fn, args = LINALG[name]
    assert_same(run(capture(fn, args), *args), jax.jit(fn)(*args), length=4000)


def test_decompositions_multiply_back():
    a = normal(4, 4)
    values, vectors = run(capture(jnp.linalg.eig, (a,)), a)
    assert_close(a @ vectors, vectors * values, 1000, least=4.0)
    form, basis = run(capture(jax.scipy.linalg.schur, (a,)), a)
    assert_close(np.asarray(basis @ form @ basis.T), a, 1000, least=4.0)


def test_matrices_of_narrow_types_are_refused_as_by_jax():
    for decompose in (jnp.linalg.qr, jnp.linalg.eigh, jax.scipy.linalg.schur):
        narrow = MATRIX.astype(np.float16)
        with pytest.raises((NotImplementedError, TypeError)) as theirs:  # later ones while tracing
            jax.jit(decompose).lower(narrow)
        with pytest.raises(type(theirs.value), match="dtype float16") as raised:
            capture(decompose, (narrow,))
        assert isinstance(raised.value, Unsupported | TypeError)


def test_a_branch_for_cpus_is_taken():
    def choose(x, **named):
        return jax.lax.platform_dependent(x, default=lambda x: x, **named)

    for named, added in (
        ({"cpu": lambda x: x + 1}, 1),
        ({"tpu": lambda x: x + 2}, 0),
        ({"cpu": lambda x: x + 1, "weft": lambda x: x + 3}, 3),
    ):
        chosen = capture(lambda x, named=named: choose(x, **named), (MATRIX,))
        assert_same(run(chosen, MATRIX), MATRIX + added)


def test_every_primitive_without_a_lowering_has_one_or_is_refused():
    """What JAX lowers for single platforms only; a new one must be looked at here."""
    from jax._src.interpreters import mlir

    specific = {p for table in mlir._platform_specific_lowerings.values() for p in table}
    ours = {p for p, _ in lowering_rules()}
    left = {p.name for p in specific if p not in mlir._lowerings and p not in ours}
    assert {n for n in left if "dot_product_attention" not in n} <= REFUSED_PRIMITIVES


REFUSED_PRIMITIVES = {"cudnn_fusion", "scaled_matmul", "pbroadcast_start"}


# Other machines


def test_meshes_of_real_devices():
    """JAX's own meshes and arrays, in the arguments and inside the function."""
    line = [sys.executable, "-m", "tests.capture.concrete_mesh"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "equal\n", done.stderr


def test_without_jax_a_function_is_refused():
    script = "import sys; sys.modules['jax'] = None; import weft; weft.compile(lambda x: x, 1)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert "needs the package jax, which is not installed" in done.stderr
    assert "pip install 'weft[jax]'" in done.stderr
