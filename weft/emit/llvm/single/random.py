"""Random bits: counter-based generators, many blocks at once, bit-compatible with XLA."""

from __future__ import annotations

import math
from typing import Protocol

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.elements import address, put, take
from weft.emit.llvm.writer.nest import (
    divided,
    function,
    lines,
    plus,
    pointers,
    times,
    vectors_and_rest,
)
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.kernels.nest.loop_dims import LoopDim
from weft.kernels.single_node import SingleNode, strides
from weft.ops.random import RngBitGenerator
from weft.records import dataclass

# Salmon et al., SC 2011: Threefry's rotation distances and key parity, Philox's multipliers and its
# key increments.
_LANES = 16
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


@dataclass(frozen=True, slots=True)
class RandomDraw:
    """One device's draw: elements of a shape, bit width, and integer type."""

    shape: tuple[int, ...]
    bits: int
    kind: str
    state: int  # state length

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def low(self, v: Vectors, word: Vector) -> Vector:
        """The low bits of words, in memory format."""
        if self.kind == word.kind:
            return word
        low = v.cast("trunc", word, self.kind)
        if self.bits >= 8:
            return low
        return v.binary("and", low, v.constant((1 << self.bits) - 1, low.kind))


class Cipher(Protocol):
    """A counter-based generator: words from blocks, and their layout in the draw."""

    @property
    def blocks(self) -> int:
        """The number of blocks for one device."""
        ...

    def words(self, v: Vectors, state: list[str], first: str) -> list[Vector]:
        """The words of consecutive blocks."""
        ...

    def put(self, v: Vectors, words: list[Vector], base: str, first: str) -> None:
        """Store the words of consecutive blocks."""
        ...


def rng_bit_generator(kernel: SingleNode) -> Emitted:
    """Tasks are pieces of one device's blocks; a second phase writes the next state."""
    op, (state, _, out) = kernel.op, kernel.operands
    assert isinstance(op, RngBitGenerator)
    kind = f"i{8 * out.dtype.numpy.itemsize}"
    drawn = RandomDraw(out.shape[kernel.lead :], out.dtype.bits, kind, state.shape[-1])
    cipher: Cipher = ThreeFry(drawn) if op.rng_algorithm == "THREE_FRY" else Philox(drawn)
    steps = [strides(o.shape) for o in kernel.operands]
    devices = [LoopDim(n, tuple([s[d] for s in steps])) for d, n in enumerate(kernel.devices)]
    functions = [
        _draw(kernel.name, devices, drawn, cipher),
        _advance(f"{kernel.name}_state", devices, drawn, cipher),
    ]
    phases = [phase for _, phase in functions if phase.tasks]
    return Emitted(module_text(*[code for code, _ in functions]), tuple(phases))


def _draw(
    name: str, devices: list[LoopDim], drawn: RandomDraw, cipher: Cipher
) -> tuple[Writer, Phase]:
    """The draw function."""
    tasks = lines([*devices, LoopDim(cipher.blocks, (0, 0, 0))], 64)
    code = function(name)
    buffers = pointers(code, 3)
    with tasks.each(code) as (offsets, begin, end):
        state = _state(code, buffers[0], offsets[0], drawn.state)
        base = address(code, buffers[2], offsets[2], drawn.kind)
        for width, index in vectors_and_rest(code, begin, end, _LANES):
            v = Vectors(code, width)
            cipher.put(v, cipher.words(v, state, index), base, index)
    return code, tasks.phase(name)


def _state(code: Writer, base: str, offset: str, length: int) -> list[str]:
    return [take(code, base, plus(code, offset, n), "i64") for n in range(length)]


def _advance(
    name: str, devices: list[LoopDim], drawn: RandomDraw, cipher: Cipher
) -> tuple[Writer, Phase]:
    """The function that writes the next state: the counter advanced by the blocks used."""
    tasks = lines([*devices, LoopDim(1, (0, 0, 0))], 64)
    code = function(name)
    buffers = pointers(code, 3)
    with tasks.each(code) as (offsets, _, _):
        state = _state(code, buffers[0], offsets[0], drawn.state)
        # The counter is 64 bits wide, and 128 with a third word of state, which takes the carry.
        after = code.let(f"add i64 {state[1]}, {cipher.blocks}")
        new = [state[0], after]
        if drawn.state > 2:
            carry = code.let(f"icmp ult i64 {after}, {state[1]}")
            new.append(code.let(f"add i64 {state[2]}, {code.let(f'zext i1 {carry} to i64')}"))
        for n, value in enumerate(new):
            put(code, value, buffers[1], plus(code, offsets[1], n), "i64")
    return code, tasks.phase(name)


