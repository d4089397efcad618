"""Blocks of products: what is chosen for steps of training, and that it computes what it should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checksums import checksum
from tests.emit.llvm.product.products import check, product
from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.product.blocking.blocking import Blocking, Chip, Panels, ProductShape
from weft.emit.llvm.product.blocking.choice import choose_blocking
from weft.emit.llvm.product.emit import emit_product
from weft.emit.llvm.product.product import find_product
from weft.emit.llvm.product.shape import shape_of
from weft.emit.llvm.tuning.candidates import candidates
from weft.emit.llvm.tuning.product_class import ProductClass
from weft.ir.types import DTYPES
from weft.kernels.kernel import Kernel
from weft.ops.elementwise.pointwise import Add, Multiply

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
    assert blocking_of(built(("mk", "kn", "mn"), 4096, 256, 256)).ahead == "lhs"
    assert blocking_of(built(("mk", "kn", "mn"), 4096, 256, 1024)).ahead == "nothing"
    assert blocking_of(built(("mk", "kn", "mn"), 64, 256, 256)).ahead == "nothing"


def test_parts_of_long_sums_are_multiplied_a_little_at_a_time():
    found = blocking_of(built(("km", "kn", "mn"), 256, 1024, 4096))
    assert found.parts > 1
    assert found.block_k < found.part


@pytest.mark.parametrize(
    ("m", "k", "streamed"), [(8, 4096, True), (1, 4096, False), (8, 64, False)]
)
def test_many_weights_for_few_rows_are_read_by_whole_lines(m: int, k: int, streamed: bool):
    found = blocking_of(built(("mk", "kn", "mn"), m, 65536 * 64 // k, k))
    is_so = found.parts == 2 * WIDE.threads and found.task_vectors == found.vectors.count
    assert is_so == streamed and (found.block_k <= 32) == streamed
    other = blocking_of(built(("mk", "kn", "mn"), m, 65536 * 64 // k, k, stream=0))
    assert other.block_k > 32


def test_small_right_sides_are_read_as_they_lie():
    assert blocking_of(built(("mk", "kn", "mn"), 256, 256, 256)).rhs == "direct"
    assert blocking_of(built(("mk", "nk", "mn"), 256, 256, 256)).rhs != "direct"
    assert blocking_of(built(("mk", "kn", "mn"), 256, 1024, 1024)).rhs == "shared"


def test_sums_that_are_read_again_stay_near():
    found = blocking_of(built(("mk", "kn", "mn"), 8192, 1024, 4096))
    assert found.block_k < found.part
    rows = found.task_rows * found.rows.most
    assert rows * found.task_vectors * found.line * 4 <= WIDE.l2_bytes // 2


@pytest.mark.parametrize("shape", [(40, 70, 600), (130, 48, 515), (64, 200, 1030)], ids=str)
@pytest.mark.parametrize("dims", [("mk", "kn", "mn"), ("km", "kn", "mn"), ("km", "nk", "nm")])
def test_small_caches(shape: tuple[int, int, int], dims: tuple[str, str, str]):
    """Many tasks, parts of K and panels, of a product that is soon computed."""
    m, n, k = shape
    b, total = product(dims, {"m": m, "n": n, "k": k})
    b.write(dims[2], total)
    for options in ({}, {"parts": 2}, {"block_k": 64}):
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


# The choices decide how fast products are, not what they give: a table shows what moves.

PROCESSOR = Processor("x86_64-unknown-linux-gnu", "skylake-avx512", "+avx512f,+avx2,+avx,+fma")
CHIPS = {
    "wide": replace(WIDE, threads=8),
    "middle": Chip(32, 16, 32 << 10, 512 << 10, threads=4),
    "small": SMALL,
}
SIZES = (
    [(1, n, k) for n, k in ((64, 64), (4096, 4096), (30, 3000))]
    + [(m, 4096, 4096) for m in (2, 3, 4, 5, 8, 16, 32, 65, 512)]
    + [(m, m, m) for m in (3, 8, 17, 31, 64, 100, 128, 257, 500, 1024, 2048)]
    + [(4096, 16, 64), (4096, 24, 4), (3000, 48, 256), (3000, 48, 272), (20, 20, 50000)]
    + [(200, 100, 2048), (256, 1024, 4096), (300, 300, 2047), (64, 50000, 512), (50000, 8, 33)]
    # At the edges of what is small, much, long or short.
    + [(512, 1024, 4096), (512, 1025, 4096), (1050, 300, 2100), (1051, 300, 2100)]
    + [(300, 1050, 2100), (300, 1051, 2100), (64, 2048, 4096), (64, 2049, 4096), (30, 40, 2050)]
    + [(9000, 64, 256), (9000, 64, 257), (33, 4096, 600), (4, 0, 8), (4, 8, 0)]
    + [(700, 4, 900), (700, 5, 900), (4, 700, 900), (5, 700, 900), (2, 700, 900), (700, 2, 900)]
)
ROWS = ProductShape(
    1, 1, 1, 1, "float", 4, "fma", "k", "columns", True, True, rhs_dense=True
)  # as they lie in rows
TURNED = replace(ROWS, lhs_lines="rows", rhs_lines="columns")
ALONG_K = replace(
    ROWS, rhs_lines="k", rhs_direct=False, rhs_dense=False, inner=True
)  # both sides along K
LAID = {"rows": ROWS, "transposed": TURNED, "along K": ALONG_K}


def shapes() -> Iterator[tuple[str, str, ProductShape]]:
    """Products by how they lie and how large they are, and the chips that they are for."""
    for m, n, k in SIZES:
        for laid, shape in LAID.items():
            chip = "wide" if laid == "rows" else "middle" if laid == "transposed" else "wide"
            yield f"{laid} {m}x{n}x{k}", chip, replace(shape, rows=m, columns=n, k=k)
    for m, n, k in ((64, 64, 64), (100, 300, 600), (300, 40, 5000)):
        at = replace(ROWS, rows=m, columns=n, k=k)
        yield f"small {m}x{n}x{k}", "small", at
        yield f"f64 {m}x{n}x{k}", "wide", replace(at, kind="double", element=8)
        yield f"batch 16 of {m}x{n}x{k}", "wide", replace(at, batch=16)
        yield f"batch 16, one RHS, {m}x{n}x{k}", "wide", replace(at, batch=16, repeats=16)
        yield f"offset {m}x{n}x{k}", "wide", replace(at, offset=True)
        packed = replace(at, lhs_direct=False, rhs_direct=False, rhs_dense=False)
        yield f"nothing as it lies {m}x{n}x{k}", "wide", packed
    for batch in (32, 33):
        at = replace(ROWS, batch=batch, rows=20, columns=20, k=4096)
        yield f"batch {batch} of 20x20x4096", "wide", at
    for m, n, k in ((6, 16, 32), (16, 64, 512), (33, 100, 700), (512, 512, 4096), (8, 9000, 2048)):
        tiles = replace(ROWS, rows=m, columns=n, k=k, multiply="tdpbf16ps", group=2)
        stored = replace(tiles, lhs_direct=False, rhs_direct=False, rhs_dense=False)
        yield f"tiles {m}x{n}x{k}", "wide", stored
        yield f"tiles of weights {m}x{n}x{k}", "wide", replace(stored, rhs_stored=DTYPES["i8"])
    few = replace(ROWS, rows=2, columns=4096, k=4096, rhs_stored=DTYPES["bf16"])
    yield "bf16 weights 2x4096x4096", "wide", few


def panels_text(panels: Panels) -> str:
    """3x8 2x7: numbers of panels, and their sizes."""
    sizes = [(panels.large, panels.size + 1), (panels.count - panels.large, panels.size)]
    return " ".join(f"{count}x{size}" for count, size in sizes if count)


def blocking_text(found: Blocking) -> str:
    """Blocks in a line."""
    parts = [f"rows {panels_text(found.rows)}, vectors {panels_text(found.vectors)}"]
    parts += [f"of {found.width}, last {found.lanes}", f"K {found.block_k} by {found.unroll}"]
    parts += [f"{found.parts} parts of {found.part}"] if found.parts > 1 else []
    parts += [f"LHS {found.lhs} {found.row_group}", f"RHS {found.rhs} {found.group}"]
    parts += [f"tasks {found.task_rows}x{found.task_vectors}"]
    parts += [f"along K {found.inner}"] if found.inner else []
    parts += [f"fetch {found.ahead}"] if found.ahead != "nothing" else []
    return ", ".join(parts)


def test_blocks(golden: Callable[[Path, str], None]):
    lines = []
    for about, chip, shape in shapes():
        lines.append(f"{about}: {blocking_text(choose_blocking(shape, CHIPS[chip], {}))}")
    golden(Path(__file__).parents[3] / "golden/emit/blocks.txt", "\n".join(lines) + "\n")


def test_candidates(golden: Callable[[Path, str], None]):
    lines = []
    for about, chip, shape in [*shapes()][::7]:
        ways = candidates(
            ProductClass(shape, before=False, after=False, by_library=False), CHIPS[chip]
        )
        lines.append(f"{about}: {'; '.join(ways)}")
    golden(Path(__file__).parents[3] / "golden/emit/candidates.txt", "\n".join(lines) + "\n")


def test_tasks(golden: Callable[[Path, str], None]):
    """How the work of products is handed out: phases, their tasks and the memory between them."""
    lines = []
    for m, n, k in ((8, 4096, 4096), (64, 64, 64), (257, 513, 1025), (300, 1000, 4096), (5, 9, 2)):
        for dims in (("mk", "kn", "mn"), ("km", "nk", "nm"), ("bmk", "kn", "bmn")):
            sizes = {"m": m, "n": n, "k": k} | ({"b": 3} if "b" in dims[0] else {})
            b, total = product(dims, sizes)
            b.write(dims[2], b.apply(Add(), total, b.read("n")))
            for name, options in (
                ("", {}),
                (" packed", {"lhs": 1, "rhs": 2}),
                (" parts", {"parts": 3}),
            ):
                made = emit_product(b.kernel("packed", **options), PROCESSOR, CHIPS["wide"])
                phases = "; ".join(f"{p.tasks} by {p.chunk}" for p in made.phases)
                memory = f"{made.scratch} bytes a thread, {made.shared} shared"
                memory += f", {checksum(made.text)}"
                lines.append(f"{','.join(dims)} {m}x{n}x{k}{name}: {phases}, {memory}")
    # A sum along rows leaves the other rows as a batch, of which all have one packed RHS.
    for m, n, k in ((64, 64, 64), (300, 500, 1025)):
        b, total = product(("bmk", "kn", "bmn"), {"b": 4, "m": m, "n": n, "k": k})
        b.write("bn", b.reduce("add", total, "m"))
        made = emit_product(b.kernel("packed"), PROCESSOR, CHIPS["wide"])
        phases = "; ".join(f"{p.tasks} by {p.chunk}" for p in made.phases)
        memory = f"{made.shared} shared, {checksum(made.text)}"
        lines.append(f"rows summed {m}x{n}x{k}: {phases}, {memory}")
    golden(Path(__file__).parents[3] / "golden/emit/tasks.txt", "\n".join(lines) + "\n")
