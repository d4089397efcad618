"""The check dialect of StableHLO's tests: its pretty form, unknown to jaxlib, as generic text."""

from __future__ import annotations

import re

from weft.errors import WeftError
from weft.ir.scan import balanced

_START = re.compile(r"\bcheck\.expect_\w+?(_const)?(?=[ %])\s*")
_VALUE = re.compile(r"\s*(%[\w$.#-]+)\s*,?\s*")
_OPTION = re.compile(r'\s*(\w+)\s*=\s*("[^"]*"|[-+.\w]+)(?:\s*:\s*[a-z]\d+)?\s*,?\s*')
_COLON = re.compile(r"\s*:\s*")
_COMMA = re.compile(r"\s*,\s*(?=tensor<)")
_BRACED = re.compile(r"\s*\{([^}]*)\}")


def generic_checks(text: str) -> str:
    """Rewrite `check.expect_eq %x, %y : t` as `"check.expect_eq"(%x, %y) : (t, t) -> ()`.

    The number of lines is kept, so that locations stay true.
    """
    if "check.expect" not in text:
        return text
    out: list[str] = []
    position = 0
    while match := _START.search(text, position):
        if _commented(text, match.start()) or text[match.start() - 1] in '"@':
            out.append(text[position : match.end()])
            position = match.end()
            continue
        out.append(text[position : match.start()])
        try:
            generic, position = _generic(text, match)
        except (ValueError, IndexError, WeftError):  # malformed: left to MLIR's own error
            out.append(match[0])
            position = match.end()
            continue
        out.append(generic + "\n" * text.count("\n", match.start(), position))
    out.append(text[position:])
    return "".join(out)


def _commented(text: str, position: int) -> bool:
    return "//" in text[text.rfind("\n", 0, position) + 1 : position]


def _generic(text: str, start: re.Match[str]) -> tuple[str, int]:
    """One check from its match, and the position after it."""
    position = start.end()
    values: list[str] = []
    while value := _VALUE.match(text, position):
        values.append(value[1])
        position = value.end()
    constant = ""
    if start[1]:
        end = balanced(text, text.index("<", position))
        constant, position = " ".join(text[position:end].split()), end
    options: dict[str, str] = {}
    while option := _OPTION.match(text, position):
        options[option[1]] = option[2]
        position = option.end()
    types, position = _types(text, position)
    if braced := _BRACED.match(text, position):
        options |= {o[1]: o[2] for o in _OPTION.finditer(braced[1])}
        position = braced.end()
    attributes = [f"{name} = {_typed(value)}" for name, value in options.items()]
    if constant:
        attributes.append(f"value = {constant} : {types[0]}")
    listed = ", ".join(types[min(n, len(types) - 1)] for n in range(len(values)))
    shown = f" {{{', '.join(attributes)}}}" if attributes else ""
    return f'"{start[0].strip()}"({", ".join(values)}){shown} : ({listed}) -> ()', position


def _typed(value: str) -> str:
    """An option as an attribute: a string, a float or an integer."""
    if value.startswith('"'):
        return value
    return f"{value} : {'f64' if '.' in value or 'e' in value else 'i64'}"


def _types(text: str, position: int) -> tuple[list[str], int]:
    types: list[str] = []
    separator = _COLON.match(text, position)
    while separator:
        begin = separator.end()
        position = balanced(text, text.index("<", begin))
        types.append(text[begin:position])
        separator = _COMMA.match(text, position)
    return types, position
