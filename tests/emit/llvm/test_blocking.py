"""Blocks of products: what is chosen for steps of training, and that it computes what it should."""

from __future__ import annotations

import pytest

from tests.emit.llvm.products import check, product
from weft.emit.llvm.product.blocking import Blocking, Chip
from weft.emit.llvm.product.blocking_choice import choose_blocking
from weft.emit.llvm.product.product import find_product
from weft.emit.llvm.product.shape import shape_of
from weft.kernels.kernel import Kernel
from weft.ops.pointwise import Add, Multiply

WIDE = Chip(64, 32, 48 << 10, 2 << 20)
SMALL = Chip(16, 16, 8 << 10, 32 << 10)  # caches so small that little products are large


def built(dims: tuple[str, str, str], m: int, n: int, k: int, **options: int) -> Kernel:
    b, total = product(dims, {"m": m, "n": n, "k": k})
    b.write(dims[2], total)
    return b.kernel("packed", **options)


def blocking_of(kernel: Kernel, chip: Chip = WIDE) -> Blocking:
    shape = shape_of(find_product(kernel), chip)
    return choose_blocking(shape, chip, dict(kernel.schedule.options))


@pytest.mark.parametrize(("depth", "unroll"), [(64, 4), (66, 2), (67, 1), (12, 4)])
def test_rounds_divide_the_depth(depth: int, unroll: int):
    assert blocking_of(built(("mk", "kn", "mn"), 64, 64, depth)).unroll == unroll


def test_short_lines_of_the_left_side_are_fetched():
    assert blocking_of(built(("mk", "kn", "mn"), 4096, 256, 256)).ahead == "left"
    assert blocking_of(built(("mk", "kn", "mn"), 4096, 256, 1024)).ahead == "nothing"
    assert blocking_of(built(("mk", "kn", "mn"), 64, 256, 256)).ahead == "nothing"


def test_parts_of_long_sums_are_multiplied_a_little_at_a_time():
    found = blocking_of(built(("km", "kn", "mn"), 256, 1024, 4096))
    assert found.parts > 1
    assert found.depth < found.part


@pytest.mark.parametrize(
    ("m", "k", "streamed"), [(8, 4096, True), (1, 4096, False), (8, 64, False)]
)
def test_many_weights_for_few_rows_are_read_by_whole_lines(m: int, k: int, streamed: bool):
    found = blocking_of(built(("mk", "kn", "mn"), m, 65536 * 64 // k, k))
    is_so = found.parts == 2 * WIDE.threads and found.task_vectors == found.vectors.count
    assert is_so == streamed and (found.depth <= 32) == streamed
    other = blocking_of(built(("mk", "kn", "mn"), m, 65536 * 64 // k, k, stream=0))
    assert other.depth > 32


def test_small_right_sides_are_read_as_they_lie():
    assert blocking_of(built(("mk", "kn", "mn"), 256, 256, 256)).right == "direct"
    assert blocking_of(built(("mk", "nk", "mn"), 256, 256, 256)).right != "direct"
    assert blocking_of(built(("mk", "kn", "mn"), 256, 1024, 1024)).right == "shared"


def test_sums_that_are_read_again_stay_near():
    found = blocking_of(built(("mk", "kn", "mn"), 8192, 1024, 4096))
    assert found.depth < found.part
    rows = found.task_rows * found.rows.most
    assert rows * found.task_vectors * found.line * 4 <= WIDE.middle // 2


@pytest.mark.parametrize("shape", [(40, 70, 600), (130, 48, 515), (64, 200, 1030)], ids=str)
@pytest.mark.parametrize("dims", [("mk", "kn", "mn"), ("km", "kn", "mn"), ("km", "nk", "nm")])
def test_small_caches(shape: tuple[int, int, int], dims: tuple[str, str, str]):
    """Many tasks, parts of the depth and panels, of a product that is soon computed."""
    m, n, k = shape
    b, total = product(dims, {"m": m, "n": n, "k": k})
    b.write(dims[2], total)
    for options in ({}, {"parts": 2}, {"depth": 64}):
        check(b.kernel("packed", **options), b.arrays(), SMALL)


@pytest.mark.parametrize("shape", [(64, 48, 33), (33, 70, 64), (31, 64, 20)], ids=str)
@pytest.mark.parametrize("lhs", ["mk", "km"])
@pytest.mark.parametrize("rhs", ["nk", "kn"])
def test_results_that_lie_along_the_left_side(shape: tuple[int, int, int], lhs: str, rhs: str):
    """Sides change places, so that results are written as they lie; operands of the end, too."""
    m, n, k = shape
    b, total = product((lhs, rhs, "nm"), {"m": m, "n": n, "k": k})
    moment = b.apply(Add(), b.apply(Multiply(), total, b.read("nm")), b.read("m"))
    b.write("nm", moment)
    b.write("nm", b.apply(Multiply(), moment, b.read("n")))
    kernel = b.kernel("packed")
    check(kernel, b.arrays())
    found = find_product(kernel)
    (rows, columns) = (found.size(role) for role in (found.rows, found.columns))
    assert (rows, columns) == ((n, m) if min(m, n) >= 32 else (m, n))
