"""Reading MLIR's generic text form into a module, one node per op.

The heart is one regular expression a line and one dictionary look-up: what stands between an op's
operands and its location (attributes and types) is few distinct texts in a deep program, so each is
taken apart once.
"""

from __future__ import annotations

import difflib
import gc
import re
from collections.abc import Mapping
from dataclasses import dataclass

from weft.errors import Unsupported, WeftError
from weft.ir.attrs import STRING, Attrs
from weft.ir.location import UNKNOWN, Location
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.op import Op, infer, read_op
from weft.ir.scan import balanced, dictionary, items, parse_signature, parse_type, split
from weft.ir.types import Types
from weft.mesh import Mesh, parse_mesh

_HEAD = r'[ \n]*(?:(%[\w$.-]+)(?::\d+)? = )?"([^"]+)"\(([^)]*)\)'
_LINE = re.compile(_HEAD + r"([^\n]*) loc\((#loc\d*)\)\n")
_OPEN = re.compile(_HEAD)
_BLOCK = re.compile(r"[ \n]*\^\w+(?:\(([^\n]*)\))?:[^\n]*\n")
_CLOSE = re.compile(r"[ \n]*\}")
_LOC = re.compile(r" ?loc\(")
_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.M)
_DEFINED = re.compile(r"^(#[A-Za-z_]\w*) = (?!loc\()(.*)$", re.M)
_ALIAS_USE = re.compile(r"#loc\d*")
_ARG = re.compile(r"(%[\w$.-]+): ")
_SYMBOL_KEYS = ("sym_name", "function_type", "sym_visibility", "arg_attrs", "res_attrs")
TERMINATORS = ("func.return", "stablehlo.return", "sdy.return", "chlo.return", "mhlo.return")


@dataclass(slots=True)
class _Parsed:
    """What stands behind an op's operands: the op, its types, and other attributes."""

    op: Op
    operands: Types
    results: Types
    attrs: Attrs


def read_module(text: str, ops: Mapping[str, type[Op]], file: str | None = None) -> Module:
    """Read a module from generic text; `file` names the text that locations point into."""
    enabled = gc.isenabled()
    gc.disable()  # a program is many small objects that all stay
    try:
        return _Reader(text, ops, file).module()
    except RecursionError:
        raise Unsupported(
            "regions are nested too deeply to be read", help="flatten the program's control flow"
        ) from None
    finally:
        if enabled:
            gc.enable()


