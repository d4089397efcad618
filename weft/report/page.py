"""The report as one HTML file: style, script and data inside, nothing from elsewhere."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
# Characters that would end a script or its strings; JSON reads the escapes back.
_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def page(data: dict[str, Any]) -> str:
    """The whole file. Names in the data come from the user's program: they are never markup."""
    parts = {name: (_FOLDER / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(str(data['program']))} · weft report</title>",
            f"<style>\n{parts['css']}</style>",
            "<body>",
            '<main id="report"></main>',
            "<noscript>This page draws its data with a script of its own.</noscript>",
            f'<script id="data" type="application/json">{script_json(data)}</script>',
            f"<script>\n{parts['js']}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def script_json(data: object) -> str:
    """JSON that can stand inside a script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character, code in _ESCAPES.items():
        text = text.replace(character, code)
    return text
