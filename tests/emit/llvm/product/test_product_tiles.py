"""Products on matrix tiles, and the same ones in vectors, against float64 and exact integers."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emit.llvm.product.emulated_tiles import HAVE, TILED
from tests.emit.llvm.product.products import BF16, I8, check, product, run_kernel
from tests.kernels.building import Building
from tests.tolerance import assert_close
from weft.emit.llvm.jit import matrix_tiles, processor
from weft.emit.llvm.jit.machine_code import assembly
from weft.emit.llvm.jit.matrix_tiles import tiles_permitted
from weft.emit.llvm.jit.processor import host
from weft.emit.llvm.product.blocking.blocking import Chip, chip_of
from weft.emit.llvm.product.emit import emit_product
from weft.ir.types import DTYPES, F32, I32, Array, DType
from weft.kernels.kernel import Affine, Contract, Kernel
from weft.ops.elementwise.pointwise import Add, Multiply
from weft.ops.elementwise.transcendental import Tanh

WITHOUT = replace(host(), features=host().features.replace("+amx", "-amx"))
needs_tiles = pytest.mark.skipif(not HAVE, reason="this machine gives us no matrix tiles")
needs_vectors = pytest.mark.skipif(not host().has("avx512f"), reason="no vectors of 512 bits")
TILES = chip_of(TILED)
CHIPS = [
    pytest.param(TILES, id="tiles", marks=needs_vectors),
    pytest.param(chip_of(WITHOUT), id="vectors"),
]
LAYOUTS = [("mk", "kn", "mn"), ("km", "kn", "mn"), ("mk", "nk", "mn"), ("km", "nk", "nm")]
SHAPES = [(17, 33, 65), (64, 16, 64), (63, 64, 130), (100, 130, 96), (16, 2, 48), (6, 70, 1100)]


def exact(kernel: Kernel, arrays: list[Array], dims: tuple[str, str, str]) -> Array:
    """The product of the first two arrays in float64."""
    lhs, rhs, out = dims
    x, y = (a.astype(np.float64) for a in arrays[:2])
    return np.einsum(f"{lhs},{rhs}->{out}", x, y)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("dims", LAYOUTS, ids=str)
@pytest.mark.parametrize("kind", ["bf16", "i8"])
def test_shapes_and_layouts(kind: str, dims: tuple[str, str, str], chip: Chip):
    dtype = DTYPES[kind]
    held = I32 if dtype.is_integer else F32
    for m, n, k in SHAPES[LAYOUTS.index(dims) % 2 :: 2]:
        b, total = product(dims, {"m": m, "n": n, "k": k}, dtype, held, held)
        b.write(dims[2], total)
        kernel, arrays = b.kernel("packed"), b.arrays()
        (found,) = run_kernel(kernel, arrays, chip)
        assert_close(found, exact(kernel, arrays, dims).astype(held.numpy), k, f"{m} {n} {k}")


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", [BF16, I8], ids=str)
@pytest.mark.parametrize("vectors", [1, 2, 3, 4])
def test_ways_to_pack(vectors: int, kind: DType, chip: Chip):
    held = F32 if kind is BF16 else I32
    for m, lhs, rhs, block_k in ((32, 0, 1, 32), (50, 1, 2, 512), (64, 1, 1, 32), (64, 0, 2, 48)):
        b, total = product(("mk", "kn", "mn"), {"m": m, "n": 150, "k": 192}, kind, held, held)
        b.write("mn", total)
        options = {"lhs": lhs, "rhs": rhs, "vectors": vectors, "block_k": block_k}
        check(b.kernel("packed", **options, task_rows=2, task_vectors=3), b.arrays(), chip)


@pytest.mark.parametrize("chip", CHIPS)
def test_batches_parts_and_several_factors(chip: Chip):
    sizes = {"d": 3, "b": 2, "m": 20, "n": 24, "k": 40}
    for dims in (("dbmk", "dbkn", "dbmn"), ("bmdk", "dbkn", "bdmn"), ("dmk", "bkdn", "bmn")):
        b, total = product(dims, sizes, BF16)
        b.write(dims[2], total, BF16)
        check(b.kernel("packed"), b.arrays(), chip)
    for m in (30, 53, 101):  # panels of one size, or of two
        b, total = product(("mk", "kn", "mn"), {"m": m, "n": 40, "k": 3000}, BF16)
        b.write("mn", b.apply(Add(), total, b.read("n")))
        check(b.kernel("packed", parts=3), b.arrays(), chip)
        check(b.kernel("packed", parts=3, block_k=64), b.arrays(), chip)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("made", ["bf16", "f32"])
def test_before_and_after(made: str, chip: Chip):
    b = Building(m=45, n=70, k=50)
    x, scale, w = b.read("mk", BF16), b.read("k", BF16), b.read("kn", BF16)
    total = b.contract(b.apply(Multiply(), x, scale), w, "k", F32)
    active = b.apply(Tanh(), b.apply(Add(), total, b.read("n")))
    b.write("mn", b.apply(Add(), active, b.convert(b.read("mn", BF16), F32)), DTYPES[made])
    b.write("nm", active)
    arrays = b.arrays()
    arrays[1] = np.exp2(np.round(arrays[1].astype(np.float32))).astype(BF16.numpy)
    check(b.kernel("packed"), arrays, chip)


@needs_vectors
def test_what_comes_before_tiles_is_rounded_as_it_is_when_it_is_stored():
    b = Building(m=20, n=40, k=50)
    x, scale, w = b.read("mk", BF16), b.read("k", BF16), b.read("kn", BF16)
    left = b.apply(Multiply(), x, scale)
    b.write("mn", b.add(Contract(left, w, b.numbers("k"), F32, F32)))
    arrays = b.arrays()
    (found,) = run_kernel(b.kernel("packed"), arrays, TILES)
    rounded = arrays[0] * arrays[1]
    assert rounded.dtype == BF16.numpy
    expected = rounded.astype(np.float64) @ arrays[2].astype(np.float64)
    assert_close(found, expected.astype(np.float32), 50)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", ["bf16", "i8"])
@pytest.mark.parametrize("rows", [1, 3, 8, 16])
def test_few_rows_against_weights_along_the_depth(rows: int, kind: str, chip: Chip):
    """The weights are read where they lie, and the result is written transposed."""
    dtype = DTYPES[kind]
    held = I32 if dtype.is_integer else F32
    b = Building(b=2, m=rows, n=70, k=128)
    x, w = b.read("bmk", dtype), b.read("bnk", dtype)
    total = b.add(Contract(x, w, b.numbers("k"), held, held))
    made = b.apply(Add(), b.apply(Add(), total, b.read("n", held)), b.read("bmn", held))
    b.write("bmn", made)
    b.write("nbm", total)
    check(b.kernel("packed"), b.arrays(), chip)
    b, total = product(("mk", "nk", "mn"), {"m": rows, "n": 70, "k": 128}, dtype, held, held)
    b.write("mn", total)
    check(b.kernel("packed"), b.arrays(), chip)


@pytest.mark.parametrize("chip", CHIPS)
def test_convolution_with_edges(chip: Chip):
    side, channels, out = 7, 16, 12
    b = Building(n=2, h=side, w=side, o=out, y=3, x=3, c=channels)
    image = b.input(2, side, side, channels, dtype=BF16)
    weights = b.input(3, 3, channels, out, dtype=BF16)
    places = dict(zip(b.names, b.rows("nhwc").strides, strict=True))
    both = places | {"y": places["h"], "x": places["w"]}
    at = Affine(tuple(both[n] for n in b.names), -places["h"] - places["w"])
    guards = [b.guard(0, side, -1, h=1, y=1), b.guard(0, side, -1, w=1, x=1)]
    left, right = b.load(image, at, guards), b.load(weights, b.rows("yxco"))
    b.write("nhwo", b.contract(left, right, "yxc", F32))
    check(b.kernel("packed"), b.arrays(), chip)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("left", ["i8", "ui8", "i4"])
@pytest.mark.parametrize("right", ["i8", "ui8", "i4"])
def test_signs_of_bytes(left: str, right: str, chip: Chip):
    for m, k in ((1, 64), (9, 131)):
        b = Building(m=m, n=37, k=k)
        x, y = b.read("mk", DTYPES[left]), b.read("kn", DTYPES[right])
        b.write("mn", b.add(Contract(x, y, b.numbers("k"), I32, I32)))
        check(b.kernel("packed"), b.arrays(), chip)


@pytest.mark.parametrize("chip", CHIPS)
def test_bytes_are_exact_at_their_ends(chip: Chip):
    for dtype, low, high in ((I8, -128, 127), (DTYPES["ui8"], 0, 255)):
        b, total = product(("mk", "kn", "mn"), {"m": 20, "n": 40, "k": 301}, dtype, I32, I32)
        b.write("mn", total)
        rng = np.random.default_rng(1)
        x, y = (rng.choice([low, high], a.shape).astype(dtype.numpy) for a in b.arrays())
        (found,) = run_kernel(b.kernel("packed"), [x, y], chip)
        np.testing.assert_array_equal(found, x.astype(np.int32) @ y.astype(np.int32))


@pytest.mark.parametrize("chip", CHIPS)
def test_special_values_stay_in_their_row_and_column(chip: Chip):
    b, total = product(("mk", "kn", "mn"), {"m": 37, "n": 45, "k": 41}, BF16, F32, F32)
    b.write("mn", total)
    x, y = b.arrays()
    x[3, 5], x[7, 2], y[4, 34], y[20, 0] = np.inf, np.nan, -np.inf, np.nan
    x[36, 40], y[40, 44] = np.inf, np.inf
    (found,) = run_kernel(b.kernel("packed"), [x, y], chip)
    with np.errstate(invalid="ignore"):
        expected = x.astype(np.float64) @ y.astype(np.float64)
    assert_close(found, expected.astype(np.float32), 41)


@settings(deadline=None, max_examples=12)
@given(st.data())
@pytest.mark.parametrize("chip", CHIPS)
def test_any_product(chip: Chip, data: st.DataObject):
    """Any dims on either side in any order, large enough for tiles, packed in any way."""
    sizes = {"a": data.draw(st.integers(1, 3)), "m": data.draw(st.integers(1, 70))}
    sizes |= {n: data.draw(st.integers(1, 6)) for n in "pqj"}
    sizes |= {"n": data.draw(st.integers(1, 70)), "k": data.draw(st.integers(8, 80))}
    names = [n for n in sizes if n in "mnk" or data.draw(st.booleans())]
    lhs, rhs, out = (
        "".join(data.draw(st.permutations([n for n in names if n in wanted])))
        for wanted in ("ampkj", "anqkj", "ampnq")
    )
    dtype = data.draw(st.sampled_from([BF16, I8, DTYPES["ui8"]]))
    held = F32 if dtype is BF16 else I32
    b, total = product((lhs, rhs, out), {n: sizes[n] for n in names}, dtype, held, held)
    if data.draw(st.booleans()):
        total = b.apply(Add(), total, b.read("".join(n for n in out if n in "amq"), held))
    b.write(out, total)
    ways = {"lhs": st.integers(0, 1), "rhs": st.integers(1, 2), "vectors": st.integers(1, 4)}
    ways |= {"block_k": st.sampled_from([16, 64]), "parts": st.integers(1, 3)}
    ways |= {"task_rows": st.integers(1, 3), "task_vectors": st.integers(1, 3)}
    options = {name: data.draw(way) for name, way in ways.items() if data.draw(st.booleans())}
    check(b.kernel("packed", **options), b.arrays(), chip)


@needs_tiles
@pytest.mark.parametrize(
    ("kind", "instruction"), [("bf16", "tdpbf16ps"), ("i8", "tdpbssd"), ("ui8", "tdpbuud")]
)
def test_tiles_are_used_and_given_back(kind: str, instruction: str):
    dtype = DTYPES[kind]
    held = I32 if dtype.is_integer else F32
    b, total = product(("mk", "kn", "mn"), {"m": 64, "n": 64, "k": 64}, dtype, held, held)
    b.write("mn", total)
    kernel = b.kernel("packed")
    made = assembly(emit_product(kernel, host()).text)
    assert made.count(f"\t{instruction}") == 4 and "ldtilecfg" in made and "tilerelease" in made
    without = assembly(emit_product(kernel, WITHOUT).text, WITHOUT)
    assert instruction not in without and "tile" not in without


@pytest.mark.parametrize("shape", [(1, 64, 64), (5, 64, 64), (64, 1, 64), (64, 64, 16)], ids=str)
def test_what_fills_little_of_a_tile_is_done_in_vectors(shape: tuple[int, int, int]):
    m, n, k = shape
    b, total = product(("mk", "kn", "mn"), {"m": m, "n": n, "k": k}, BF16)
    b.write("mn", total)
    assert "tdp" not in emit_product(b.kernel("packed"), host(), TILES).text


def test_permission_is_asked_once_and_told_by_the_features():
    assert tiles_permitted() is tiles_permitted()
    if not tiles_permitted():
        assert not HAVE


def test_no_tiles_where_the_system_does_not_keep_them(monkeypatch: pytest.MonkeyPatch):
    """A processor that advertises what its system has not switched on, or does not give us."""
    monkeypatch.setattr(matrix_tiles, "_xstate_mask", lambda what: 0)
    assert not tiles_permitted.__wrapped__()
    monkeypatch.setattr(processor, "tiles_permitted", lambda: False)
    assert "+amx" not in host.__wrapped__().features


def test_other_systems_are_not_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(matrix_tiles.platform, "machine", lambda: "aarch64")
    assert not tiles_permitted.__wrapped__()


@needs_tiles
def test_threads_that_run_before_the_permission_have_tiles():
    script = """
    import threading
    ready, done, wrong = threading.Event(), threading.Event(), []
    def work():
        ready.wait()
        from tests.emit.llvm.product.products import BF16, check, product
        b, total = product(("mk", "kn", "mn"), {"m": 64, "n": 64, "k": 64}, BF16)
        b.write("mn", total)
        check(b.kernel("packed"), b.arrays())
        done.set()
    thread = threading.Thread(target=work)
    thread.start()
    from weft.emit.llvm.jit.processor import host
    assert host().has("amx-bf16")
    ready.set()
    thread.join()
    assert done.is_set()
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=120)
    assert ran.returncode == 0
