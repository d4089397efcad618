"""What README and docs show is true: Python runs, commands work, and their output is as shown."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator

import pytest

import weft
from tests.pages import A_TARGET, PAGES, ROOT, blocks, install
from weft import targets
from weft.cli import make_parser
from weft.compiled import OPTIONS
from weft.executable.signature import parse_signature
from weft.jax import versions
from weft.jax.programs import options
from weft.kernels.read import parse_kernel
from weft.kernels.text import kernel_text
from weft.native import cpython
from weft.optimize import STEPS

OTHERS = [ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]
_CODE = re.compile(r"^```.*?^```$", re.M | re.S)
_PATH = re.compile(
    r"(?<![\w/.-])((?:weft|tests|examples|benchmarks|docs|jax_plugins)/[\w/.<>-]*\w)"
)
_NAME = re.compile(r"\bweft(?:\.[A-Za-z_]+){2,}\b(?![\w/(-]*\.whl)")
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)")


def commands() -> Iterator[tuple[str, str, list[str]]]:
    """Every `$ weft ...` with its place and the lines of output shown below it."""
    for page in PAGES:
        for line, block in blocks(page, "console"):
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                command, *output = part.rstrip().splitlines()
                if command.startswith("weft "):
                    yield f"{page.name}:{line}", command, output


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A folder of packages: that of the page that describes one."""
    folder = tmp_path_factory.mktemp("packages")
    install(A_TARGET, folder)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_runs(page, monkeypatch, installed):
    monkeypatch.chdir(ROOT)
    if page.name == "torch.md":
        pytest.importorskip("torch")
    if page == A_TARGET:
        monkeypatch.syspath_prepend(installed)
        monkeypatch.setattr(targets, "_plugins", targets._plugins.__wrapped__)
    scope = types.ModuleType(f"docs_{page.stem}")
    monkeypatch.setitem(sys.modules, scope.__name__, scope)  # where classes look for their types
    for line, block in blocks(page, "python"):
        # Empty lines before it, so that a traceback names the line of the page.
        exec(compile("\n" * (line - 1) + block, str(page), "exec"), vars(scope))


@pytest.mark.parametrize(("place", "command", "shown"), list(commands()))
def test_commands_work(place, command, shown, installed):
    line = [sys.executable, "-m", "weft", *shlex.split(command)[1:]]
    wide = os.environ | {"COLUMNS": "120"}
    if place.startswith(A_TARGET.name):
        wide["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(installed)])
    done = subprocess.run(line, cwd=ROOT, env=wide, capture_output=True, text=True)
    refused = any(text.startswith("error:") for text in shown)
    assert done.returncode == (1 if refused else 0), f"{place}: {command}\n{done.stderr}"
    out = done.stdout + done.stderr
    if place.startswith(A_TARGET.name):  # the page has no Triton, which may be installed
        out = re.sub(r", triton \(\w+\)", "", out)
    rest = iter([text.rstrip() for text in out.splitlines()])
    for text in shown:
        # `in` goes on where it stopped: the lines must come in this order, others between them.
        assert text.strip() == "..." or text.rstrip() in rest, (
            f"{place}: not in the output: {text!r}"
        )


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in _LINK.findall(_CODE.sub("", page.read_text())):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name}: {target}#{anchor}"


def anchors(page) -> set[str]:
    """The anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", _CODE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.name)
def test_paths_are_there(page):
    """Files and folders of the clone that a page names; `<family>` stands for any name."""
    for path in _PATH.findall(page.read_text()):
        assert any(ROOT.glob(re.sub(r"<\w+>", "*", path))), f"{page.name}: there is no {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_are_there(page):
    """Modules of Weft that a page names, and what they define; `weft.stream` is an attribute."""
    for name in _NAME.findall(_CODE.sub("", page.read_text())):
        module, _, rest = name.rpartition(".")
        while importlib.util.find_spec(module) is None:
            module, _, more = module.rpartition(".")
            rest = f"{more}.{rest}"
        found = importlib.import_module(module)
        for part in rest.split("."):
            found = getattr(found, part, None) or importlib.import_module(f"{module}.{part}")


def test_the_table_of_passes_is_that_of_the_levels():
    rows = re.findall(r"^\| `(\w+)` \| (\d) \|", (ROOT / "docs" / "optimize.md").read_text(), re.M)
    assert rows == [(step.__name__, str(level)) for step, level in STEPS]


def test_every_public_name_is_on_the_page_of_stability():
    text = (ROOT / "docs" / "stability.md").read_text()
    assert {*re.findall(r"`weft\.(\w+)`", text)} == {*weft.__all__}
    for package, releases in (("Python", cpython.TRIED), ("jax, jaxlib", versions.TRIED)):
        listed = ", ".join(f"{major}.{minor}" for major, minor in releases)
        assert f"| {package} | {listed} |" in text


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_pages_begin_with_an_example_or_a_picture(page):
    title, _, first, *_ = page.read_text().splitlines()
    assert title.startswith("# ") and first.startswith(("```", "![", "| ", "    ", "<!--")), (
        page.name
    )


def test_texts_of_kernels_and_signatures_are_read_back():
    tile, executable = (ROOT / "docs" / name for name in ("tile.md", "executable.md"))
    kernels = [
        text for _, text in blocks(tile, "text") if text.startswith("kernel ") and "..." not in text
    ]
    assert kernels
    for text in [each for found in kernels for each in found.strip().split("\n\n")]:
        assert kernel_text(parse_kernel(text)).strip() == text
    (signature,) = [text for _, text in blocks(executable, "text") if text.startswith("signature")]
    assert str(parse_signature(signature)).strip() == signature.strip()


def test_every_folder_is_on_the_map():
    tree = (ROOT / "README.md").read_text().partition("\nweft/\n")[2].partition("```")[0]
    folders = {path.parent.name for path in (ROOT / "weft").glob("*/__init__.py")}
    assert folders <= {*re.findall(r"(\w+)/", tree)}


def test_every_option_is_documented():
    compiling, plugin = ((ROOT / "docs" / name).read_text() for name in ("compile.md", "jax.md"))
    assert [name for name in OPTIONS if f"`{name}`" not in compiling] == []
    assert [name for name in options._READ if f"`{name}`" not in plugin] == []


def test_every_kind_of_cache_entry_is_documented():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "cache.md").read_text(), re.M)
    sources = "".join(path.read_text() for path in (ROOT / "weft").rglob("*.py"))
    assert {*rows} == {*re.findall(r"\bKey\(\s*\"(\w+)\"", sources)}


def test_every_command_has_a_section():
    (commands,) = make_parser()._subparsers._group_actions
    sections = re.findall(r"^## weft ([\w-]+)", (ROOT / "docs" / "commands.md").read_text(), re.M)
    assert sorted(sections) == sorted(commands.choices)


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


def test_the_way_in_the_code():
    """The functions that the index names are in the files that it names beside them."""
    (section,) = re.findall(
        r"^## Finding your way in the code$(.*?)^## ",
        (ROOT / "docs" / "index.md").read_text(),
        re.M | re.S,
    )
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 5
    for row in rows:
        quoted = re.findall(r"`([^`]*)`", row)
        texts = [(ROOT / name).read_text() for name in quoted if name.endswith(".py")]
        for name in quoted:
            if re.fullmatch(r"((class|def) )?\w+", name):
                assert any(re.search(rf"\b{name}\b", text) for text in texts), name
