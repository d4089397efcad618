"""The tree structure of nested arguments and results, as data that does not need JAX.

    ({"w0": *, "w1": *}, [*, None], AdamState(count=*, mu=*))

Leaves are stars, numbered from left to right, which is JAX's order.
"""

from __future__ import annotations

import keyword
import unicodedata
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np

from weft.array import Array
from weft.errors import WeftError
from weft.executable.literal import MOST_DEPTH, Tokens, literal_text
from weft.executable.literal import Literal as Key
from weft.records import dataclass

StructureKind = Literal[
    "leaf", "None", "tuple", "list", "dict", "OrderedDict", "defaultdict", "namedtuple"
]
Path: TypeAlias = tuple[Any, ...]  # dict keys, sequence indices, fields as `.name`
Describe: TypeAlias = Callable[[Path], str]
FACTORIES: dict[str, Callable[[], Any] | None] = {
    "None": None,
    **{kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict, set)},
}
_DICTS = ("dict", "OrderedDict", "defaultdict")
_NESTED = (dict, list, tuple, type(None))  # containers are not leaves
# Types that are always leaves: a fast path.
_LEAVES = {Array, np.ndarray, bool, int, float, complex}


@dataclass(frozen=True)
class Structure:
    """A tree: a leaf, None, or a sequence, dict or namedtuple of trees."""

    kind: StructureKind
    parts: tuple[Structure, ...] = ()
    keys: tuple[Key, ...] = ()  # dict keys in order; fields of a namedtuple
    name: str = ""  # name of a namedtuple's class or of a defaultdict's factory

    @cached_property
    def leaves(self) -> int:
        """The number of leaves."""
        return 1 if self.kind == "leaf" else sum(part.leaves for part in self.parts)

    @cached_property
    def is_flat(self) -> bool:
        """Whether every part is a leaf."""
        return all(part.kind == "leaf" for part in self.parts)

    def flatten(self, value: Any, describe: Describe | None = None) -> list[Any]:
        """Flatten a value of this structure; a mismatch is an error with its path."""
        leaves: list[Any] = []
        if not _flatten(self, value, leaves):
            path, message, help = next(_differences(self, value, ()))
            name = (describe or path_text)(path) or "the value"
            raise WeftError(f"{name} {message}", help=help)
        return leaves

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Unflatten leaves into this structure."""
        if len(leaves) != self.leaves:
            raise WeftError(
                f"{len(leaves)} values for a structure of {self.leaves} leaves",
                help="give one value for each leaf",
            )
        return _unflatten(self, iter(leaves))

    def paths(self) -> list[Path]:
        """The path of every leaf, in order."""
        if self.kind == "leaf":
            return [()]
        return [
            (step, *path)
            for step, part in zip(_steps(self), self.parts, strict=True)
            for path in part.paths()
        ]

    def __str__(self) -> str:
        """The text that `parse_structure` reads."""
        parts = [str(part) for part in self.parts]
        match self.kind:
            case "leaf":
                return "*"
            case "None":
                return "None"
            case "tuple":
                return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
            case "list":
                return f"[{', '.join(parts)}]"
            case "namedtuple":
                fields = zip(self.keys, parts, strict=True)
                return f"{self.name}({', '.join(f'{key!s}={part}' for key, part in fields)})"
        pairs = zip(map(literal_text, self.keys), parts, strict=True)
        listed = f"{{{', '.join(f'{key}: {part}' for key, part in pairs)}}}"
        if self.kind == "dict":
            return listed
        return f"{self.kind}({f'{self.name}, ' if self.kind == 'defaultdict' else ''}{listed})"


LEAF, NONE = Structure("leaf"), Structure("None")


def sequence(kind: Literal["tuple", "list"], parts: Sequence[Structure]) -> Structure:
    """A tuple or a list."""
    return Structure(kind, tuple(parts))


def flat_structure(count: int) -> Structure:
    """A tuple of leaves."""
    return Structure("tuple", (LEAF,) * count)


def path_text(path: Path) -> str:
    """`['w'][0].mu`, as JAX writes it."""
    return "".join([step if type(step) is Field else f"[{step!r}]" for step in path])


class Field(str):
    """A path component for a field: `.mu`."""

    __slots__ = ()


def _steps(node: Structure) -> Sequence[Any]:
    if node.kind == "namedtuple":
        return [Field(f".{key!s}") for key in node.keys]
    return node.keys if node.kind in _DICTS else range(len(node.parts))


def _flatten(node: Structure, value: Any, leaves: list[Any]) -> bool:
    """Append the leaves; False if the structure differs, without a description."""
    # On the path of every call: a mismatch is described by `_differences`, in a second walk.
    kind, actual = node.kind, type(value)
    if kind == "leaf":
        leaves.append(value)
        return not isinstance(value, _NESTED)
    if kind == "None":
        return value is None
    parts = node.parts
    if kind in _DICTS:
        if not isinstance(value, dict) or len(value) != len(parts):
            return False
        # Indexing a defaultdict would insert missing keys.
        if actual is not dict and not all(key in value for key in node.keys):
            return False
        try:
            values: Any = [value[key] for key in node.keys]
        except KeyError:
            return False
    elif kind == "namedtuple":
        if getattr(actual, "_fields", None) != node.keys or actual.__name__ != node.name:
            return False
        values = value
    else:
        values = value
        # Exactly: a namedtuple is a tuple, but of another structure.
        if actual is not (tuple if kind == "tuple" else list):
            return False
    if len(values) != len(parts):
        return False
    if node.is_flat:
        leaves += values
        if _LEAVES.issuperset(map(type, values)):
            return True
        return not any(isinstance(inner, _NESTED) for inner in values)
    return all(_flatten(part, inner, leaves) for part, inner in zip(parts, values, strict=True))


def _differences(node: Structure, value: Any, path: Path) -> Iterator[tuple[Path, str, str]]:
    """Mismatches between a value and a structure: path, message and help."""
    wanted = _noun(node)
    if node.kind in _DICTS and isinstance(value, dict):
        yield from _key_differences(node, value, path)
        values: Any = [value.get(key) for key in node.keys]
    elif _is_of(node, value):
        if len(value) != len(node.parts):
            message = f"has {len(value)} elements, but the program takes {len(node.parts)}"
            yield path, message, f"give a {node.kind} of {len(node.parts)}"
        values = value
    elif _flatten(node, value, []):
        return
    else:
        yield path, f"is {_noun_of(value)}, but the program takes {wanted}", f"give {wanted} there"
        return
    for step, part, inner in zip(_steps(node), node.parts, values, strict=False):
        yield from _differences(part, inner, (*path, step))


def _key_differences(
    node: Structure, value: dict[Any, Any], path: Path
) -> Iterator[tuple[Path, str, str]]:
    known = ", ".join(map(repr, node.keys[:12])) + (", ..." if len(node.keys) > 12 else "")
    for key in node.keys:
        if key not in value:
            yield (*path, key), "is missing", f"give a value for each of {known}"
    for key in value:
        if key not in node.keys:
            help = f"leave it out; the program takes {known or 'an empty dict'}"
            yield (*path, key), "is not an argument of the program", help


def _is_of(node: Structure, value: Any) -> bool:
    """Whether a value is a sequence of the node's kind."""
    kind = type(value)
    if node.kind == "namedtuple":
        return getattr(kind, "_fields", None) == node.keys and kind.__name__ == node.name
    return (node.kind == "tuple" and kind is tuple) or (node.kind == "list" and kind is list)


