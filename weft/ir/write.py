"""Writing a module as StableHLO and sdy text that MLIR reads back.

An op's `assembly` says how its line looks: `$operands`, `$0`, `$name` of a field, `$type` of the
result, `$same` (one type if all agree) or `$signature`; a part in `[[...]]` is left out when its
field is None; `$fields` puts the fields into the dictionary of attributes. An op without one is
written in MLIR's generic form.
"""

from __future__ import annotations

import re
from functools import lru_cache

from weft.ir.attrs import STRING, SYMBOL, Attrs
from weft.ir.location import Location
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.op import Op
from weft.ir.types import Types

_FIELD = re.compile(r"\$(\w+)")
_OPTIONAL = re.compile(r"\[\[([^\[\]]*)\]\]")


def module_text(module: Module, *, locations: bool = False) -> str:
    """The module as text, its meshes first."""
    name = f" {SYMBOL.write(module.name)}" if module.name else ""
    attrs = f" attributes {_dictionary(module.attrs)}" if module.attrs else ""
    lines = [f"module{name}{attrs} {{"]
    for label, mesh in module.meshes.items():
        lines.append(f"  sdy.mesh {SYMBOL.write(label)} = {mesh}")
    for function in module.functions.values():
        lines.extend(_Writer(locations).function(function))
    lines.append("}" + (f" {module.loc}" if locations and module.loc.known else ""))
    return "\n".join(lines) + "\n"


def node_text(node: Node) -> str:
    """One node alone, its operands by number, for errors and tables."""
    return _line(node.op, node.operand_types, node.types, node.attrs, len(node.regions)) % tuple(
        [f"%{n}" for n in range(len(node.operands))]
    )


class _Writer:
    """Names the values of one function and writes its lines."""

    def __init__(self, locations: bool) -> None:
        self.names: dict[Value, str] = {}
        self.results = 0
        self.args = 0
        self.locations = locations

    def place(self, loc: Location) -> str:
        return f" {loc}" if self.locations and loc.known else ""

    def function(self, function: Function) -> list[str]:
        args = []
        shown = function.arg_attrs or ((),) * len(function.body.args)
        for value, attrs, loc in zip(
            function.body.args, shown, function.body.arg_locs, strict=True
        ):
            suffix = f" {_dictionary(attrs)}" if attrs else ""
            args.append(f"{self.argument(value)}: {value.type}{suffix}{self.place(loc)}")
        types = [
            f"{value.type}{f' {_dictionary(attrs)}' if attrs else ''}"
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
        extra = f" attributes {_dictionary(function.attrs)}" if function.attrs else ""
        name = SYMBOL.write(function.name)
        lines = [f"  func.func {visibility}{name}({', '.join(args)}){results}{extra} {{"]
        self.nodes(function.body, "    ", lines)
        lines.append(self.terminator("return", function.body, "    "))
        lines.append("  }" + self.place(function.loc))
        return lines

    def argument(self, value: Value) -> str:
        name = self.names[value] = f"%arg{self.args}"
        self.args += 1
        return name

    def nodes(self, region: Region, indent: str, lines: list[str]) -> None:
        names = self.names
        for node in region.nodes:
            operands = tuple([names[v] for v in node.operands])
            line = _line(node.op, node.operand_types, node.types, node.attrs, len(node.regions))
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
                args = ", ".join(f"{self.argument(v)}: {v.type}" for v in region.args)
                lines.append(f"{indent}^bb0({args}):")
            self.nodes(region, inner, lines)
            lines.append(self.terminator(word, region, inner))

    def terminator(self, word: str, region: Region, indent: str) -> str:
        place = self.place(region.loc)
        if not region.results:
            return f"{indent}{word}{place}"
        names = ", ".join([self.names[v] for v in region.results])
        return f"{indent}{word} {names} : {', '.join(str(v.type) for v in region.results)}{place}"


@lru_cache(maxsize=65536)
def _line(op: Op, operands: Types, results: Types, attrs: Attrs, regions: int) -> str:
    """An op's line with `%s` for every operand, and a NUL where regions go."""
    if op.assembly is not None and not regions:
        return _pretty(op, op.assembly, operands, results, attrs)
    inherent = op.attributes()
    properties = f" <{_dictionary(inherent)}>" if inherent else ""
    extra = f" {_dictionary(attrs)}" if attrs else ""
    names = ", ".join(["%s"] * len(operands))
    head = f'"{op.name}"({names}){_percent(properties)}'
    tail = f"{extra} : {_signature(operands, results)}"
    if regions:
        return f"{head} \0{tail}"  # the tail is not formatted: no escape
    return head + _percent(tail)


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
    extra = f" {_percent(_dictionary(attrs))}" if attrs else ""
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


def _dictionary(attrs: Attrs) -> str:
    shown = []
    for name, value in attrs:
        key = name if re.fullmatch(r"[A-Za-z_][\w.$]*", name) else STRING.write(name)
        shown.append(key if value == "unit" else f"{key} = {value}")
    return f"{{{', '.join(shown)}}}"