def _halves(v: Vectors, longs: Vector) -> tuple[Vector, Vector]:
    """The low and the high words."""
    high = v.binary("lshr", longs, v.constant(32, "i64"))
    return v.cast("trunc", longs, "i32"), v.cast("trunc", high, "i32")


def _counters(v: Vectors, first: Vector, block: str) -> Vector:
    """Consecutive counters."""
    start = v.splat(Vector(v.code.let(f"add i64 {first.text}, {block}"), "i64"))
    return v.add(start, v.lanes())


class ThreeFry:
    """Threefry-2x32 with 20 rounds (Salmon et al., SC 2011)."""

    def __init__(self, drawn: RandomDraw) -> None:
        self.drawn = drawn
        sizes = drawn.shape or (1,)
        # XLA fills two halves of the shape: along the first even dim, or else along the largest.
        even = [dim for dim, size in enumerate(sizes) if size % 2 == 0]
        self.dim = even[0] if even else sizes.index(max(sizes))
        self.rows = math.prod(sizes[self.dim + 1 :])
        self.along = sizes[self.dim]
        self.half = -(-self.along // 2)

    @property
    def blocks(self) -> int:
        """The number of blocks for one device: one for each two words, or 64-bit element."""
        if self.drawn.bits == 64:
            return self.drawn.size
        return self.drawn.size // max(self.along, 1) * self.half if self.drawn.size else 0

    def words(self, v: Vectors, state: list[str], first: str) -> list[Vector]:
        """The words of consecutive blocks."""
        key = v.splat(Vector(state[0], "i64"))
        a, b = _halves(v, key)
        parity = v.binary("xor", v.binary("xor", a, b), v.constant(_PARITY, "i32"))
        keys = (a, b, parity)
        x, y = _halves(v, _counters(v, Vector(state[1], "i64"), first))
        x, y = v.add(x, keys[0]), v.add(y, keys[1])
        # Four rounds and one key injection each: 20 rounds.
        for turn in range(5):
            for bits in _ROTATIONS[turn % 2]:
                x = v.add(x, y)
                y = v.binary("xor", x, _rotated(v, y, bits))
            x = v.add(x, keys[(turn + 1) % 3])
            y = v.add(v.add(y, keys[(turn + 2) % 3]), v.constant(turn + 1, "i32"))
        return [x, y]

    def put(self, v: Vectors, words: list[Vector], base: str, first: str) -> None:
        """Store the words of consecutive blocks."""
        if self.drawn.bits == 64:
            v.store(_to_longs(v, *words), v.at(base, first, "i64"))
            return
        # Block (outer, h, inner) holds the elements 2h and 2h + 1 of the dim.
        pair = [self.drawn.low(v, w) for w in words]
        if v.width > 1 and self.rows == 1 and self.along % 2 == 0:
            place = times(v.code, first, 2)
            v.store(_interleaved(v, *pair), v.at(base, place, self.drawn.kind))
            return
        if v.width == 1 or self.rows < v.width:
            self._put_lanes(v, pair, base, first)
            return
        code = v.code
        upper, inner = divided(code, first, self.rows)
        outer, row = divided(code, upper, self.half)
        whole = code.let(f"icmp sle i64 {plus(code, inner, v.width)}, {self.rows}")
        whole = code.let(f"and i1 {whole}, {self._has_both(v, row)}")
        with code.when(whole):
            place = plus(code, times(code, outer, self.along * self.rows), inner)
            place = plus(code, place, times(code, row, 2 * self.rows))
            for n, word in enumerate(pair):
                v.store(word, v.at(base, plus(code, place, n * self.rows), self.drawn.kind))
        with code.when(code.let(f"xor i1 {whole}, true")):
            self._put_lanes(v, pair, base, first)

    def _has_both(self, v: Vectors, row: str) -> str:
        """Whether both elements of a block exist: an odd dim lacks the last one."""
        return v.code.let(f"icmp slt i64 {row}, {self.along // 2}")

    def _put_lanes(self, v: Vectors, pair: list[Vector], base: str, first: str) -> None:
        for lane in range(v.width):
            self._put_pair(v, pair, lane, base, plus(v.code, first, lane))

    def _put_pair(self, v: Vectors, pair: list[Vector], lane: int, base: str, block: str) -> None:
        code = v.code
        upper, inner = divided(code, block, self.rows)
        outer, row = divided(code, upper, self.half)
        for n, word in enumerate(pair):
            index = plus(code, times(code, row, 2), n)
            place = plus(code, times(code, outer, self.along * self.rows), inner)
            place = plus(code, place, times(code, index, self.rows))
            text = word.text
            if word.width > 1:
                text = code.let(f"extractelement {word.typed}, i64 {lane}")
            if self.along % 2 and n:
                with code.when(code.let(f"icmp slt i64 {index}, {self.along}")):
                    put(code, text, base, place, self.drawn.kind)
            else:
                put(code, text, base, place, self.drawn.kind)


def _rotated(v: Vectors, x: Vector, bits: int) -> Vector:
    return v.intrinsic("fshl", x, x, v.constant(bits, x.kind))


def _to_longs(v: Vectors, low: Vector, high: Vector) -> Vector:
    """64-bit words from low and high halves."""
    upper = v.binary("shl", v.cast("zext", high, "i64"), v.constant(32, "i64"))
    return v.binary("or", v.cast("zext", low, "i64"), upper)


def _interleaved(v: Vectors, *parts: Vector) -> Vector:
    """Interleave: the first lanes of all parts, then the second ones, and so on."""
    vectors, count = list(parts), len(parts)
    first = vectors[0]
    while len(vectors) > 1:
        vectors = [
            v.shuffle(a, b, range(a.width + b.width))
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    order = [n * first.width + lane for lane in range(first.width) for n in range(count)]
    return v.shuffle(vectors[0], vectors[0], order)


class Philox:
    """Philox-4x32 with 10 rounds (Salmon et al., SC 2011)."""

    def __init__(self, drawn: RandomDraw) -> None:
        self.drawn = drawn

    @property
    def blocks(self) -> int:
        """The number of blocks for one device."""
        words = self.drawn.size * (2 if self.drawn.bits == 64 else 1)
        return -(-words // 4)

    def words(self, v: Vectors, state: list[str], first: str) -> list[Vector]:
        """The words of consecutive blocks."""
        key = v.splat(Vector(state[0], "i64"))
        a, b = _halves(v, key)
        begin = v.splat(Vector(state[1], "i64"))
        low = _counters(v, Vector(state[1], "i64"), first)
        # With a state of two words XLA takes the key for the upper half of the counter, too.
        high = v.splat(Vector(state[2] if self.drawn.state > 2 else state[0], "i64"))
        carried = v.cast("zext", v.compare("ult", low, begin), "i64")
        x, y, z, w = *_halves(v, low), *_halves(v, v.add(high, carried))
        for _ in range(10):
            low_a, high_a = _product(v, x, _MULTIPLIERS[0])
            low_b, high_b = _product(v, z, _MULTIPLIERS[1])
            x = v.binary("xor", v.binary("xor", high_b, y), a)
            z = v.binary("xor", v.binary("xor", high_a, w), b)
            y, w = low_b, low_a
            a = v.add(a, v.constant(_KEY_STEPS[0], "i32"))
            b = v.add(b, v.constant(_KEY_STEPS[1], "i32"))
        return [x, y, z, w]

    def put(self, v: Vectors, words: list[Vector], base: str, first: str) -> None:
        """Store the words of consecutive blocks."""
        code = v.code
        each = 2 if self.drawn.bits == 64 else 4  # elements a block
        if each == 2:
            numbers = [_to_longs(v, words[0], words[1]), _to_longs(v, words[2], words[3])]
        else:
            numbers = [self.drawn.low(v, w) for w in words]
        place = times(code, first, each)
        if v.width > 1:
            whole = code.let(f"icmp sle i64 {plus(code, place, each * v.width)}, {self.drawn.size}")
            with code.when(whole):
                v.store(_interleaved(v, *numbers), v.at(base, place, self.drawn.kind))
            with code.when(code.let(f"xor i1 {whole}, true")):
                for lane in range(v.width):
                    self._put_block(v, numbers, lane, base, plus(code, place, each * lane))
        else:
            self._put_block(v, numbers, 0, base, place)

    def _put_block(self, v: Vectors, words: list[Vector], lane: int, base: str, place: str) -> None:
        code = v.code
        for n, part in enumerate(words):
            text = part.text
            if part.width > 1:
                text = code.let(f"extractelement {part.typed}, i64 {lane}")
            here = plus(code, place, n)
            with code.when(code.let(f"icmp slt i64 {here}, {self.drawn.size}")):
                put(code, text, base, here, self.drawn.kind)


def _product(v: Vectors, x: Vector, by: int) -> tuple[Vector, Vector]:
    """The low and the high words of a product."""
    wide = v.binary("mul", v.cast("zext", x, "i64"), v.constant(by, "i64"))
    return _halves(v, wide)
