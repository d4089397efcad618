"""Candidates for a class of kernels: the default schedule, and alternatives by promise."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import cache, cached_property

from weft.emit.triton.collapse import collapsed, reduced_factors
from weft.emit.triton.library.convolution import library_convolution
from weft.emit.triton.library.cublaslt import algorithm_count, version
from weft.emit.triton.library.packed import packed_product
from weft.emit.triton.library.product import library_product
from weft.emit.triton.parts.sizes import tile_of
from weft.emit.triton.parts.split import parts_of_rows
from weft.emit.triton.persistent import described_sides
from weft.emit.triton.product import Blocks, blocks_of, refuses_matrix_units
from weft.emit.triton.schedule import OPTIONS
from weft.emit.triton.source import is_interpreted
from weft.emit.triton.tuning.tiles import promising_tiles
from weft.kernels.kernel import Contract, Kernel, Step, args_of, value_dtype
from weft.kernels.option_names import name_of, options_named, round_up
from weft.kernels.roles import roles_of, size_of
from weft.kernels.work import work_of
from weft.ops.elementwise.approximate import is_approximate
from weft.records import dataclass
from weft.target import AS_MODELLED

_WORTH_BYTES, _WORTH_FLOPS = 1 << 22, 1 << 28  # less of both is not worth tuning
_PROPOSALS = 8  # algorithms of the library
_TILES = {"library": 3, "matrix": 8}  # tiles that are measured


@dataclass(frozen=True)
class GpuCandidates:
    """Candidate schedules of one kernel on this GPU."""

    kernel: Kernel

    @property
    def kind(self) -> str:
        """The kind of choice: the form of the kernel's programs."""
        return f"gpu {self.kernel.schedule.kind}"

    @property
    def why_not_tuned(self) -> str:
        """Why tuning cannot pay off, or an empty string."""
        work = work_of(self.kernel)
        is_small = work.bytes < _WORTH_BYTES and work.flops < _WORTH_FLOPS
        return "so little work is not measured" if is_small else ""

    @property
    def machine(self) -> str:
        """The GPU's model, and the versions of compilers and libraries."""
        return machine_name()

    @cached_property
    def _small(self) -> Kernel:
        return collapsed(self.kernel)

    @cached_property
    def shape_class(self) -> str:
        """The class of kernels that share a best candidate.

        Sizes of the library's products are exact, because its proposals depend on them; others are
        rounded up, beside the powers of two that divide them.
        """
        small, exact = self._small, self.kernel.schedule.kind == "library"
        sizes = [factor.size for factor in small.factors]
        shown = [str(n) if exact or n <= 64 else f"{round_up(n)}/{min(n & -n, 128)}" for n in sizes]
        return f"{self.kernel.name.rpartition(chr(95))[0]} {'x'.join(shown)} #{structure(small)}"

    def ways(self) -> dict[str, dict[str, int]]:
        """All candidates, the default first."""
        made = [options for options in self._others() if options]
        return {AS_MODELLED: {}, **{name_of(options): options for options in made}}

    def options(self, name: str) -> dict[str, int] | None:
        """The options of a candidate; None if unavailable here."""
        if name == AS_MODELLED:
            return {}
        found = options_named(name, OPTIONS[self.kernel.schedule.kind])
        if found is not None and "algorithm" in found and found["algorithm"] > self._proposals:
            return None
        return found

    @cached_property
    def _proposals(self) -> int:
        """Algorithms of cuBLASLt for this product."""
        product = library_product(self._small)
        return 0 if product is None or is_interpreted() else algorithm_count(product)

    def _others(self) -> Iterator[dict[str, int]]:
        kind = self.kernel.schedule.kind
        if kind in ("library", "matrix"):
            if kind == "library":
                yield from ({"algorithm": n + 1} for n in range(min(self._proposals, _PROPOSALS)))
            if kind == "matrix" and self._has_library:
                yield {"library": 0}
            yield from self._tiles(_TILES[kind])
        elif kind == "rows":
            yield from _rows(self._small)

    @property
    def _has_library(self) -> bool:
        """Whether a library computes a kernel of tiles by default."""
        small = self._small
        return library_convolution(small) is not None or packed_product(small) is not None

    def _tiles(self, count: int) -> list[dict[str, int]]:
        small = self._small
        if refuses_matrix_units(small) is not None:
            return []
        contract = next(s for s in small.steps if isinstance(s, Contract))
        roles = roles_of(small)
        b, m, n, k = (
            size_of(small, factors)
            for factors in (roles.batch, roles.rows, roles.columns, roles.depth)
        )
        model = blocks_of(small, m, n, k)
        bits = value_dtype(small.steps[contract.lhs]).bits
        found = promising_tiles((b, m, n, k), bits, described_sides(small) is not None)
        if self.kernel.schedule.kind == "matrix":
            found = [one for one in found if one.get("persistent") or _blocks(one) != model]
        return found[:count]


