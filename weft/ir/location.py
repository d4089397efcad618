"""Source locations: where in the user's program a node comes from."""

from __future__ import annotations

import linecache
import re
import sys
from functools import lru_cache

from weft.records import dataclass

_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)(?: to (?:(\d+))?:(\d+))?')
_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"\(?')
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|.)")


def unescape(text: str) -> str:
    """Undo MLIR's string escapes, two hex digits or one character after a backslash."""
    if "\\" not in text:
        return text
    raw = bytearray()
    position = 0
    for match in _ESCAPE.finditer(text):
        raw += text[position : match.start()].encode()
        code = match[1]
        raw += bytes([int(code, 16)]) if len(code) == 2 else _SHORT.get(code, code).encode()
        position = match.end()
    raw += text[position:].encode()
    return raw.decode("utf-8", "surrogateescape")


_SHORT = {"n": "\n", "t": "\t"}


def escape(text: str) -> str:
    """Write a string the way MLIR's lexer reads it back."""
    out = []
    for byte in text.encode("utf-8", "surrogateescape"):
        plain = 0x20 <= byte < 0x7F and byte not in (0x22, 0x5C)
        out.append(chr(byte) if plain else f"\\{byte:02X}")
    return "".join(out)


@dataclass(frozen=True, slots=True)
class Location:
    """A location as MLIR text; the user's file and line are parsed from it on demand."""

    text: str = "unknown"

    @property
    def known(self) -> bool:
        """Whether it has a file or a name."""
        return self.text != "unknown"

    @property
    def name(self) -> str | None:
        """The name a tracer gave the op, such as `jit(step)/dot_general`."""
        match = _NAME.match(self.text)
        return unescape(match[1]) if match and not _FILE.match(self.text) else None

    @property
    def frames(self) -> tuple[tuple[str, int, int], ...]:
        """Every (file, line, column), innermost first."""
        return _frames(self.text)

    @property
    def line(self) -> tuple[str, int] | None:
        """The user's file and line: the innermost frame."""
        frames = self.frames
        return (frames[0][0], frames[0][1]) if frames else None

    @property
    def expression(self) -> str:
        """The source text of the innermost frame's columns, where they are of one line."""
        match = _FILE.search(self.text)
        if match is None or match[5] is None or match[4] not in (None, match[2]):
            return ""
        # Tracers count columns in bytes.
        source = linecache.getline(unescape(match[1]), int(match[2])).encode()
        return source[int(match[3]) : int(match[5])].decode(errors="replace").strip()

    def describe(self) -> str:
        """`model.py:41  h = x @ w`, or the tracer's name where there is no file."""
        frames = self.frames
        if not frames:
            names = [unescape(name) for name in _NAME.findall(self.text)]
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            return f"{names[0]}{more}" if names else self.text
        file, line, column = frames[0]
        source = linecache.getline(file, line).strip()
        place = f"{file}:{line}:{column}" if file.endswith(".mlir") else f"{file}:{line}"
        return f"{place}  {source[:120]}" if source else place

    def __str__(self) -> str:
        return f"loc({self.text})"


@lru_cache(maxsize=65536)
def _frames(text: str) -> tuple[tuple[str, int, int], ...]:
    return tuple((unescape(m[1]), int(m[2]), int(m[3])) for m in _FILE.finditer(text))


UNKNOWN = Location()


_LIBRARIES = {"weft", "jax", "torch"}  # whose frames are not the user's


def user_location() -> Location:
    """The innermost line on the stack that is neither Weft's nor a framework's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _LIBRARIES:
            return Location(f'"{escape(frame.f_code.co_filename)}":{frame.f_lineno}:0')
        frame = frame.f_back
    return UNKNOWN


def fuse(*locations: Location) -> Location:
    """The fused location of a node that replaces several."""
    distinct = [place for place in dict.fromkeys(locations) if place.known]
    if not distinct:
        return UNKNOWN
    if len(distinct) == 1:
        return distinct[0]
    return Location(f"fused[{', '.join(place.text for place in distinct)}]")
