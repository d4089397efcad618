"""Texts and kernels of the triton target, without Triton: by the reference of kernels alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import weft.targets as targets
from tests.emit.triton.corpus import CASES
from tests.emit.triton.launching import kernels_of, values
from tests.emit.triton.scatters import SCATTERS
from weft.array.torch_memory import torch_memory
from weft.capture import parse
from weft.compiled import compile as compiled
from weft.emit.triton import pointwise
from weft.emit.triton.collapse import collapsed
from weft.emit.triton.emit import emitted
from weft.emit.triton.emitted import GridLaunch
from weft.emit.triton.library.nodes import _comparison
from weft.emit.triton.library.product import library_product
from weft.emit.triton.online import online_sums
from weft.emit.triton.parts.split import LEAST, PROGRAMS, lanes_of, parts_of_rows, split
from weft.emit.triton.schedule import schedule_of
from weft.emit.triton.target import Triton
from weft.errors import WeftError
from weft.ir.types import DTYPES, tensor
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Kernel, Schedule
from weft.kernels.single_node import SingleNode
from weft.ops import OPS
from weft.ops.elementwise.convert import Convert

GOLDEN = Path(__file__).parents[2] / "golden" / "emit" / "triton"


class NotLoaded(Triton):
    """The target without a device: its kernels are emitted only."""

    memory = torch_memory("cpu")
    stream = None

    def load(self, kernels):
        return kernels


@pytest.fixture(autouse=True)
def without_a_device(monkeypatch):
    monkeypatch.setitem(targets.BUILT_IN, "triton", NotLoaded)


def kernels(name: str) -> list[Kernel]:
    function, arguments, _ = CASES[name]
    made = compiled(function, *arguments, target="triton")
    return [k for k in kernels_of(made.program.local) if isinstance(k, Kernel)]


def described(kernel: Kernel) -> str:
    """The launches of a kernel with their grids and texts, and its scratch."""
    made = emitted(kernel)
    lines = [f"# a kernel of {kernel.schedule.kind}, scratch {[*made.scratch]}"]
    for part in made.parts:
        if isinstance(part, GridLaunch):
            lines.append(f"# operands {part.operands} as {part.signature} on a grid of {part.grid}")
            fused = part.fused_multiply_add
            lines.append(f"# {part.warps} warps, {part.stages} stages, fused {fused}")
        else:
            lines.append(f"# operands {part.operands} of {part.name}")
        lines.append(part.text)
    return "\n".join(lines)


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_a_kernel_of_its_schedule(name, golden):
    found = kernels(name)
    assert found
    file = name.replace(", ", "-").replace(" ", "_")
    golden(GOLDEN / f"{file}.txt", "\n".join(map(described, found)))
    assert CASES[name][2] <= {kernel.schedule.kind for kernel in found}
    for kernel in found:
        assert Triton().unsupported_kernel(kernel) is None
        assert Triton().text(kernel) == emitted(kernel).text


@pytest.mark.parametrize("name", [*CASES])
def test_fewer_loops_compute_the_same(name):
    for kernel in kernels(name):
        arrays = values(kernel)
        small = collapsed(kernel)
        assert len(small.factors) <= max(1, len(kernel.factors))
        for one, other in zip(interpret(small, arrays), interpret(kernel, arrays), strict=True):
            np.testing.assert_allclose(
                np.asarray(one, "d"), np.asarray(other, "d"), rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("name", ["in parts", "columns", "vector"])
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_parts_of_a_reduction_make_the_whole(name, parts):
    (kernel,) = kernels(name)
    check_parts(kernel, parts)


def check_parts(kernel, parts):
    arrays = values(kernel)
    made = split(collapsed(kernel), parts)
    known = iter(arrays)
    held = [None if o.output else next(known) for o in kernel.operands]
    partial = interpret(made.first, [held[n] for n in made.first_operands if n < len(held)])
    everything = [*held, *partial]
    given = [
        everything[n]
        for n, o in zip(made.second_operands, made.second.operands, strict=True)
        if not o.output
    ]
    (whole,) = interpret(made.second, given)
    np.testing.assert_allclose(whole, interpret(kernel, arrays)[0], rtol=2e-5)


@pytest.mark.parametrize("shape, lanes", [
    ((640, 5), 16), ((644, 5), 1), ((4096, 3), 32), ((96, 16), 4), ((3, 512, 7), 16),
    ((640, 17), 1),
])  # fmt: skip
@pytest.mark.parametrize("parts", [1, 3])
def test_short_rows_are_taken_together(shape, lanes, parts):
    made = compiled(lambda x: (x * x).sum(-2), np.ones(shape, "f"), target="triton")
    (kernel,) = (k for k in kernels_of(made.program.local) if isinstance(k, Kernel))
    assert lanes_of(collapsed(kernel)) == lanes
    check_parts(kernel, parts)


@pytest.mark.parametrize("rows", [1, 3, PROGRAMS])
@pytest.mark.parametrize("length", [100, 2 * LEAST - 1, 2 * LEAST, 96 * LEAST, 96 * LEAST + 1])
def test_few_long_rows_are_split(rows, length):
    made = compiled(lambda x: (x * x).sum(1), np.ones((rows, length), "f"), target="triton")
    (kernel,) = (k for k in kernels_of(made.program.local) if isinstance(k, Kernel))
    parts = parts_of_rows(kernel, rows)
    if rows == PROGRAMS or length < 2 * LEAST:
        assert parts == 1
    else:  # no part is much shorter than LEAST, and there are no more than keep a GPU busy
        assert 1 < parts <= 2 * length // LEAST and parts * rows <= 8 * PROGRAMS + 8 * rows


@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("length", [1, 100, 40_000])
def test_grids_and_warps_are_those_that_triton_takes(rows, length):
    """Some programs, as many as cover the points; warps are a power of two."""
    functions = {
        "points": lambda x: x * 2 + 1,
        "turned": lambda x: x.T + 1,
        "rows": lambda x: x.sum(1),
        "softmax": lambda x: jnp.exp(x - x.max(1, keepdims=True)),
        "picks": lambda x: x.argmax(1),
        "columns": lambda x: x.max(0),
    }
    for name, function in functions.items():
        made = compiled(function, np.ones((rows, length), "f"), target="triton")
        for kernel in kernels_of(made.program.local):
            for part in emitted(kernel).parts:
                if isinstance(part, GridLaunch):
                    assert part.warps in (1, 2, 4, 8, 16) and min(part.grid) >= 1, name
            if name in ("points", "turned"):  # at most 16 points for each thread
                programs = sum(math.prod(p.grid) * p.warps for p in emitted(kernel).parts)
                assert programs * 32 * 16 >= rows * length, name


def test_comparators_that_pytorch_has():
    import jax

    def comparison(function, *arguments):
        module = parse(compiled(function, *arguments, target="numpy").text("captured"))
        (region,) = (n.regions[0] for n in module.nodes() if n.op.name == "stablehlo.sort")
        return _comparison(region)

    x, n = np.ones(5, "f"), np.arange(5)
    assert comparison(jax.numpy.sort, x) == (0, False)  # zeros and NaN are made comparable first
    assert comparison(lambda x: jax.lax.sort((x, n), num_keys=1), x) == (0, False)
    assert comparison(lambda x: jax.lax.sort((x, n), num_keys=2), x) is None


def test_a_sum_of_exponentials_is_found():
    (kernel,) = kernels("softmax")
    (found,) = online_sums(kernel).values()
    assert found.top < found.total


def test_the_text_of_a_kernel():
    (kernel,) = kernels("any")
    assert emitted(kernel).text == (
        f"@triton.jit\ndef {kernel.name}(in0, out1):\n"
        "    x1 = tl.program_id(0) * 1 + tl.arange(0, 1)\n"
        "    x2 = x1[:, None]\n"
        "    r3 = tl.arange(0, 128)\n"
        "    r4 = r3[None, :]\n"
        "    inside5 = r4 < 70\n"
        "    v6 = tl.load(in0 + (x2 * 70 + r4), mask=inside5, other=0)\n"
        "    v7 = tl.full([], 2.0, tl.float32)\n"
        "    v8 = v6 > v7\n"
        "    v9 = (tl.where(inside5, v8, tl.full([], 0, tl.int1))).to(tl.int32)\n"
        "    v10 = (p.or_row(v9)).to(tl.int1)\n"
        "    v11 = tl.full([], 0, tl.int1)\n"
        "    v12 = v11 | (v10 != 0)\n"
        "    tl.store(out1 + x2, v12.to(tl.uint8))\n"
    )


def test_products_of_f64_are_the_librarys():
    square = "tensor<64x64xf64>"
    program = f"""
