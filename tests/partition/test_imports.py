"""The import graph of partition has no cycle, imports for the type checker included."""

from __future__ import annotations

import ast
from pathlib import Path

PARTITION = Path(__file__).parents[2] / "weft" / "partition"


def module_name(path: Path) -> str:
    """`weft.partition.site` for its file."""
    parts = path.relative_to(PARTITION.parents[1]).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def import_graph(folder: Path) -> dict[str, set[str]]:
    """The modules of a folder, and those of them that each one imports by any import statement."""
    trees = {module_name(p): ast.parse(p.read_text()) for p in sorted(folder.rglob("*.py"))}
    graph: dict[str, set[str]] = {}
    for name, tree in trees.items():
        found: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= inner if inner <= trees.keys() else {node.module, *inner}
        graph[name] = found & trees.keys()
    return graph


def cycle_members(graph: dict[str, set[str]]) -> set[str]:
    """What is left after all that imports nothing that is left has been taken away."""
    left = dict(graph)
    while ready := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in ready:
            del left[name]
    return {*left}


def test_partition_has_no_import_cycle():
    graph = import_graph(PARTITION)
    assert graph["weft.partition"] and not cycle_members(graph)


def test_a_cycle_is_found():
    assert cycle_members({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"a", "b", "c"}
