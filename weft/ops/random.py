"""Random numbers: counter-based bits, equal on every platform, and distributions."""

from __future__ import annotations

import itertools
import math
from typing import Annotated

import numpy as np
import numpy.typing as npt

from weft.errors import WeftError
from weft.ir.attrs import enum
from weft.ir.check import one_of, require, tensor_type
from weft.ir.op import Op, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import UI64, Array, TensorType, Type, Types
from weft.ir.work import Work, elements, moved

Distribution = Annotated[str, enum("rng_distribution", "UNIFORM", "NORMAL")]
RngAlgorithm = Annotated[str, enum("rng_algorithm", "DEFAULT", "THREE_FRY", "PHILOX")]

RandomWords = npt.NDArray[np.uint32]
Longs = npt.NDArray[np.uint64]
_HALF = np.uint64(32)


@op("stablehlo.rng")
class Rng(Op):
    """Numbers uniform in [a, b), or normal with mean a and standard deviation b.

    The specification leaves the numbers open. Here the n-th call in a process draws from numpy's
    generator seeded with n: a program that runs twice in one process draws other numbers, two fresh
    processes draw the same.
    """

    rng_distribution: Distribution
    out: TensorType
    pure = False
    assembly = "$operands, distribution = $rng_distribution : $signature"

    def infer(self, a: Type, b: Type, shape: Type) -> Type:
        kinds = "float" if self.rng_distribution == "NORMAL" else "bool int uint float"
        low, high = (one_of(self.name, index, type, kinds) for index, type in enumerate((a, b)))
        sizes = one_of(self.name, 2, shape, "int uint")
        require(
            low is high and low.rank == 0,
            f"{self.name}: operand 0 is {low}, operand 1 is {high}",
            "they must be scalars of one type",
        )
        require(
            sizes.shape == (self.out.rank,),
            f"{self.name}: operand 2 is {sizes}, but the result is {self.out}",
            "the shape must hold one size for each dim of the result",
        )
        require(
            self.out.dtype is low.dtype,
            f"{self.name}: the result is {self.out}, but operand 0 is {low}",
            "their elements must have one type",
        )
        return self.out

    def rule(self, a: TensorType, b: TensorType, shape: TensorType) -> Rule:
        """Shardy has no rule; the shape operand is global, so all dims stay whole."""
        return RuleBuilder((a, b, shape), (self.out,)).build()

    def reference(self, a: Array, b: Array, shape: Array) -> Array:
        if tuple(shape.tolist()) != self.out.sizes:
            raise WeftError(
                f"{self.name}: the shape is {shape.tolist()}, but the result is {self.out}",
                help="correct the shape, or the type of the result",
            )
        draw = np.random.default_rng(next(_CALLS))
        held = self.out.dtype.numpy
        if self.rng_distribution == "NORMAL":
            with np.errstate(all="ignore"):
                numbers = draw.normal(size=shape) * abs(float(b)) + float(a)
                return numbers.astype(held)
        if not self.out.dtype.is_float:
            low, high = int(a), int(b)
            # Modulo 2^64: the bounds may be negative, and their difference exceed i64.
            offsets = draw.integers(0, max(high - low, 1), self.out.sizes, np.uint64)
            return (offsets + np.uint64(low % 2**64)).astype(held)
        with np.errstate(all="ignore"):
            numbers = draw.random(self.out.sizes) * (float(b) - float(a)) + float(a)
            rounded = numbers.astype(held)
            return np.where(rounded < b, rounded, a)  # rounding may reach b

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        count = elements(results[0])
        calls = 2 * count if self.rng_distribution == "NORMAL" else 0
        words = _words(results[0])
        return Work(
            flops=_PHILOX_OPS * words + 2 * count,
            transcendentals=calls,
            bytes=moved(*operands, *results),
        )