class _Reader:
    def __init__(self, text: str, ops: Mapping[str, type[Op]], file: str | None) -> None:
        self.text = text if text.endswith("\n") else text + "\n"
        self.ops = ops
        self.position = 0
        self.tails: dict[tuple[str, str], _Parsed] = {}
        self.locations: dict[str, Location] = {}
        self.file = file
        self.aliases = self.read_aliases()

    def read_aliases(self) -> dict[str, str]:
        """The location aliases; attribute aliases (`#map = ...`) are written out in the text."""
        before = self.text[: max(0, self.text.find('"builtin.module"'))]
        after = self.text[self.text.rfind("\n})") :]
        defined = dict(_DEFINED.findall(before))
        for name in sorted(defined, key=len, reverse=True):
            written = defined[name].replace("\\", r"\\")
            self.text = re.sub(rf"{name}\b(?! = )", written, self.text)
        return dict(_ALIAS.findall(before) + _ALIAS.findall(after))

    # Locations

    def location(self, text: str) -> Location:
        """The location of that text, aliases written out."""
        found = self.locations.get(text)
        if found is None:
            full = self.expand(text)
            if self.file is not None:
                full = full.replace('"-":', f'"{self.file}":')
            found = self.locations[text] = Location(full) if full != "unknown" else UNKNOWN
        return found

    def expand(self, text: str) -> str:
        """Replace every alias in a location by what it stands for."""
        return _ALIAS_USE.sub(lambda m: self.expand(self.aliases.get(m[0], "unknown")), text)

    def trailing_location(self) -> Location:
        """The location that may follow at the current position."""
        match = _LOC.match(self.text, self.position)
        if match is None:
            return UNKNOWN
        end = balanced(self.text, match.end() - 1)
        self.position = end
        return self.location(self.text[match.end() : end - 1])

    # The module and its functions

    def module(self) -> Module:
        """The whole text as one module."""
        while self.text.startswith("#", self.position):
            self.position = self.text.index("\n", self.position) + 1
        match = _OPEN.match(self.text, self.position)
        if match is None or match[2] != "builtin.module":
            raise WeftError("the text holds no module", help="expected one builtin.module")
        self.position = match.end()
        attributes = self.attributes()
        functions: dict[str, Function] = {}
        meshes: dict[str, Mesh] = {}
        self.open_region()
        while not self.closes_region():
            self.top_level(functions, meshes)
        self.expect(")")
        attributes |= self.attributes()
        self.signature()
        loc = self.trailing_location()
        name = attributes.pop("sym_name", None)
        return Module(
            functions,
            meshes,
            STRING.read(name) if name else None,
            tuple(sorted(attributes.items())),
            loc,
        )

    def top_level(self, functions: dict[str, Function], meshes: dict[str, Mesh]) -> None:
        match = _OPEN.match(self.text, self.position)
        if match is None:
            raise WeftError(f"cannot read {self.here()!r}", help="the text is damaged")
        name = match[2]
        if name == "func.func":
            function = self.function(match)
            functions[function.name] = function
        elif name == "sdy.mesh":
            self.position = match.end()
            attributes = self.attributes()
            self.signature()
            self.trailing_location()
            meshes[STRING.read(attributes["sym_name"])] = parse_mesh(attributes["mesh"])
        else:
            raise Unsupported(
                f"{name} at the top of a module",
                help="a module holds func.func and sdy.mesh only",
                loc=self.skim_location(match.end()),
            )

    def function(self, match: re.Match[str]) -> Function:
        self.position = match.end()
        attributes = self.attributes()
        self.open_region()
        body = None if self.closes_region() else self.block({})
        if body is not None:
            self.expect_close()
        self.expect(")")
        attributes |= self.attributes()
        self.signature()
        loc = self.trailing_location()
        name = STRING.read(attributes["sym_name"])
        if body is None:
            raise Unsupported(
                f"function {name!r} is declared without a body", help="give it a body", loc=loc
            )
        rest = tuple(sorted((k, v) for k, v in attributes.items() if k not in _SYMBOL_KEYS))
        return Function(
            name,
            body,
            STRING.read(attributes["sym_visibility"]) if "sym_visibility" in attributes else None,
            _attribute_list(attributes.get("arg_attrs"), len(body.args)),
            _attribute_list(attributes.get("res_attrs"), len(body.results)),
            rest,
            loc,
        )

    # Blocks and nodes

    def block(self, values: dict[str, Value]) -> Region:
        """One block: its arguments, its nodes, and the operands of its terminator.

        `values` serves a whole function: MLIR never gives two values that see each other one name.
        """
        args: list[Value] = []
        places: list[Location] = []
        header = _BLOCK.match(self.text, self.position)
        if header:
            self.position = header.end()
            for part in split(header[1] or ""):
                match = _ARG.match(part)
                assert match, f"block argument {part!r}"
                type_text, _, place = part[match.end() :].partition(" loc(")
                places.append(self.location(place[:-1]) if place else UNKNOWN)
                value = values[match[1]] = Value(parse_type(type_text), None, len(args))
                args.append(value)
        nodes: list[Node] = []
        text, tails, locations, line = self.text, self.tails, self.locations, _LINE.match
        add = nodes.append
        while True:
            match = line(text, self.position)
            if match is None:
                node = self.node_with_regions(values)
                if isinstance(node, Node):
                    add(node)
                    continue
                return Region(tuple(args), nodes, *node, tuple(places))
            result, name, operands, tail, place = match.groups()
            loc = locations.get(place) or self.location(place)
            parsed = tails.get((name, tail))
            if parsed is None:
                if name in TERMINATORS:
                    self.position = match.end()
                    returned = self.operands(values, operands)
                    return Region(tuple(args), nodes, returned, loc, tuple(places))
                parsed = self.parse_tail(name, tail, loc)
            self.position = match.end()
            node = Node(
                parsed.op,
                self.operands(values, operands) if operands else (),
                parsed.results,
                (),
                parsed.attrs,
                loc,
            )
            add(node)
            if result is not None:
                self.define(values, result, node)

    def operands(self, values: dict[str, Value], text: str) -> tuple[Value, ...]:
        if not text:
            return ()
        try:
            return tuple([values[name] for name in text.split(", ")])
        except KeyError as error:
            raise WeftError(
                f"value {error.args[0]} is not defined here",
                help="a region inside a function may read only values that stand before it",
            ) from None

    def define(self, values: dict[str, Value], name: str, node: Node) -> None:
        if len(node.results) == 1:
            values[name] = node.results[0]
        else:
            for value in node.results:
                values[f"{name}#{value.index}"] = value

    def node_with_regions(
        self, values: dict[str, Value]
    ) -> Node | tuple[tuple[Value, ...], Location]:
        """An op that the line pattern does not fit; for a terminator, its operands and location."""
        match = _OPEN.match(self.text, self.position)
        if match is None:
            raise WeftError(f"cannot read {self.here()!r}", help="the text is damaged")
        result, name, operands = match.groups()
        self.position = match.end()
        attributes = self.attributes()
        regions: list[Region] = []
        if self.text.startswith(" (", self.position):
            self.expect(" (")
            while self.text.startswith("{", self.position):
                self.position += 1
                regions.append(self.block(values))
                self.expect_close()
                if self.text.startswith(", ", self.position):
                    self.position += 2
            self.expect(")")
            attributes |= self.attributes()
        operand_types, result_types = self.signature()
        loc = self.trailing_location()
        if name in TERMINATORS:
            return self.operands(values, operands), loc
        parsed = self.make(name, attributes, operand_types, result_types, loc, tuple(regions))
        node = Node(
            parsed.op,
            self.operands(values, operands),
            parsed.results,
            tuple(regions),
            parsed.attrs,
            loc,
        )
        if result is not None:
            self.define(values, result, node)
        return node

    def parse_tail(self, name: str, tail: str, loc: Location) -> _Parsed:
        """Take apart what stands behind the operands of an op without regions, once."""
        text, position, self.text, self.position = self.text, self.position, tail, 0
        try:
            attributes = self.attributes()
            operand_types, result_types = self.signature()
        finally:
            self.text, self.position = text, position
        parsed = self.make(name, attributes, operand_types, result_types, loc, ())
        self.tails[name, tail] = parsed
        return parsed

    def make(
        self,
        name: str,
        attributes: dict[str, str],
        operands: Types,
        results: Types,
        loc: Location,
        regions: tuple[Region, ...],
    ) -> _Parsed:
        """Build the op and check its types."""
        cls = self.ops.get(name)
        try:
            if cls is None:
                raise unknown_op(name, self.ops)
            op, attrs = read_op(cls, attributes, results)
            check_types(op, operands, results, regions)
        except WeftError as error:
            listed = ", ".join(map(str, operands))
            given = ", ".join(map(str, results))
            raise error.at(loc, f"{name}({listed}) -> {given or '()'}") from None
        return _Parsed(op, operands, results, attrs)

    # Pieces of syntax

    def attributes(self) -> dict[str, str]:
        """The dictionaries that may follow: properties `<{...}>` and attributes `{...}`."""
        found: dict[str, str] = {}
        for opening, inset in ((" <{", 2), (" {", 1)):
            if self.text.startswith(opening, self.position):
                end = balanced(self.text, self.position + 1)
                body = self.text[self.position + inset : end - inset + 1]
                found |= dictionary(body)
                self.position = end
        return found

    def signature(self) -> tuple[Types, Types]:
        """` : (a) -> b`."""
        self.expect(" : ")
        start = self.position
        end = balanced(self.text, start)
        self.expect_at(end, " -> ")
        end += 4
        if self.text.startswith("(", end):
            end = balanced(self.text, end)
        else:
            stop = re.compile(r" loc\(|\n|$").search(self.text, end)
            assert stop
            end = stop.start()
        self.position = end
        return parse_signature(self.text[start:end])

    def open_region(self) -> None:
        self.expect(" ({")

    def closes_region(self) -> bool:
        match = _CLOSE.match(self.text, self.position)
        if match:
            self.position = match.end()
        return match is not None

    def expect_close(self) -> None:
        if not self.closes_region():
            raise Unsupported(
                "a region of several blocks",
                help="write branches with stablehlo.if, case or while",
                loc=self.skim_location(self.position),
            )

    def expect(self, text: str) -> None:
        self.expect_at(self.position, text)
        self.position += len(text)

    def expect_at(self, position: int, text: str) -> None:
        if not self.text.startswith(text, position):
            raise WeftError(
                f"expected {text!r} before {self.text[position : position + 40]!r}",
                help="the text is not in MLIR's generic form",
            )

    def skim_location(self, position: int) -> Location:
        found = re.compile(r"loc\((#loc\d*)\)").search(self.text, position)
        return self.location(found[1]) if found else UNKNOWN

    def here(self) -> str:
        return self.text[self.position : self.position + 60].strip()


def check_types(op: Op, operands: Types, results: Types, regions: tuple[Region, ...] = ()) -> None:
    """Refuse operands that do not fit the op, and result types that do not follow from them."""
    if op.regions is not None and len(regions) != op.regions:
        raise WeftError(f"{op.name}: has {len(regions)} regions", help=f"it takes {op.regions}")
    expected = infer(op, operands, tuple([region.body for region in regions]))
    if expected != results:
        given = ", ".join(map(str, results)) or "()"
        right = ", ".join(map(str, expected)) or "()"
        raise WeftError(
            f"{op.name}: the result type is {given}, but {right} follows from the operands",
            help="correct the type, or the operands",
        )


def unknown_op(name: str, ops: Mapping[str, type[Op]]) -> WeftError:
    """An op that Weft does not know, with the nearest names that it does."""
    near = difflib.get_close_matches(name, ops, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`weft ops` lists the known ones"
    return Unsupported(f"unknown op {name!r}", help=hint)


def _attribute_list(text: str | None, count: int) -> tuple[Attrs, ...]:
    if text is None:
        return ((),) * count
    return tuple(tuple(sorted(dictionary(part).items())) for part in items(text))
