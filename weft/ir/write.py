"""Writing a module as StableHLO and sdy text that MLIR reads back.

An op's `assembly` is the template of its line: `$operands`, `$0`, `$name` of a field, `$type` of
the result, `$same` (one type if all agree) or `$signature`; a part in `[[...]]` is left out when
its field is None; `$fields` puts the fields into the dictionary of attributes. An op without one is
written in MLIR's generic form.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from weft.ir.attrs import STRING, SYMBOL, Attrs
from weft.ir.location import Location
from weft.ir.names import SHARDING
from weft.ir.op import Op
from weft.ir.types import TensorType, Types
from weft.mesh import DimSharding, Mesh, Sharding

if TYPE_CHECKING:  # the value that text starts from
    from weft.ir.module import Function, Module, Node, Region, Value

SHARDINGS = "sharding"  # the side table written as attributes
_OWN = {"sharding", "out_sharding", "out_shardings"}  # fields of ops that hold their own shardings
_FIELD = re.compile(r"\$(\w+)")
_OPTIONAL = re.compile(r"\[\[([^\[\]]*)\]\]")


def module_text(module: Module, *, locations: bool = False) -> str:
    """The module as text, its meshes first."""
    name = f" {SYMBOL.write(module.name)}" if module.name else ""
    attrs = f" attributes {attributes_text(module.attrs)}" if module.attrs else ""
    lines = [f"module{name}{attrs} {{"]
    for label, mesh in module.meshes.items():
        lines.append(f"  sdy.mesh {SYMBOL.write(label)} = {mesh}")
    table = module.tables.get(SHARDINGS)
    shardings = _Shardings(table) if table else None
    composites = Composites(module.functions)
    for function in module.functions.values():
        lines.extend(_Writer(locations, shardings, composites).function(function))
    for function in composites.functions(module.meshes):
        lines.extend(_Writer(locations).function(function))
    lines.append("}" + (f" {module.loc}" if locations else ""))
    return "\n".join(lines) + "\n"


def node_text(node: Node) -> str:
    """One node alone, its operands by number, for errors and tables."""
    line = _line(node.op, node.operand_types, node.types, node.attrs, len(node.regions))
    head, regions, tail = line.partition("\0")
    names = tuple([f"%{n}" for n in range(len(node.operands))])
    return head % names + (f"{{...}}{tail}" if regions else "")


def generic_lines(
    node: Node, constants: Sequence[Node] = (), outside: Sequence[Value] = ()
) -> list[str]:
    """A node with its regions in MLIR's generic form, which `read_node` reads without MLIR.

    Its operands are %arg0, %arg1 ..., and so are, after these, the values from `outside` that its
    regions read; the constants that they read stand before it.
    """
    writer = _Writer(False, generic=True)
    for value in (*node.operands, *outside):
        writer.argument(value)
    lines: list[str] = []
    writer.nodes((*constants, node), "    ", lines)
    return lines


def generic_function(function: Function) -> list[str]:
    """A function in MLIR's generic form, which `read_module` reads without MLIR."""
    writer, body = _Writer(False, generic=True), function.body
    name, type = STRING.write(function.name), _signature(function.arg_types, function.result_types)
    lines = [f'"func.func"() <{{function_type = {type}, sym_name = {name}}}> ({{']
    if body.args:
        lines.append(f"^bb0({', '.join([f'{writer.argument(v)}: {v.type}' for v in body.args])}):")
    writer.nodes(body.nodes, "  ", lines)
    return [*lines, writer.terminator("func.return", body, "  "), "}) : () -> ()"]


def value_names(function: Function) -> dict[Value, str]:
    """The name that a function's text gives every value: `%arg0`, `%3`, `%4#1`."""
    writer = _Writer(False)
    writer.function(function)
    return writer.names


