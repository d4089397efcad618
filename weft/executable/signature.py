"""Signatures: the calling convention of an executable, readable without the rest of the file.

signature "step"
devices <["data"=2, "model"=4]>
mesh "mesh" <["data"=2, "model"=4]>
parameter "params"
parameter "x"
parameter "steps" static 3
takes (({"w": *}, *), {})
gives {"loss": *}
argument "params['w']": tensor<8x16xf32>, local tensor<8x4xf32>, sharding <@mesh, [{}, {"model"}]>, donated
argument "x": tensor<4x8xf32>, local tensor<2x8xf32>, sharding <@mesh, [{"data"}, {}]>
result "result['loss']": tensor<f32>
"""  # noqa: E501

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from weft.errors import WeftError
from weft.executable.literal import Literal as Value
from weft.executable.literal import literal_text, parse_literal
from weft.executable.structure import Structure, flat_structure, parse_structure
from weft.ir.attrs import Attrs
from weft.ir.scan import parse_type, split
from weft.ir.types import TensorType
from weft.mesh import Mesh, Sharding, as_sharding, parse_mesh, parse_sharding
from weft.mesh.pieces import local_shape
from weft.records import dataclass

How = Literal["position", "keyword", "static"]
DEVICE = "device"  # the default memory
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_NAMED = re.compile(rf"({_STRING.pattern})(:?) ?(.*)", re.S)
_PART = re.compile(r"(\w+)(?: (.*))?", re.S)
MOST_DIMS = 64  # dims of a numpy array
_LONGEST = 2000  # characters of a type with that many dims
_HELP = "save the program again: compiled.save(path)"


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """One argument or result: name, path, global and local type, sharding, layout and memory."""

    name: str
    type: TensorType
    local: TensorType
    sharding: Sharding | None = None
    layout: tuple[int, ...] | None = None  # minor-to-major dims; None: row-major
    memory: str = DEVICE
    donated: bool = False
    weak: bool = False  # weakly typed, from a Python scalar
    logical: str = ""  # the dtype shown by JAX: key<fry>, float0
    attrs: Attrs = ()  # metadata of a front end

    def __str__(self) -> str:
        """One line of a signature, without its first word."""
        parts = [f"{json.dumps(self.name)}: {self.type}"]
        if self.local is not self.type:  # types are interned
            parts.append(f"local {self.local}")
        if self.sharding is not None:
            parts.append(f"sharding {self.sharding.body()}")
        if self.layout is not None:
            parts.append(f"layout [{', '.join(map(str, self.layout))}]")
        if self.memory != DEVICE:
            parts.append(f"memory {json.dumps(self.memory)}")
        parts += [word for word in ("donated", "weak") if getattr(self, word)]
        if self.logical:
            parts.append(f"logical {json.dumps(self.logical)}")
        parts += [f"attr {json.dumps(name)} {json.dumps(text)}" for name, text in self.attrs]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the compiled function, in order.

    A static value is part of the program. It is stored if it has a literal form, so that a call
    with another value is refused.
    """

    name: str  # "" if positional-only
    how: How = "position"  # passed by keyword at compile time
    value: Value = None
    is_known: bool = False  # whether a static value is stored

    def __str__(self) -> str:
        words = [json.dumps(self.name)]
        if self.how != "position":
            words.append(self.how)
        if self.is_known:
            words.append(literal_text(self.value))
        return " ".join(words)


@dataclass(frozen=True)
class Signature:
    """The calling convention of an executable: parameters, values, structures and meshes."""

    name: str
    mesh: Mesh  # mesh of all devices
    takes: Structure  # (positional tuple, keyword dict)
    gives: Structure
    arguments: tuple[ValueSpec, ...]
    results: tuple[ValueSpec, ...]
    parameters: tuple[Parameter, ...] = ()
    meshes: tuple[tuple[str, Mesh], ...] = ()  # meshes named by shardings
    narrows: bool = False  # narrows 64-bit arrays to 32 bits, as JAX does by default

    def __str__(self) -> str:
        """The text that `parse_signature` reads."""
        lines = [
            f"signature {json.dumps(self.name)}",
            f"devices {self.mesh}",
            *[f"mesh {json.dumps(name)} {mesh}" for name, mesh in self.meshes],
            *(["narrows"] if self.narrows else []),
            *[f"parameter {parameter}" for parameter in self.parameters],
            f"takes {self.takes}",
            f"gives {self.gives}",
            *[f"argument {spec}" for spec in self.arguments],
            *[f"result {spec}" for spec in self.results],
        ]
        return "".join([f"{line}\n" for line in lines])

    @cached_property
    def is_positional(self) -> bool:
        """Whether every parameter is positional."""
        return all(parameter.how == "position" for parameter in self.parameters)

    @cached_property
    def names(self) -> dict[str, int]:
        """The parameters that have names."""
        return {p.name: n for n, p in enumerate(self.parameters) if p.name}

    def check(self) -> Signature:
        """Raise if the parts are inconsistent; returns the signature."""
        self._check_structure()
        meshes = dict(self.meshes)
        for word, specs in (("argument", self.arguments), ("result", self.results)):
            for spec in specs:
                if problem := _problem(spec, meshes, self.mesh):
                    raise _wrong(f"{word} {spec.name} {problem}")
        return self

    def _check_structure(self) -> None:
        """Check parameter and leaf counts against the structures."""
        takes = self.takes
        kinds = [part.kind for part in takes.parts]
        if takes.kind != "tuple" or kinds != ["tuple", "dict"]:
            raise _wrong("`takes` is not a pair of positional and keyword arguments")
        positional, keywords = takes.parts
        names = [p.name for p in self.parameters if p.name]
        if not all(isinstance(key, str) for key in keywords.keys) or len({*names}) < len(names):
            raise _wrong("parameter names are not distinct identifiers")
        by_position = [p for p in self.parameters if p.how == "position"]
        named = {p.name for p in self.parameters if p.how == "keyword"}
        if len(by_position) != len(positional.parts) or not named <= {*keywords.keys}:
            raise _wrong(f"{len(self.parameters)} parameters do not fit {takes}"[:200])
        counts = (takes.leaves, self.gives.leaves)
        if counts != (len(self.arguments), len(self.results)):
            raise _wrong(
                f"there are {len(self.arguments)} arguments and {len(self.results)} results "
                f"for {counts[0]} and {counts[1]} leaves"
            )


def flat_signature(
    name: str,
    mesh: Mesh,
    arguments: Sequence[ValueSpec],
    results: Sequence[ValueSpec],
    meshes: Mapping[str, Mesh] | None = None,
) -> Signature:
    """The signature of a program on flat lists of arrays."""
    inside = Structure("tuple", (flat_structure(len(arguments)), Structure("dict")))
    return Signature(
        name,
        mesh,
        inside,
        flat_structure(len(results)),
        tuple(arguments),
        tuple(results),
        (Parameter(""),) * len(arguments),
        tuple((meshes or {}).items()),
    ).check()


def _problem(spec: ValueSpec, meshes: Mapping[str, Mesh], mesh: Mesh) -> str | None:
    """The inconsistency of an argument or result, or None."""
    rank = spec.type.rank
    if spec.layout is not None and sorted(spec.layout) != [*range(rank)]:
        return f"has the layout {list(spec.layout)}, which is not a permutation of {rank} dims"
    if spec.type.dtype is not spec.local.dtype:
        return f"is of {spec.type.dtype}, but on devices of {spec.local.dtype}"
    sharding, over = spec.sharding, mesh
    if sharding is not None:
        over = sharding.resolve(meshes)
        as_sharding(replace(sharding, mesh=over), rank)
        if over.size > mesh.size:
            return f"is on {over.size} devices, but the program on {mesh.size}"
    wanted = local_shape(spec.type.sizes, sharding, over)
    if wanted != spec.local.sizes:
        return f"has pieces of {list(spec.local.sizes)}, not {list(wanted)} as its sharding says"
    return None


def _wrong(message: str) -> WeftError:
    return WeftError(f"the signature is damaged: {message}", help=_HELP)


# Text


def parse_signature(text: str) -> Signature:
    """Parse and check a signature."""
    words: dict[str, list[str]] = {word: [] for word in _WORDS}
    for number, line in enumerate(text.split("\n"), 1):
        word, _, rest = line.strip().partition(" ")
        if not word:
            continue
        if word not in words:
            raise _wrong(f"line {number} begins with {word[:30]!r}, expected {', '.join(_WORDS)}")
        words[word].append(rest)
    for word in ("signature", "devices", "takes", "gives"):
        if len(words[word]) != 1:
            raise _wrong(f"it has {len(words[word])} lines {word!r}, expected 1")
    signature = Signature(
        _line("signature", words["signature"][0], json_string),
        _line("devices", words["devices"][0], _mesh),
        _line("takes", words["takes"][0], parse_structure),
        _line("gives", words["gives"][0], parse_structure),
        tuple([_line("argument", rest, _spec) for rest in words["argument"]]),
        tuple([_line("result", rest, _spec) for rest in words["result"]]),
        tuple([_line("parameter", rest, _parameter) for rest in words["parameter"]]),
        tuple([_line("mesh", rest, _named_mesh) for rest in words["mesh"]]),
        bool(words["narrows"]),
    )
    return signature.check()


_WORDS = ("signature devices mesh narrows parameter takes gives argument result").split()


def _line(word: str, rest: str, read: Callable[[str], Any]) -> Any:
    """Parse a line; any error in it is reported with the line."""
    try:
        return read(rest)
    except WeftError as error:
        raise _wrong(f"{word} {rest[:80]}: {error.message}") from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError):
        raise _wrong(f"{word} {rest[:80]}") from None


def json_string(text: str) -> str:
    """Parse a JSON string."""
    if _STRING.fullmatch(text) is None:  # a nested list could exceed the recursion limit
        raise ValueError(text)
    string = json.loads(text)
    assert isinstance(string, str), "what is in quotes is a string"
    return string


def _mesh(text: str) -> Mesh:
    mesh = parse_mesh(text)
    _check_exact(text, str(mesh))
    return mesh


def _named_mesh(text: str) -> tuple[str, Mesh]:
    name, _, rest = _named(text)
    return name, _mesh(rest)


def _named(text: str) -> tuple[str, str, str]:
    """Split a quoted string, its colon, and the rest."""
    match = _NAMED.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return json_string(match[1]), match[2], match[3]


def _check_exact(text: str, written: str) -> None:
    """Raise unless the text round-trips: MLIR's parsers skip trailing text."""
    if written != text:
        raise WeftError(f"expected {written}"[:200], help=_HELP)


