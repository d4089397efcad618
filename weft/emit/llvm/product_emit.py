"""Packed products as LLVM text: packing, then tasks that multiply blocks and finish them."""

from __future__ import annotations

from dataclasses import dataclass

from weft.emit.llvm import microkernel as micro
from weft.emit.llvm import pack
from weft.emit.llvm import product_finish as ending
from weft.emit.llvm.blocking import Blocking, Chip, Shape, chip_of, choose_blocking
from weft.emit.llvm.code import Code, module_text
from weft.emit.llvm.machine_code import Processor
from weft.emit.llvm.nest import divided, function, plus, pointers, smaller, times
from weft.emit.llvm.product import Product, find_product, needed, supports
from weft.emit.llvm.product_finish import bare_load, plain_store
from weft.emit.llvm.product_points import Point, flat_point, place
from weft.emit.llvm.storage import memory_kind, register_kind
from weft.emit.llvm.vector import BITS, Vectors
from weft.errors import Unsupported
from weft.kernels.emitted import Emitted, Phase
from weft.kernels.kernel import Affine, Kernel, Load

_GROUP, _PART = 8, 128  # panels, and the depth, that a task packs


def emit_product(kernel: Kernel, processor: Processor, chip: Chip | None = None) -> Emitted:
    """The text of a packed product, and its phases."""
    if reason := supports(kernel):
        raise Unsupported(
            f"kernel {kernel.name}: {reason}", help="this is a bug in weft: ask `supports` first"
        )
    product = find_product(kernel)
    shape = shape_of(product)
    chip = chip or chip_of(processor)
    blocking = choose_blocking(shape, chip, dict(kernel.schedule.options))
    return _Emitter(product, shape, blocking).emitted()


