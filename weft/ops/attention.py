"""Attention as one op: softmax of scaled scores, times values, with windows, masks and biases.

Written as a composite whose decomposition is plain StableHLO, and read back as itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import numpy as np

from weft.ir.attrs import Codec
from weft.ir.check import one_of, require, tensor_type
from weft.ir.dense import Dense, scalar_text
from weft.ir.module import Function, Node, Region, Value, apply
from weft.ir.op import Op, op
from weft.ir.rule import Role, Rule, RuleBuilder
from weft.ir.types import BOOL, F32, F64, I32, Array, DType, TensorType, Type, Types
from weft.ir.work import Work, elements, moved
from weft.mesh import Mesh
from weft.ops.contract import DotDims, DotGeneral
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import (
    Add,
    And,
    Compare,
    Divide,
    Maximum,
    Multiply,
    Select,
    Subtract,
)
from weft.ops.elementwise.transcendental import Exponential, Log, Tanh
from weft.ops.reduce import Reduce
from weft.ops.shape import BroadcastInDim, Constant, Iota, Reshape


def _read_float(text: str) -> float:
    digits = text.partition(":")[0].strip()
    if digits.startswith("0x"):
        return float(np.frombuffer(bytes.fromhex(digits[2:]), ">f8")[0])
    return float(digits)


Float64 = Annotated[
    float, Codec(_read_float, lambda value: f"{scalar_text(np.float64(value), F64)} : f64")
]


@op("weft.attention")
class Attention(Op):
    """out[.., h, i] = the sum over s of softmax(scale * q[.., h, i] . k[.., g])[s] * v[.., g, s].

    Operands are q[batch.., heads, queries, depth], k and v[batch.., kv heads, keys, depth], then a
    boolean mask (false: masked out) and a bias, both optional, whose dims may be 1. Neighbouring
    heads h share a kv head g. Query i attends to keys i + shift - left .. i + shift + right, a
    negative side being unbounded; shift is 0, or keys - queries if the last ones are aligned. A
    query whose keys are all masked gives 0, and -inf as its logsumexp (natural, in f32 or wider).
    A softcap above 0 bounds scaled scores, before the bias: softcap * tanh(score / softcap).
    """

    scale: Float64
    left: int = -1
    right: int = -1
    bottom_right: bool = False
    masked: bool = False
    biased: bool = False
    logsumexp: bool = False
    softcap: Float64 = 0.0
    composite = True

    # Types

    def infer(self, *operands: Type) -> Types:
        count = 3 + self.masked + self.biased
        require(
            len(operands) == count,
            f"{self.name}: takes {count} operands, {len(operands)} given",
            "give q, k and v, then the mask if it is masked, then the bias if it is biased",
        )
        q, k, v = (one_of(self.name, n, t, "float") for n, t in enumerate(operands[:3]))
        self._check_rows(q, k, v)
        for n, given in enumerate(operands[3:], 3):
            self._check_pairs(n, given, (*q.shape[:-1], k.shape[-2]))
        out = q.with_shape((*q.shape[:-1], v.shape[-1]))
        if not self.logsumexp:
            return (out,)
        return out, TensorType(q.shape[:-1], self.held(q.dtype))

    def _check_rows(self, q: TensorType, k: TensorType, v: TensorType) -> None:
        require(
            q.rank == k.rank == v.rank and q.rank >= 3 and q.dtype is k.dtype is v.dtype,
            f"{self.name}: q, k and v are {q}, {k} and {v}",
            "give them one element type, and the dims batch.., heads, rows, depth",
        )
        require(
            q.is_static and k.is_static and v.is_static,
            f"{self.name}: q, k and v are {q}, {k} and {v}",
            "every size must be known",
        )
        shared = k.sizes[-3]
        require(
            q.sizes[:-3] == k.sizes[:-3] == v.sizes[:-3]
            and k.sizes[-3:-1] == v.sizes[-3:-1]
            and q.sizes[-1] == k.sizes[-1]
            and (q.sizes[-3] % shared == 0 if shared else q.sizes[-3] == 0),
            f"{self.name}: sizes of q, k and v, {q}, {k} and {v}, do not fit",
            "batch, kv heads, keys and depth must agree; heads are a multiple of kv heads",
        )
        require(
            q.dtype.name in ("f32", "f64", "bf16", "f16")
            and math.isfinite(self.scale)
            and 0 <= self.softcap < math.inf,
            f"{self.name}: of {q.dtype} with the scale {self.scale} and softcap {self.softcap}",
            "give f32, f64, bf16 or f16, a finite scale, and a softcap of 0 (none) or more",
        )

    def _check_pairs(self, n: int, given: Type, shape: tuple[object, ...]) -> None:
        type = tensor_type(self.name, n, given)
        mask = self.masked and n == 3
        fits = type.rank == len(shape) and all(
            a in (1, b) for a, b in zip(type.shape, shape, strict=True)
        )
        require(
            fits and (type.dtype is BOOL if mask else type.dtype.is_float),
            f"{self.name}: operand {n} is {type}",
            f"give {'booleans' if mask else 'floats'} of shape {list(shape)}; each size may be 1",
        )

    def held(self, dtype: DType) -> DType:
        """The type that scores are computed in."""
        return F64 if dtype is F64 else F32

    def shift(self, queries: int, keys: int) -> int:
        """The key that the first query is aligned with."""
        return keys - queries if self.bottom_right else 0

    # Meaning

    def rule(self, *operands: Type) -> Rule:
        types = [tensor_type(self.name, n, t) for n, t in enumerate(operands)]
        q, k, v = types[:3]
        results, rank = self.infer(*operands), q.rank
        builder = RuleBuilder(tuple(types), results)
        pairs = types[3:]

        def where(dim: int) -> list[int | None]:
            return [dim if p.bounds[dim] > 1 or q.bounds[dim] == 1 else None for p in pairs]

        def every_result(dim: int) -> list[int | None]:
            return [dim] * len(results)

        for dim in range(rank - 3):
            builder.factor([dim] * 3 + where(dim), every_result(dim), q.bounds[dim])
        heads, groups = rank - 3, q.bounds[-3] // max(1, k.bounds[-3])
        # Head h reads the kv head h // groups: the heads are kv heads (major) by groups (minor).
        # Multi-query: one kv head is shared by all, so it is not split with the heads.
        if k.bounds[heads] == 1 < groups:
            builder.factor([None, heads, heads, *[None] * len(pairs)], [None] * len(results), 1)
        else:
            builder.factor([heads] * 3 + where(heads), every_result(heads), k.bounds[heads])
        if groups > 1:
            builder.factor([heads, None, None, *where(heads)], every_result(heads), groups)
        rows, last = rank - 2, rank - 1
        # A window counts rows of the global tensor: a shard would have to know its offset.
        positional = self.left >= 0 or self.right >= 0
        role: Role = "whole" if positional else "pass"
        builder.factor([rows, None, None, *where(rows)], every_result(rows), q.bounds[rows], role)
        # Keys stay whole: partial softmaxes are not combined by a plain op.
        along = [last if p.bounds[last] > 1 or k.bounds[rows] == 1 else None for p in pairs]
        builder.factor([None, rows, rows, *along], [None] * len(results), k.bounds[rows], "whole")
        builder.factor(
            [last, last, None, *[None] * len(pairs)], [None] * len(results), q.bounds[last], "whole"
        )
        columns: list[int | None] = [last, *[None] * (len(results) - 1)]
        builder.factor([None, None, last, *[None] * len(pairs)], columns, v.bounds[last])
        return builder.build()

    def reference(self, q: Array, k: Array, v: Array, *pairs: Array) -> tuple[Array, ...]:
        dtype, held = q.dtype, np.float64
        shared = q.shape[-3] // max(1, k.shape[-3])
        keys, values = (np.repeat(x.astype(held), shared, axis=-3) for x in (k, v))
        scores = self.scale * (q.astype(held) @ np.swapaxes(keys, -1, -2))  # [.., heads, q, k]
        if self.softcap:
            scores = self.softcap * np.tanh(scores / self.softcap)
        if self.biased:
            scores = scores + pairs[-1].astype(held)
        seen = self.window(q.shape[-2], k.shape[-2])
        seen = np.broadcast_to(seen & pairs[0] if self.masked else seen, scores.shape)
        scores = np.where(seen, scores, -np.inf)
        with np.errstate(all="ignore"):
            top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
            # A row with all keys masked: -inf - -inf would be NaN, and 0 / 0 below.
            top = np.where(top == -np.inf, 0.0, top)
            powers = np.exp(scores - top)
            total = powers.sum(axis=-1, keepdims=True)
            out = (powers / np.where(total == 0.0, 1.0, total)) @ values
            lse = (top + np.log(total))[..., 0]
        found = (out.astype(dtype),)
        return (*found, lse.astype(np.float64 if dtype == held else np.float32))[
            : 1 + self.logsumexp
        ]

    def window(self, queries: int, keys: int) -> Array:
        """The window mask of queries by keys."""
        apart = np.arange(keys)[None] - np.arange(queries)[:, None] - self.shift(queries, keys)
        seen = np.ones((queries, keys), bool)
        if self.left >= 0:
            seen &= apart >= -self.left
        if self.right >= 0:
            seen &= apart <= self.right
        return seen

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        q, k, v = (tensor_type(self.name, n, t) for n, t in enumerate(operands[:3]))
        pairs = elements(q.with_shape(q.shape[:-1])) * k.bounds[-2]
        flops = 2 * pairs * (q.bounds[-1] + v.bounds[-1])
        curves = pairs * (2 if self.softcap else 1)
        return Work(flops, curves, moved(*operands, *results))

    # Decomposition

    def decomposition(self, name: str, operands: Types, meshes: Mapping[str, Mesh]) -> Function:
        return _Decomposition(self, operands).function(name)


class _Decomposition:
    """The decomposition in StableHLO, on q[batch.., kv heads, shared, queries, depth]."""

    def __init__(self, attention: Attention, operands: Types) -> None:
        self.op = attention
        self.args = tuple(Value(t, None, n) for n, t in enumerate(operands))
        self.nodes: list[Node] = []
        types = [tensor_type(attention.name, n, t) for n, t in enumerate(operands)]
        self.types = types
        q, k = types[:2]
        self.held = attention.held(q.dtype)
        shared = q.sizes[-3] // max(1, k.sizes[-3])
        self.outer = (*k.sizes[:-2], shared)
        self.queries, self.keys = q.sizes[-2], k.sizes[-2]
        self.pairs = TensorType((*self.outer, self.queries, self.keys), self.held)

    def add(self, made: Op, *operands: Value, regions: tuple[Region, ...] = ()) -> Value:
        self.nodes.append(apply(made, *operands, regions=regions))
        return self.nodes[-1].results[0]

    def function(self, name: str) -> Function:
        q, k, v = (self._as_held(value) for value in self.args[:3])
        rows = TensorType((*self.outer, self.queries, self.types[0].sizes[-1]), self.held)
        scores = self._product(self.add(Reshape(rows), q), k, -1, -1)
        scores = self.add(Multiply(), scores, self._constant(self.op.scale, self.pairs))
        scores = self._mask_scores(self._biased(self._capped(scores)))
        top, total, weights = self._softmax(scores)
        out = self._product(weights, v, -1, -2)
        results = [self._shaped(out, self.op.infer(*self.types)[0])]
        if self.op.logsumexp:
            lse = self.add(Add(), top, self.add(Log(), total))
            results.append(self._shaped(lse, self.op.infer(*self.types)[1]))
        return Function(name, Region(self.args, self.nodes, tuple(results)), "private")

    def _as_held(self, value: Value) -> Value:
        type = tensor_type("", 0, value.type)
        return (
            value
            if type.dtype is self.held
            else self.add(Convert(type.with_dtype(self.held)), value)
        )

    def _shaped(self, value: Value, type: Type) -> Value:
        wanted = tensor_type("", 0, type)
        found = self.add(Reshape(wanted.with_dtype(self.held)), value)
        return found if wanted.dtype is self.held else self.add(Convert(wanted), found)

    def _constant(self, value: float | bool, type: TensorType) -> Value:
        return self.add(Constant(Dense(np.asarray(value, type.dtype.numpy), type)))

    def _product(self, left: Value, right: Value, one: int, other: int) -> Value:
        """A dot_general of every shared head with its kv head, contracting a dim of each."""
        a, b = tensor_type("", 0, left.type), tensor_type("", 1, right.type)
        batch = tuple(range(b.rank - 2))
        dims = DotDims(batch, batch, (a.rank + one,), (b.rank + other,))
        kept = b.sizes[-1 if other == -2 else -2]
        return self.add(DotGeneral(dims, TensorType((*a.sizes[:-1], kept), self.held)), left, right)

    def _over_pairs(self, value: Value, dtype: DType) -> Value:
        """A mask or a bias broadcast to (queries, keys)."""
        operand_type = tensor_type("", 0, value.type)
        # [batch.., heads, q, k] as [batch.., kv heads, shared, q, k], the decomposition's order.
        heads, shared = operand_type.sizes[-3], self.outer[-1]
        split = (1, 1) if heads == 1 else (heads // shared, shared)
        shape = (*operand_type.sizes[:-3], *split, *operand_type.sizes[-2:])
        reshaped = self.add(Reshape(TensorType(shape, operand_type.dtype)), value)
        if operand_type.dtype is not dtype:
            reshaped = self.add(Convert(TensorType(shape, dtype)), reshaped)
        wanted = self.pairs.with_dtype(dtype)
        return self.add(BroadcastInDim(tuple(range(wanted.rank)), wanted), reshaped)

    def _capped(self, scores: Value) -> Value:
        if not self.op.softcap:
            return scores
        cap = self._constant(self.op.softcap, self.pairs)
        return self.add(Multiply(), cap, self.add(Tanh(), self.add(Divide(), scores, cap)))

    def _biased(self, scores: Value) -> Value:
        if not self.op.biased:
            return scores
        return self.add(Add(), scores, self._over_pairs(self.args[-1], self.held))

    def _mask_scores(self, scores: Value) -> Value:
        """The scores with -inf where a key is masked out."""
        values: list[Value] = []
        if self.op.masked:
            values.append(self._over_pairs(self.args[3], BOOL))
        index = self.pairs.with_dtype(I32)
        query = self.add(Iota(index.rank - 2, index))
        key = self.add(Iota(index.rank - 1, index))
        shift = self._constant(self.op.shift(self.queries, self.keys), index)
        apart = self.add(Subtract(), key, self.add(Add(), query, shift))
        for side, way, sign in ((self.op.left, "GE", -1), (self.op.right, "LE", 1)):
            if side >= 0:
                values.append(
                    self.add(Compare(way, "SIGNED"), apart, self._constant(sign * side, index))
                )
        nothing = self._constant(-math.inf, self.pairs)
        for seen in values[1:]:
            values[0] = self.add(And(), values[0], seen)
        return self.add(Select(), values[0], scores, nothing) if values else scores

    def _reduced(self, made: Op, value: Value, start: float) -> Value:
        scalar = TensorType((), self.held)
        args = (Value(scalar, None, 0), Value(scalar, None, 1))
        node = apply(made, *args)
        last = self.pairs.rank - 1
        out = self.pairs.with_shape(self.pairs.shape[:-1])
        region = Region(args, [node], node.results)
        begin = self._constant(start, scalar)
        return self.add(Reduce((last,), (out,)), value, begin, regions=(region,))

    def _instead(self, value: Value, bad: float, good: float) -> Value:
        """A value with one number replaced by another."""
        type = tensor_type("", 0, value.type)
        is_bad = self.add(Compare("EQ", "FLOAT"), value, self._constant(bad, type))
        return self.add(Select(), is_bad, self._constant(good, type), value)

    def _softmax(self, scores: Value) -> tuple[Value, Value, Value]:
        """The row maximum (0 if all keys are masked out), the sum, and the softmax."""
        spread = BroadcastInDim(tuple(range(self.pairs.rank - 1)), self.pairs)
        # As in the reference: rows with all keys masked give 0, not NaN.
        top = self._instead(self._reduced(Maximum(), scores, -math.inf), -math.inf, 0.0)
        powers = self.add(Exponential(), self.add(Subtract(), scores, self.add(spread, top)))
        total = self._reduced(Add(), powers, 0.0)
        share = self.add(spread, self._instead(total, 0.0, 1.0))
        return top, total, self.add(Divide(), powers, share)


OPS: tuple[type[Op], ...] = (Attention,)
