"""Verification of kernels: no access outside of their operands, and consistent types.

Emitters rely on it: a kernel that was not built by `tile` in this process, such as one from a
file, is verified first. Schedules and options are checked by the target (`unsupported_kernel`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from weft.errors import WeftError
from weft.ir.module import Region, Value
from weft.ir.read import check_types
from weft.ir.types import BOOL, DType, TensorType
from weft.kernels.attention import Access, Attention
from weft.kernels.flow import ControlFlow
from weft.kernels.flow_verify import verify_flow
from weft.kernels.group import AnyKernel
from weft.kernels.interpret import compute_dtype
from weft.kernels.kernel import (
    Affine,
    Apply,
    Choose,
    Contract,
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
    args_of,
)
from weft.kernels.single_node import SingleNode
from weft.kernels.text import operand_name, scalar_result
from weft.ops.combiners import COMBINERS
from weft.ops.shape import BitcastConvert, Constant

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
# Generous limits: no program comes near them, and hostile files cannot make verification slow.
MOST_POINTS = 1 << 62  # points of all factors; indices are 64-bit integers
MOST_BYTES = 1 << 47  # bytes of an operand: the address space
MOST_STEPS, MOST_FACTORS, MOST_OPERANDS, MOST_DIMS = 1 << 14, 64, 1 << 12, 64
_COMBINATIONS, _COUNTED = 256, 1 << 20  # combinations of guards to try; points to enumerate


def verify_kernel(kernel: AnyKernel) -> None:
    """Raise if a kernel is invalid, with the reason."""
    try:
        _verify(kernel)
    except _Refused as refused:
        raise WeftError(
            f"kernel {kernel.name[:60]}: {refused}",
            help="it is corrupt, or from another version of weft: compile the program again",
        ) from None


class _Refused(Exception):
    """The reason why a kernel is invalid."""


def _require(condition: object, reason: str) -> None:
    if not condition:
        raise _Refused(reason)


def _verify(kernel: AnyKernel) -> None:
    _require(_NAME.fullmatch(kernel.name), f"{kernel.name[:60]!r} is not a valid function name")
    _require(len(kernel.operands) <= MOST_OPERANDS, "it has too many operands")
    for n, operand in enumerate(kernel.operands):
        name = operand_name(n, operand)
        _require(len(operand.shape) <= MOST_DIMS, f"{name} has too many dims")
        _require(all(size >= 0 for size in operand.shape), f"{name} has a negative size")
        _require(operand.nbytes < MOST_BYTES, f"{name} is too large")
    match kernel:
        case Kernel():
            _Loops(kernel).verify()
        case SingleNode():
            _verify_single_node(kernel)
        case Attention():
            _verify_attention(kernel)
        case ControlFlow():
            for inner in kernel.kernels:
                _verify(inner)
            verify_flow(kernel, _require)


def _options(options: Sequence[tuple[str, int]]) -> None:
    names = [name for name, _ in options]
    _require(len(names) == len({*names}), "an option is given twice")


# Loops


class _Loops:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.sizes = [factor.size for factor in kernel.factors]
        self.dtypes: list[DType | None] = []

    def verify(self) -> None:
        """Check the header, the schedule and every step."""
        kernel, names = self.kernel, [factor.name for factor in self.kernel.factors]
        _require(len(names) <= MOST_FACTORS, "it has too many factors")
        _require(all(map(_NAME.fullmatch, names)), "a factor has no name")
        _require(len({*names}) == len(names), "two factors have one name")
        _require(all(size >= 0 for size in self.sizes), "a factor has a negative size")
        _require(math.prod([s for s in self.sizes if s]) < MOST_POINTS, "it has too many points")
        self.schedule(kernel.schedule)
        _require(len(kernel.steps) <= MOST_STEPS, "it has too many steps")
        for n, step in enumerate(kernel.steps):
            try:
                self.step(n, step)
            except (_Refused, WeftError) as error:
                reason = error.message if isinstance(error, WeftError) else str(error)
                raise _Refused(f"step {n}: {reason}") from None
            self.dtypes.append(None if isinstance(step, Store) else step.dtype)

    def schedule(self, schedule: Schedule) -> None:
        order, count = schedule.order, len(self.sizes)
        _require(sorted(order) == [*range(count)], "the schedule lists other factors")
        _require(0 <= schedule.tasks <= count, "the schedule has tasks of other factors")
        _options(schedule.options)

    def step(self, n: int, step: Step) -> None:
        """Check one step against the steps before it."""
        for arg in args_of(step):
            _require(0 <= arg < n, f"it reads step {arg}, which does not come before it")
            _require(self.dtypes[arg] is not None, f"it reads step {arg}, a store")
        match step:
            case Load() | Store():
                self.access(step)
            case Fill(value=value, dtype=dtype):
                _require(_fits(value, dtype), f"{value!r} is not a valid {dtype}")
            case Position(at=at, dtype=dtype):
                self.affine(at)
                _require(dtype is not BOOL, "a position is a number")
            case Apply(op=op, args=args, dtype=dtype):
                plain = op.elementwise or isinstance(op, BitcastConvert)
                _require(plain and args, f"{op.name} is not elementwise")
                result = scalar_result(op, tuple([self.dtypes[a] for a in args]))
                _require(result is dtype, f"{op.name} gives {result}, not {dtype}")
            case Choose(guards=guards, inside=inside, outside=outside, dtype=dtype):
                self.guards(guards)
                self.alike(dtype, inside, outside)
            case Reduce() | Pick() | Contract():
                self.folded(step)

    def folded(self, step: Reduce | Pick | Contract) -> None:
        """Check a reduction, a pick or a contraction."""
        over, dtype = step.over, step.dtype
        _require(all(0 <= f < len(self.sizes) for f in over), "unknown factors")
        _require(len({*over}) == len(over), "it combines twice along one factor")
        if isinstance(step, Reduce):
            _require(step.how in COMBINERS, f"unknown reduction {step.how!r}")
            scalar_result(COMBINERS[step.how], (dtype, dtype))  # raises for types that it has not
            # Complex numbers have no maximum: only sums and products are defined on them.
            ordered = step.how in ("add", "mul") or not dtype.is_complex
            _require(ordered, "numbers without order")
            self.alike(dtype, step.arg)
            if step.init is not None:
                self.alike(dtype, step.init)
                apart = self.kernel.spans[step.init].isdisjoint(over)
                _require(apart, "what it begins with varies along what it combines")
        elif isinstance(step, Pick):
            _require(step.how in ("max", "min"), f"unknown pick {step.how!r}")
            self.alike(dtype, step.value)
            key = self.dtypes[step.key]
            _require(key is not None and not key.is_complex, "numbers without order")
        else:
            sides = [self.dtypes[step.lhs], self.dtypes[step.rhs], step.held, dtype]
            kinds = {d.kind for d in sides if d is not None}
            numbers = ({"float"}, {"complex"}, {"int"}, {"uint"}, {"int", "uint"})
            _require(kinds in numbers, "a product of numbers of different kinds")

    def alike(self, dtype: DType, *args: int) -> None:
        for arg in args:
            _require(self.dtypes[arg] is dtype, f"step {arg} is {self.dtypes[arg]}, not {dtype}")

    def access(self, step: Load | Store) -> None:
        """Check that an access stays inside of its operand at every point."""
        kernel, shifts = self.kernel, step.shifts if isinstance(step, Load) else ()
        _require(0 <= step.operand < len(kernel.operands), f"unknown operand {step.operand}")
        operand = kernel.operands[step.operand]
        name = operand_name(step.operand, operand)
        is_store = isinstance(step, Store)
        _require(operand.output is is_store, f"{name} is not {'written' if is_store else 'read'}")
        dtype = self.dtypes[step.arg] if isinstance(step, Store) else step.dtype
        _require(dtype is operand.dtype, f"{name} is {operand.dtype}, not {dtype}")
        self.affine(step.at)
        self.guards(step.guards)
        for shift in shifts:
            self.shift(shift)
        bounds = reach(step.at, step.guards, shifts, self.sizes, operand.size)
        if bounds is not None:
            low, high = bounds
            inside = low >= 0 and high < operand.size
            _require(inside, f"it reaches {low}..{high} of {name}, which has {operand.size}")

    def shift(self, shift: Shift) -> None:
        dtype = self.dtypes[shift.index]
        _require(dtype is not None and dtype.is_integer, "a place is counted in integers")
        _require(shift.limit >= 0, "a limit is negative")
        _require(shift.limit * abs(shift.stride) < MOST_POINTS, "a place is too far away")

    def affine(self, at: Affine) -> None:
        _require(len(at.strides) == len(self.sizes), "a place has not a stride for each factor")
        # Emitted code computes indices in i64: no term may come near its limits.
        far = [abs(s) * max(1, size) for s, size in zip(at.strides, self.sizes, strict=True)]
        _require(sum(far) + abs(at.offset) < MOST_POINTS, "a place is too far away")

    def guards(self, guards: Sequence[Guard]) -> None:
        for guard in guards:
            self.affine(guard.index)
            _require(max(abs(guard.low), abs(guard.high)) < MOST_POINTS, "a guard is too far away")


def _fits(value: complex, dtype: DType) -> bool:
    """Whether a number is representable in a dtype."""
    if isinstance(value, complex):
        return dtype.is_complex
    if dtype.kind == "bool":
        return value in (0, 1)
    if dtype.is_integer:
        low, high = dtype.limits
        return isinstance(value, int) and low <= value <= high
    return isinstance(value, float) or abs(value) < 1 << 100


# Bounds of accesses


def reach(
    at: Affine,
    guards: Sequence[Guard],
    shifts: Sequence[Shift],
    sizes: Sequence[int],
    wanted: int,
) -> tuple[int, int] | None:
    """Bounds of an index wherever its guards hold, or None if they never do.

    They are exact where that is cheap. Otherwise an interval bound that leaves 0..wanted is refined
    by enumeration, if the points are few.
    """
    ranges = _ranges(guards, sizes)
    if ranges is None or any(s and not sizes[f] for f, s in enumerate(at.strides)):
        return None
    moved = [s.limit * s.stride for s in shifts]
    below, above = sum(min(0, m) for m in moved), sum(max(0, m) for m in moved)
    # Guards of one factor are in `ranges` already.
    several = [g for g in guards if len(_along(g.index)) > 1]
    low, high = _bounds(at, several, ranges)
    if low > high:  # contradictory guards
        return None
    if low + below >= 0 and high + above < wanted:
        return low + below, high + above
    # The bound may be loose, as of guards that exclude corners: look at the points themselves.
    exact = _counted(at, guards, ranges)
    if exact == ():
        return None
    low, high = exact or (low, high)
    return low + below, high + above


def _along(at: Affine) -> list[int]:
    return [f for f, stride in enumerate(at.strides) if stride]


def _ranges(guards: Sequence[Guard], sizes: Sequence[int]) -> list[tuple[int, int]] | None:
    """The range of each factor by its single-factor guards; None if one is empty."""
    ranges = [(0, size - 1) for size in sizes]
    for guard in guards:
        along, offset = _along(guard.index), guard.index.offset
        if not along and not guard.low <= offset < guard.high:
            return None
        if any(not sizes[f] for f in along):
            return None
        if len(along) == 1:
            (f,) = along
            stride = guard.index.strides[f]
            # low <= stride * i + offset < high, solved for i; a negative stride swaps the ends.
            ends = (guard.low - offset, guard.high - 1 - offset)
            first, last = ends if stride > 0 else ends[::-1]
            low, high = ranges[f]
            ranges[f] = max(low, -(-first // stride)), min(high, last // stride)
            if ranges[f][0] > ranges[f][1]:
                return None
    return ranges


def _interval(at: Affine, ranges: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The least and the greatest value of an affine index."""
    low = high = at.offset
    for stride, (first, last) in zip(at.strides, ranges, strict=True):
        if stride:
            ends = (stride * first, stride * last)
            low, high = low + min(ends), high + max(ends)
    return low, high