class _Shardings:
    """The side table of shardings as attributes, with their texts cached."""

    def __init__(self, table: Mapping[Value, object]) -> None:
        self.table = table
        self.made: dict[tuple[object, ...], Attrs] = {}

    def of_node(self, node: Node) -> Attrs:
        """A node's attributes and the shardings of its results."""
        shardings = [self.table.get(v) for v in node.results]
        if not any(shardings):
            return node.attrs
        if holds_shardings(type(node.op)):
            return node.attrs
        # By identity: the table keeps its shardings alive, and hashing them would cost more than
        # the text.
        key = (node.attrs, *map(id, shardings))
        attrs = self.made.get(key)
        if attrs is None:
            bodies = ", ".join(s.body() for s in _filled(shardings, node.types))
            text = f"#sdy.sharding_per_value<[{bodies}]>"
            attrs = self.made[key] = tuple(sorted((*node.attrs, (SHARDING, text))))
        return attrs

    def of_argument(self, value: Value, attrs: Attrs) -> Attrs:
        """An argument's attributes and its sharding."""
        sharding = self.table.get(value)
        return attrs if sharding is None else tuple(sorted((*attrs, (SHARDING, str(sharding)))))


@cache
def holds_shardings(op: type[Op]) -> bool:
    """Whether an op has the shardings of its results in a field of its own."""
    return not _OWN.isdisjoint(op.codecs)


def _filled(shardings: list[object], types: Types) -> list[Sharding]:
    """Shardings for all results of an op if one has a sharding; the others get an open one."""
    known = next(s for s in shardings if isinstance(s, Sharding))
    filled = []
    for sharding, type in zip(shardings, types, strict=True):
        if not isinstance(sharding, Sharding):
            rank = type.rank if isinstance(type, TensorType) else 0
            sharding = Sharding(known.mesh, (DimSharding(),) * rank)
        filled.append(sharding)
    return filled


class Composites:
    """The ops that are written as composites, and the names of their decompositions."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self.taken = taken
        self.names: dict[tuple[object, ...], str] = {}
        self.nodes: list[Node] = []  # the first of each name

    def name(self, node: Node) -> str:
        """The name of the function that a node's op decomposes into."""
        op, operands = node.op, node.operand_types
        key = (op, operands, *[self.region_text(region) for region in node.regions])
        name = self.names.get(key)
        if name is None:
            numbers = itertools.count(len(self.names))
            name = next(n for i in numbers if (n := f"{op.name}.{i}") not in self.taken)
            self.names[key] = name
            self.nodes.append(node)
        return name

    def region_text(self, region: Region) -> str:
        """The text of a region without free variables, an equality key."""
        writer = _Writer(False, None, self)
        names = [writer.argument(value) for value in region.args]
        lines = [", ".join(names)]
        writer.nodes(region.nodes, "", lines)
        return "\n".join([*lines, writer.terminator("return", region, "")])

    def line(self, node: Node, attrs: Attrs) -> str:
        """A node's line, with `%s` for every operand, and a NUL where regions go."""
        op, operands = node.op, node.operand_types
        inherent = (
            ("composite_attributes", attributes_text(op.attributes())),
            ("decomposition", SYMBOL.write(self.name(node))),
            ("name", STRING.write(op.name)),
        )
        names = ", ".join(["%s"] * len(operands))
        extra = f" {attributes_text(attrs)}" if attrs else ""
        head = f'"stablehlo.composite"({names}){_percent(f" <{attributes_text(inherent)}>")}'
        tail = f"{extra} : {_signature(operands, node.types)}"
        return f"{head} \0{tail}" if node.regions else head + _percent(tail)

    def functions(self, meshes: Mapping[str, Mesh]) -> Iterator[Function]:
        """The decompositions named so far, as private functions."""
        for node, name in zip(self.nodes, self.names.values(), strict=True):
            extra = {"regions": node.regions} if node.regions else {}
            yield node.op.decomposition(  # type: ignore[attr-defined]
                name, node.operand_types, meshes, **extra
            )