_CALLS = itertools.count()
_PHILOX_OPS = 30  # ten rounds of two products, two high products and four xors, for four words
_THREE_FRY_OPS = 55  # twenty rounds of a sum, a rotation and an xor, for two words


def _words(type: Type) -> int:
    """The number of 32-bit words for these elements."""
    if not isinstance(type, TensorType):
        return 0
    return type.size * (2 if type.dtype.bits == 64 else 1)


@op("stablehlo.rng_bit_generator")
class RngBitGenerator(Op):
    """Random bits from a state, and the next state: the bits that XLA gives, on any device.

    DEFAULT is PHILOX. A shard of the output differs from the op's output for the shard's shape, so
    the rule, which is Shardy's, marks its factors as needs_offset.
    """

    rng_algorithm: RngAlgorithm
    outs: Types
    assembly = "$operands, algorithm = $rng_algorithm : $signature"

    def infer(self, initial_state: Type) -> Types:
        state = tensor_type(self.name, 0, initial_state)
        sizes = (2,) if self.rng_algorithm == "THREE_FRY" else (2, 3)
        require(
            state.dtype is UI64 and state.shape in [(size,) for size in sizes],
            f"{self.name}: operand 0 is {state}",
            f"the state of {self.rng_algorithm} is "
            + " or ".join(f"tensor<{size}xui64>" for size in sizes),
        )
        require(
            len(self.outs) == 2 and self.outs[0] is state,
            f"{self.name}: the results are {[*self.outs]}",
            f"give the next state, {state}, and the bits",
        )
        bits = one_of(self.name, 1, self.outs[1], "int uint float")
        return state, bits

    def rule(self, initial_state: TensorType) -> Rule:
        builder = RuleBuilder((initial_state,), self.outs)
        builder.factor((0,), (0, None), initial_state.bounds[0], "whole", blocked=True)
        out = self.outs[1]
        assert isinstance(out, TensorType)
        for dim, size in enumerate(out.bounds):
            builder.factor((None,), (None, dim), size, needs_offset=True)
        return builder.build()

    def reference(self, initial_state: Array) -> tuple[Array, Array]:
        out = self.outs[1]
        assert isinstance(out, TensorType)
        key, counter = initial_state[:1], initial_state[1:]
        with np.errstate(over="ignore"):
            if self.rng_algorithm == "THREE_FRY":
                bits, counter = three_fry_bits(key, counter, out)
            else:
                bits, counter = philox_bits(key, counter, out)
        return np.concatenate([key, counter]), in_type(bits, out).reshape(out.sizes)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        each = _THREE_FRY_OPS if self.rng_algorithm == "THREE_FRY" else _PHILOX_OPS
        return Work(flops=each * _words(results[1]), bytes=moved(*operands, *results))


def in_type(bits: RandomWords | Longs, out: TensorType) -> Array:
    """The low bits of words as elements of another type, bit by bit."""
    dtype = out.dtype
    width = np.dtype(f"uint{max(8, dtype.bits)}")
    low = bits.astype(width)
    if dtype.is_integer:
        return low.astype(dtype.numpy)
    if dtype.bits < 8:
        low = low & width.type(2**dtype.bits - 1)
    return low.reshape(out.sizes).view(dtype.numpy)


def halves(longs: Longs) -> tuple[RandomWords, RandomWords]:
    """The low and the high words of longs."""
    return longs.astype(np.uint32), (longs >> _HALF).astype(np.uint32)


def longs_of_words(low: RandomWords, high: RandomWords) -> Longs:
    """Longs from their low and high words."""
    return low.astype(np.uint64) | (high.astype(np.uint64) << _HALF)