def _noun(node: Structure) -> str:
    match node.kind:
        case "leaf":
            return "an array"
        case "None":
            return "None"
        case "namedtuple":
            return f"a {node.name}({', '.join(map(str, node.keys))})"
    return f"{'an' if node.kind[0] in 'aeiouO' else 'a'} {node.kind}"


def _noun_of(value: Any) -> str:
    kind = type(value)
    if value is None:
        return "None"
    if hasattr(kind, "_fields"):
        return f"a {kind.__name__}({', '.join(map(str, kind._fields))})"
    return f"{'an' if kind.__name__[:1].lower() in 'aeiou' else 'a'} {kind.__name__}"


def _unflatten(node: Structure, leaves: Iterator[Any]) -> Any:
    if node.kind == "leaf":
        return next(leaves)
    if node.kind == "None":
        return None
    if node.is_flat:
        values = [*islice(leaves, len(node.parts))]
    else:
        values = [_unflatten(part, leaves) for part in node.parts]
    match node.kind:
        case "list":
            return values
        case "tuple":
            return tuple(values)
        case "namedtuple":
            return _class(node.name, node.keys)(*values)
    pairs = zip(node.keys, values, strict=True)
    match node.kind:
        case "OrderedDict":
            return OrderedDict(pairs)
        case "defaultdict":
            return defaultdict(FACTORIES[node.name], pairs)
    return dict(pairs)


