"""Kernels written by hand: factors are letters, operands and steps are added one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.op import Op
from weft.ir.types import BOOL, F32, I32, Array, DType, tensor
from weft.kernels.kernel import (
    Affine,
    Apply,
    Choose,
    Combine,
    Contract,
    Factor,
    Fill,
    Guard,
    Kernel,
    Load,
    Operand,
    Pick,
    Position,
    Reduce,
    Schedule,
    Shift,
    Step,
    Store,
)
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Compare


class Building:
    """A kernel that grows: `Building(i=4, j=8)` has two factors."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.names = list(sizes)
        self.operands: list[Operand] = []
        self.steps: list[Step] = []

    # Places

    def affine(self, offset: int = 0, **strides: int) -> Affine:
        return Affine(tuple(strides.get(n, 0) for n in self.names), offset)

    def rows(self, dims: str, offset: int = 0) -> Affine:
        """Row-major places of dims that are factors, outermost first."""
        strides, step = dict[str, int](), 1
        for name in reversed(dims):
            strides[name] = step
            step *= self.sizes[name]
        return self.affine(offset, **strides)

    def guard(self, low: int, high: int, offset: int = 0, **strides: int) -> Guard:
        return Guard(self.affine(offset, **strides), low, high)

    # Operands

    def input(self, *shape: int, dtype: DType = F32) -> int:
        self.operands.append(Operand(dtype, shape))
        return len(self.operands) - 1

    def output(self, *shape: int, dtype: DType = F32) -> int:
        self.operands.append(Operand(dtype, shape, output=True))
        return len(self.operands) - 1

    # Steps

    def add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def dtype(self, step: int) -> DType:
        found = self.steps[step]
        assert not isinstance(found, Store)
        return found.dtype

    def load(
        self,
        operand: int,
        at: Affine,
        guards: Sequence[Guard] = (),
        shifts: Sequence[Shift] = (),
    ) -> int:
        dtype = self.operands[operand].dtype
        return self.add(Load(operand, at, dtype, tuple(guards), tuple(shifts)))

    def read(self, dims: str, dtype: DType = F32) -> int:
        """Load a new input whose dims are factors."""
        operand = self.input(*(self.sizes[n] for n in dims), dtype=dtype)
        return self.load(operand, self.rows(dims))

    def write(self, dims: str, arg: int, dtype: DType | None = None) -> int:
        """Store to a new output whose dims are factors."""
        shape = [self.sizes[n] for n in dims]
        operand = self.output(*shape, dtype=dtype or self.dtype(arg))
        return self.store(operand, self.rows(dims), arg)

    def store(self, operand: int, at: Affine, arg: int, guards: Sequence[Guard] = ()) -> int:
        return self.add(Store(operand, at, arg, tuple(guards)))

    def fill(self, value: bool | int | float | complex, dtype: DType = F32) -> int:
        return self.add(Fill(value, dtype))

    def position(self, at: Affine, dtype: DType = I32) -> int:
        return self.add(Position(at, dtype))

    def apply(self, op: Op, *args: int, dtype: DType | None = None) -> int:
        given = BOOL if isinstance(op, Compare) else self.dtype(args[-1])
        return self.add(Apply(op, args, dtype or given))

    def convert(self, arg: int, dtype: DType) -> int:
        return self.add(Apply(Convert(tensor(dtype=dtype)), (arg,), dtype))

    def choose(self, guards: Sequence[Guard], inside: int, outside: int) -> int:
        return self.add(Choose(tuple(guards), inside, outside, self.dtype(inside)))

    def reduce(self, how: Combine, arg: int, over: str, init: int | None = None) -> int:
        return self.add(Reduce(how, arg, init, self.numbers(over), self.dtype(arg)))

    def pick(self, how: str, key: int, value: int, over: str) -> int:
        assert how in ("max", "min")
        return self.add(Pick(how, key, value, self.numbers(over), self.dtype(value)))  # type: ignore[arg-type]

    def contract(self, lhs: int, rhs: int, over: str, held: DType = F32) -> int:
        return self.add(Contract(lhs, rhs, self.numbers(over), self.dtype(lhs), held))

    def numbers(self, names: str) -> tuple[int, ...]:
        return tuple(self.names.index(n) for n in names)

    # The kernel

    def kernel(
        self, kind: str = "rows", order: str | None = None, tasks: int = 1, **options: int
    ) -> Kernel:
        factors = tuple(Factor(n, size) for n, size in self.sizes.items())
        schedule = Schedule(
            kind,  # type: ignore[arg-type]
            self.numbers("".join(self.names) if order is None else order),
            tasks,
            tuple(options.items()),
        )
        return Kernel("kernel", factors, tuple(self.operands), tuple(self.steps), schedule)

    def arrays(self, seed: int = 0) -> list[Array]:
        """Random arrays for the inputs."""
        rng = np.random.default_rng(seed)
        return [random_array(rng, o.shape, o.dtype) for o in self.operands if not o.output]


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Small random numbers of any dtype."""
    match dtype.kind:
        case "bool":
            return rng.integers(0, 2, shape).astype(bool)
        case "int":
            return rng.integers(-5, 6, shape).astype(dtype.numpy)
        case "uint":
            return rng.integers(0, 11, shape).astype(dtype.numpy)
        case "complex":
            made = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
            return made.astype(dtype.numpy)
    return rng.standard_normal(shape).astype(dtype.numpy)