def shape_of(product: Product) -> Shape:
    """What blocks of a product are chosen by."""
    batch, rows, columns, depth = product.sizes
    contract = product.contract
    kind = register_kind(contract.held)
    lhs, rhs = bare_load(product, contract.lhs), bare_load(product, contract.rhs)
    lines: micro.Lines = "depth"
    loads = [
        s
        for n in needed(product.kernel.steps, [contract.lhs], ())
        if isinstance(s := product.kernel.steps[n], Load)
    ]
    if product.rows and any(s.at.strides[product.rows[-1]] == 1 for s in loads):
        lines = "rows"
    if any(s.at.strides[f] == 1 for s in loads for f in product.depth[-1:]):
        lines = "depth"
    near = product.rows if lines == "rows" else product.depth
    left_direct = (
        lhs is not None
        and memory_kind(lhs.dtype) == kind
        and len(product.rows) <= 1
        and len(product.depth) <= 1
        and all(lhs.at.strides[f] == 1 for f in near)
    )
    right_direct = (
        rhs is not None
        and memory_kind(rhs.dtype) == kind
        and len(product.depth) <= 1
        and len(product.columns) <= 1
        and all(rhs.at.strides[f] == 1 for f in product.columns)
    )
    multiply: micro.Multiply = "fma" if contract.held.is_float else "mul"
    return Shape(
        batch,
        rows,
        columns,
        depth,
        kind,
        BITS[kind] // 8,
        multiply,
        lines,
        left_direct,
        right_direct,
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a task keeps what is its own: bytes from the begin of its scratch."""

    left: int
    right: int
    sums: int
    total: int


class _Emitter:
    """The functions of one product."""

    def __init__(self, product: Product, shape: Shape, blocking: Blocking) -> None:
        self.product = product
        self.shape = shape
        self.blocking = blocking
        self.panel = blocking.vectors * blocking.width  # columns of a panel
        self.store = plain_store(product)
        self.once = blocking.depth >= shape.depth  # all of the depth at a time
        self.memory = self._memory()

    def emitted(self) -> Emitted:
        """The text and the phases."""
        blocking, shape = self.blocking, self.shape
        functions = [micro.microkernel(block) for block in self._blocks()]
        if self.store is None:
            functions.append(ending.finish(self.product, shape, blocking))
        if blocking.left != "direct":
            make = pack.pack_left_depth if shape.left_lines == "depth" else pack.pack_left_rows
            functions.append(make(self.product, shape, blocking))
        if blocking.right != "direct":
            functions.append(pack.pack_right(self.product, shape, blocking))
        phases = []
        shared = 0
        name = self.product.kernel.name
        if blocking.right == "shared":
            functions.append(self._pack_phase(f"{name}_pack"))
            groups, parts = self._pack_tasks()
            phases.append(Phase(f"{name}_pack", shape.batch * groups * parts))
            panels = shape.batch * blocking.columns
            shared = panels * shape.depth * self.panel * shape.element
        functions.append(self._multiply_phase(name))
        if shape.rows and shape.columns:
            phases.append(Phase(name, self._tasks(), 1))
        return Emitted(module_text(*functions), tuple(phases), self.memory.total, shared)

    # Sizes

    def _tasks(self) -> int:
        b = self.blocking
        return self.shape.batch * -(-b.rows.count // b.task_rows) * -(-b.columns // b.task_columns)

    def _memory(self) -> Memory:
        b, element = self.blocking, self.shape.element
        left = right = 0
        if b.left != "direct":
            rows = b.task_rows * b.rows.most
            left = rows * pack.line_length(b, element) * element + 64
        if b.right == "task":
            right = b.columns * self.panel * self.shape.depth * element
        block = b.rows.most * self.panel * element
        blocks = 1 if self.once else b.task_rows * b.task_columns
        sums = 0 if self.store else block * blocks
        left, right, sums = (-(-n // 64) * 64 for n in (left, right, sums))
        return Memory(0, left, left + right, left + right + sums)

    def _masked(self) -> bool:
        """Whether the last panel has to leave lanes alone."""
        b = self.blocking
        reads_or_writes = b.right == "direct" or self.store is not None
        return reads_or_writes and b.lanes != b.width

    def _blocks(self) -> list[micro.Block]:
        return list(dict.fromkeys(b for row in self._block_table() for b in row))

    def _block_table(self) -> list[list[micro.Block]]:
        """Blocks by size of rows, smaller first, and by columns, the last panel's first."""
        b = self.blocking
        sizes = [
            large
            for large, there in ((False, b.rows.large < b.rows.count), (True, b.rows.large))
            if there
        ]
        lasts = [last for last, there in ((True, True), (False, b.columns > 1)) if there]
        masked = self._masked()
        return [
            [b.block(self.shape, large=large, last=last, masked=masked) for last in lasts]
            for large in sizes
        ]

    # Functions

    def _pack_phase(self, name: str) -> Code:
        """Each task packs some panels of the right side along a part of its depth."""
        code = function(name)
        b, shape = self.blocking, self.shape
        to = self._shared(code)
        groups, parts = self._pack_tasks()
        with code.loop("%begin", "%end") as task:
            rest, part = divided(code, task.index, parts)
            batch, group = divided(code, rest, groups)
            first = times(code, group, _GROUP)
            last = smaller(code, plus(code, first, _GROUP), b.columns)
            number = plus(code, times(code, batch, b.columns), first)
            far = times(code, number, shape.depth * self.panel)
            near = times(code, part, _PART)
            until = smaller(code, plus(code, near, _PART), shape.depth)
            place = self._moved(code, to, far)
            self._pack(code, pack.PACK_RIGHT, place, batch, first, last, near, until)
        return code

    def _pack_tasks(self) -> tuple[int, int]:
        """Groups of panels and parts of the depth that tasks pack."""
        return -(-self.blocking.columns // _GROUP), -(-self.shape.depth // _PART)

    def _pack(self, code: Code, name: str, to: str, *numbers: str) -> None:
        given = ", ".join(f"i64 {n}" for n in numbers)
        code.do(f"call void @{name}(ptr %operands, ptr {to}, {given})")

    def _shared(self, code: Code) -> str:
        place = code.let(
            f"getelementptr ptr, ptr %operands, i64 {len(self.product.kernel.operands)}"
        )
        return code.let(f"load ptr, ptr {place}, align 8", "shared")

    def _multiply_phase(self, name: str) -> Code:
        code = function(name)
        b, shape = self.blocking, self.shape
        self.pointers = pointers(code, len(self.product.kernel.operands))
        self.shared = self._shared(code) if b.right == "shared" else ""
        row_tasks = -(-b.rows.count // b.task_rows)
        column_tasks = -(-b.columns // b.task_columns)
        with code.loop("%begin", "%end") as task:
            rest, r = divided(code, task.index, row_tasks)
            batch, c = divided(code, rest, column_tasks)
            first_row = times(code, r, b.task_rows)
            last_row = smaller(code, plus(code, first_row, b.task_rows), b.rows.count)
            first_column = times(code, c, b.task_columns)
            last_column = smaller(code, plus(code, first_column, b.task_columns), b.columns)
            bounds = (first_row, last_row, first_column, last_column)
            if b.right == "task":
                to = self._scratch(code, self.memory.right)
                self._pack(
                    code, pack.PACK_RIGHT, to, batch, "0", str(b.columns), "0", str(shape.depth)
                )
            if self.once:
                self._part(code, batch, bounds, "0", str(shape.depth))
            else:
                with code.loop(0, shape.depth, b.depth) as part:
                    end = smaller(code, plus(code, part.index, b.depth), shape.depth)
                    self._part(code, batch, bounds, part.index, end)
        return code

    def _part(
        self, code: Code, batch: str, bounds: tuple[str, str, str, str], near: str, far: str
    ) -> None:
        """All blocks of a task, along a part of the depth."""
        first_row, last_row, first_column, last_column = bounds
        if self.blocking.left == "task":
            first, last = first_row, last_row
            if self.shape.left_lines == "depth":
                first, _ = pack.panel_rows(code, self.blocking, first_row)
                last, _ = pack.panel_rows(code, self.blocking, last_row)
            to = self._scratch(code, self.memory.left)
            self._pack(code, pack.PACK_LEFT, to, batch, first, last, near, far)
        with code.loop(first_column, last_column, at_least_once=True) as column:
            right = self._right(code, batch, column.index, near)
            with code.loop(first_row, last_row, at_least_once=True) as row:
                self._block(code, batch, bounds, row.index, column.index, right, near, far)

    def _block(
        self,
        code: Code,
        batch: str,
        bounds: tuple[str, str, str, str],
        row: str,
        column: str,
        right: tuple[str, str],
        near: str,
        far: str,
    ) -> None:
        b, shape = self.blocking, self.shape
        start, count = pack.panel_rows(code, b, row)
        left = self._left(code, batch, bounds, row, start, count, near)
        out = self._out(code, batch, bounds, row, column, start)
        depth = far if near == "0" else code.let(f"sub nsw i64 {far}, {near}")
        more = "false" if self.once else code.let(f"icmp ne i64 {near}, 0")
        chosen = self._chosen(code, row, column)
        pairs = ", ".join(f"ptr {at}, i64 {stride}" for at, stride in (left, right, out))
        code.do(f"call void {chosen}({pairs}, i64 {depth}, i1 {more}, i64 {b.lanes})")
        if self.store is None:
            begin = times(code, column, self.panel)
            columns = smaller(code, code.let(f"sub nsw i64 {shape.columns}, {begin}"), self.panel)
            call = f"i64 {batch}, i64 {start}, i64 {count}, i64 {begin}, i64 {columns}"
            done = "true" if self.once else code.let(f"icmp sge i64 {far}, {shape.depth}")
            with code.when(done):
                code.do(f"call void @{ending.FINISH}(ptr %operands, ptr {out[0]}, {call})")

    def _chosen(self, code: Code, row: str, column: str) -> str:
        """The function of a block, by which panels it is of."""
        table = [[f"@{block.name}" for block in row] for row in self._block_table()]
        by_row = [names[0] for names in table]
        if len(table[0]) > 1:
            last = code.let(f"icmp eq i64 {column}, {self.blocking.columns - 1}")
            by_row = [
                names[0]
                if names[0] == names[1]
                else code.let(f"select i1 {last}, ptr {names[0]}, ptr {names[1]}")
                for names in table
            ]
        if len(by_row) == 1:
            return by_row[0]
        large = code.let(f"icmp slt i64 {row}, {self.blocking.rows.large}")
        return code.let(f"select i1 {large}, ptr {by_row[1]}, ptr {by_row[0]}")

    # Places: a pointer and a stride in bytes

    def _scratch(self, code: Code, at: int) -> str:
        return code.let(f"getelementptr i8, ptr %scratch, i64 {at}") if at else "%scratch"

    def _moved(self, code: Code, base: str, elements: str) -> str:
        return code.let(f"getelementptr {self.shape.kind}, ptr {base}, i64 {elements}")

    def _element_at(self, code: Code, affine: Affine, point: Point) -> str:
        return place(Vectors(code, 1), affine, point).base

    def _left(
        self,
        code: Code,
        batch: str,
        bounds: tuple[str, str, str, str],
        row: str,
        start: str,
        count: str,
        near: str,
    ) -> tuple[str, str]:
        b, shape, product = self.blocking, self.shape, self.product
        if b.left == "direct":
            load = product.kernel.steps[product.contract.lhs]
            assert isinstance(load, Load)
            point = self._point(code, batch, (product.rows, start), (product.depth, near))
            strided = product.depth if shape.left_lines == "rows" else product.rows
            stride = sum(load.at.strides[f] for f in strided) * shape.element
            base = self.pointers[load.operand]
            return self._moved(code, base, self._element_at(code, load.at, point)), str(stride)
        base = self._scratch(code, self.memory.left)
        if shape.left_lines == "rows":
            down = code.let(f"sub nsw i64 {row}, {bounds[0]}")
            base = self._moved(code, base, times(code, down, b.rows.most * b.depth))
            return base, times(code, count, shape.element)
        length = pack.line_length(b, shape.element)
        first, _ = pack.panel_rows(code, b, bounds[0])
        down = code.let(f"sub nsw i64 {start}, {first}")
        return self._moved(code, base, times(code, down, length)), str(length * shape.element)

    def _right(self, code: Code, batch: str, column: str, near: str) -> tuple[str, str]:
        b, shape, product = self.blocking, self.shape, self.product
        if b.right == "direct":
            load = product.kernel.steps[product.contract.rhs]
            assert isinstance(load, Load)
            begin = times(code, column, self.panel)
            point = self._point(code, batch, (product.columns, begin), (product.depth, near))
            stride = sum(load.at.strides[f] for f in product.depth) * shape.element
            base = self.pointers[load.operand]
            return self._moved(code, base, self._element_at(code, load.at, point)), str(stride)
        number = column
        base = self._scratch(code, self.memory.right)
        if b.right == "shared":
            base = self.shared
            number = plus(code, times(code, batch, b.columns), column)
        far = plus(
            code, times(code, number, shape.depth * self.panel), times(code, near, self.panel)
        )
        return self._moved(code, base, far), str(self.panel * shape.element)

    def _out(
        self,
        code: Code,
        batch: str,
        bounds: tuple[str, str, str, str],
        row: str,
        column: str,
        start: str,
    ) -> tuple[str, str]:
        b, shape, product = self.blocking, self.shape, self.product
        if self.store is not None:
            begin = times(code, column, self.panel)
            point = self._point(code, batch, (product.rows, start), (product.columns, begin))
            stride = sum(self.store.at.strides[f] for f in product.rows) * shape.element
            base = self.pointers[self.store.operand]
            return self._moved(code, base, self._element_at(code, self.store.at, point)), str(
                stride
            )
        base = self._scratch(code, self.memory.sums)
        if not self.once:
            down = code.let(f"sub nsw i64 {row}, {bounds[0]}")
            right = code.let(f"sub nsw i64 {column}, {bounds[2]}")
            number = plus(code, times(code, right, b.task_rows), down)
            base = self._moved(code, base, times(code, number, b.rows.most * self.panel))
        return base, str(self.panel * shape.element)

    def _point(self, code: Code, batch: str, *roles: tuple[tuple[int, ...], str]) -> Point:
        factors = self.product.kernel.factors
        point = flat_point(code, factors, self.product.batch, batch)
        for role, number in roles:
            point = point | flat_point(code, factors, role, number)
        return point