class _Writer:
    """Names the values of one function and writes its lines."""

    def __init__(
        self,
        locations: bool,
        shardings: _Shardings | None = None,
        composites: Composites | None = None,
        *,
        generic: bool = False,
    ) -> None:
        self.generic = generic  # no assembly and no composite
        self.shardings = shardings
        self.composites = composites or Composites()
        self.names: dict[Value, str] = {}
        self.results = 0
        self.args = 0
        self.locations = locations

    def place(self, loc: Location) -> str:
        # Unknown locations, too: MLIR's parser would put the position in this text in their place.
        return f" {loc}" if self.locations else ""

    def function(self, function: Function) -> list[str]:
        args = []
        shown = function.arg_attrs or ((),) * len(function.body.args)
        for value, attrs, loc in zip(
            function.body.args, shown, function.body.arg_locs, strict=True
        ):
            if self.shardings:
                attrs = self.shardings.of_argument(value, attrs)
            suffix = f" {attributes_text(attrs)}" if attrs else ""
            args.append(f"{self.argument(value)}: {value.type}{suffix}{self.place(loc)}")
        types = [
            f"{value.type}{f' {attributes_text(attrs)}' if attrs else ''}"
            for value, attrs in zip(
                function.body.results,
                function.res_attrs or ((),) * len(function.body.results),
                strict=True,
            )
        ]
        single = len(types) == 1 and not any(function.res_attrs)
        listed = types[0] if single else f"({', '.join(types)})"
        results = f" -> {listed}" if types else ""
        visibility = f"{function.visibility} " if function.visibility else ""
        extra = f" attributes {attributes_text(function.attrs)}" if function.attrs else ""
        name = SYMBOL.write(function.name)
        lines = [f"  func.func {visibility}{name}({', '.join(args)}){results}{extra} {{"]
        self.nodes(function.body.nodes, "    ", lines)
        lines.append(self.terminator("return", function.body, "    "))
        lines.append("  }" + self.place(function.loc))
        return lines

    def argument(self, value: Value) -> str:
        name = self.names[value] = f"%arg{self.args}"
        self.args += 1
        return name

    def nodes(self, nodes: Sequence[Node], indent: str, lines: list[str]) -> None:
        names = self.names
        shardings = self.shardings
        for node in nodes:
            operands = tuple([names[v] for v in node.operands])
            attrs = shardings.of_node(node) if shardings else node.attrs
            if node.op.composite and not self.generic:
                line = self.composites.line(node, attrs)
            else:
                # Equal ops on equal types have one line: it is formatted once.
                types, count = (node.operand_types, node.types), len(node.regions)
                line = _line(node.op, *types, attrs, count, self.generic)
            prefix = indent
            if node.results:
                prefix += self.define(node)
            if not node.regions:
                lines.append(prefix + line % operands + self.place(node.loc))
                continue
            head, tail = line.split("\0")
            lines.append(prefix + head % operands + "({")
            self.regions(node, indent, lines)
            lines.append(f"{indent}}}){tail}{self.place(node.loc)}")

    def define(self, node: Node) -> str:
        name = f"%{self.results}"
        self.results += 1
        if len(node.results) == 1:
            self.names[node.results[0]] = name
            return f"{name} = "
        for value in node.results:
            self.names[value] = f"{name}#{value.index}"
        return f"{name}:{len(node.results)} = "

    def regions(self, node: Node, indent: str, lines: list[str]) -> None:
        inner = indent + "  "
        word = "sdy.return" if node.op.name.startswith("sdy.") else "stablehlo.return"
        for number, region in enumerate(node.regions):
            if number:
                lines.append(f"{indent}}}, {{")
            if region.args:
                pairs = zip(region.args, region.arg_locs, strict=True)
                args = [f"{self.argument(v)}: {v.type}{self.place(loc)}" for v, loc in pairs]
                lines.append(f"{indent}^bb0({', '.join(args)}):")
            self.nodes(region.nodes, inner, lines)
            lines.append(self.terminator(word, region, inner))

    def terminator(self, word: str, region: Region, indent: str) -> str:
        place = self.place(region.loc)
        names = ", ".join([self.names[v] for v in region.results])
        if self.generic:
            return f'{indent}"{word}"({names}) : {_signature(region.body.results, ())}{place}'
        if not region.results:
            return f"{indent}{word}{place}"
        return f"{indent}{word} {names} : {', '.join(str(v.type) for v in region.results)}{place}"


