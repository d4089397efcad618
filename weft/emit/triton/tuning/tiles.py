"""Tiles of products by a model of waves, arithmetic intensity and shared memory."""

from __future__ import annotations

import itertools

# The model's constants are an H100's or H200's; measuring ranks what it proposes on other GPUs.
MULTIPROCESSORS = 132  # SMs
SHARED = 227 << 10  # bytes of shared memory of a thread block on sm_90
_RATE = 6.0e12  # flop/s of one SM in bf16
_START = 2e-6  # seconds: filling the pipeline of a tile
_TILES = (
    (128, 256, 8), (256, 128, 8), (128, 128, 8), (128, 128, 4), (64, 256, 4), (256, 64, 4),
    (64, 128, 4), (128, 64, 4), (64, 64, 4), (32, 128, 4), (16, 128, 4), (16, 64, 4),
)  # fmt: skip


def promising_tiles(
    sizes: tuple[int, int, int, int], bits: int, described: bool
) -> list[dict[str, int]]:
    """Options of tiles for a batch of m x n x k, by predicted time.

    Of sides that tensor descriptors describe, tiles are persistent as well.
    """
    batch, m, n, k = sizes
    candidates: list[tuple[float, dict[str, int]]] = []
    for (rows, columns, warps), depth, stages in itertools.product(
        _TILES, (32, 64, 128), (2, 3, 4, 5)
    ):
        shared = stages * (rows + columns) * depth * bits // 8
        if depth > max(16, k) or depth * bits not in (512, 1024, 2048):
            continue
        for persistent in (True, False) if described else (False,):
            # A tile of the result passes through shared memory, beside the next tile's sides.
            if shared + (rows * columns * 2 if persistent else 0) > SHARED:
                continue
            seconds = _seconds(batch, m, n, k, rows, columns, persistent)
            seconds *= 1 + 0.02 * abs(stages - 4) + (0.03 if depth * bits != 1024 else 0)
            options = {"rows": rows, "columns": columns, "depth": depth}
            options |= {"warps": warps, "stages": stages}
            candidates.append((seconds, options | ({"persistent": 1} if persistent else {})))
    candidates.sort(key=lambda one: one[0])
    return _varied([options for _, options in candidates])


def _seconds(
    batch: int, m: int, n: int, k: int, rows: int, columns: int, persistent: bool
) -> float:
    """The time of all waves of tiles; small tiles wait for memory."""
    tiles = batch * -(-m // rows) * -(-n // columns)
    waves = -(-tiles // MULTIPROCESSORS)
    intensity = min(1.0, rows * columns / (rows + columns) / 85)
    if not persistent:
        intensity *= 0.85  # pointers are computed, and nothing overlaps with the end of a tile
    one = 2 * rows * columns * k / (_RATE * intensity) + (0 if persistent else _START)
    return waves * one + _START


def _varied(options: list[dict[str, int]]) -> list[dict[str, int]]:
    """One of each tile first, then the others: neighbours are alike."""
    seen: set[tuple[int, int, int]] = set()
    first: list[dict[str, int]] = []
    for one in options:
        key = (one["rows"], one["columns"], one.get("persistent", 0))
        if key not in seen:
            seen.add(key)
            first.append(one)
    return first + [one for one in options if one not in first]
