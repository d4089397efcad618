"""What Weft changes in JAX: listed in one place, and there in the JAX that is installed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.jax.door import run_on_weft
from weft.errors import WeftError
from weft.jax.versions import TRIED, release
from weft.patches import EXTENDED, REPLACED, Patch, replace_in_jax

WEFT = Path(__file__).parent.parent / "weft"
ALL = (*REPLACED, *EXTENDED)
CHANGING = {
    "append",
    "clear",
    "def_impl",
    "extend",
    "insert",
    "pop",
    "remove",
    "setdefault",
    "update",
}


def names_of_jax(tree: ast.AST) -> set[str]:
    """The names that a file has for what it imports from JAX."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if (module or alias.name).split(".")[0] in ("jax", "jaxlib"):
                    found.add((alias.asname or alias.name).split(".")[0])
    return found


def root(node: ast.expr) -> str | None:
    """The name that a chain of attributes and items begins with; None where it is only a name."""
    if not isinstance(node, ast.Attribute | ast.Subscript):
        return None
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def changed(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement or a call changes."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            yield from targets
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            yield target
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[held, *_]):
            yield ast.Attribute(held, "")
        case ast.Call(func=ast.Attribute(value=held, attr=name)) if name in CHANGING:
            yield held


def is_rule(target: ast.AST) -> bool:
    """Whether it is a batching rule of a primitive, which JAX has no other way to register."""
    table = target.value if isinstance(target, ast.Subscript) else None
    return isinstance(table, ast.Attribute) and table.attr == "primitive_batchers"


def changes(source: str) -> list[int]:
    """The lines that change something of JAX's."""
    tree = ast.parse(source)
    known = names_of_jax(tree)
    return [
        getattr(node, "lineno", 0)
        for node in ast.walk(tree)
        for target in changed(node)
        if root(target) in known and not is_rule(target)
    ]


def test_nothing_else_changes_jax() -> None:
    found = {
        f"{path.relative_to(WEFT)}:{line}"
        for path in WEFT.rglob("*.py")
        for line in changes(path.read_text())
    }
    assert not found, "list it in weft/patches.py"


@pytest.mark.parametrize(
    "line",
    [
        "compiler.run = f",
        "compiler.Kind.run = f",
        "compiler.table[0] = f",
        "setattr(compiler, 'run', f)",
        "compiler.table.update(x=1)",
        "compiler.run_p.def_impl(f)",
        "del compiler.run",
    ],
)
def test_a_change_is_found(line: str) -> None:
    assert changes(f"def f():\n    from jax._src import compiler\n    {line}") == [3]
    assert not changes(f"from weft import compiler\n{line}")


@pytest.mark.parametrize("patch", ALL, ids=lambda patch: patch.where)
def test_it_is_there_and_for_this_release(patch: Patch) -> None:
    patch.theirs()
    assert patch.why and not patch.why.endswith(".")
    installed = release(version("jax"))
    assert installed is not None and patch.first <= installed <= patch.last
    assert TRIED[0] <= patch.first <= patch.last <= TRIED[-1]


def test_every_place_is_listed_once() -> None:
    places = [patch.where for patch in ALL]
    assert len(places) == len({*places})


def test_what_jax_no_longer_has_is_named() -> None:
    gone = Patch("jax._src.compiler:no_such_function", "it is tried")
    with pytest.raises(WeftError, match="has no jax._src.compiler:no_such_function, which Weft"):
        gone.theirs()
    with pytest.raises(StopIteration):
        replace_in_jax("jax._src.compiler:no_such_function", lambda theirs: theirs)


def test_all_take_their_places() -> None:
    """After a program has run, exported and not, each is there and stands for one function."""
    source = """
import jax, jax.export, jax.numpy as jnp, weft, numpy as np
from weft import patches
x = jnp.arange(4.0)
exported = jax.export.export(jax.jit(jnp.sin), platforms=("cpu",))(x)
jax.jit(exported.call)(x)
weft.put(np.ones(2, "float32")) + 1
from jax._src.clusters import cluster
from weft.workers import jax_cluster
jax_cluster._add(cluster)  # as in a process of a launcher
for patch in patches.REPLACED:
    assert patch.theirs() is patches._MADE[patch.where], patch.where
print(len(patches._MADE) == len(patches.REPLACED))
"""
    assert run_on_weft(source) == "True\n"
