"""JAX's pytrees as plain data, for saved executables."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

from weft.errors import Unsupported
from weft.executable.literal import MOST_DEPTH, is_literal
from weft.executable.structure import FACTORIES, LEAF, NONE, Structure, StructureKind, is_name

_PLAIN: dict[type, StructureKind] = {
    tuple: "tuple",
    list: "list",
    dict: "dict",
    OrderedDict: "OrderedDict",
    defaultdict: "defaultdict",
}
_HELP = "take and give dicts, lists, tuples, namedtuples and None, as with dataclasses.asdict"


def structure_of(tree: Any, depth: int = 0) -> Structure:
    """The structure of a PyTreeDef; custom node classes are refused."""
    data = tree.node_data()
    if data is None:
        return LEAF if tree.num_leaves else NONE
    if depth >= MOST_DEPTH:
        raise _refuse(f"a tree of more than {MOST_DEPTH} levels", "nest it less deeply")
    kind, extra = data
    if kind is type(None):
        return NONE
    parts = tuple([structure_of(part, depth + 1) for part in tree.children()])
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        fields = tuple(kind._fields)
        usual = extra is None and len(fields) == len(parts)  # JAX flattens None to no leaves
        if not usual or not all(map(is_name, (kind.__name__, *fields))):
            raise _refuse(f"the namedtuple {kind.__name__}", _HELP)
        return Structure("namedtuple", parts, fields, kind.__name__)
    structure = _PLAIN.get(kind)
    if structure is None:
        raise _refuse(f"a {kind.__module__}.{kind.__qualname__}", _HELP)
    name = ""
    if structure == "defaultdict":
        factory, extra = extra
        name = "None" if factory is None else str(getattr(factory, "__name__", factory))
        if name not in FACTORIES or FACTORIES[name] is not factory:
            raise _refuse(f"a defaultdict of {factory!r}", "use a plain dict")
    keys = () if extra is None else tuple(extra)
    for key in keys:
        if not is_literal(key):
            raise _refuse(f"a dict with the key {key!r}", "use strings or numbers as keys")
    return Structure(structure, parts, keys, name)


def _refuse(what: str, help: str) -> Unsupported:
    return Unsupported(f"{what} among arguments or results cannot be saved", help=help)
