"""Analysis of comparators: the sort keys that they compare, if that is all they do."""

from __future__ import annotations

import numpy as np

from weft.emit.llvm.single.region import dtype_of, evaluated, on_arrays
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.module import Node, Region, Value
from weft.ir.types import DType
from weft.ops.elementwise.pointwise import Compare
from weft.ops.shape import Constant
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class SortKey:
    """A sort key: a function of an element in the comparator."""

    operand: int  # the input it depends on
    arg: Value  # the comparator's argument for that input
    value: Value
    descending: bool
    total: bool  # IEEE total order; otherwise -0 equals 0

    @property
    def dtype(self) -> DType:
        """The type of the key."""
        return dtype_of(self.value)

    @property
    def bits(self) -> int:
        """The number of significant bits of keys."""
        return key_bits(self.dtype)


def sort_keys(region: Region) -> tuple[SortKey, ...] | None:
    """The keys that a comparator compares lexicographically, or None if it does otherwise."""
    return _keys(region, region.results[0])


def _keys(region: Region, value: Value) -> tuple[SortKey, ...] | None:
    match value.node:
        case Node(op=Compare(comparison_direction="LT" | "GT")):
            key = _key(region, value.node)
            return None if key is None else (key,)
        case Node(op=op, operands=(one, other)) if op.name == "stablehlo.or":
            for first, rest in ((one, other), (other, one)):
                found = _then(region, first, rest)
                if found is not None:
                    return found
    return None


def _then(region: Region, first: Value, rest: Value) -> tuple[SortKey, ...] | None:
    """a < b or (a == b and rest): the rest breaks ties."""
    node, tie = first.node, rest.node
    if node is None or tie is None or tie.op.name != "stablehlo.and":
        return None
    key = _key(region, node) if isinstance(node.op, Compare) else None
    if key is None:
        return None
    for equal, more in (tie.operands, tie.operands[::-1]):
        same = equal.node
        if same is None or not isinstance(same.op, Compare):
            continue
        # Equality is symmetric: (b == a) serves as well as (a == b).
        alike = set(map(id, same.operands)) == set(map(id, node.operands))
        if same.op.comparison_direction == "EQ" and alike and _exact(same.op, key):
            others = _keys(region, more)
            return None if others is None else (key, *others)
    return None


def _exact(equal: Compare, key: SortKey) -> bool:
    """Whether keys are equal exactly where the comparison holds."""
    return not key.dtype.is_float or (equal.compare_type == "TOTALORDER") == key.total


def _key(region: Region, node: Node) -> SortKey | None:
    """compare(f(a), f(b)) of one pair of arguments, in either order -> the key f."""
    op = node.op
    assert isinstance(op, Compare)
    if op.comparison_direction not in ("LT", "GT"):
        return None
    for n in range(len(region.args) // 2):
        a, b = region.args[2 * n], region.args[2 * n + 1]
        for left, right, turned in ((a, b, False), (b, a, True)):
            x, y = node.operands
            if _alike(x, y, left, right) and dtype_of(x).kind != "complex":
                descending = (op.comparison_direction == "GT") != turned
                key = x if not turned else y
                return SortKey(n, a, key, descending, op.compare_type == "TOTALORDER")
    return None


def _alike(x: Value, y: Value, a: Value, b: Value) -> bool:
    """Whether x is the same function of `a` as y is of `b`."""
    if x is a:
        return y is b
    if x.node is None or y.node is None or x.node.op is not y.node.op or x.index != y.index:
        return False
    if isinstance(x.node.op, Constant):
        return True
    # Anything else may depend on more than this element.
    if x.node.regions or not x.node.op.elementwise:
        return False
    pairs = zip(x.node.operands, y.node.operands, strict=True)
    return all(_alike(p, q, a, b) for p, q in pairs)


# Keys as unsigned integers


def key_bits(dtype: DType) -> int:
    """The width of the unsigned integers that order like the elements."""
    if dtype.is_float:
        # Floats of 8 bits and less are f32 in registers, and keep these bits as keys.
        return 32 if dtype.bits < 16 else dtype.bits
    return max(8, dtype.bits)


def key_of(v: Vectors, key: SortKey, element: Held) -> Vector:
    """The keys of elements as unsigned integers in ascending sort order."""
    (held,) = evaluated(v, key.value, {key.arg: element})
    made = in_order(v, held, key.dtype, total=key.total)
    if key.descending:
        made = v.binary("xor", made, v.constant(-1, made.kind))
    return made


def in_order(v: Vectors, held: Vector, dtype: DType, *, total: bool) -> Vector:
    """Unsigned integers that order like the elements; NaN last unless the order is total."""
    if dtype.kind == "bool":
        return v.cast("zext", held, "i8")
    if not dtype.is_float:
        # Two's complement with the sign bit flipped is in unsigned order.
        sign = v.constant(1 << (held.bits - 1), held.kind)
        return v.binary("xor", held, sign) if dtype.kind == "int" else held
    is_nan = v.compare("uno", held, held)
    if not total:
        held = v.add(held, v.constant(0.0, held.kind))  # canonicalize -0 to 0
    stored = storage.to_memory(v, held, dtype) if dtype.bits == 16 else held
    bits = v.cast("bitcast", stored, f"i{stored.bits}")
    made = order_bits(v, bits)
    return made if total else v.select(is_nan, v.constant(-1, made.kind), made)


def order_bits(v: Vectors, bits: Vector) -> Vector:
    """The bits of floats as unsigned integers in IEEE total order."""
    sign = v.constant(1 << (bits.bits - 1), bits.kind)
    # All bits are flipped if negative, else the sign alone: magnitudes of negative numbers order in
    # reverse.
    flip = v.binary("ashr", bits, v.constant(bits.bits - 1, bits.kind))
    return v.binary("xor", bits, v.binary("or", flip, sign))


def is_element(key: SortKey) -> bool:
    """Whether a key is the element itself, up to canonicalized zeros and NaNs."""
    dtype = dtype_of(key.arg)
    if key.dtype is not dtype or dtype.is_complex or (dtype.is_float and dtype.bits < 16):
        return False
    # A guess by samples is safe: each element is compared with its key before keys alone are
    # sorted.
    few = [0, 1] if dtype.kind == "bool" else [0, 1, 2, 7, 31]
    samples = np.array(few + ([-1.5, -np.inf, np.inf] if dtype.is_float else [])).astype(
        dtype.numpy
    )
    return bool(np.array_equal(on_arrays(key.value, {key.arg: samples}), samples))


def element_bits(v: Vectors, key: SortKey, element: Vector) -> Vector:
    """The inverse of `key_of`: the element's bits in memory."""
    if key.descending:
        element = v.binary("xor", element, v.constant(-1, element.kind))
    dtype = key.dtype
    if dtype.is_float:
        sign = v.constant(1 << (element.bits - 1), element.kind)
        negative = v.binary("ashr", element, v.constant(element.bits - 1, element.kind))
        flip = v.binary("or", v.binary("xor", negative, v.constant(-1, element.kind)), sign)
        return v.binary("xor", element, flip)
    if dtype.kind == "int":
        return v.binary("xor", element, v.constant(1 << (element.bits - 1), element.kind))
    return element