@lru_cache(maxsize=4096)
def _class(name: str, fields: tuple[Any, ...]) -> Any:
    """A namedtuple class, cached by name and fields."""
    return namedtuple(name, fields, module=__name__)


# Text


def parse_structure(text: str) -> Structure:
    """Parse a structure."""
    tokens = Tokens(text)
    structure = _read(tokens, 0)
    tokens.finish()
    return structure


def is_name(text: str) -> bool:
    """Whether a name is a valid identifier in Python's normal form."""
    # Python normalizes identifiers (NFKC): another form would name another field.
    plain = text.isidentifier() and not keyword.iskeyword(text)
    return plain and unicodedata.normalize("NFKC", text) == text


def _read(tokens: Tokens, depth: int) -> Structure:
    if depth > MOST_DEPTH:
        raise tokens.wrong(f"at most {MOST_DEPTH} levels of nesting")
    if tokens.accept("*"):
        return LEAF
    if tokens.accept("("):
        return sequence("tuple", _read_list(tokens, ")", depth))
    if tokens.accept("["):
        return sequence("list", _read_list(tokens, "]", depth))
    if tokens.kind == "mark" and tokens.token == "{":
        return _read_dict(tokens, "dict", depth)
    if tokens.kind != "word":
        raise tokens.wrong("a structure")
    name = tokens.take()
    if name == "None":
        return NONE
    tokens.expect("(")
    # A namedtuple may be called OrderedDict or defaultdict, too: what follows tells.
    factory = ""
    if name == "defaultdict" and tokens.token in FACTORIES:
        factory = tokens.take()
        tokens.expect(",")
    if not factory and (name != "OrderedDict" or tokens.token != "{"):
        return _read_fields(tokens, name, depth)
    structure = _read_dict(tokens, "defaultdict" if factory else "OrderedDict", depth, factory)
    tokens.expect(")")
    return structure


def _read_list(tokens: Tokens, end: str, depth: int) -> list[Structure]:
    parts: list[Structure] = []
    while not tokens.accept(end):
        parts.append(_read(tokens, depth + 1))
        if not tokens.accept(","):
            tokens.expect(end)
            break
    return parts


def _read_dict(tokens: Tokens, kind: StructureKind, depth: int, name: str = "") -> Structure:
    tokens.expect("{")
    fields: dict[Key, Structure] = {}
    while not tokens.accept("}"):
        start, key = tokens.start, tokens.literal()
        if key in fields:
            raise tokens.wrong("a key that is not there yet", start)
        tokens.expect(":")
        fields[key] = _read(tokens, depth + 1)
        if not tokens.accept(","):
            tokens.expect("}")
            break
    return Structure(kind, tuple(fields.values()), tuple(fields), name)


def _read_fields(tokens: Tokens, name: str, depth: int) -> Structure:
    fields: dict[Key, Structure] = {}
    if not is_name(name):
        raise tokens.wrong(f"the name of a class, not {name!r},")
    while not tokens.accept(")"):
        start, key = tokens.start, tokens.take()
        if not is_name(key) or key.startswith("_") or key in fields:
            raise tokens.wrong("the name of a field", start)
        tokens.expect("=")
        fields[key] = _read(tokens, depth + 1)
        if not tokens.accept(","):
            tokens.expect(")")
            break
    return Structure("namedtuple", tuple(fields.values()), tuple(fields), name)