def _line(
    op: Op, operands: Types, results: Types, attrs: Attrs, regions: int, generic: bool = False
) -> str:
    """An op's line with `%s` for every operand, and a NUL where regions go."""
    make = _known_line if operands else _new_line  # constants are not cached: they may be large
    return make(op, operands, results, attrs, regions, generic)


def _new_line(
    op: Op, operands: Types, results: Types, attrs: Attrs, regions: int, generic: bool
) -> str:
    if op.assembly is not None and not regions and not generic:
        return _pretty(op, op.assembly, operands, results, attrs)
    inherent = op.attributes()
    properties = f" <{attributes_text(inherent)}>" if inherent else ""
    extra = f" {attributes_text(attrs)}" if attrs else ""
    names = ", ".join(["%s"] * len(operands))
    head = f'"{op.name}"({names}){_percent(properties)}'
    tail = f"{extra} : {_signature(operands, results)}"
    if regions:
        return f"{head} \0{tail}"  # the tail is not a format string: no escape
    return head + _percent(tail)


_known_line = lru_cache(maxsize=65536)(_new_line)


def _pretty(op: Op, assembly: str, operands: Types, results: Types, attrs: Attrs) -> str:
    def shown(match: re.Match[str]) -> str:
        name = match[1]
        if name == "operands":
            return ", ".join(["%s"] * len(operands))
        if name.isdigit():
            return "%s"
        if name == "type":
            return _percent(str(results[0]))
        if name == "types":
            return _percent(", ".join(map(str, operands)))
        if name == "signature":
            return _percent(_signature(operands, results))
        if name == "same":
            alike = len({*operands, *results}) == 1
            return _percent(str(results[0]) if alike else _signature(operands, results))
        return _percent(_plain(getattr(op, name)))

    def optional(match: re.Match[str]) -> str:
        names = _FIELD.findall(match[1])
        return match[1] if all(getattr(op, n) not in (None, ()) for n in names) else ""

    if "$fields" in assembly:
        assembly, attrs = assembly.replace("$fields", ""), tuple(sorted(op.attributes() + attrs))
    head, colon, tail = _OPTIONAL.sub(optional, assembly).partition(" : ")
    extra = f" {_percent(attributes_text(attrs))}" if attrs else ""
    if not colon:  # the attributes come first, and a field's own text ends the line
        return f"{op.name}{extra} {_FIELD.sub(shown, head)}"
    space = "" if head.startswith("(") or not head else " "
    return f"{op.name}{space}{_FIELD.sub(shown, head)}{extra} : {_FIELD.sub(shown, tail)}"


def _plain(value: object) -> str:
    """A field's value inside a pretty line."""
    if isinstance(value, tuple):
        return f"[{', '.join(_plain(v) for v in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _percent(text: str) -> str:
    return text.replace("%", "%%")


def _signature(operands: Types, results: Types) -> str:
    left = ", ".join(map(str, operands))
    right = ", ".join(map(str, results))
    return f"({left}) -> {right if len(results) == 1 else f'({right})'}"


def attributes_text(attrs: Attrs) -> str:
    """`{name = value, unit}`."""
    shown = []
    for name, value in attrs:
        key = name if re.fullmatch(r"[A-Za-z_][\w.$]*", name) else STRING.write(name)
        shown.append(key if value == "unit" else f"{key} = {value}")
    return f"{{{', '.join(shown)}}}"