# The rotations of Threefry-2x32, four rounds each in turn.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def three_fry(key: Longs, counter: Longs) -> tuple[RandomWords, RandomWords]:
    """Threefry-2x32 with 20 rounds (Salmon et al., SC 2011)."""
    first, second = halves(key)
    # The third word of the key schedule is the parity of the key with a constant of Skein.
    keys = (first, second, first ^ second ^ np.uint32(0x1BD11BDA))
    x, y = halves(counter)
    x, y = x + keys[0], y + keys[1]
    for turn in range(5):
        for bits in _ROTATIONS[turn % 2]:
            x = x + y
            y = (y << np.uint32(bits)) | (y >> np.uint32(32 - bits))
            y = x ^ y
        # Every four rounds a rotation of the key is injected, with the number of the injection.
        x = x + keys[(turn + 1) % 3]
        y = y + keys[(turn + 2) % 3] + np.uint32(turn + 1)
    return x, y


def three_fry_bits(
    key: Longs, counter: Longs, out: TensorType
) -> tuple[RandomWords | Longs, Longs]:
    """Bits of a shape and the next counter; a block has two 32-bit words.

    The two words of a block are adjacent along the first dim of even size, or along the longest if
    none is even.
    """
    shape = out.sizes
    if out.dtype.bits == 64:
        blocks = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
        return longs_of_words(*three_fry(key, counter + blocks)), counter + np.uint64(blocks.size)
    sizes = shape or (1,)
    even = [dim for dim, size in enumerate(sizes) if size % 2 == 0]
    # As XLA splits the counters: other dims would give other numbers.
    dim = even[0] if even else sizes.index(max(sizes))
    half = (*sizes[:dim], -(-sizes[dim] // 2), *sizes[dim + 1 :])
    blocks = np.arange(math.prod(half), dtype=np.uint64).reshape(half)
    pairs = np.stack(three_fry(key, counter + blocks), dim + 1)  # [.., half, 2, ..]
    words = pairs.reshape(*sizes[:dim], 2 * half[dim], *sizes[dim + 1 :])
    # Of an odd size the last word is dropped.
    words = np.take(words, np.arange(sizes[dim]), dim)
    return words.reshape(shape), counter + np.uint64(blocks.size)


# Philox's two multipliers for words of 32 bits.
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
# The key is a Weyl sequence: the fractions of the golden ratio and of the root of 3.
_KEY_STEPS = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))


def philox(
    key: Longs, low: Longs, high: Longs
) -> tuple[RandomWords, RandomWords, RandomWords, RandomWords]:
    """Philox-4x32 with 10 rounds (Salmon et al., SC 2011)."""
    first, second = halves(key)
    x, y, z, w = *halves(low), *halves(high)
    for _ in range(10):
        low_a, high_a = halves(x.astype(np.uint64) * _MULTIPLIERS[0])
        low_b, high_b = halves(z.astype(np.uint64) * _MULTIPLIERS[1])
        x, y, z, w = high_b ^ y ^ first, low_b, high_a ^ w ^ second, low_a
        first, second = first + _KEY_STEPS[0], second + _KEY_STEPS[1]
    return x, y, z, w


def philox_bits(key: Longs, counter: Longs, out: TensorType) -> tuple[RandomWords | Longs, Longs]:
    """Bits of a shape and the next counter; of a counter of 64 bits, the key is the high part."""
    words = math.prod(out.sizes) * (2 if out.dtype.bits == 64 else 1)
    blocks = np.arange(-(-words // 4), dtype=np.uint64)
    high = counter[1:] if counter.size > 1 else key
    low = counter[:1] + blocks
    # The counter has 128 bits: a wrapped low half carries.
    carried = high + (low < counter[:1])
    bits = np.stack(philox(key, low, carried), 1).reshape(-1)[:words]
    end = counter[:1] + np.uint64(blocks.size)
    after = np.concatenate([end, high + (end < counter[:1])])[: counter.size]
    if out.dtype.bits == 64:
        return longs_of_words(bits[0::2], bits[1::2]).reshape(out.sizes), after
    return bits.reshape(out.sizes), after


OPS: tuple[type[Op], ...] = (Rng, RngBitGenerator)
