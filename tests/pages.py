"""The pages of README and docs: their blocks of code, and the package that a page describes."""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
A_TARGET = ROOT / "docs" / "add_a_target.md"
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.M | re.S)


def blocks(page: Path, language: str) -> Iterator[tuple[int, str]]:
    """The blocks of a page in a language, each with the line it begins at."""
    text = page.read_text()
    for match in _BLOCK.finditer(text):
        if match[2] == language:
            yield text.count("\n", 0, match.start()) + 2, textwrap.dedent(match[3])


def install(page: Path, folder: Path) -> None:
    """The package of a page, as pip would leave it: its first Python block, its pyproject.toml."""
    (_, module), *_ = blocks(page, "python")
    ((_, told),) = blocks(page, "toml")
    project = tomllib.loads(told)["project"]
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
        for value in entries.values():
            (folder / f"{value.partition(':')[0]}.py").write_text(module)
    name, version = project["name"], project["version"]
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