def tensor_type(text: str) -> TensorType:
    """Parse a tensor type of static shape that numpy can represent."""
    plain = text.startswith("tensor<") and len(text) <= _LONGEST
    parsed = parse_type(text) if plain else None
    if not isinstance(parsed, TensorType):
        raise ValueError(text)
    _check_exact(text, str(parsed))
    # numpy checks the element count of an empty array without its dims of size 0.
    elements = math.prod([size or 1 for size in parsed.sizes])
    if parsed.rank > MOST_DIMS or elements * parsed.dtype.numpy.itemsize > sys.maxsize:
        raise ValueError(text)
    return parsed


def _sharding(text: str) -> Sharding:
    sharding = parse_sharding(text)
    _check_exact(text, sharding.body())
    return sharding


def _layout(text: str) -> tuple[int, ...]:
    if text[:1] != "[" or text[-1:] != "]":
        raise ValueError(text)
    return tuple([int(part) for part in split(text[1:-1])])


_READ: dict[str, Callable[[str], Any]] = {
    "local": tensor_type,
    "sharding": _sharding,
    "layout": _layout,
    "memory": json_string,
    "logical": json_string,
}


def _spec(text: str) -> ValueSpec:
    name, colon, rest = _named(text)
    first, *parts = split(rest)
    type = tensor_type(first)
    fields: dict[str, Any] = {"local": type}
    attrs: list[tuple[str, str]] = []
    for part in parts:
        match = _PART.fullmatch(part)
        word, value = (match[1], match[2]) if match else ("", None)
        if word == "attr" and value is not None:
            key, _, held = _named(value)
            attrs.append((key, json_string(held)))
        elif word in _READ and value is not None:
            fields[word] = _READ[word](value)
        elif word in ("donated", "weak") and value is None:
            fields[word] = True
        else:
            raise WeftError(f"unknown {part[:40]!r}", help=_HELP)
    if not colon:
        raise ValueError(text)
    return ValueSpec(name, type, attrs=tuple(attrs), **fields)


def _parameter(text: str) -> Parameter:
    name, _, rest = _named(text)
    how, _, value = rest.partition(" ")
    match how, bool(value):
        case "", False:
            return Parameter(name)
        case "keyword", False:
            return Parameter(name, "keyword")
        case "static", False:
            return Parameter(name, "static")
        case "static", True:
            return Parameter(name, "static", parse_literal(value), True)
    raise ValueError(text)
