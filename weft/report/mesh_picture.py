"""A picture of a mesh with the shards of a tensor on its devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from weft.ir.types import TensorType
from weft.mesh import Mesh, Sharding
from weft.mesh.pieces import PieceBounds, copies, counts, local_shape, piece_at
from weft.records import dataclass
from weft.report.svg import INK, LINE, PAPER, QUIET, Svg, color, text_width

_SIDE, _DEVICES = 16, 256  # the most devices that are drawn, along an axis and in all
_TENSOR = 168.0  # the longer side of the tensor's drawing
_STRIPES, _DEEP = 32, 4  # the most shards of a dim that are drawn apart
_GAP = 6.0


def mesh_picture(name: str, type: TensorType, sharding: Sharding, mesh: Mesh) -> str:
    """The picture as one SVG file."""
    picture = _Picture(name, type, sharding, mesh)
    picture.heading()
    picture.tensor()
    picture.dims()
    picture.mesh_grid()
    return picture.svg.document()


@dataclass
class _Picture:
    """The parts of the picture, drawn from the top left to the bottom right."""

    name: str
    type: TensorType
    sharding: Sharding
    mesh: Mesh

    def __post_init__(self) -> None:
        self.svg = Svg(f"{self.name} {self.type}")
        self.shape = self.type.bounds
        self.counts = counts(self.sharding, self.mesh)
        self.local = local_shape(self.shape, self.sharding, self.mesh)
        self.split = [d for d, n in enumerate(self.counts) if n > 1]
        self.top = 96.0
        self.left = 0.0  # of the mesh

    # The heading

    def heading(self) -> None:
        """The value, its type, and the local shape."""
        self.svg.text(24, 38, self.name, size=18, bold=True)
        self.svg.text(24 + text_width(self.name, 18) + 22, 38, str(self.type), size=14, mono=True)
        held = "x".join(map(str, self.local)) or "a scalar"
        size = _bytes(self.type.with_shape(self.local).nbytes)
        every = copies(self.sharding, self.mesh)
        shared = "no piece twice" if every == 1 else f"each piece on {every} devices"
        if not self.split:
            shared = f"replicated on all {self.mesh.size} devices"
        axes = " x ".join(f"{name}={size}" for name, size in self.mesh.axes)
        line = f"mesh {axes}   ·   {held} a device, {size}   ·   {shared}"
        self.svg.text(24, 62, line, size=12.5, fill=QUIET)

    # The tensor

    def tensor(self) -> None:
        """The global tensor with its shards, along at most three of its dims."""
        rows, columns, behind = self.drawn_dims()
        height, width = self.sides(rows, columns)
        layers = min(_DEEP, self.counts[behind]) if behind is not None else 1
        x, y = 70.0, self.top + 46 + 12 * (layers - 1)
        self.svg.text(24, self.top, "the tensor", size=13, bold=True)
        for layer in reversed(range(layers)):
            index = {} if behind is None else {behind: layer}
            left, top = x + 12 * layer, y - 12 * layer
            self.layer(left, top, height, width, rows, columns, index)
        if behind is not None:
            self.svg.text(x + width + 12 * layers + 2, y + 10, self.side_text(behind), size=11.5,
                          fill=QUIET)  # fmt: skip
        y0 = y - 12 * (layers - 1)
        if columns is not None:
            self.svg.text(x + width / 2, y0 - 10, self.side_text(columns), size=11.5,
                          fill=QUIET, anchor="middle")  # fmt: skip
        if rows is not None:
            self.svg.text(x - 12, y + height / 2, self.side_text(rows), size=11.5,
                          fill=QUIET, anchor="middle", turned=True)  # fmt: skip
        self.below = y + height + 30

    def layer(
        self,
        x: float,
        y: float,
        height: float,
        width: float,
        rows: int | None,
        columns: int | None,
        index: dict[int, int],
    ) -> None:
        """The shards at one index of the third dim."""
        for i, top, bottom in self.cuts(rows, height):
            for j, left, right in self.cuts(columns, width):
                here = index | {d: n for d, n in ((rows, i), (columns, j)) if d is not None}
                fill = self.color([here.get(d, 0) for d in range(len(self.shape))])
                self.svg.rect(x + left, y + top, right - left, bottom - top, fill, stroke=PAPER)
        self.svg.rect(x, y, width, height, "none", stroke=INK)

    def drawn_dims(self) -> tuple[int | None, int | None, int | None]:
        """The dims that become the height, the width and the depth of the drawing."""
        rest = [d for d in reversed(range(len(self.shape))) if d not in self.split]
        chosen = sorted((self.split + rest)[:2])
        if len(chosen) < 2:
            return None, chosen[0] if chosen else None, None
        return chosen[0], chosen[1], self.split[2] if len(self.split) > 2 else None

    def sides(self, rows: int | None, columns: int | None) -> tuple[float, float]:
        """Height and width; extreme aspect ratios are reduced."""
        if rows is None or columns is None or not self.shape[rows]:
            return 34.0, _TENSOR
        tall, wide = self.shape[rows], max(1, self.shape[columns])
        ratio = min(2.4, max(1 / 2.4, (tall / wide) ** 0.5))
        return (_TENSOR, _TENSOR / ratio) if ratio > 1 else (_TENSOR * ratio, _TENSOR)

    def cuts(self, dim: int | None, length: float) -> list[tuple[int, float, float]]:
        """The shards of a dim, and their bounds in a drawing of that length."""
        if dim is None or not self.shape[dim]:
            return [(0, 0.0, length)]
        size, part = self.shape[dim], max(1, self.local[dim])
        step = -(-self.counts[dim] // _STRIPES)  # above the limit, several are drawn as one
        edges = [(n, min(n * part, size)) for n in range(0, self.counts[dim], step)]
        scale = length / size
        ends = [*(begin for _, begin in edges[1:]), size]
        return [(n, a * scale, b * scale) for (n, a), b in zip(edges, ends, strict=True) if b > a]

    def side_text(self, dim: int) -> str:
        return f"dim {dim} · {self.shape[dim]}"

    # The legend

    def dims(self) -> None:
        """For each dim its size, axes and number of shards."""
        y = max(self.below, self.top + 46)
        for dim, size in enumerate(self.shape):
            axes = self.sharding.dims[dim].axes
            self.svg.text(24, y, f"dim {dim}", size=12, bold=True)
            if axes:
                by = " x ".join(str(a).replace('"', "") for a in axes)
                text = f"{size} split by {by}: {self.counts[dim]} x {self.local[dim]}"
            else:
                text = f"{size} whole"
            self.svg.text(68, y, text, size=12)
            over = self.counts[dim] * self.local[dim] - size
            if over:
                self.svg.text(68, y + 16, f"{over} of padding", size=11.5, fill=QUIET)
                y += 16
            y += 22
        if any(n * part > size for n, part, size in zip(
            self.counts, self.local, self.shape, strict=True
        )):  # fmt: skip
            self.svg.rect(24, y - 8, 22, 16, "url(#padding)", stroke=LINE, round=3)
            self.svg.text(54, y + 4, "padding", size=12)
            y += 26
        self.svg.text(24, y + 2, "equal colours hold equal pieces", size=11.5, fill=QUIET)
        self.svg.reach(0, y + 2)
        self.left = max(330.0, 70 + _TENSOR + 70, self.legend_width() + 48)

    def legend_width(self) -> float:
        longest = 0.0
        for dim, size in enumerate(self.shape):
            axes = " x ".join(str(a) for a in self.sharding.dims[dim].axes)
            longest = max(longest, 68 + text_width(f"{size} split by {axes}: 0000 x 0000", 12))
        return longest

    # The mesh

    def mesh_grid(self) -> None:
        """The devices: two axes as rows and columns, the others as blocks."""
        sizes = [size for _, size in self.mesh.axes]
        if not sizes:
            return
        rows, columns, rest = self.arrangement()
        shown_rows = min(_SIDE, sizes[rows] if rows is not None else 1)
        shown_columns = min(_SIDE, sizes[columns])
        last = piece_at(tuple(n - 1 for n in sizes), self.shape, self.sharding, self.mesh)
        width, height = max(92.0, text_width(str(last), 11, True) + 20), 58.0
        block_width = shown_columns * (width + _GAP) + 44
        block_height = shown_rows * (height + _GAP) + 56
        self.svg.text(self.left, self.top, "the mesh", size=13, bold=True)
        room = max(1, _DEVICES // (shown_rows * shown_columns))
        blocks = list(itertools.islice(_positions(sizes, rest), room))
        across = max(1, min(len(blocks), math.floor(1500 / block_width)))
        for n, block in enumerate(blocks):
            x = self.left + n % across * block_width
            y = self.top + n // across * block_height
            self.block_frame(x, y, block, rest, rows, columns, width)
            for i in range(shown_rows):
                for j in range(shown_columns):
                    at = dict(block) | {columns: j} | ({rows: i} if rows is not None else {})
                    position = tuple(at[a] for a in range(len(sizes)))
                    piece = piece_at(position, self.shape, self.sharding, self.mesh)
                    left, top = x + 30 + j * (width + _GAP), y + 46 + i * (height + _GAP)
                    self.device(left, top, width, height, piece)
        self.left_out(shown_rows, shown_columns, len(blocks))

    def arrangement(self) -> tuple[int | None, int, list[int]]:
        """The axes of rows, columns and blocks, from major to minor."""
        sizes = [size for _, size in self.mesh.axes]
        if len(sizes) == 1:
            return None, 0, []
        return 0, 1, list(range(2, len(sizes)))

    def block_frame(
        self,
        x: float,
        y: float,
        block: dict[int, int],
        rest: Sequence[int],
        rows: int | None,
        columns: int,
        width: float,
    ) -> None:
        """The names of the axes around one block of devices."""
        names = [name for name, _ in self.mesh.axes]
        if rest:
            where = ", ".join(f"{names[a]} {block[a]}" for a in rest)
            self.svg.text(x + 30, y + 20, where, size=12, bold=True, fill=INK)
        self.svg.text(x + 30, y + 37, f"{names[columns]} →", size=11.5, fill=QUIET)
        if rows is not None:
            self.svg.text(x + 18, y + 50, f"← {names[rows]}", size=11.5, fill=QUIET,
                          anchor="end", turned=True)  # fmt: skip

    def device(self, x: float, y: float, width: float, height: float, piece: PieceBounds) -> None:
        """One device, in the colour of its piece."""
        self.svg.rect(x, y, width, height, self.color(piece.index), round=7)
        self.padding(x, y, width, height, piece)
        empty = any(a == b for a, b in piece.bounds) and all(self.shape)
        slices = "nothing" if empty else str(piece)
        self.svg.text(x + 9, y + 19, f"device {piece.device}", size=11, fill="#475467")
        self.svg.text(x + 9, y + 40, slices, size=11, mono=True, bold=True)
        if any(piece.padding) and not empty:
            over = ", ".join(map(str, piece.padding))
            self.svg.text(x + 9, y + 53, f"+ [{over}] padding", size=9, fill="#475467")

    def padding(self, x: float, y: float, width: float, height: float, piece: PieceBounds) -> None:
        """Hatch the part of a piece that lies beyond the tensor's end."""
        rows, columns, _ = self.drawn_dims()
        for dim, over in enumerate(piece.padding):
            if not over:
                continue
            share = over / self.local[dim]
            if dim == rows and columns is not None:
                self.svg.rect(x, y + height * (1 - share), width, height * share,
                              "url(#padding)", round=7)  # fmt: skip
            else:
                self.svg.rect(x + width * (1 - share), y, width * share, height,
                              "url(#padding)", round=7)  # fmt: skip

    def left_out(self, rows: int, columns: int, blocks: int) -> None:
        """Say how many devices are not drawn."""
        hidden = self.mesh.size - rows * columns * blocks
        if hidden:
            y = self.svg.height + 24
            text = f"and {hidden:,} more devices, in the same pattern"
            self.svg.text(self.left + 30, y, text, size=12, fill=QUIET)
            self.svg.reach(0, y)

    # Colours

    def color(self, index: Sequence[int]) -> str:
        """One colour a piece: the hue by the first split dim, the lightness by the others."""
        if not self.split:
            return color(0.9, 0.035, 250)
        first, rest = self.split[0], self.split[1:]
        count = self.counts[first]
        hue = 250 + 300 * index[first] / count
        place = total = 0
        for dim in rest:
            place = place * self.counts[dim] + index[dim]
            total = max(total, 1) * self.counts[dim]
        shade = place / (total - 1) if total > 1 else 0.35
        return color(0.93 - 0.2 * shade, 0.055 + 0.06 * shade, hue % 360)


def _positions(sizes: Sequence[int], axes: Sequence[int]) -> Iterator[dict[int, int]]:
    """Every position along some axes."""
    for where in itertools.product(*(range(sizes[a]) for a in axes)):
        yield dict(zip(axes, where, strict=True))


def _bytes(count: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.4g} {unit}"
        count /= 1024  # type: ignore[assignment]
    raise AssertionError("unreachable")
