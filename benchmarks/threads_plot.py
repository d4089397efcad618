"""Times on several counts of threads as a plot: a small chart for each case, all in one SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

Times = Mapping[str, Mapping[str, Mapping[str, float]]]  # seconds by count, case and side

SIDES = {"weft": "Weft", "torch": "PyTorch (MKL, oneDNN)", "jax": "JAX's CPU"}
_WIDE, _HIGH = 230, 150  # of a chart
_LEFT, _TOP, _BELOW = 34, 34, 26  # of its frame
_ACROSS = 3  # charts in a line
_STYLE = """<style>
text { font: 11px sans-serif; fill: #333 } .title { font-weight: bold } .frame { stroke: #bbb }
.weft { stroke: #0b62c4; fill: #0b62c4 } .torch { stroke: #d9480f; fill: #d9480f }
.jax { stroke: #2b8a3e; fill: #2b8a3e } polyline { fill: none !important; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .frame { stroke: #666 }
  .weft { stroke: #6cb2ff; fill: #6cb2ff } .torch { stroke: #ff9a6b; fill: #ff9a6b }
  .jax { stroke: #7bd88f; fill: #7bd88f } }
</style>"""


def draw(found: Times) -> str:
    """The speed of each case and side relative to Weft on the least count of threads."""
    counts = sorted(map(int, found))
    names = [*found[str(counts[0])]]
    lines = -(-len(names) // _ACROSS)
    wide, high = _ACROSS * _WIDE + 10, lines * _HIGH + 30
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}">', _STYLE]
    for n, (side, name) in enumerate(SIDES.items()):
        at = 20 + 190 * n
        parts.append(f'<circle class="{side}" cx="{at}" cy="14" r="4"/>')
        parts.append(f'<text x="{at + 10}" y="18">{escape(name)}</text>')
    for n, name in enumerate(names):
        rows = {str(count): found[str(count)][name] for count in counts}
        at = (n % _ACROSS * _WIDE, 26 + n // _ACROSS * _HIGH)
        parts.append(f'<g transform="translate({at[0]} {at[1]})">{"".join(_chart(name, rows))}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _chart(name: str, rows: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """One case: speeds over threads, both axes by powers of two."""
    counts = [*rows]
    base = rows[counts[0]]["weft"]
    speeds = {
        side: [base / row[side] for row in rows.values()]
        for side in SIDES
        if side in rows[counts[0]]
    }
    logs = [math.log2(speed) for line in speeds.values() for speed in line]
    low, top = math.floor(min(*logs, -0.1)), math.ceil(max(*logs, 1.0))
    right, bottom = _WIDE - 12, _HIGH - _BELOW

    def place(n: int, log: float) -> tuple[float, float]:
        x = _LEFT + (right - _LEFT) * n / max(1, len(counts) - 1)
        return round(x, 1), round(bottom - (bottom - _TOP) * (log - low) / (top - low), 1)

    yield f'<text class="title" x="{_LEFT}" y="24">{escape(name)}</text>'
    for level in range(low, top + 1, max(1, (top - low + 3) // 4)):
        y = place(0, level)[1]
        yield f'<path class="frame" d="M{_LEFT} {y}H{right}" opacity=".5"/>'
        yield f'<text x="{_LEFT - 5}" y="{y + 4}" text-anchor="end">{_power(level)}</text>'
    for n, count in enumerate(counts):
        yield f'<text x="{place(n, low)[0]}" y="{bottom + 16}" text-anchor="middle">{count}</text>'
    for side, line in speeds.items():
        yield from _line(side, [place(n, math.log2(speed)) for n, speed in enumerate(line)])


def _line(side: str, points: Sequence[tuple[float, float]]) -> Iterator[str]:
    yield f'<polyline class="{side}" points="{" ".join(f"{x},{y}" for x, y in points)}"/>'
    for x, y in points:
        yield f'<circle class="{side}" cx="{x}" cy="{y}" r="2.5"/>'


def _power(level: int) -> str:
    return f"{2**level}" if level >= 0 else f"1/{2**-level}"