def _bounds(
    at: Affine, guards: Sequence[Guard], ranges: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """Bounds of an index by guards of several factors.

    The index is written as multiples of the guarded expressions plus an affine rest; each such
    combination bounds it, and the tightest bound counts.
    """
    choices, within = [], []
    for guard in guards:
        least, most = _interval(guard.index, ranges)
        within.append((max(least, guard.low), min(most, guard.high - 1)))
        counts = {0}  # a guard need not be used
        for f in _along(guard.index):
            count, rest = divmod(at.strides[f], guard.index.strides[f])
            counts |= set() if rest else {count}
        choices.append(sorted(counts))
    low, high = _interval(at, ranges)
    for multiples in itertools.islice(itertools.product(*choices), _COMBINATIONS):
        left = at
        for count, guard in zip(multiples, guards, strict=True):
            pairs = zip(left.strides, guard.index.strides, strict=True)
            strides = tuple([a - count * b for a, b in pairs])
            left = Affine(strides, left.offset - count * guard.index.offset)
        least, most = _interval(left, ranges)
        for count, (first, last) in zip(multiples, within, strict=True):
            least += min(count * first, count * last)
            most += max(count * first, count * last)
        low, high = max(low, least), min(high, most)
    return low, high


def _counted(
    at: Affine, guards: Sequence[Guard], ranges: Sequence[tuple[int, int]]
) -> tuple[int, int] | tuple[()] | None:
    """Exact bounds by enumeration; empty if no point is left, None if there are too many."""
    used = sorted({f for a in (at, *(g.index for g in guards)) for f in _along(a)})
    counts = [ranges[f][1] - ranges[f][0] + 1 for f in used]
    if math.prod(counts) > _COUNTED:
        return None

    def values(affine: Affine) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        index = np.full((1,) * len(used), affine.offset, np.int64)
        for n, f in enumerate(used):
            steps = np.arange(ranges[f][0], ranges[f][1] + 1) * affine.strides[f]
            index = index + steps.reshape([-1 if m == n else 1 for m in range(len(used))])
        return index

    places, good = values(at), np.ones((1,) * len(used), bool)
    for guard in guards:
        index = values(guard.index)
        good = good & (guard.low <= index) & (index < guard.high)
    places, good = np.broadcast_arrays(places, good)
    reached = places[good]
    return (int(reached.min()), int(reached.max())) if reached.size else ()


# Single nodes


def _verify_single_node(kernel: SingleNode) -> None:
    inputs, outputs, lead = kernel.inputs, kernel.outputs, kernel.lead
    _require(kernel.operands == (*inputs, *outputs), "outputs stand before inputs")
    _require(0 <= lead <= min([len(o.shape) for o in kernel.operands]), "device dims are missing")
    _require(len(kernel.known) in (0, len(inputs)), "known scalars are not those of the inputs")
    devices = outputs[0].shape[:lead] if outputs else ()
    for operand in kernel.operands:
        pairs = zip(operand.shape[:lead], devices, strict=True)
        # Size 1 where devices share an operand; outputs vary along all device dims.
        alike = all(size and size in (1, most) for size, most in pairs)
        _require(alike and (not operand.output or operand.shape[:lead] == devices),
                 "operands are of different devices")  # fmt: skip
    try:
        node = kernel.node
        for region in kernel.regions:
            _verify_region(region)
        check_types(node.op, node.operand_types, node.types, node.regions)
    except WeftError as error:
        raise _Refused(error.message) from None


def _verify_region(region: Region) -> None:
    """Check a scalar region that reads its arguments and constants only."""
    known = {*region.args}

    def read(values: Sequence[Value]) -> None:
        for value in values:
            constant = value.node is not None and isinstance(value.node.op, Constant)
            _require(value in known or constant, "a region reads what is not in it")
            _require(isinstance(value.type, TensorType) and not value.type.shape,
                     "a region computes with tensors")  # fmt: skip

    for node in region.nodes:
        read(node.operands)
        _require(node.op.elementwise and not node.regions, f"{node.op.name} in a region")
        check_types(node.op, node.operand_types, node.types)
        known.update(node.results)
    read(region.results)


# Attention


def _verify_attention(kernel: Attention) -> None:
    sizes = {name: getattr(kernel, name) for name in ("queries", "keys", "depth", "value_depth")}
    every = [*kernel.outer, *sizes.values()]
    _require(all(size >= 0 for size in every), "a size is negative")
    _require(math.prod([size for size in every if size]) < MOST_POINTS, "it has too many points")
    _require(kernel.empty in ("zero", "nan"), f"unknown result of an empty row: {kernel.empty!r}")
    window = kernel.window
    sides = [side for side in (window.left, window.right, window.shift) if side is not None]
    # Sums of sides and positions must fit i64.
    _require(all(abs(side) < 1 << 40 for side in sides), "a window is too large")
    _options(kernel.options)
    written: list[int] = []
    for name, access, rows, columns, output in _accesses(kernel):
        operand = _verify_access(kernel, name, access, (*kernel.outer, rows, columns))
        _require(operand.output is output, f"{name} is {'read' if output else 'written'} elsewhere")
        dtype, held = operand.dtype, kernel.held
        fits = dtype.is_float and compute_dtype(dtype) is held
        fits = dtype is {"mask": BOOL, "lse": held}[name] if name in ("mask", "lse") else fits
        _require(fits, f"{name} is {dtype} where numbers are held in {held}")
        written += [access.operand] if output else []
    _require(len({*written}) == len(written), "two results are in one operand")


def _accesses(kernel: Attention) -> Iterator[tuple[str, Access, int, int, bool]]:
    """Every access with its name, rows, columns, and whether it is written."""
    queries, keys, deep, values = kernel.queries, kernel.keys, kernel.depth, kernel.value_depth
    grads = kernel.gradients
    yield "q", kernel.q, queries, deep, False
    yield "k", kernel.k, keys, deep, False
    yield "v", kernel.v, keys, values, False
    yield "out", kernel.out, queries, values, grads is None
    if kernel.lse is not None:
        yield "lse", kernel.lse, queries, 1, grads is None
    for name, access in kernel.pairs.items():
        yield name, access, queries, keys, False
    if grads is not None:
        yield "the gradient of out", grads.out, queries, values, False
        yield "the gradient of q", grads.q, queries, deep, True
        yield "the gradient of k", grads.k, keys, deep, True
        yield "the gradient of v", grads.v, keys, values, True
        if grads.bias is not None:
            yield "the gradient of bias", grads.bias, queries, keys, True


def _verify_access(kernel: Attention, name: str, access: Access, sizes: Sequence[int]) -> Operand:
    _require(0 <= access.operand < len(kernel.operands), f"{name} is not an operand")
    operand = kernel.operands[access.operand]
    _require(len(access.outer) == len(kernel.outer), f"{name} has not a stride for each dim")
    at = Affine((*access.outer, access.row, access.column), access.offset)
    far = [abs(s) * max(1, size) for s, size in zip(at.strides, sizes, strict=True)]
    _require(sum(far) + abs(at.offset) < MOST_POINTS, f"{name} is too far away")
    if all(sizes):  # else there is no point, and no access
        low, high = _interval(at, [(0, size - 1) for size in sizes])
        inside = low >= 0 and high < operand.size
        _require(inside, f"{name} reaches {low}..{high} of {operand.size} elements")
    return operand
