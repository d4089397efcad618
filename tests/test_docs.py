"""What README and docs show is true: Python runs, commands work, and their output is as shown."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.M | re.S)
_CODE = re.compile(r"^```.*?^```$", re.M | re.S)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> Iterator[tuple[int, str]]:
    """The blocks of a page in a language, each with the line it begins at."""
    text = page.read_text()
    for match in _BLOCK.finditer(text):
        if match[2] == language:
            yield text.count("\n", 0, match.start()) + 2, textwrap.dedent(match[3])


def commands() -> Iterator[tuple[str, str, list[str]]]:
    """Every `$ weft ...` with its place and the lines of output shown below it."""
    for page in PAGES:
        for line, block in blocks(page, "console"):
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                command, *output = part.rstrip().splitlines()
                if command.startswith("weft "):
                    yield f"{page.name}:{line}", command, output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_runs(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    scope = types.ModuleType(f"docs_{page.stem}")
    monkeypatch.setitem(sys.modules, scope.__name__, scope)  # where classes look for their types
    for line, block in blocks(page, "python"):
        # Empty lines before it, so that a traceback names the line of the page.
        exec(compile("\n" * (line - 1) + block, str(page), "exec"), vars(scope))


@pytest.mark.parametrize(("place", "command", "shown"), list(commands()))
def test_commands_work(place, command, shown):
    line = [sys.executable, "-m", "weft", *shlex.split(command)[1:]]
    wide = os.environ | {"COLUMNS": "120"}
    done = subprocess.run(line, cwd=ROOT, env=wide, capture_output=True, text=True)
    refused = any(text.startswith("error:") for text in shown)
    assert done.returncode == (1 if refused else 0), f"{place}: {command}\n{done.stderr}"
    rest = iter([text.rstrip() for text in (done.stdout + done.stderr).splitlines()])
    for text in shown:
        # `in` goes on where it stopped: the lines must come in this order, others between them.
        assert text.strip() == "..." or text.rstrip() in rest, (
            f"{place}: not in the output: {text!r}"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in _LINK.findall(_CODE.sub("", page.read_text())):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_example_scripts_run(script):
    where = os.environ | {"PYTHONPATH": str(ROOT)}
    line = [sys.executable, str(script)]
    done = subprocess.run(line, cwd=ROOT, env=where, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    "program", sorted((ROOT / "examples").glob("*.mlir")), ids=lambda p: p.name
)
def test_example_programs_are_shown_in_the_demo(program):
    assert f"examples/{program.name}" in (ROOT / "examples" / "demo.sh").read_text()