func.func @main(%a: {square}, %b: {square}) -> {square} {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : ({square}, {square}) -> {square}
  return %0 : {square}
}}"""
    assert "torch.bmm of f64" in compiled(program, target="triton").text("emitted")


EINSUMS = (
    "ik,kj->ij", "ik,jk->ji", "ki,kj->ji", "bik,bkj->bij", "bik,kj->bij", "ibk,kj->bij",
    "ibk,bkj->bij", "abk,kj->abj", "akb,kj->abj", "bak,kcd->abcd", "ik,ckd->icd", "abik,abkj->abij",
    "abik,bakj->abij", "abkl,klj->abj", "abkl,lkj->abj", "ck,bck->bc",
)  # fmt: skip


@pytest.mark.parametrize("form", EINSUMS)
def test_the_librarys_views_are_the_product(form):
    """As numpy's views of the same memory; what has no single stride is no view."""
    sizes = dict(zip("abcdijkl", (2, 3, 4, 5, 6, 7, 8, 9), strict=True))
    given = [[sizes[n] for n in side] for side in form.partition("->")[0].split(",")]
    arrays = [np.random.default_rng(len(n)).random(n).astype("f") for n in given]
    made = compiled(lambda x, y: jnp.einsum(form, x, y), *arrays, target="triton")
    found = [k for k in kernels_of(made.program.local) if isinstance(k, Kernel)]
    products = [(k, library_product(collapsed(k))) for k in found]
    for kernel, product in products:
        if product is None or product.epilogue is not None:
            continue
        held = values(kernel)
        flat = [np.zeros(o.size, "f") if o.output else held.pop(0) for o in kernel.operands]
        views = [
            as_strided(flat[m.operand].reshape(-1)[m.offset :], m.sizes, [4 * n for n in m.strides])
            for m in (product.lhs, product.rhs, product.out)
        ]
        views[2][...] = views[0] @ views[1]
        (expected,) = interpret(kernel, values(kernel))
        np.testing.assert_allclose(flat[-1], expected.reshape(-1), rtol=1e-5)
    is_view = form not in ("abkl,lkj->abj", "ck,bck->bc")  # two strides of the depth, no matrices
    assert any(product is not None for _, product in products) == is_view, products


