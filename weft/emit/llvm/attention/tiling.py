"""Tile and register block sizes of attention, and the layout of a thread's scratch."""

from __future__ import annotations

from dataclasses import field, replace

from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.writer.storage import register_kind
from weft.emit.llvm.writer.vector import BITS
from weft.kernels.attention import Access, Attention
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes of tiles and blocks, in elements by default."""

    kind: str  # compute type
    lanes: int  # lanes of a vector
    accumulators: int  # vectors of a register block
    vectors: int  # query vectors of a tile
    keys: int  # keys of a tile
    scaling: bool  # whether vscalef is available
    room: int  # bytes of the L2 cache of a core

    @property
    def queries(self) -> int:
        """Queries of a tile: one for each lane of its vectors."""
        return self.lanes * self.vectors

    @property
    def key_rows(self) -> int:
        """Keys of a register block of scores: a power of two."""
        return self.rows(self.vectors)

    def columns(self, depth: int) -> tuple[int, ...]:
        """Vectors of the register blocks for a row of so many elements."""
        vectors = -(-depth // self.lanes)
        # Each row of a block takes as many accumulators: wider blocks would leave too few rows to
        # reuse what is loaded.
        widest = 4 if self.accumulators >= 16 else 2
        blocks = -(-vectors // widest)
        return tuple(vectors // blocks + (n < vectors % blocks) for n in range(blocks))

    def rows(self, columns: int) -> int:
        """Rows of a register block with so many vectors a row: a power of two."""
        # A power of two divides the tile of keys, so that no block needs a remainder.
        return 1 << (self.accumulators // columns).bit_length() - 1

    def padded(self, depth: int) -> int:
        """The depth rounded up to whole vectors."""
        return -(-depth // self.lanes) * self.lanes


def tiling(kernel: Attention, processor: Processor) -> Tiling:
    """Cache-sized tiles with the widest vectors."""
    kind = register_kind(kernel.held)
    bits = 512 if processor.has("avx512f") else 256 if processor.has("avx2") else 128
    lanes = bits // BITS[kind]
    many = processor.has("avx512f") or processor.triple.startswith(("aarch64", "arm64"))
    options = dict(kernel.options)
    # Wide tiles load less for each product, narrow ones skip more masked keys.
    wide = many and kernel.queries >= 16 * lanes and kernel.window.left is None
    vectors = 4 if wide else 1 if kernel.queries <= lanes else 2
    deep = max(kernel.depth, kernel.value_depth) > 64
    if kernel.gradients is not None:
        keys = 64 if wide and not deep else 32
    else:
        keys = 32 if deep else 64
        keys *= 2 if kernel.keys <= 2 * keys else 1
    vectors, keys = options.get("vectors", vectors), options.get("keys", keys)
    blocks, scaling = 16 if many else 8, processor.has("avx512dq")
    made = Tiling(kind, lanes, blocks, vectors, keys, scaling, processor.caches.l2)
    # Scores of a register block are written whole: a tile holds a whole number of them.
    return replace(made, keys=-(-keys // made.key_rows) * made.key_rows)


@dataclass
class ScratchPieces:
    """The pieces of a thread's scratch by name: their byte offsets."""

    kind: str
    places: dict[str, int] = field(default_factory=dict)
    nbytes: int = 0

    def add(self, name: str, elements: int) -> None:
        """Allocate so many numbers, aligned to 64 bytes."""
        self.places[name] = self.nbytes
        self.nbytes += -(-elements * BITS[self.kind] // 8 // 64) * 64


def in_place(kernel: Attention, access: Access) -> bool:
    """Whether rows can be read in place: contiguous elements of the compute type."""
    return kernel.dtype(access) is kernel.held and access.column == 1
