"""A contraction being emitted: its blocks, and the memory of its tasks."""

from __future__ import annotations

from weft.emit.llvm.product.blocking.blocking import Blocking, ProductShape
from weft.emit.llvm.product.packing import pack
from weft.emit.llvm.product.parts import ALIGNED
from weft.emit.llvm.product.points import flat_point, place
from weft.emit.llvm.product.product import Product
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import divided, plus, times
from weft.emit.llvm.writer.storage import memory_kind
from weft.emit.llvm.writer.vector import Vectors
from weft.ir.types import DType
from weft.kernels.kernel import Affine, Load, Store
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class BlockedContraction:
    """A contraction, its blocking, and the store that blocks write directly, if any."""

    product: Product
    shape: ProductShape
    blocking: Blocking
    store: Store | None

    @property
    def once(self) -> bool:
        """Whether a task multiplies a block over all of K at once."""
        return self.blocking.block_k >= self.blocking.part

    @property
    def shared(self) -> int:
        """The workspace bytes: the packed RHS, or partial sums."""
        b, shape = self.blocking, self.shape
        if b.parts > 1:
            sums = shape.batch * b.parts * shape.rows * b.columns * shape.element
            return -(-sums // ALIGNED) * ALIGNED
        rhs_batch = shape.batch // self.product.repeats
        packed = rhs_batch * b.columns * self.panel_k * shape.element
        return -(-packed // ALIGNED) * ALIGNED if b.rhs == "shared" else 0

    @property
    def panel_k(self) -> int:
        """The lines of a panel that is packed before tasks run."""
        return self.shape.k + int(self.shape.offset)

    @property
    def masked(self) -> bool:
        """Whether the last panel needs a lane mask."""
        b = self.blocking
        return (b.rhs == "direct" or self.store is not None) and b.lanes != b.width

    @property
    def tasks(self) -> tuple[int, int]:
        """The number of tasks along rows and along columns."""
        b = self.blocking
        return -(-b.rows.count // b.task_rows), -(-b.vectors.count // b.task_vectors)


@dataclass(frozen=True, slots=True)
class TaskMemory:
    """The scratch layout of a task: byte offsets."""

    lhs: int
    rhs: int
    sums: int
    total: int


def memory_of(job: BlockedContraction) -> TaskMemory:
    """The scratch layout of a job's tasks."""
    b, shape = job.blocking, job.shape
    lhs = rhs = sums = 0
    if b.lhs != "direct":
        # Squares begin up to a vector before the first row (`first_line`) and end up to one past
        # the last; the last line may overhang by a vector, too.
        rows = b.row_group * b.rows.most + 2 * b.width
        lhs = rows * pack.line_length(b, shape.element) + b.width
    if b.rhs == "task":
        rhs = b.group * b.line * (b.block_k + int(shape.offset))
    if job.store is None and b.parts == 1:
        # Over all of K at once a block is finished before the next one begins; otherwise the sums
        # of all blocks of a task wait for the last block of K.
        sums = b.rows.most * b.line * (1 if job.once else b.task_rows * b.task_vectors)
    ends = [0]
    for elements in (lhs, rhs, sums):
        ends.append(ends[-1] + -(-elements * shape.element // 64) * 64)
    return TaskMemory(*ends)


@dataclass(frozen=True, slots=True)
class StridedPointer:
    """A pointer, and a stride in bytes."""

    pointer: str
    stride: str


@dataclass(frozen=True, slots=True)
class PanelTask:
    """The panels of a task: first, and past the last."""

    batch: str
    first_row: str
    last_row: str
    first_column: str
    last_column: str
    part: str = "0"  # the part of K, where a task has only one


@dataclass(frozen=True, slots=True)
class BlockPlaces:
    """Addresses of blocks in the function that multiplies them."""

    job: BlockedContraction
    memory: TaskMemory
    code: Writer
    operands: list[str]
    shared: str

    def lhs(self, task: PanelTask, start: str, near: str) -> StridedPointer:
        """The LHS of a panel of rows, from a K step on."""
        job, code = self.job, self.code
        b, shape, product = job.blocking, job.shape, job.product
        if b.lhs == "direct":
            load = product.kernel.steps[product.contract.lhs]
            assert isinstance(load, Load)
            strided = product.k if shape.lhs_lines == "rows" else product.rows
            # `near` counts K steps, and operands have `group` elements of K in each.
            where = (product.rows, start), (product.k, times(code, near, shape.group))
            return self._operand(load.operand, load.at, task.batch, strided, *where)
        base = self.scratch(self.memory.lhs)
        length = pack.line_length(b, shape.element)
        first = pack.first_line(
            code, product, b, pack.panel_bounds(code, b.rows, task.first_row)[0]
        )
        down = code.let(f"sub nsw i64 {start}, {first}")
        return StridedPointer(
            self.moved(base, times(code, down, length)), str(length * shape.element)
        )

    def rhs(
        self, task: PanelTask, packed: str, start: str, columns: str, near: str
    ) -> StridedPointer:
        """The RHS of a panel, from a K step on, in place or packed."""
        job, code = self.job, self.code
        b, shape, product = job.blocking, job.shape, job.product
        if b.rhs == "direct":
            load = product.kernel.steps[product.contract.rhs]
            assert isinstance(load, Load)
            strided = product.columns if b.inner else product.k
            where = (product.columns, start), (product.k, near)
            return self._operand(load.operand, load.at, task.batch, strided, *where)
        stride = times(code, columns, shape.element)
        if b.rhs == "task":
            first, _ = pack.panel_bounds(code, b.vectors, packed)
            across = code.let(f"sub nsw i64 {start}, {times(code, first, b.width)}")
            base = self.scratch(self.memory.rhs)
            far = times(code, across, b.block_k + int(shape.offset))
            return StridedPointer(self.moved(base, far), stride)
        far = times(code, start, job.panel_k)
        if near != "0":
            far = plus(code, far, code.let(f"mul nsw i64 {near}, {columns}"))
        rhs, _ = divided(code, task.batch, product.repeats)
        base = self.moved(self.shared, times(code, rhs, b.columns * job.panel_k))
        return StridedPointer(self.moved(base, far), stride)

    def out(
        self, task: PanelTask, row: str, column: str, row_start: str, column_start: str
    ) -> StridedPointer:
        """The output of a block: in the result, or in scratch for the epilogue."""
        job, code, store = self.job, self.code, self.job.store
        b, product = job.blocking, job.product
        if store is not None:
            where = (product.rows, row_start), (product.columns, column_start)
            return self._operand(store.operand, store.at, task.batch, product.rows, *where)
        if b.parts > 1:
            number = plus(code, times(code, task.batch, b.parts), task.part)
            line = plus(code, times(code, number, job.shape.rows), row_start)
            far = plus(code, times(code, line, b.columns), column_start)
            return StridedPointer(self.moved(self.shared, far), str(b.columns * job.shape.element))
        base = self.scratch(self.memory.sums)
        if not job.once:
            down = code.let(f"sub nsw i64 {row}, {task.first_row}")
            across = code.let(f"sub nsw i64 {column}, {task.first_column}")
            number = plus(code, times(code, across, b.task_rows), down)
            base = self.moved(base, times(code, number, b.rows.most * b.line))
        return StridedPointer(base, str(b.line * job.shape.element))

    def scratch(self, at: int) -> str:
        """An address in the task's scratch."""
        return self.code.let(f"getelementptr i8, ptr %scratch, i64 {at}") if at else "%scratch"

    def moved(self, base: str, elements: str) -> str:
        """A pointer advanced by elements."""
        return self.code.let(f"getelementptr {self.job.shape.kind}, ptr {base}, i64 {elements}")

    def _operand(
        self,
        operand: int,
        at: Affine,
        batch: str,
        strided: tuple[int, ...],
        *where: tuple[tuple[int, ...], str],
    ) -> StridedPointer:
        """An element of an operand, and the byte stride along a role."""
        product = self.job.product
        dtype = product.kernel.operands[operand].dtype
        base = element(self.code, product, (self.operands[operand], dtype), at, batch, *where)
        stride = (product.stride(at, strided) or 0) * dtype.numpy.itemsize
        return StridedPointer(base, str(stride))


def element(
    code: Writer,
    product: Product,
    operand: tuple[str, DType],
    at: Affine,
    batch: str,
    *where: tuple[tuple[int, ...], str],
) -> str:
    """A pointer to the element of an operand at a batch point and offsets along roles."""
    point = flat_point(code, product.kernel.factors, product.batch, batch)
    far = place(Vectors(code, 1), at, point).base
    for role, number in where:
        far = plus(code, times(code, number, product.stride(at, role) or 0), far)
    return Vectors(code, 1).at(operand[0], far, memory_kind(operand[1]))
