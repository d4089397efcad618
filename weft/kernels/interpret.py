"""The reference semantics of kernels: each step as a numpy array with one dim for each factor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.rule import Combine
from weft.ir.types import BOOL, F32, Array, DType
from weft.kernels.kernel import (
    Affine,
    Apply,
    Choose,
    Contract,
    Fill,
    Guard,
    Kernel,
    Load,
    Pick,
    Position,
    Reduce,
    Step,
    Store,
    is_rounded,
)
from weft.ops.combiners import COMBINERS, identity
from weft.ops.elementwise.special import NextAfter
from weft.ops.numerics import arithmetic
from weft.ops.shape import BitcastConvert


def interpret(kernel: Kernel, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of a kernel for these inputs; 0 where nothing is stored."""
    return _Interpreter(kernel, arrays).run()


def compute_dtype(dtype: DType) -> DType:
    """The compute dtype of a dtype: f32 for narrower floats."""
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


def _most(array: Array) -> int:
    return int(np.iinfo(array.dtype).max)


class _Interpreter:
    def __init__(self, kernel: Kernel, arrays: Sequence[Array]) -> None:
        self.kernel = kernel
        self.sizes = tuple(f.size for f in kernel.factors)
        inputs = iter(arrays)
        self.buffers = [
            np.zeros(o.size, o.dtype.numpy) if o.output else np.ravel(next(inputs))
            for o in kernel.operands
        ]
        self.dtypes = [BOOL if isinstance(s, Store) else s.dtype for s in kernel.steps]
        self.values: list[Array] = []

    def run(self) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):  # infinities and NaN are results like any other
            for step in self.kernel.steps:
                self.values.append(self.value(step))
        pairs = zip(self.kernel.operands, self.buffers, strict=True)
        return tuple([b.reshape(o.shape) for o, b in pairs if o.output])

    def value(self, step: Step) -> Array:
        """The value of a step at every point that it spans; its other dims have size 1."""
        match step:
            case Load():
                return self.load(step)
            case Fill(value=value, dtype=dtype):
                array = np.full((1,) * len(self.sizes), value, dtype.numpy)
                return self.hold(array, dtype)
            case Position(at=at, dtype=dtype):
                return self.hold(arithmetic.convert(self.affine(at), dtype), dtype)
            case Apply():
                return self.apply(step)
            case Choose(guards=guards, inside=inside, outside=outside):
                return np.where(self.inside(guards), self.values[inside], self.values[outside])
            case Reduce(how=how, arg=arg, init=init, over=over, dtype=dtype):
                array = self.fold(how, self.values[arg], over, dtype)
                if init is not None:
                    array = self.combine(how, self.values[init], array)
                return self.hold(array, dtype)
            case Pick(how=how, key=key, value=value, over=over):
                return self.pick(how, self.values[key], self.values[value], over)
            case Contract(lhs=lhs, rhs=rhs, over=over, held=wide, dtype=dtype):
                # Products of the operands' exact values: converted to the accumulator's type first.
                kind = compute_dtype(wide).numpy
                product = self.values[lhs].astype(kind) * self.values[rhs].astype(kind)
                return self.hold(self.fold("add", product, over, wide), dtype)
            case Store():
                self.store(step)
                return np.zeros((1,) * len(self.sizes))

    def apply(self, step: Apply) -> Array:
        """Apply an op by its reference; bitwise ops get operands rounded to their types."""
        # [factor 0, factor 1, ...] of all arguments' points
        args = self.aligned([self.values[a] for a in step.args])
        if isinstance(step.op, BitcastConvert | NextAfter):
            kinds = [self.dtypes[a] for a in step.args]
            args = [arithmetic.fit(a, k) for a, k in zip(args, kinds, strict=True)]
        if isinstance(step.op, BitcastConvert):
            return self.hold(args[0].view(step.dtype.numpy), step.dtype)
        return self.hold(np.asarray(step.op.reference(*args)), step.dtype)

    def affine(self, at: Affine) -> Array:
        """An affine index at every point that it spans."""
        index = np.full((1,) * len(self.sizes), at.offset, np.int64)
        for dim, (stride, size) in enumerate(zip(at.strides, self.sizes, strict=True)):
            if stride:
                along = [-1 if n == dim else 1 for n in range(len(self.sizes))]
                index = index + (np.arange(size) * stride).reshape(along)
        return index

    def inside(self, guards: tuple[Guard, ...]) -> Array:
        """The mask of points where all guards hold."""
        mask = np.ones((1,) * len(self.sizes), bool)
        for guard in guards:
            index = self.affine(guard.index)
            mask = mask & (guard.low <= index) & (index < guard.high)
        return mask

    def load(self, step: Load) -> Array:
        place, good = self.affine(step.at), self.inside(step.guards)
        for shift in step.shifts:
            index = self.values[shift.index]
            # A large u64 would turn negative in int64: clamp it to just beyond the limit first.
            if self.dtypes[shift.index].kind == "uint":
                index = np.minimum(index, index.dtype.type(min(shift.limit + 1, _most(index))))
            index = index.astype(np.int64)
            clamped = np.clip(index, 0, shift.limit)
            place = place + clamped * shift.stride
            if not shift.clamped:
                good = good & (clamped == index)
        buffer = self.buffers[step.operand]
        if not good.any():  # an empty operand has no element 0 to read in place of masked ones
            return np.zeros(
                np.broadcast_shapes(place.shape, good.shape), compute_dtype(step.dtype).numpy
            )
        elements = np.where(good, buffer[np.where(good, place, 0)], np.zeros((), buffer.dtype))
        return self.hold(elements, step.dtype)

    def store(self, step: Store) -> None:
        place, good = self.affine(step.at), self.inside(step.guards)
        kind = self.kernel.operands[step.operand].dtype
        value = arithmetic.fit(self.values[step.arg], kind)
        place, good, value = np.broadcast_arrays(place, good, value)
        self.buffers[step.operand][place[good]] = value[good]

    def hold(self, value: Array, dtype: DType) -> Array:
        """The value that other steps read: rounded to its type where the contract rounds."""
        if is_rounded(dtype, excess_precision=self.kernel.excess_precision):
            value = arithmetic.fit(value, dtype)
        return value.astype(compute_dtype(dtype).numpy, copy=False)

    def aligned(self, values: list[Array]) -> list[Array]:
        return [np.ascontiguousarray(v) for v in np.broadcast_arrays(*values)]

    def combine(self, how: Combine, a: Array, b: Array) -> Array:
        return np.asarray(COMBINERS[how].reference(*self.aligned([a, b])))

    def fold(self, how: Combine, value: Array, over: tuple[int, ...], dtype: DType) -> Array:
        """Reduce a value along factors, by pairwise halving."""
        for dim in over:
            size = self.sizes[dim]
            value = np.moveaxis(self.spread(value, dim), dim, 0)
            if size == 0:  # nothing to reduce
                value = np.full((1, *value.shape[1:]), identity(how, dtype), value.dtype)
            # Pairwise, whose error grows with log(n): a reference must not be worse than what it
            # checks.
            while (size := len(value)) > 1:
                half = self.combine(how, value[: size // 2], value[size // 2 : size // 2 * 2])
                value = np.concatenate([half, value[size // 2 * 2 :]])
            value = np.moveaxis(value, 0, dim)
        return value

    def pick(self, how: Combine, key: Array, value: Array, over: tuple[int, ...]) -> Array:
        """The value at the argmax or argmin of a key: NaN first, then the first occurrence."""
        for dim in over:
            key, value = self.spread(key, dim), self.spread(value, dim)
        key, value = np.broadcast_arrays(key, value)
        outer = [d for d in range(len(self.sizes)) if d not in over]
        rows = key.transpose(*outer, *over).reshape(*(key.shape[d] for d in outer), -1)
        best_of = np.argmax if how == "max" else np.argmin  # NaN compares first, as in numpy
        at = best_of(rows, axis=-1)
        values = value.transpose(*outer, *over).reshape(rows.shape)
        best = np.take_along_axis(values, at[..., None], axis=-1)[..., 0]
        return np.expand_dims(best, tuple(sorted(over)))

    def spread(self, value: Array, dim: int) -> Array:
        """Broadcast a value along a factor that it does not span."""
        shape = list(value.shape)
        shape[dim] = self.sizes[dim]
        return np.broadcast_to(value, shape)
