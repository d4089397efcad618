"""One meaning for a type name: those that are defined in several files are listed here."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

WEFT = Path(__file__).parent.parent / "weft"
# Names with two meanings. A name may leave this list, and none may come.
SHARED = {
    *"Array Attention Call Group HostKernels Kind Launch Mask Masks Place Reduce Slots".split(),
    *"Source Step".split(),
}


def type_names(source: str) -> Iterator[str]:
    """The public classes, aliases of types and made classes of a module's top level."""
    for node in ast.parse(source).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                # CamelCase: constants are in capitals, and a TypeVar has one letter.
                if name[0].isupper() and not name.isupper():
                    yield name


def test_a_type_name_has_one_meaning():
    files: dict[str, list[str]] = defaultdict(list)
    for path in sorted(WEFT.rglob("*.py")):
        for name in type_names(path.read_text()):
            if not name.startswith("_"):
                files[name].append(path.relative_to(WEFT).as_posix())
    several = {name: places for name, places in files.items() if len(places) > 1}
    new = [f"{name}: {', '.join(several[name])}" for name in sorted(several.keys() - SHARED)]
    assert not new, "defined in several files; give each a name of its own:\n" + "\n".join(new)
    gone = sorted(SHARED - several.keys())
    assert not gone, f"defined once by now; take them out of SHARED: {', '.join(gone)}"
    assert len(SHARED) <= 14


def test_what_counts_as_a_type_name():
    source = """
class Seen: ...
Alias = tuple[int, ...]
Told: TypeAlias = int
Made = pointwise("stablehlo.made")
T = TypeVar("T")
TABLE = {}
plain = 1
"""
    assert [*type_names(source)] == ["Seen", "Alias", "Told", "Made"]
