"""Emission of packed contractions: packing, then tasks that multiply blocks and finish them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.jit.blas import libraries
from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.loops.accumulate import accumulated
from weft.emit.llvm.loops.emit import emit_loops, loop_functions
from weft.emit.llvm.product.blas import emit_by_blas
from weft.emit.llvm.product.blocking.blocking import Chip, ProductShape, chip_of
from weft.emit.llvm.product.blocking.choice import WORTH, choose_blocking
from weft.emit.llvm.product.contraction import BlockedContraction, memory_of
from weft.emit.llvm.product.finish import finish, sums_of
from weft.emit.llvm.product.microkernel.inner import inner_microkernel
from weft.emit.llvm.product.microkernel.microkernel import RegisterBlock, microkernel
from weft.emit.llvm.product.microkernel.tiles import Registers, tile_microkernel
from weft.emit.llvm.product.packing.lhs import pack_lhs
from weft.emit.llvm.product.packing.rhs import pack_rhs
from weft.emit.llvm.product.packing.tiles import lines_of_columns, pack_rhs_tiles
from weft.emit.llvm.product.parts import Parts, combining_kernels, end_of, parts_of
from weft.emit.llvm.product.product import Product, find_product, supports
from weft.emit.llvm.product.shape import plain_store, shape_of
from weft.emit.llvm.product.sides import choose_sides
from weft.emit.llvm.product.tasks import (
    finish_phase,
    finish_tasks,
    multiply_phase,
    pack_phase,
    pack_tasks,
)
from weft.emit.llvm.product.tiles import in_bits
from weft.emit.llvm.writer.code import Writer, module_text
from weft.errors import Unsupported
from weft.kernels.kernel import Kernel
from weft.kernels.rewriting import pad_by_loads


def emit_product(kernel: Kernel, processor: Processor, chip: Chip | None = None) -> Emitted:
    """The text of a packed contraction, and its phases."""
    if reason := supports(kernel):
        raise Unsupported(
            f"kernel {kernel.name}: {reason}", help="this is a bug in weft: ask `supports` first"
        )
    chip, options = chip or chip_of(processor), dict(kernel.schedule.options)
    product, shape = described(kernel, chip)
    if product.reduced and 0 in product.sizes[:-1]:  # there are no blocks to leave partial results
        return emit_loops(kernel, processor)
    if "blas" in options:
        return emit_by_blas(product, shape, chip, libraries()[options["blas"]])
    blocking = choose_blocking(shape, chip, options)
    store = plain_store(product) if blocking.parts == 1 and blocking.stores(shape) else None
    job = BlockedContraction(product, shape, blocking, store)
    reduced = _reduced(job)
    functions = _functions(job, reduced)
    phases = []
    if blocking.rhs == "shared":
        name = f"{kernel.name}_pack"
        functions.append(pack_phase(job, name))
        groups, parts = pack_tasks(job)
        phases.append(Phase(name, shape.batch // product.repeats * groups * parts))
    functions.append(multiply_phase(job, kernel.name))
    phases.append(_multiplying(job))
    if blocking.parts > 1:
        name = f"{kernel.name}_finish"
        functions.append(finish_phase(product, shape, sums_of(shape, blocking), name))
        phases.append(Phase(name, shape.batch * finish_tasks(shape)[0]))
    emitted = Emitted("", tuple(phases), memory_of(job).total, end_of(reduced, job.shared))
    for one in combining_kernels(product, reduced):
        codes, combining = loop_functions(one, processor, [p.at for p in reduced], emitted.shared)
        functions += codes
        scratch = max(emitted.scratch, combining.scratch)
        emitted = Emitted("", (*emitted.phases, *combining.phases), scratch, combining.shared)
    return replace(emitted, text=module_text(*{code.name: code for code in functions}.values()))


def described(kernel: Kernel, chip: Chip) -> tuple[Product, ProductShape]:
    """The contraction of a kernel, and its shape; options may disable AMX tiles."""
    if dict(kernel.schedule.options).get("tiles") == 0:
        chip = replace(chip, has_amx_bf16=False, has_amx_int8=False)
    product = choose_sides(find_product(pad_by_loads(accumulated(kernel))), chip)
    return product, shape_of(product, chip)


def _multiplying(job: BlockedContraction) -> Phase:
    """The phase of multiplying tasks; small ones are claimed several at a time."""
    shape, blocking = job.shape, job.blocking
    along_rows, along_columns = job.tasks
    count = shape.batch * blocking.parts * along_rows * along_columns
    count = count if shape.rows and shape.columns else 0
    blocks = blocking.task_rows * blocking.task_vectors
    each = blocks * blocking.rows.most * blocking.line * max(1, shape.k)
    # A claim of more than 1/16 of the tasks would leave threads idle at the end.
    chunk = min(WORTH * blocking.pace // max(1, each), count // 16)
    return Phase(job.product.kernel.name, count, max(1, chunk))


def _reduced(job: BlockedContraction) -> tuple[Parts, ...]:
    """The partial results of reductions that blocks leave, or of rows finished together."""
    blocks = (job.blocking.rows.count, job.blocking.vectors.count)
    if job.blocking.parts > 1:
        blocks = (finish_tasks(job.shape)[0], 1)
    return parts_of(job.product, blocks, job.shared)


def _functions(job: BlockedContraction, reduced: Sequence[Parts]) -> list[Writer]:
    """The functions that the phases call."""
    product, shape, blocking = job.product, job.shape, job.blocking
    blocks = [
        blocking.block(shape, rows, width)
        for rows in blocking.rows.sizes
        for width in blocking.widths(masked=job.masked)
    ]
    functions = [_block(job, block) for block in dict.fromkeys(blocks)]
    if job.store is None:
        functions.append(finish(product, shape, sums_of(shape, blocking), reduced))
    in_pairs = shape.tiled or shape.multiply == "dot2_bf16"
    packed = in_bits(product) if in_pairs else product
    if blocking.lhs != "direct":
        functions.append(pack_lhs(packed, shape, blocking))
    if blocking.rhs != "direct":
        interleaved = shape.tiled and lines_of_columns(packed) is not None
        pack = pack_rhs_tiles if interleaved else pack_rhs
        functions.append(pack(packed, shape, blocking))
    return functions


def _block(job: BlockedContraction, block: RegisterBlock) -> Writer:
    """The microkernel of a block."""
    b = job.blocking
    if job.shape.tiled:
        registers = Registers(b.rows.most, b.vectors.most)
        # Partial sums are row-major, and padding must not be written.
        return tile_microkernel(block, registers, begins=b.parts > 1 and b.rows.large > 0)
    return (inner_microkernel if b.inner else microkernel)(block)