def test_wide_numbers_are_rounded_once():
    """To half of a float by way of f32, which rounds to odd; f32 itself needs nothing."""
    program = """func.func @main(%x: tensor<64xG>) -> tensor<64xM> {
  %0 = stablehlo.convert %x : (tensor<64xG>) -> tensor<64xM>
  return %0 : tensor<64xM>
}"""
    for given in ("i64", "ui64", "f64", "i32", "f32", "i8"):
        for made in ("f16", "bf16", "f32"):
            text = program.replace("G", given).replace("M", made)
            (kernel,) = kernels_of(compiled(text, target="triton").program.local) or (None,)
            if kernel is not None:
                wide = "64" in given and made != "f32"
                assert ("rounded_to_odd" in emitted(kernel).text) == wide, (given, made)


@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_are_launches(name):
    """Narrow sums are launches on wide scratch."""
    function, arguments = SCATTERS[name]
    made = compiled(function, *arguments, target="triton")
    alone = [k for k in kernels_of(made.program.local) if isinstance(k, SingleNode)]
    assert alone
    for kernel in alone:
        made = emitted(kernel)
        assert any(isinstance(part, GridLaunch) for part in made.parts)
        assert bool(made.scratch) == (name == "narrow")


def test_the_table_has_no_holes():
    assert {*Triton().table} == {*OPS}


def test_unknown_schedules_are_refused():
    (kernel,) = kernels("softmax")
    for schedule, reason in (
        (Schedule("spiral"), "unknown schedule 'spiral'"),
        (Schedule("points"), "its loops do not run as points"),
        (Schedule("matrix"), "it contracts nothing"),
        (Schedule("rows", options=(("block", 3),)), "option block cannot be 3"),
        (Schedule("rows", options=(("speed", 3),)), "unknown option 'speed'"),
    ):
        assert Triton().unsupported_kernel(replace(kernel, schedule=schedule)) == reason
    assert schedule_of(kernel) == kernel.schedule


def test_without_a_gpu_the_error_says_so(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.undo()
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(WeftError, match="needs a GPU"):
        compiled(lambda x: x + 1, np.ones(3, "f"), target="triton")


def test_types_that_ops_are_refused_on(golden: Callable[[Path, str], None]):
    """Every op on every type, and all conversions: what the target has no expression for."""
    held = [d for d in DTYPES.values() if pointwise.dtypes.refuses(d) is None]
    refused: dict[str, list[str]] = {}
    for op in [op for op in pointwise.FORMS if hasattr(op, "arity")]:
        types = [d.name for d in held if pointwise.refuses(op(), (d,) * op.arity, d)]
        refused.setdefault(" ".join(types), []).append(op.name.partition(".")[2])
    for source in held:
        to = Convert(tensor(dtype=source))
        types = [d.name for d in held if pointwise.refuses(to, (source,), d)]
        refused.setdefault(" ".join(types), []).append(f"convert {source.name}")
    lines = [
        f"not {types or 'refused'}: {', '.join(sorted(ops))}" for types, ops in refused.items()
    ]
    golden(GOLDEN / "refused_types.txt", "\n".join(sorted(lines)) + "\n")