def _blocks(options: dict[str, int]) -> Blocks:
    names = ("rows", "columns", "depth", "warps", "stages")
    return Blocks(*[options[name] for name in names])


def _rows(kernel: Kernel) -> Iterator[dict[str, int]]:
    """Tiles and warps beside those of the default."""
    reduced = reduced_factors(kernel)
    sizes = [factor.size for factor in kernel.factors]
    length = math.prod(sizes[f] for f in reduced)
    count = math.prod(sizes) // max(1, length)
    rows, block, warps = tile_of(kernel, count, length)
    for more in (warps * 2, warps // 2):
        if more in OPTIONS["rows"]["warps"]:
            yield {"warps": more}
    for width in (block * 2, block // 2, block // 4):
        if 64 <= width * rows <= 1 << 14 and width in OPTIONS["rows"]["block"]:
            yield {"block": width}
    for height in (rows * 2, rows // 2, rows // 4, rows // 8):
        if 64 <= height * block <= 1 << 14 and height in OPTIONS["rows"]["rows"]:
            yield {"rows": height}
            if height < rows:  # the same tile in another form
                yield {"rows": height, "block": min(block * rows // height, 1 << 14)}
    if (parts := parts_of_rows(kernel, -(-count // rows))) > 1:
        yield from ({"parts": n} for n in (parts * 2, parts // 2) if n > 1)


def structure(kernel: Kernel) -> str:
    """A digest of a kernel's steps without its sizes: strides are 0, 1 or longer."""
    lines = [f"{o.dtype} {o.output}" for o in kernel.operands]
    lines += [_described(step) for step in kernel.steps]
    lines += [kernel.schedule.kind, str(kernel.excess_precision)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _described(step: Step) -> str:
    at = getattr(step, "at", None)
    strides = () if at is None else [min(abs(stride), 2) for stride in at.strides]
    facts = [getattr(step, name, "") for name in ("how", "dtype", "operand", "over", "tf32")]
    op, guards = getattr(step, "op", None), len(getattr(step, "guards", ()))
    shifts, name = len(getattr(step, "shifts", ())), type(op).__name__
    if op is not None and is_approximate(op):
        name = f"approximate {name}"
    return f"{type(step).__name__} {name} {args_of(step)} {facts} {strides} {guards} {shifts}"


@cache
def machine_name() -> str:
    """The GPU's model, and the versions of Triton, PyTorch and cuBLASLt."""
    import torch

    if not is_interpreted() and not torch.cuda.is_available():  # kernels are only emitted
        return "no GPU"
    import triton

    if is_interpreted():
        return f"interpreted, triton {triton.__version__}"
    of = torch.cuda.get_device_properties(torch.cuda.current_device())
    gpu = f"{of.name}, sm_{of.major}{of.minor}, {of.multi_processor_count} multiprocessors"
    return f"{gpu}, triton {triton.__version__}, torch {torch.__version__}, cublaslt {version()}"
