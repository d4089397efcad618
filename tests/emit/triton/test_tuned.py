"""Candidates of the triton target: their classes, and kernels of every form of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from tests.emit.triton.corpus import b, f
from tests.emit.triton.launching import kernels_of, launched, values
from tests.emit.triton.test_emit import without_a_device  # noqa: F401
from weft.emit.triton.collapse import collapsed
from weft.emit.triton.emit import emitted
from weft.emit.triton.library import packed, product
from weft.emit.triton.persistent import described_sides
from weft.emit.triton.schedule import refuses_schedule
from weft.emit.triton.tuning import candidates
from weft.emit.triton.tuning.candidates import GpuCandidates
from weft.emit.triton.tuning.tiles import SHARED, promising_tiles
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Contract, Kernel

GOLDEN = Path(__file__).parents[2] / "golden" / "emit" / "triton"
TILES = {"rows": 16, "columns": 32, "depth": 16, "warps": 4, "stages": 3}
PRODUCTS = {
    "bias and gelu": (lambda x, w, c: jax.nn.gelu(x @ w + c), (b(33, 72), b(72, 40), b(40))),
    "both turned": (lambda x, w: x.T @ w.T, (b(72, 40), b(48, 72))),
    "batched": (lambda x, w: jnp.einsum("bmk,bkn->bmn", x, w), (b(3, 20, 24), b(3, 24, 40))),
    "heads": (lambda x, g: jnp.einsum("btd,bhtk->dhk", x, g), (b(2, 16, 24), b(2, 3, 16, 8))),
}


def kernel_of(function, *arguments) -> Kernel:
    (kernel,) = kernels_of(weft.compile(function, *arguments, target="triton").program.local)
    return kernel


def with_options(kernel: Kernel, **options: int) -> Kernel:
    schedule = replace(kernel.schedule, options=tuple(sorted(options.items())))
    return replace(kernel, schedule=schedule)


def test_sizes_share_a_class_and_what_they_compute_does_not(monkeypatch):
    monkeypatch.setattr(candidates, "machine_name", lambda: "a GPU")
    softmax = lambda x: jax.nn.softmax(x)  # noqa: E731
    kinds = [
        GpuCandidates(kernel_of(function, f(*shape))).shape_class
        for function, shape in (
            (softmax, (1000, 3000)),
            (softmax, (1016, 3064)),
            (softmax, (1000, 3001)),
            (lambda x: jax.nn.softmax(x * 2), (1000, 3000)),
        )
    ]
    assert kinds[0] == kinds[1] and len({*kinds}) == 3
    found = GpuCandidates(kernel_of(softmax, f(1000, 3000)))
    assert found.kind == "gpu rows" and not found.why_not_tuned and found.machine == "a GPU"
    assert GpuCandidates(kernel_of(softmax, f(10, 30))).why_not_tuned
    ways = found.ways()
    assert len(ways) > 3 and all(found.options(name) == way for name, way in ways.items())
    assert found.options("unknown=3") is None and found.options("algorithm=2") is None


def test_candidates(golden: Callable[[Path, str], None]):
    """Classes and candidates of rows, of columns and of products, at sizes beside limits."""
    normal = lambda x: (x - x.mean(1, keepdims=True)) ** 2  # noqa: E731
    product = lambda x, w: jax.nn.relu(x @ w)  # noqa: E731
    calls = dict(PRODUCTS)
    for rows, row in ((1000, 3000), (63, 65), (64, 64), (3, 70000), (1, 1 << 18), (9, 128)):
        calls[f"rows {rows}x{row}"] = normal, (f(rows, row),)
    for m, k, n in ((64, 64, 64), (65, 63, 66), (1024, 512, 2048), (16, 4096, 96)):
        calls[f"product {m}x{k}x{n}"] = product, (b(m, k), b(k, n))
    made = {
        f"{name}, {n}": kernel
        for name, (function, given) in calls.items()
        for n, kernel in enumerate(
            kernels_of(weft.compile(function, *given, target="triton").program.local)
        )
        if isinstance(kernel, Kernel)
    }
    found = {name: GpuCandidates(kernel) for name, kernel in made.items()}
    lines = [f"{n}: {c.kind}, {c.shape_class}: {'; '.join(c.ways())}" for n, c in found.items()]
    golden(GOLDEN / "candidates.txt", "\n".join(lines) + "\n")


def test_epilogues_of_the_library(golden: Callable[[Path, str], None]):
    """What a library's product absorbs of what follows it, and what is left to a kernel."""
    x, w, row, all_ = b(32, 64), b(64, 48), b(48), b(32, 48)
    zero, one = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
    forms = {
        "nothing": lambda p: p,
        "relu": lambda p: jnp.maximum(p, zero),
        "relu, turned": lambda p: jnp.maximum(zero, p),
        "no more than 0": lambda p: jnp.minimum(p, zero),
        "at least 1": lambda p: jnp.maximum(p, one),
        "at least a row": lambda p: jnp.maximum(p, row),
        "bias": lambda p: p + row,
        "column": lambda p: p + row[:32, None],
        "bias and relu": lambda p: jnp.maximum(p + row, zero),
        "relu and bias": lambda p: jnp.maximum(p, zero) + row,
        "two biases": lambda p: p + row + row * 2,
        "sum": lambda p: p + all_,
        "sum, turned": lambda p: all_ + p,
        "sum and relu": lambda p: jnp.maximum(p + all_, zero),
        "bias and sum": lambda p: p + row + all_,
        "sum with itself": lambda p: p + p,
        "number": lambda p: p + one,
        "difference": lambda p: p - all_,
        "f32": lambda p: p.astype("f"),
        "bias in f32": lambda p: (p.astype("f") + row.astype("f")).astype(p.dtype),
        "read twice": lambda p: (jnp.maximum(p, zero), p + row),
    }
    lines = []
    for name, form in forms.items():
        made = weft.compile(lambda x, w, form=form: form(x @ w), x, w, target="triton")
        found = [collapsed(k) for k in kernels_of(made.program.local) if isinstance(k, Kernel)]
        products = [product.library_product(k) if has_product(k) else None for k in found]
        shown = [p.absorbed.shown or " alone" if p else " no product" for p in products]
        lines.append(f"{name}:{';'.join(shown)}")
    golden(GOLDEN / "epilogues.txt", "\n".join(lines) + "\n")


