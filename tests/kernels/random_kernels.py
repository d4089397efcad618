"""Random kernels: factors, places, elementwise steps, reductions, stores in any order of dims."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from tests.kernels.building import Building
from weft.ir.types import BOOL, F32, F64, I32, DType, dtype
from weft.kernels.kernel import Kernel, Shift
from weft.ops.elementwise.pointwise import (
    Add,
    Compare,
    Maximum,
    Minimum,
    Multiply,
    Select,
    Subtract,
)
from weft.ops.elementwise.transcendental import Tanh

SIZES = (1, 2, 3, 5, 7, 16, 17, 33, 64, 65, 130)
POINTS = 1 << 14
FLOATS = (F32, F32, F32, dtype("bf16"), dtype("f16"), F64, dtype("f8E5M2"))
OTHERS = (I32, dtype("i8"), dtype("ui16"), dtype("i64"), dtype("i4"), BOOL)


@st.composite
def kernels(draw: st.DrawFn) -> tuple[Building, Kernel]:
    """A kernel and how it was built, with few points."""
    count = draw(st.integers(0, 4))
    sizes: dict[str, int] = {}
    for name in "ijkl"[:count]:
        room = POINTS // math.prod(sizes.values(), start=1)
        sizes[name] = draw(st.sampled_from([s for s in SIZES if s <= room]))
    b = Building(**sizes)
    kind = draw(st.sampled_from([*FLOATS, *OTHERS]))
    values = [_load(draw, b, kind) for _ in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(0, 6))):
        values.append(_step(draw, b, values, kind))
    stored = draw(st.lists(st.sampled_from(values), max_size=2)) + values[-1:]
    for value in stored:
        _store(draw, b, value)
    order = "".join(draw(st.permutations(list(sizes))))
    schedule = draw(st.sampled_from(["rows", "columns"]))
    options = {"task": draw(st.sampled_from([20, 200, 1 << 14]))}
    if draw(st.booleans()):
        options |= {"width": draw(st.sampled_from([2, 8, 16, 128])), "stream": 1}
    return b, b.kernel(schedule, order, tasks=0, **options)


def _some(draw: st.DrawFn, names: list[str]) -> str:
    """Some names, in any order."""
    kept = [n for n in names if draw(st.integers(0, 3))]
    return "".join(draw(st.permutations(kept)))


def _load(draw: st.DrawFn, b: Building, kind: DType) -> int:
    dims = _some(draw, b.names)
    how = draw(st.sampled_from(["plain", "plain", "plain", "guarded", "shifted", "position"]))
    if how == "position" and b.names and kind is not BOOL:
        return b.position(b.affine(draw(st.integers(-2, 2)), **dict.fromkeys(dims, 1)), kind)
    if how == "plain" or not dims:
        return b.read(dims, kind)
    if how == "guarded":
        return _guarded(draw, b, dims, kind)
    table = b.input(6, b.sizes[dims[-1]], dtype=kind)
    index = b.read(dims[:-1], I32)
    shift = Shift(index, 5, b.sizes[dims[-1]], draw(st.booleans()))
    return b.load(table, b.affine(**{dims[-1]: 1}), shifts=[shift])


def _guarded(draw: st.DrawFn, b: Building, dims: str, kind: DType) -> int:
    """A slice along the last dim, moved: what lies outside is padding; it may run backwards."""
    size = b.sizes[dims[-1]]
    inner = max(1, size - draw(st.integers(0, 3)))
    moved = draw(st.integers(0, 2))
    stride = draw(st.sampled_from([1, -1, 2]))
    shape = [b.sizes[n] for n in dims[:-1]]
    operand = b.input(*shape, inner, dtype=kind)
    strides = {n: math.prod([*shape[i + 1 :], inner]) for i, n in enumerate(dims[:-1])}
    start = inner - 1 + moved if stride < 0 else -moved
    guard = b.guard(0, inner, start, **{dims[-1]: stride})
    at = b.affine(start, **strides, **{dims[-1]: stride})
    loaded = b.load(operand, at, [guard])
    return b.choose([guard], loaded, b.fill(1, kind)) if draw(st.booleans()) else loaded


def _step(draw: st.DrawFn, b: Building, values: list[int], kind: DType) -> int:
    one, other = (draw(st.sampled_from(values)) for _ in range(2))
    spans = Kernel("", (), (), tuple(b.steps), b.kernel().schedule).spans
    along = "".join(b.names[n] for n in sorted(spans[one]))
    how = draw(st.sampled_from(["apply", "apply", "choose", "reduce", "reduce", "pick"]))
    if how == "choose" and b.names:
        name = draw(st.sampled_from(b.names))
        low = draw(st.integers(0, b.sizes[name]))
        return b.choose([b.guard(low, b.sizes[name] - 1, **{name: 1})], one, other)
    over = _some(draw, list(along))
    if how == "reduce" and over:
        named = ["and", "or", "xor"] if kind is BOOL else ["add", "max", "min"]
        init = draw(st.sampled_from([None, b.fill(1, kind)]))
        return b.reduce(draw(st.sampled_from(named)), one, over, init)  # type: ignore[arg-type]
    if how == "pick" and over:
        return b.pick(draw(st.sampled_from(["max", "min"])), one, other, over)
    if kind is BOOL:
        return b.apply(draw(st.sampled_from([Add(), Multiply(), Maximum()])), one, other)
    if kind.is_float and draw(st.booleans()):
        return b.apply(Tanh(), one)
    if draw(st.booleans()):
        less = b.apply(Compare("LT"), one, other)
        return b.apply(Select(), less, one, other)
    ops = [Add(), Subtract(), Maximum(), Minimum(), Multiply()]
    return b.apply(draw(st.sampled_from(ops)), one, other)


def _store(draw: st.DrawFn, b: Building, value: int) -> None:
    spans = Kernel("", (), (), tuple(b.steps), b.kernel().schedule).spans
    names = [n for i, n in enumerate(b.names) if i in spans[value] or draw(st.booleans())]
    b.write("".join(draw(st.permutations(names))), value)
