"""Einsum: sums of products whose dims are named by letters."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np

from weft.ir.attrs import STRING
from weft.ir.check import require, tensor_type
from weft.ir.op import Op, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import Array, Dim, TensorType, Type, Types, dtype_of, type_of
from weft.ir.work import Work
from weft.ops.combiners import in_dtype
from weft.ops.contract import dot_work, expect_shape, narrow, wide
from weft.records import dataclass

_TERM = re.compile(r"[A-Za-z]*(?:\.\.\.[A-Za-z]*)?")


@dataclass(frozen=True, slots=True)
class Labels:
    """The name of every dim of the operands and of the result; dims of one name run together."""

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]

    def sizes(self, types: tuple[TensorType, ...]) -> dict[str, int]:
        """The size of each name, in the order in which names appear."""
        found: dict[str, int] = {}
        for names, type in zip(self.operands, types, strict=True):
            found |= dict(zip(names, type.bounds, strict=True))
        return found


def parse_config(name: str, config: str, types: tuple[TensorType, ...]) -> Labels:
    """`ij,jk->ik` as names; `...` stands for the dims that are left, aligned at the right."""
    left, arrow, right = config.replace(" ", "").partition("->")
    terms = left.split(",")
    good = arrow and all(_TERM.fullmatch(term) for term in (*terms, right))
    require(
        bool(good) and len(terms) == len(types),
        f"{name}: einsum_config {config!r} does not name the dims of {len(types)} operands",
        "write one term of letters for each operand, and the result's: ij,jk->ik",
    )
    letters = [len(term.replace(".", "")) for term in terms]
    hidden = [type.rank - count for count, type in zip(letters, types, strict=True)]
    for index, (term, count, type) in enumerate(zip(terms, hidden, types, strict=True)):
        require(
            count == 0 or ("." in term and count > 0),
            f"{name}: term {term!r} does not fit operand {index}, {type}",
            "give one letter for each dim",
        )
    widest = max(hidden, default=0)
    operands = tuple(_spread(term, count) for term, count in zip(terms, hidden, strict=True))
    labels = Labels(operands, _spread(right, widest))
    known = {label for names in operands for label in names}
    require(
        set(labels.result) <= known and len(set(labels.result)) == len(labels.result),
        f"{name}: the result's term {right!r} repeats a letter, or has one that no operand has",
        "name dims of the operands, each once",
    )
    return labels


def _spread(term: str, hidden: int) -> tuple[str, ...]:
    before, dots, after = term.partition("...")
    # Numbered from the last one: an operand with fewer hidden dims shares the minor ones.
    middle = [f".{n}" for n in reversed(range(hidden))] if dots else []
    return (*before, *middle, *after)


def infer_einsum(name: str, config: str, out: TensorType, operands: Types) -> TensorType:
    """The result type, after all dims of one name were seen to have one size."""
    types = tuple(tensor_type(name, index, type) for index, type in enumerate(operands))
    labels = parse_config(name, config, types)
    seen: dict[str, tuple[int, int, Dim]] = {}
    for index, (names, type) in enumerate(zip(labels.operands, types, strict=True)):
        for dim, (label, size) in enumerate(zip(names, type.shape, strict=True)):
            first = seen.setdefault(label, (index, dim, size))
            require(
                first[2] == size,
                f"{name}: sizes differ: operand {first[0]} dim {first[1]} is {first[2]}, "
                f"operand {index} dim {dim} is {size}",
                "reshape or transpose an operand so the sizes agree",
            )
    return expect_shape(name, out, tuple(seen[label][2] for label in labels.result))


def einsum_rule(labels: Labels, operands: tuple[TensorType, ...], out: TensorType) -> Rule:
    """A factor for each name; a name that one operand has twice (a diagonal) stays whole."""
    builder = RuleBuilder(operands, (out,))
    sizes = labels.sizes(operands)
    # A shard of a diagonal lies on a few devices only.
    twice = {n for names in labels.operands for n, count in Counter(names).items() if count > 1}
    free = [n for n in labels.result if n not in twice]
    summed = [n for n in sizes if n not in twice and n not in free]
    for label in (*free, *summed):
        dims = [names.index(label) if label in names else None for names in labels.operands]
        if label in free:
            builder.factor(dims, (labels.result.index(label),), sizes[label])
        else:
            combine = in_dtype("add", out.dtype)
            builder.factor(dims, (None,), sizes[label], "reduction", combine=combine)
    return builder.build()


def einsum(name: str, config: str, arrays: tuple[Array, ...], out: TensorType) -> Array:
    """The sums of products, in the wide type, rounded once."""
    labels = parse_config(name, config, tuple(type_of(a) for a in arrays))
    held = wide(out.dtype, *(dtype_of(a.dtype) for a in arrays))
    numbers = {label: n for n, label in enumerate(dict.fromkeys(sum(labels.operands, ())))}
    arguments: list[object] = []
    for names, array in zip(labels.operands, arrays, strict=True):
        arguments += [array.astype(held), [numbers[label] for label in names]]
    with np.errstate(all="ignore"):
        sums = np.einsum(*arguments, [numbers[label] for label in labels.result])  # type: ignore[call-overload]
    return narrow(sums, out.dtype)


@op("stablehlo.einsum")
class Einsum(Op):
    """out = the sum of products of two tensors that `einsum_config` names, such as `ij,jk->ik`."""

    einsum_config: str
    out: TensorType
    assembly = "$operands, config = $config : $signature"

    @property
    def config(self) -> str:
        """The configuration as it is written."""
        return STRING.write(self.einsum_config)

    def infer(self, lhs: Type, rhs: Type) -> Type:
        return infer_einsum(self.name, self.einsum_config, self.out, (lhs, rhs))

    def rule(self, lhs: TensorType, rhs: TensorType) -> Rule:
        """Shardy has none; each letter is a factor."""
        labels = parse_config(self.name, self.einsum_config, (lhs, rhs))
        return einsum_rule(labels, (lhs, rhs), self.out)

    def reference(self, lhs: Array, rhs: Array) -> Array:
        return einsum(self.name, self.einsum_config, (lhs, rhs), self.out)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return dot_work(points(self.name, self.einsum_config, operands), operands, results)


@op("stablehlo.unary_einsum")
class UnaryEinsum(Op):
    """out = the sums, transposes and diagonals of one tensor that `einsum_config` names."""

    einsum_config: str
    out: TensorType
    assembly = "$operands, config = $config : $signature"

    @property
    def config(self) -> str:
        """The configuration as it is written."""
        return STRING.write(self.einsum_config)

    def infer(self, operand: Type) -> Type:
        return infer_einsum(self.name, self.einsum_config, self.out, (operand,))

    def rule(self, operand: TensorType) -> Rule:
        """Shardy has none; each letter is a factor."""
        labels = parse_config(self.name, self.einsum_config, (operand,))
        return einsum_rule(labels, (operand,), self.out)

    def reference(self, operand: Array) -> Array:
        return einsum(self.name, self.einsum_config, (operand,), self.out)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        work = dot_work(points(self.name, self.einsum_config, operands), operands, results)
        return Work(flops=work.flops // 2, bytes=work.bytes)


def points(name: str, config: str, operands: Types) -> int:
    """The size of the whole iteration space."""
    types = tuple(tensor_type(name, index, type) for index, type in enumerate(operands))
    return math.prod(parse_config(name, config, types).sizes(types).values())


OPS: tuple[type[Op], ...] = (Einsum, UnaryEinsum)