def has_product(kernel: Kernel) -> bool:
    return any(isinstance(step, Contract) for step in kernel.steps)


@pytest.mark.parametrize("sizes", [(1, 8192, 8192, 8192), (4, 100, 300, 77), (1, 16, 4096, 512)])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_tiles_fit_into_shared_memory(sizes, bits):
    found = promising_tiles(sizes, bits, bits == 16)
    assert found
    for one in found:
        assert one["stages"] * (one["rows"] + one["columns"]) * one["depth"] * bits // 8 <= SHARED


@pytest.mark.parametrize("name", PRODUCTS)
def test_only_plain_sides_are_described(name):
    kernel = kernel_of(PRODUCTS[name][0], *PRODUCTS[name][1])
    is_plain = name != "heads"
    assert (described_sides(collapsed(kernel)) is not None) == is_plain
    reason = refuses_schedule(with_options(kernel, **TILES, persistent=1))
    assert reason is None if is_plain else "descriptors" in reason
    assert refuses_schedule(with_options(kernel, rows=17)) is not None


def test_heads_are_packed_where_that_pays_off(monkeypatch):
    function, arguments = PRODUCTS["heads"]
    kernel = kernel_of(function, *arguments)
    assert len(emitted(kernel).parts) == 1
    emitted.cache_clear()
    monkeypatch.setattr(product, "PACKED", 8)
    made = emitted(kernel)
    emitted.cache_clear()
    assert [part.name for part in made.parts] == [f"{kernel.name}_packed", kernel.name]
    found = packed.packed_product(collapsed(kernel))
    assert found is not None
    arrays = values(kernel)
    (copy, numbers), *_ = found.copies
    given = [arrays[[n for n, o in enumerate(kernel.operands) if not o.output].index(numbers[0])]]
    (scratch,) = interpret(copy, given)
    packed_arrays = [*arrays, scratch]
    (one,), (other,) = interpret(found.product, packed_arrays), interpret(kernel, arrays)
    np.testing.assert_array_equal(np.asarray(one, "f").ravel(), np.asarray(other, "f").ravel())


@pytest.mark.parametrize("name", [name for name in PRODUCTS if name != "heads"])
def test_persistent_tiles_match_the_reference(name, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    kernel = kernel_of(PRODUCTS[name][0], *PRODUCTS[name][1])
    arrays = values(kernel)
    (made,) = launched(with_options(kernel, **TILES, persistent=1), arrays, "cpu")
    (expected,) = interpret(kernel, arrays)
    wide = np.asarray(expected, "d")
    assert np.abs(np.asarray(made, "d") - wide).max() <= 2**-7 * np.abs(wide).max()
