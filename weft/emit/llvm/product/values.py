"""Vector values of a contraction's steps, in prologue and epilogue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.emit.llvm.math.pointwise import apply, in_type
from weft.emit.llvm.math.pointwise_convert import convert
from weft.emit.llvm.product.points import (
    AffineLanes,
    FactorPoint,
    holds,
    indices,
    place,
    split_guards,
)
from weft.emit.llvm.product.product import required_steps
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.errors import Unsupported
from weft.ir.types import I64, DType
from weft.kernels.kernel import (
    Apply,
    Choose,
    Contract,
    Fill,
    Kernel,
    Load,
    Position,
    Shift,
    Step,
    Store,
)
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class ProductValues:
    """Evaluates a kernel's steps in one function, given its operand addresses."""

    kernel: Kernel
    vectors: Vectors
    operands: Sequence[str]

    def run(
        self,
        steps: Iterable[int],
        point: FactorPoint,
        known: dict[int, Held],
        mask: Vector | None = None,
    ) -> dict[int, Held]:
        """The values of steps at a point; masked lanes are neither read nor written."""
        values = dict(known)
        for n in steps:
            if n not in values:
                step = self.kernel.steps[n]
                if isinstance(step, Store):
                    self._store(step, values, point, mask)
                else:
                    values[n] = self._value(n, step, values, point, mask)
        return values

    def side(
        self, step: int, point: FactorPoint, dtype: DType, mask: Vector | None = None
    ) -> Vector:
        """One side of the contraction at a point, converted."""
        (value,) = self.run(required_steps(self.kernel.steps, [step], ()), point, {}, mask)[step]
        return _in_registers(self.vectors, value, self._dtype(step), dtype)

    def end(
        self,
        product: int,
        steps: Iterable[int],
        point: FactorPoint,
        total: Vector,
        mask: Vector | None,
    ) -> dict[int, Held]:
        """The values of the epilogue at a point, given the sum."""
        contract = self.kernel.steps[product]
        assert isinstance(contract, Contract)
        value = _in_registers(self.vectors, total, contract.held, contract.dtype)
        found = in_type(self.vectors, (value,), contract.dtype)
        return self.run(steps, point, {product: found}, mask)

    def _value(
        self, n: int, step: Step, values: dict[int, Held], point: FactorPoint, mask: Vector | None
    ) -> Held:
        v = self.vectors
        match step:
            case Load():
                return self._load(step, values, point, mask)
            case Fill():
                return storage.fill(v, step.value, step.dtype)
            case Apply():
                given = [values[a] for a in step.args]
                dtypes = [self._dtype(a) for a in step.args]
                return apply(v, step.op, given, dtypes, step.dtype)
            case Choose():
                inside = holds(v, step.guards, point)
                if inside is None:
                    return values[step.inside]
                pairs = zip(values[step.inside], values[step.outside], strict=True)
                return tuple(v.select(inside, a, b) for a, b in pairs)
            case Position():
                return self._position(step, point)
            case _:
                raise Unsupported(
                    f"step {n} of a product, a {type(step).__name__}, cannot be evaluated",
                    help="ask `supports` first",
                )

    def _dtype(self, n: int) -> DType:
        step = self.kernel.steps[n]
        assert not isinstance(step, Store)
        return step.dtype

    def _load(
        self, step: Load, values: dict[int, Held], point: FactorPoint, mask: Vector | None
    ) -> Held:
        v, base = self.vectors, self.operands[step.operand]
        at = place(v, step.at, point)
        even = at.lanes is None and not step.shifts and (v.width == 1 or at.step in (0, 1))
        always, sometimes = split_guards(v, step.guards, point) if even else ([], step.guards)
        inside = both(v, holds(v, sometimes, point), mask)
        if always:
            base = self._or_zeros(base, at.base, step.dtype, always)
            at = AffineLanes("0", at.step)  # the base has the index in it
        for shift in step.shifts:
            at, inside = self._shifted(shift, values, at, inside)
        if at.lanes is None and at.step == 0 and inside is None:
            return storage.load_splat(v, base, at.base, step.dtype)
        if at.lanes is None and (v.width == 1 or at.step == 1):
            return storage.load(v, base, at.base, step.dtype, inside)
        return storage.gather(v, base, indices(v, at), step.dtype, inside)

    def _or_zeros(self, base: str, index: str, dtype: DType, conditions: Sequence[str]) -> str:
        """The address of an element, or of zeros: cheaper than a mask with equal lanes."""
        v, code = self.vectors, self.vectors.code
        nbytes = v.width * dtype.numpy.itemsize
        code.declare(
            f"@zeros_{nbytes} = private constant [{nbytes} x i8] zeroinitializer, align 64"
        )
        address = code.let(f"getelementptr [{dtype.numpy.itemsize} x i8], ptr {base}, i64 {index}")
        for condition in conditions:
            address = code.let(f"select i1 {condition}, ptr {address}, ptr @zeros_{nbytes}")
        return address

    def _shifted(
        self, shift: Shift, values: dict[int, Held], at: AffineLanes, inside: Vector | None
    ) -> tuple[AffineLanes, Vector | None]:
        """An index shifted by a dynamic step."""
        v = self.vectors
        (index,) = values[shift.index]
        signed = self._dtype(shift.index).kind == "int"
        index = v.cast("sext" if signed else "zext", index, "i64") if index.bits < 64 else index
        limit, zero = v.constant(shift.limit, "i64"), v.constant(0, "i64")
        clamped = v.intrinsic("smin", v.intrinsic("smax", index, zero), limit)
        if not shift.clamped:
            # The index is out of bounds exactly where clamping changes it.
            inside = both(v, v.compare("eq", clamped, index), inside)
        moved = v.mul(clamped, v.constant(shift.stride, "i64"))
        lanes = moved if at.lanes is None else v.add(at.lanes, moved)
        return AffineLanes(at.base, at.step, lanes), inside

    def _position(self, step: Position, point: FactorPoint) -> Held:
        v = self.vectors
        number = indices(v, place(v, step.at, point))
        return convert(v, (number,), I64, step.dtype)

    def _store(
        self, step: Store, values: dict[int, Held], point: FactorPoint, mask: Vector | None
    ) -> None:
        v, base = self.vectors, self.operands[step.operand]
        dtype = self.kernel.operands[step.operand].dtype
        at = place(v, step.at, point)
        inside = both(v, holds(v, step.guards, point), mask)
        value = values[step.arg]
        if v.width == 1 or (at.lanes is None and at.step == 1):
            storage.store(v, value, base, at.base, dtype, inside)
        else:
            storage.scatter(v, value, base, indices(v, at), dtype, inside)


def _in_registers(v: Vectors, value: Vector, source: DType, target: DType) -> Vector:
    """A value converted in registers, without rounding narrow floats."""
    if storage.register_kind(source) == storage.register_kind(target):
        return value
    return convert(v, (value,), source, target)[0]


def both(v: Vectors, a: Vector | None, b: Vector | None) -> Vector | None:
    """The intersection of two masks, where None has all lanes."""
    if a is None or b is None:
        return a if b is None else b
    return v.binary("and", a, b)
