"""Are rules true? Split an op along each factor, run the pieces, and put them together again.

Rules and references are two independent statements of an op; this holds one against the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.ops.example import Example
from tests.tolerance import difference
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.module import Function, Module, Region, Value, apply
from weft.ir.op import Op
from weft.ir.rule import Dims, Rule, RuleFactor
from weft.ir.types import Array, TensorType, Types

PIECES = 2
COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@dataclass(frozen=True)
class Case:
    """An op on operands, on one device or stacked for several, and what it gives as a whole."""

    op: Op
    types: Types
    results: Types
    arrays: tuple[Array, ...]
    regions: tuple[Region, ...] = ()
    devices: int | None = None

    @classmethod
    def of(cls, example: Example) -> Case:
        """The case that an example makes."""
        node = example.node()
        devices = getattr(example, "devices", None)
        types = node.operand_types
        return cls(example.op, types, node.types, example.arrays, example.regions, devices)

    def run(self, op: Op, types: Types, arrays: Sequence[Array]) -> tuple[Types, tuple[Array, ...]]:
        """The types and values that an op gives on operands of these types."""
        args = tuple(Value(t, None, n) for n, t in enumerate(types))
        node = apply(op, *args, regions=self.regions)
        module = Module({"main": Function("main", Region(args, [node], node.results))})
        return node.types, evaluate(module, *arrays, devices=self.devices)


def lies(example: Example, rule: Rule) -> list[str]:
    """What the rule says wrongly about an op; nothing if it is true."""
    case = Case.of(example)
    tensors = (*case.types, *case.results)
    if not all(isinstance(t, TensorType) and t.is_static for t in tensors):
        return []
    found = misfits(case, rule)
    if found:
        return found
    _, whole = case.run(case.op, case.types, case.arrays)
    for index, (name, factor) in enumerate(zip(rule.names(), rule.factors, strict=True)):
        if not _is_checked(factor):
            continue
        problem = _check(case, rule, index, whole)
        if problem is not None:
            found.append(f"factor {name} ({factor.role}) of {rule}: {problem}")
    return found


def misfits(case: Case, rule: Rule) -> list[str]:
    """Dims without factors, and factors whose sizes do not make up the dims they run over."""
    found = []
    for side, types, all_dims in (
        ("operand", case.types, rule.operands),
        ("result", case.results, rule.results),
    ):
        if len(types) != len(all_dims):
            return [f"{rule} has {len(all_dims)} {side}s, the op {len(types)}"]
        for number, (type, dims) in enumerate(zip(types, all_dims, strict=True)):
            assert isinstance(type, TensorType)
            if len(dims) != type.rank:
                return [f"{rule}: {side} {number} is {type}"]
            for dim, factors in enumerate(dims):
                roles = {rule.factors[f].role for f in factors}
                product = math.prod(rule.factors[f].size for f in factors)
                needs_offset = any(rule.factors[f].needs_offset for f in factors)
                if (
                    product != type.sizes[dim]
                    and roles <= {"pass", "reduction"}
                    and not needs_offset
                ):
                    found.append(f"{rule}: dim {dim} of {side} {number} is {type.sizes[dim]}")
    return found


def _is_checked(factor: RuleFactor) -> bool:
    """Whether pieces can be made and combined without help from a partitioner."""
    if factor.size % PIECES or factor.size == 0 or factor.needs_offset:
        return False
    return factor.role == "pass" or (factor.role == "reduction" and factor.combine is not None)


def _check(case: Case, rule: Rule, index: int, whole: tuple[Array, ...]) -> str | None:
    split = [local_type(t, d, rule, index) for t, d in zip(case.types, rule.operands, strict=True)]
    local = [local_type(t, d, rule, index) for t, d in zip(case.results, rule.results, strict=True)]
    offset = 0 if case.devices is None else 1
    parts = []
    for piece in range(PIECES):
        arrays = [
            take(array, dims, rule, index, piece, offset)
            for array, dims in zip(case.arrays, rule.operands, strict=True)
        ]
        try:
            op = case.op.local(tuple(split), tuple(local))
            types, values = case.run(op, tuple(split), arrays)
        except WeftError as error:
            return f"a piece is refused: {error.message}"
        if types != tuple(local):
            return f"a piece has the types {types}, not {tuple(local)}"
        parts.append(values)
    for number, (dims, expected) in enumerate(zip(rule.results, whole, strict=True)):
        length = max(2, rule.factors[index].size)
        for got in joined([part[number] for part in parts], dims, rule, index, offset):
            if found := difference(got, expected, length):
                return f"result {number}: {found}"
    return None


def local_type(type: object, dims: Dims, rule: Rule, index: int) -> TensorType:
    """The type of a piece."""
    assert isinstance(type, TensorType)
    shape = [s // PIECES if index in f else s for s, f in zip(type.sizes, dims, strict=True)]
    return type.with_shape(tuple(shape))


def take(array: Array, dims: Dims, rule: Rule, index: int, piece: int, offset: int) -> Array:
    """One piece of an array, split along a factor."""
    for dim, factors in enumerate(dims, offset):
        if index not in factors:
            continue
        shape, place = _viewed(array.shape, dim, factors, rule, index, array.shape[dim])
        parts = np.split(array.reshape(shape), PIECES, place)
        smaller = [*array.shape]
        smaller[dim] //= PIECES
        array = parts[piece].reshape(smaller)
    return array


def joined(pieces: list[Array], dims: Dims, rule: Rule, index: int, offset: int) -> Sequence[Array]:
    """What must equal the whole: the pieces put together, or each if it lacks the factor."""
    factor = rule.factors[index]
    for dim, factors in enumerate(dims, offset):
        if index not in factors:
            continue
        size = pieces[0].shape[dim] * PIECES
        shape, place = _viewed(pieces[0].shape, dim, factors, rule, index, size)
        shape[place] //= PIECES
        whole = np.concatenate([p.reshape(shape) for p in pieces], place)
        larger = [*pieces[0].shape]
        larger[dim] = size
        return [whole.reshape(larger)]
    if factor.role == "reduction":
        assert factor.combine is not None
        total = pieces[0]
        for other in pieces[1:]:
            total = np.asarray(COMBINE[factor.combine](total, other)).astype(total.dtype)
        return [total]
    return pieces


def _viewed(
    shape: Sequence[int], dim: int, factors: tuple[int, ...], rule: Rule, index: int, size: int
) -> tuple[list[int], int]:
    """The shape with one dim written as its factors, and the place of the factor in it."""
    sizes = [rule.factors[f].size for f in factors] if len(factors) > 1 else [size]
    at = factors.index(index)
    return [*shape[:dim], *sizes, *shape[dim + 1 :]], dim + at
