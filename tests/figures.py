"""Figures of the code, as a table: `python tests/figures.py [a folder that has weft/] ...`."""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Clauses in place of nouns (the field has words for what they say).
DIALECT = re.compile(
    r"^What\b|\b(who|whoever|nobody|somebody|said|told|asked|hears?|seldom|kin|of late|for ever)\b"
)
# Participles that name no thing; `sorted` and `normalized` say what has been done.
BARE = {
    *"asked chosen done found given gone got joined kept known left made placed said".split(),
    *"seen taken told".split(),
}
ASSEMBLY = re.compile(r"^\s*(define|declare|ret|br|store|call|%[\w.{}]+ =)\s", re.M)


def sources(root: Path) -> dict[str, str]:
    """The text of every file of the package, by its path below the root."""
    files = sorted((root / "weft").rglob("*.py"))
    return {file.relative_to(root).as_posix(): file.read_text() for file in files}


tree = cache(ast.parse)


def type_names(source: str) -> Iterator[str]:
    """The public classes, aliases of types and made classes of a module's top level."""
    for node in tree(source).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                # CamelCase: constants are in capitals, and a TypeVar has one letter.
                if name[0].isupper() and not name.isupper():
                    yield name


def shared_names(files: Mapping[str, str]) -> dict[str, list[str]]:
    """The public type names that several files define."""
    places: dict[str, list[str]] = defaultdict(list)
    for file, source in files.items():
        for name in type_names(source):
            if not name.startswith("_"):
                places[name].append(file)
    return {name: found for name, found in places.items() if len(found) > 1}


def import_graph(files: Mapping[str, str]) -> dict[str, set[str]]:
    """The modules, and those of them that each imports, for the type checker only included."""
    named = {
        file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): source
        for file, source in files.items()
    }
    graph: dict[str, set[str]] = {}
    for name, source in named.items():
        found: set[str] = set()
        for node in ast.walk(tree(source)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= inner if inner <= named.keys() else {node.module, *inner}
        graph[name] = (found & named.keys()) - {name}
    return graph


def knots(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The sets of modules that import each other, directly or not; largest first."""
    reach: dict[str, set[str]] = {}
    for name in graph:
        seen, ahead = set[str](), [name]
        while ahead:
            new = graph[ahead.pop()] - seen
            seen |= new
            ahead += new
        reach[name] = seen
    found = {
        frozenset({name, *(other for other in seen if name in reach[other])})
        for name, seen in reach.items()
        if name in seen
    }
    return sorted(map(set, found), key=len, reverse=True)


def docstrings(source: str) -> Iterator[str]:
    """The docstrings of a module, its classes and its functions."""
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def assembly_lines(source: str) -> int:
    """The lines of strings, other than docstrings, that are LLVM's assembly."""
    count, inner, lines = 0, set[ast.AST](), source.splitlines()
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.JoinedStr):
            inner |= {*ast.walk(node)} - {node}
        if isinstance(node, ast.Expr):
            inner.add(node.value)
        if isinstance(node, ast.JoinedStr | ast.Constant) and node not in inner:
            is_text = isinstance(node, ast.JoinedStr) or isinstance(node.value, str)
            if is_text and node.end_lineno > node.lineno:
                held = lines[node.lineno - 1 : node.end_lineno]
                text = "\n".join(held)
                # Programs in StableHLO are inputs of the compiler, not code that runs in it.
                is_program = "stablehlo." in text
                count += len(held) if ASSEMBLY.search(text) and not is_program else 0
    return count


def bare_functions(source: str) -> Iterator[str]:
    """The functions of a module, properties left out, with a bare participle for a name."""
    for node in ast.walk(tree(source)):
        if not isinstance(node, ast.FunctionDef) or node.name.strip("_") not in BARE:
            continue
        if not any("property" in ast.unparse(d) for d in node.decorator_list):
            yield node.name


def is_small(file: str, source: str) -> bool:
    """Whether a file has few lines, and is not just the docstring of a folder."""
    is_docstring = file.endswith("__init__.py") and len(tree(source).body) == 1
    return source.count("\n") < 40 and not is_docstring


def words(source: str, kind: int) -> Iterator[str]:
    """The tokens of a kind."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == kind:
            yield token.string


def figures(root: Path) -> dict[str, str]:
    """The rows of the table."""
    files = sources(root)
    lengths = [source.count("\n") for source in files.values()]
    folders = Counter(file.rpartition("/")[0] for file in files)
    filled = sum(bool(line.strip()) for source in files.values() for line in source.splitlines())
    comments = sum(1 for source in files.values() for _ in words(source, tokenize.COMMENT))
    texts = [text for source in files.values() for text in docstrings(source) if text]
    dialect = sum(bool(DIALECT.search(text)) for text in texts)
    tied = knots(import_graph(files))
    (most, largest), *_ = [(n, folder) for folder, n in folders.most_common(1)]
    return {
        "lines": f"{sum(lengths):,}",
        "files": f"{len(files)} in {len(folders)} folders",
        "lines a file, median and most": f"{statistics.median(lengths):.0f} and {max(lengths)}",
        "files over 500 lines": str(sum(n > 500 for n in lengths)),
        "files under 40 lines": str(sum(map(is_small, files, files.values()))),
        "files a folder, most": f"{most} ({largest})",
        "folders of more than 25 files": str(sum(n > 25 for n in folders.values())),
        "type names with two meanings": str(len(shared_names(files))),
        "files in import knots": f"{sum(map(len, tied))} ({', '.join(str(len(t)) for t in tied)})",
        "lines of assembly in strings": f"{sum(map(assembly_lines, files.values())):,}",
        "lines with Any": str(
            sum(bool(re.search(r"\bAny\b", x)) for s in files.values() for x in s.splitlines())
        ),
        "comments, % of lines that are not blank": f"{100 * comments / filled:.1f}",
        "docstrings with clauses for nouns": f"{dialect} of {len(texts):,}",
        "functions that are bare participles": str(
            sum(1 for source in files.values() for _ in bare_functions(source))
        ),
    }


def main() -> None:
    """Print the table, with a column for each folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT], metavar="FOLDER")
    folders: list[Path] = parser.parse_args().folders
    for folder in folders:
        if not (folder / "weft").is_dir():
            parser.error(f"{folder} has no folder weft")
    columns = [figures(folder) for folder in folders]
    width = max(map(len, columns[0]))
    for name in columns[0]:
        print(f"{name:{width}}", *(f"{column[name]:>34}" for column in columns))


if __name__ == "__main__":
    main()
