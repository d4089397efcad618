"""The little of SVG that the pictures need, and colours that look equally strong."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

INK, QUIET, LINE, PAPER = "#1f2430", "#667085", "#d0d5dd", "#ffffff"
SANS = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
MONO = "'JetBrains Mono', 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Svg:
    """A picture that is written part by part, and grows as far as its parts reach."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []
        self.width = 0.0
        self.height = 0.0

    def reach(self, x: float, y: float) -> None:
        """Make the picture at least that large."""
        self.width, self.height = max(self.width, x), max(self.height, y)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        *,
        stroke: str = "none",
        round: float = 0,
    ) -> None:
        """A rectangle."""
        self.reach(x + width, y + height)
        self.parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" '
            f'rx="{_n(round)}" fill="{fill}" stroke="{stroke}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        fill: str = INK,
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
        turned: bool = False,
    ) -> None:
        """A line of text; turned, it is read from below."""
        weight = ' font-weight="600"' if bold else ""
        family = f' font-family="{MONO}"' if mono else ""
        turn = f' transform="rotate(-90 {_n(x)} {_n(y)})"' if turned else ""
        if anchor == "start" and not turned:
            self.reach(x + text_width(text, size, mono), y)
        self.parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" fill="{fill}" '
            f'text-anchor="{anchor}"{weight}{family}{turn}>{escape(text)}</text>'
        )

    def document(self, margin: float = 24) -> str:
        """The whole file."""
        width, height = _n(self.width + margin), _n(self.height + margin)
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="{SANS}">',
            f"<title>{escape(self.title)}</title>",
            '<defs><pattern id="padding" width="7" height="7" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect width="7" height="7" fill="#ffffff" '
            'fill-opacity="0.66"/><rect width="2.2" height="7" fill="#b6bfcd"/></pattern></defs>',
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def text_width(text: str, size: float, mono: bool = False) -> float:
    """About how wide a text is."""
    return len(text) * size * (0.61 if mono else 0.56)


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def color(lightness: float, strength: float, hue: float) -> str:
    """A colour of the OKLCH space (hue in degrees) as `#rrggbb`."""
    a, b = strength * math.cos(math.radians(hue)), strength * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    rgb = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{_channel(c):02x}" for c in rgb)


def _channel(light: float) -> int:
    light = min(1.0, max(0.0, light))
    shown = 12.92 * light if light <= 0.0031308 else 1.055 * light ** (1 / 2.4) - 0.055
    return round(255 * shown)
