"""From kernels to launches: by their schedules, with scratch where one launch is not enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from weft.emit.triton.attention import emit_attention, refuses_kernel
from weft.emit.triton.collapse import collapsed
from weft.emit.triton.emitted import EmittedPart, EmittedParts, GridLaunch, LibraryCall
from weft.emit.triton.library.attention import refuses_cudnn
from weft.emit.triton.library.calls import library_call, product_call
from weft.emit.triton.library.convolution import convolution_call, library_convolution
from weft.emit.triton.library.cublaslt import WORKSPACE
from weft.emit.triton.library.cudnn_convolution import LibraryConvolution
from weft.emit.triton.library.packed import PackedProduct, packed_product
from weft.emit.triton.library.product import library_product
from weft.emit.triton.loops import by_rows
from weft.emit.triton.parts.columns import by_rows_and_columns, crossed_sums
from weft.emit.triton.parts.scalars import shared_scalars
from weft.emit.triton.parts.sizes import options_of
from weft.emit.triton.parts.split import TwoKernels, parts_of_rows, split
from weft.emit.triton.persistent import by_persistent_programs
from weft.emit.triton.pieces import in_pieces
from weft.emit.triton.points import by_points
from weft.emit.triton.product import by_matrix_units
from weft.emit.triton.ragged.emit import ragged_launch
from weft.emit.triton.scatter import scatter_parts
from weft.emit.triton.schedule import kind_of
from weft.ir.types import I32
from weft.kernels.attention import Attention
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Kernel, Operand
from weft.kernels.single_node import SingleNode
from weft.ops.ragged import RaggedDot


@lru_cache(maxsize=4096)
def emitted(kernel: AnyKernel) -> EmittedParts:
    """The emitted form of a kernel."""
    if isinstance(kernel, Attention) and refuses_cudnn(kernel) and not refuses_kernel(kernel):
        return emit_attention(kernel)
    if isinstance(kernel, SingleNode) and (made := scatter_parts(kernel)) is not None:
        return made
    if isinstance(kernel, SingleNode) and isinstance(kernel.op, RaggedDot):
        return EmittedParts((ragged_launch(kernel),) if kernel.outputs[0].size else ())
    if not isinstance(kernel, Kernel):
        return EmittedParts((library_call(kernel),))
    small = collapsed(kernel)
    match kernel.schedule.kind or kind_of(kernel):
        case "points":
            return _by_points(collapsed(in_pieces(small)))
        case "rows":
            return _by_rows(small)
        case "crossed":
            return _by_columns(small)
        case "matrix" if (convolution := _convolution(small)) is not None:
            return _by_convolution(small, convolution)
        case "matrix" if (packed := _packed(small)) is not None:
            return _by_packing(packed)
        case "matrix":
            return EmittedParts((_by_tiles(small),))
        case _ if "rows" in options_of(small):
            return EmittedParts((_by_tiles(small),))
        case _:
            return _by_library(small)


def _by_rows(kernel: Kernel) -> EmittedParts:
    """One launch, or two where few rows are long."""
    whole = by_rows(kernel)
    parts = options_of(kernel).get("parts") or parts_of_rows(kernel, math.prod(whole.grid))
    if parts == 1:
        return EmittedParts((whole,))
    return _by_two(split(kernel, parts), by_rows)


def _by_columns(kernel: Kernel) -> EmittedParts:
    """Rows with sums along columns, and the epilogue of these."""
    form = crossed_sums(kernel)
    assert form is not None, "its schedule is valid"
    made = by_rows_and_columns(kernel, form)
    after = _on(by_rows(collapsed(made.after)), made.after_operands)
    return EmittedParts((_on(made.rows, made.operands), after), made.scratch)


def _by_points(kernel: Kernel) -> EmittedParts:
    """One launch, or two where all points share numbers that take long."""
    made = shared_scalars(kernel)
    if made is None:
        return EmittedParts((by_points(kernel),))
    return _by_two(made, by_points)


def _by_two(pair: TwoKernels, emit: Callable[[Kernel], GridLaunch]) -> EmittedParts:
    """Two launches, the second of which reads the first's scratch."""
    launches = [
        _on(emit(collapsed(one)), operands)
        for one, operands in (
            (pair.first, pair.first_operands),
            (pair.second, pair.second_operands),
        )
    ]
    return EmittedParts(tuple(launches), pair.scratch)


