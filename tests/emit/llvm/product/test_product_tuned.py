"""Candidates of products: each computes what it should, and the one that was measured is taken."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.emit.llvm.product.products import BF16, I8, check, product
from tests.tolerance import assert_close
from weft.cache.choices import remember
from weft.emit.llvm.jit.blas import Blas, libraries, multiply
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.jit.machine_code import Compiler
from weft.emit.llvm.jit.processor import host
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.pool.pool import Pool
from weft.emit.llvm.product.blas import emit_by_blas
from weft.emit.llvm.product.blocking.blocking import Chip, chip_of
from weft.emit.llvm.product.emit import described, emit_product
from weft.emit.llvm.target import LLVM
from weft.emit.llvm.tuning import candidates as product_candidates
from weft.emit.llvm.tuning.candidates import (
    BLAS,
    ProductCandidates,
    candidates,
    machine_name,
    options_of,
)
from weft.emit.llvm.tuning.product_class import class_of
from weft.errors import WeftError
from weft.ir.types import F32, F64, I32, DType
from weft.kernels.kernel import Kernel
from weft.kernels.option_names import name_of, round_up
from weft.ops.elementwise.pointwise import Add, Multiply
from weft.run.parts import parts_of
from weft.target import AS_MODELLED, Options
from weft.tune import choice, explained, tuned

OFF, REMEMBERED, MEASURE = (LLVM(Options(tune=how)) for how in ("off", "remembered", "measure"))
CHIPS = [Chip(64, 32, 8 << 10, 64 << 10), Chip(32, 16, 8 << 10, 64 << 10, threads=3)]
DIMS = [("bmk", "bkn", "bmn"), ("bkm", "bnk", "bmn"), ("mbk", "kn", "bmn"), ("bmk", "bkn", "bnm")]
HELD = {F32: F32, F64: F64, BF16: F32, I8: I32}
needs_blas = pytest.mark.skipif(not libraries(), reason="no BLAS was found on this machine")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def kernel_of(
    dims: tuple[str, str, str],
    sizes: tuple[int, int, int, int],
    dtype: DType = F32,
    *,
    more: bool = False,
    summed: str = "",
) -> Kernel:
    """A product, perhaps the square of its sum with a bias, and perhaps sums along dims."""
    named, held = dict(zip("bmnk", sizes, strict=True)), HELD[dtype]
    b, total = product(dims, named, dtype, held, held)
    if more:
        total = b.apply(Add(), total, b.read("n", held))
        total = b.apply(Multiply(), total, total)
    b.write(dims[2], total, held)
    if summed:
        b.write("".join(n for n in dims[2] if n not in summed), b.reduce("add", total, summed))
    return b.kernel("packed")


def inputs_of(kernel: Kernel, seed: int) -> list[np.ndarray]:
    """Small whole numbers: their sums are exact in any order."""
    draw = np.random.default_rng(seed)
    made = [o for o in kernel.operands if not o.output]
    return [draw.integers(-4, 5, o.shape).astype(o.dtype.numpy) for o in made]


def with_options(kernel: Kernel, options: dict[str, int]) -> Kernel:
    return replace(kernel, schedule=replace(kernel.schedule, options=tuple(options.items())))


@given(
    st.sampled_from(DIMS),
    st.tuples(st.integers(1, 3), *[st.integers(1, 70)] * 2, st.integers(1, 300)),
    st.sampled_from([*HELD]),
    st.booleans(),
    st.sampled_from(["", "", "m", "n"]),
    st.sampled_from([*CHIPS, None]),
    st.integers(0, 9),
)
@settings(deadline=None, max_examples=15)
def test_candidates_are_right(dims, sizes, dtype, more, summed, chip, seed):
    kernel = kernel_of(dims, sizes, dtype, more=more, summed=summed)
    chip = chip or chip_of(host())
    arrays = inputs_of(kernel, seed)
    ways = [*candidates(class_of(kernel, chip), chip).values()]
    check(with_options(kernel, ways[seed % len(ways)]), arrays, chip)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_each_candidate_of_a_large_product_is_right(dtype):
    chip = CHIPS[0] if dtype is F32 else chip_of(host())
    kernel = kernel_of(("mk", "kn", "mn"), (1, 20, 100, 1030), dtype)
    found = candidates(class_of(kernel, chip), chip)
    assert len(found) > 3 and next(iter(found)) == AS_MODELLED
    arrays = inputs_of(kernel, 0)
    for options in found.values():
        check(with_options(kernel, options), arrays, chip)


def test_names_say_what_candidates_are():
    kernel = kernel_of(("mk", "kn", "mn"), (1, 512, 512, 2048))
    for name, options in candidates(class_of(kernel, CHIPS[0]), CHIPS[0]).items():
        assert options_of(name) == options
    assert name_of({"parts": 2, "block_k": 64}) == "block_k=64, parts=2"
    assert options_of("block_k=64, parts=2") == {"parts": 2, "block_k": 64}
    assert options_of("magic=1") is options_of("parts") is options_of(f"{BLAS}of another") is None


@pytest.mark.parametrize(
    "name", ["block_k=0", "vectors=99", "rhs=3", "parts=99999999999999", "blas=0", "lhs=1, lhs=0"]
)
def test_options_that_no_product_has_are_refused(name):
    """What was measured is read from a file, which may say anything."""
    assert options_of(name) is None


@given(st.integers(1, 1 << 20))
def test_classes_are_wide_but_not_too_wide(number):
    rounded = round_up(number)
    assert number <= rounded < 1.5 * number or rounded == number
    assert round_up(rounded) == rounded


def test_classes_tell_apart_what_matters():
    sizes = (1, 100, 200, 300)
    texts = {
        class_of(kernel_of(dims, sizes, dtype, more=more), CHIPS[0]).text
        for dims in DIMS[:2]
        for dtype in HELD
        for more in (False, True)
    }
    assert len(texts) == 2 * len(HELD) * 2
    near = kernel_of(DIMS[0], (1, 97, 193, 380))
    assert class_of(near, CHIPS[0]) == class_of(kernel_of(DIMS[0], (1, 128, 256, 384)), CHIPS[0])


# BLAS


@needs_blas
@given(
    st.sampled_from(DIMS),
    st.tuples(st.integers(1, 3), *[st.integers(1, 70)] * 3),
    st.sampled_from([F32, F64]),
    st.booleans(),
    st.integers(1, 5),
)
@settings(deadline=None, max_examples=25)
def test_a_library_is_right(dims, sizes, dtype, more, threads):
    kernel = kernel_of(dims, sizes, dtype, more=more)
    chip = replace(CHIPS[0], threads=threads)
    if class_of(kernel, chip).by_library:
        check(with_options(kernel, {"blas": 0}), inputs_of(kernel, 0), chip)


@needs_blas
def test_a_library_keeps_its_threads_and_its_nans():
    library = libraries()[0]
    assert library.threads is None or threads_of(library) >= 1
    before = threads_of(library)
    kernel = kernel_of(("mk", "kn", "mn"), (1, 40, 50, 60))
    arrays = inputs_of(kernel, 0)
    arrays[0][3, 7], arrays[0][5] = np.nan, 0.0
    arrays[1][0, 2] = np.inf
    check(with_options(kernel, {"blas": 0}), arrays)
    assert threads_of(library) == before


@needs_blas
def test_runs_that_overlap_restore_the_threads_of_a_library():
    numbers = [n for n, one in enumerate(libraries()) if one.threads is not None]
    if not numbers:
        pytest.skip("the libraries' thread counts are fixed")
    library = libraries()[numbers[0]]
    change = ctypes.CFUNCTYPE(None, ctypes.c_int)(library.threads[1])
    before = threads_of(library)
    change(2)
    try:
        wanted = threads_of(library)
        kernel = with_options(kernel_of(("mk", "kn", "mn"), (1, 40, 50, 60)), {"blas": numbers[0]})
        (loaded,) = load([emit_product(kernel, host())])
        x, y = inputs_of(kernel, 0)

        def work():
            pool, made = Pool(1), np.zeros((40, 50), np.float32)
            commands = CommandList(pool)
            for _ in range(1000):  # in one native call, so that the runs of threads overlap
                commands.kernel(loaded, [int(a.ctypes.data) for a in (x, y, made)])
            for _ in range(10):
                commands.run()
            pool.close()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert threads_of(library) == wanted
    finally:
        change(before)


def threads_of(library: Blas) -> int:
    return 0 if library.threads is None else ctypes.CFUNCTYPE(ctypes.c_int)(library.threads[0])()


@needs_blas
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_library_can_be_called(dtype):
    left, right = (np.arange(12, dtype=dtype).reshape(s) for s in ((3, 4), (4, 3)))
    made = np.zeros((3, 3), dtype)
    multiply(libraries()[0], left, right, made)
    np.testing.assert_array_equal(made, left @ right)


@pytest.mark.parametrize("bits", [32, 64])
def test_libraries_of_both_widths_are_called_by_their_own(bits):
    kernel = kernel_of(("mk", "kn", "mn"), (1, 40, 50, 60), more=True)
    library = Blas("none", bits, (("float", 64), ("double", 64)), (64, 64))
    made = emit_by_blas(*described(kernel, CHIPS[0]), CHIPS[0], library)
    assert f"i{bits} 60, float 1.0, ptr" in made.text
    assert Compiler(host()).object(made.text)
    assert made.phases[0].function.endswith("_begin") and len(made.phases) == 4


def test_what_is_no_matrix_is_not_for_a_library():
    for dims, dtype in ((("mk", "kn", "mn"), BF16), (("mk", "kn", "mn"), I8)):
        assert not class_of(kernel_of(dims, (1, 8, 8, 8), dtype), CHIPS[0]).by_library
    between = kernel_of(("mkb", "bkn", "bmn"), (3, 8, 8, 8))
    assert not class_of(between, CHIPS[0]).by_library


# What is chosen


SIZES = (1, 256, 256, 256)


def remembered(kernel: Kernel, **seconds: float) -> str:
    """Plant a choice; the text of its class."""
    text = class_of(kernel, chip_of(host())).text
    told = {name.replace("__", "="): s for name, s in seconds.items()}
    named = {AS_MODELLED if n == "model" else n: s for n, s in told.items()}
    best = min(named, key=lambda n: named[n])
    remember(
        ProductCandidates.kind,
        machine_name(),
        text,
        {"best": best, "seconds": named, "tried": [*named]},
    )
    return text


def test_what_was_measured_is_taken():
    kernel = kernel_of(("mk", "kn", "mn"), SIZES)
    remembered(kernel, model=2e-3, vectors__2=1e-3, parts__2=3e-3)
    assert tuned(kernel, OFF) is kernel
    chosen = tuned(kernel, REMEMBERED)
    assert chosen.schedule.options == (("vectors", 2),)
    way = explained(chosen, REMEMBERED)
    assert way is not None and way.name == "vectors=2"
    assert way.why == "measured: 1000 us, 0.50 of what the cost model chose, the best of 3"
    check(chosen, inputs_of(kernel, 0))


def test_a_library_that_is_gone_is_done_without(monkeypatch):
    kernel = kernel_of(("mk", "kn", "mn"), SIZES)
    text = class_of(kernel, chip_of(host())).text
    seconds = {AS_MODELLED: 3e-3, f"{BLAS}OpenBLAS 0.0": 1e-3, "parts=2": 2e-3}
    remember(
        ProductCandidates.kind,
        machine_name(),
        text,
        {"best": "", "seconds": seconds, "tried": [*seconds]},
    )
    assert choice(kernel, REMEMBERED).name == "parts=2"
    monkeypatch.setattr(product_candidates, "libraries", tuple)
    found = candidates(class_of(kernel, CHIPS[0]), CHIPS[0])
    assert not any(name.startswith(BLAS) for name in found)


def test_little_products_and_unknown_ones_are_as_modelled():
    small, large = (kernel_of(("mk", "kn", "mn"), (1, n, n, n)) for n in (16, 256))
    assert choice(small, MEASURE).why == "so little work is not measured"
    assert choice(large, REMEMBERED).why == "nothing like it was measured on this machine"
    assert tuned(large, REMEMBERED) is large


def test_a_slow_candidate_loses(monkeypatch):
    kernel = kernel_of(("mk", "kn", "mn"), SIZES)
    slow = {AS_MODELLED: {}, "slow": {"rows": 1, "vectors": 1, "block_k": 16, "task_rows": 256}}
    monkeypatch.setattr(product_candidates, "candidates", lambda wanted, chip: slow)
    assert choice(kernel, MEASURE).name == AS_MODELLED


def test_measuring_takes_a_candidate_and_remembers_it():
    kernel = kernel_of(("mk", "kn", "mn"), SIZES)
    first = choice(kernel, MEASURE)
    assert first.name in candidates(class_of(kernel, chip_of(host())), chip_of(host()))
    assert choice(kernel, REMEMBERED) == first == choice(kernel, MEASURE)


PROGRAM = """
func.func @main(%x: tensor<256x256xf32>, %w: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  return %0 : tensor<256x256xf32>
}
"""


def kernel_in(compiled: weft.Compiled) -> Kernel:
    (part,) = parts_of(compiled.program.local)
    assert part.group is not None and isinstance(part.group.kernel, Kernel)
    return part.group.kernel


def test_programs_take_what_was_measured(monkeypatch):
    model = kernel_in(weft.compile(PROGRAM, tune="off"))
    assert not model.schedule.options
    remembered(model, model=2e-3, rhs__1=1e-3)
    compiled = weft.compile(PROGRAM)
    assert kernel_in(compiled).schedule.options == (("rhs", 1),)
    x, w = (np.random.default_rng(n).standard_normal((256, 256), np.float32) for n in (0, 1))
    (made,) = compiled(x, w)
    assert_close(np.asarray(made), x @ w, 256)
    assert kernel_in(weft.compile(PROGRAM, tune="off")) == model
    monkeypatch.setenv("WEFT_TUNE", "off")
    assert kernel_in(weft.compile(PROGRAM)) == model
    monkeypatch.setenv("WEFT_TUNE", "on")
    with pytest.raises(WeftError, match="WEFT_TUNE='on' is invalid"):
        weft.compile(PROGRAM)


def test_a_way_of_tuning_that_is_not_there():
    with pytest.raises(WeftError, match="unknown tune mode 'always'"):
        weft.compile(PROGRAM, tune="always")