def _on(launch: GridLaunch, operands: Sequence[int]) -> GridLaunch:
    """A launch on other operands."""
    return replace(launch, operands=tuple([operands[n] for n in launch.operands]))


def _by_tiles(kernel: Kernel) -> GridLaunch:
    """A product on Triton's tiles, each a program, or many of one program."""
    is_persistent = options_of(kernel).get("persistent")
    return by_persistent_programs(kernel) if is_persistent else by_matrix_units(kernel)


def _is_by_tiles(kernel: Kernel) -> bool:
    """Whether options choose tiles in the place of the library."""
    options = options_of(kernel)
    return "rows" in options or options.get("library") == 0


def _convolution(kernel: Kernel) -> LibraryConvolution | None:
    """The convolution by the library, unless options choose tiles."""
    return None if _is_by_tiles(kernel) else library_convolution(kernel)


def _by_convolution(kernel: Kernel, convolution: LibraryConvolution) -> EmittedParts:
    """A convolution by the library, after copies, and the steps that follow as a kernel."""
    call = convolution_call(kernel.name, convolution)
    after = _with_epilogue(kernel, call, convolution.epilogue, convolution.scratch)
    copies = [_on(by_points(collapsed(one)), numbers) for one, numbers in convolution.copies]
    return EmittedParts((*copies, *after.parts), after.scratch)


def _packed(kernel: Kernel) -> PackedProduct | None:
    """The product on packed operands, unless options choose tiles."""
    return None if _is_by_tiles(kernel) else packed_product(kernel)


def _by_packing(packed: PackedProduct) -> EmittedParts:
    """Copies of operands to scratch, and a product by the library."""
    after = _by_library(packed.product)
    copies = [_on(by_points(collapsed(one)), numbers) for one, numbers in packed.copies]
    return EmittedParts((*copies, *after.parts), (*packed.scratch, *after.scratch))


def _by_library(kernel: Kernel) -> EmittedParts:
    """A product by the library, and the steps that follow as a kernel of points."""
    product = library_product(kernel)
    assert product is not None, "the library computes it"
    # PyTorch has no call that absorbs steps; cuBLASLt proposes the best algorithm first.
    algorithm = options_of(kernel).get("algorithm", 0 if product.absorbed.is_nothing else 1)
    workspace = len(kernel.operands) + len(product.scratch)
    call = product_call(kernel.name, product, algorithm, workspace)
    scratch = product.scratch
    if algorithm:
        scratch += (Operand(I32, (WORKSPACE // 4,), True),)
    return _with_epilogue(kernel, call, product.epilogue, scratch)


def _with_epilogue(
    kernel: Kernel,
    call: LibraryCall,
    epilogue: tuple[Kernel, tuple[int, ...]] | None,
    scratch: tuple[Operand, ...],
) -> EmittedParts:
    """A call of the library, and the steps that follow."""
    parts: list[EmittedPart] = [call]
    if epilogue is not None:
        one, operands = epilogue
        after = _by_points(collapsed(one))
        count = len(kernel.operands) + len(scratch)
        numbers = (*operands, *range(count, count + len(after.scratch)))
        for part in after.parts:
            assert isinstance(part, GridLaunch), "steps of points are a Triton function"
            parts.append(_on(part, numbers))
        scratch += after.scratch
    return EmittedParts(tuple(parts), scratch)


def is_emitted(part: EmittedPart) -> bool:
    """Whether a part is a Triton function."""
    return not isinstance(part, LibraryCall)
