"""Reading MLIR's generic text form into a module, one node per op.

MLIR prints an op a line: `%2 = "name"(%0, %1) <{properties}> : (a, b) -> c loc(#loc3)`. The
text after the operands repeats often in a deep program, so each distinct one is parsed once, and
most lines cost a few string partitions and two dictionary look-ups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from weft.errors import Unsupported, WeftError
from weft.ir.attrs import STRING, Attrs
from weft.ir.gc_pause import building
from weft.ir.location import UNKNOWN, Location
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.op import Op, infer, read_op
from weft.ir.scan import balanced, dictionary, items, parse_signature, parse_type, split
from weft.ir.types import Type, Types
from weft.mesh import Mesh, parse_mesh
from weft.records import dataclass

_OP = re.compile(r'\s*(?:(%[\w$.-]+)(?::\d+)? = )?"([^"]+)"\(([^)]*)\)(.*)')
_BLOCK = re.compile(r"\s*\^\w+(?:\((.*)\))?:(?: *//.*)?")
_LOC = re.compile(r" ?loc\(")
_PLACE = re.compile(r"#loc\d*\)")
_ALIAS = re.compile(r"(#loc\d*) = loc\((.*)\)")
_DEFINED = re.compile(r"^(#[A-Za-z_]\w*) = (?!loc\()(.*)$", re.M)
_ALIAS_USE = re.compile(r"#loc\d*")
_ARG = re.compile(r"%[\w$.-]+(?=: )")
_RESULT_END = re.compile(r" loc\(|$")
# Attributes of a func.func that are fields of Function.
_SYMBOL_KEYS = ("sym_name", "function_type", "sym_visibility", "arg_attrs", "res_attrs")
TERMINATORS = ("func.return", "stablehlo.return", "sdy.return", "chlo.return", "mhlo.return")


@dataclass(slots=True)
class _Parsed:
    """The parsed text after an op's operands: the op, its types, and its other attributes."""

    op: Op
    operands: Types
    results: Types
    attrs: Attrs


class _Values(dict[str, Value]):
    """The values of a function by their names in the text, `%1`, or `%1#0` of several results."""

    def define(self, name: str, results: tuple[Value, ...]) -> None:
        """Give the results of a node their names."""
        if len(results) == 1:
            self[name] = results[0]
        else:
            name = name.partition(":")[0]
            self.update({f"{name}#{value.index}": value for value in results})

    def __missing__(self, name: str) -> Value:
        raise WeftError(
            f"value {name} is not defined here",
            help="a region inside a function may read only values that stand before it",
        )


def read_module(text: str, ops: Mapping[str, type[Op]], file: str | None = None) -> Module:
    """Read a module from generic text; `file` names the text that locations point into."""
    try:
        with building():
            return _Reader(text, ops, file).module()
    except RecursionError:
        raise Unsupported(
            "regions are nested too deeply to be read", help="flatten the program's control flow"
        ) from None


def read_node(text: str, operands: Types, ops: Mapping[str, type[Op]]) -> tuple[Node, ...]:
    """A node in generic form with operands %arg0, %arg1 ..., after the constants that it reads."""
    args = ", ".join([f"%arg{n}: {type}" for n, type in enumerate(operands)])
    block = f"^bb0({args}):\n" if operands else ""
    opening = f'"builtin.module"() ({{\n"func.func"() <{{sym_name = "main"}}> ({{\n{block}'
    closing = '\n"func.return"() : () -> ()\n}) : () -> ()\n}) : () -> ()\n'
    return tuple(read_module(opening + text + closing, ops).function("main").body.nodes)


class _Reader:
    def __init__(self, text: str, ops: Mapping[str, type[Op]], file: str | None) -> None:
        self.ops = ops
        self.file = file
        lines = _without_attribute_aliases(text).split("\n")
        found = [_ALIAS.fullmatch(line) for line in lines if line.startswith("#loc")]
        self.aliases = {match[1]: match[2] for match in found if match}
        self.lines = [line for line in lines if line and not line.startswith("#")]
        self.lines.append("")  # a sentinel that matches nothing
        self.at = 0
        self.tails: dict[tuple[str, str], _Parsed] = {}
        self.places: dict[str, Location] = {}  # by the text after `loc(`
        self.locations: dict[str, Location] = {}
        self.headers: dict[str, list[tuple[Type, Location]]] = {}

    def next_line(self) -> str:
        line = self.lines[self.at]
        if not line:
            raise WeftError("the text ends too early", help="the text is cut off")
        self.at += 1
        return line

    # Locations

    def location(self, text: str) -> Location:
        """The location of a text, with aliases expanded."""
        loc = self.locations.get(text)
        if loc is None:
            full = self.expand(text)
            if self.file is not None:
                # MLIR's name for a text without a file.
                full = full.replace('"-":', f'"{self.file}":')
            loc = self.locations[text] = Location(full) if full != "unknown" else UNKNOWN
        return loc

    def expand(self, text: str) -> str:
        """Expand every alias in a location."""
        return _ALIAS_USE.sub(lambda m: self.expand(self.aliases.get(m[0], "unknown")), text)

    def place(self, text: str) -> Location | None:
        """The location at the end of a line, from the text after `loc(`, if that is an alias."""
        if _PLACE.fullmatch(text) is None:
            return None
        found = self.places[text] = self.location(text[:-1])
        return found

    # The module and its functions

    def module(self) -> Module:
        """The whole text as one module."""
        match = _OP.match(self.lines[0])
        if match is None or match[2] != "builtin.module":
            raise WeftError("the text holds no module", help="expected one builtin.module")
        self.at = 2 if _BLOCK.fullmatch(self.lines[1]) else 1  # an empty module has a bare block
        functions: dict[str, Function] = {}
        meshes: dict[str, Mesh] = {}
        while not self.lines[self.at].startswith("}"):
            self.top_level(functions, meshes)
        attributes, _, loc = self.around(match[4], self.next_line())
        name = attributes.pop("sym_name", None)
        return Module(
            functions,
            meshes,
            STRING.read(name) if name else None,
            tuple(sorted(attributes.items())),
            loc,
        )

    def top_level(self, functions: dict[str, Function], meshes: dict[str, Mesh]) -> None:
        line = self.next_line()
        match = _OP.match(line)
        if match is None:
            raise _unreadable(line)
        name = match[2]
        if name == "func.func":
            function = self.function(match[4])
            functions[function.name] = function
        elif name == "sdy.mesh":
            attributes, _, _ = self.behind(match[4])
            meshes[STRING.read(attributes["sym_name"])] = parse_mesh(attributes["mesh"])
        else:
            raise Unsupported(
                f"{name} at the top of a module",
                help="a module holds func.func and sdy.mesh only",
                loc=self.skim_location(line),
            )

    def function(self, opening: str) -> Function:
        (body, *_), closing = self.regions(_Values())
        attributes, _, loc = self.around(opening, closing)
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

    def block(self, values: _Values) -> Region:
        """One block: its arguments, its nodes, and the operands of its terminator.

        `values` is shared by a whole function: MLIR names are unique in a scope.
        """
        args, arg_locs = self.arguments(values)
        nodes: list[Node] = []
        lines, tails, places, add = self.lines, self.tails, self.places, nodes.append
        while True:
            # Operands are names only, so that the first ) ends them. What follows is looked up as a
            # whole. A line that opens regions has no location, and takes the slow path.
            body, _, place = lines[self.at].rpartition(" loc(")
            left, _, tail = body.partition(")")
            head, _, operands = left.partition('"(')
            result, _, name = head.partition('"')
            loc = places.get(place) or self.place(place)
            parsed = tails.get((name, tail))
            if loc is None or parsed is None:
                node = self.careful(values)
                if not isinstance(node, Node):
                    return Region(args, nodes, *node, arg_locs)
            else:
                self.at += 1
                sources = tuple([values[n] for n in operands.split(", ")]) if operands else ()
                node = Node(parsed.op, sources, parsed.results, (), parsed.attrs, loc)
                if result:
                    values.define(result.strip(" ="), node.results)
            add(node)

    def arguments(self, values: _Values) -> tuple[tuple[Value, ...], tuple[Location, ...]]:
        """The arguments of a block, if it begins with a line of them."""
        header = _BLOCK.fullmatch(self.lines[self.at])
        if header is None:
            return (), ()
        self.at += 1
        text = header[1] or ""
        names = _ARG.findall(text)
        key = _ARG.sub("", text)
        entries = self.headers.get(key)
        if entries is None:
            entries = self.headers[key] = [self.argument(part) for part in split(key)]
        if len(entries) != len(names):  # a location has a name, too
            names = [part.partition(":")[0] for part in split(text)]
        args = tuple([Value(type, None, n) for n, (type, _) in enumerate(entries)])
        values.update(zip(names, args, strict=True))
        return args, tuple([loc for _, loc in entries])

    def argument(self, text: str) -> tuple[Type, Location]:
        """`: type loc(...)`."""
        type_text, _, place = text.removeprefix(": ").partition(" loc(")
        return parse_type(type_text), self.location(place[:-1]) if place else UNKNOWN

    def careful(self, values: _Values) -> Node | tuple[tuple[Value, ...], Location]:
        """The slow path, for a new text or one with regions; for a terminator, its operands."""
        line = self.next_line()
        match = _OP.match(line)
        if match is None:
            raise _unreadable(line)
        result, name, operands, behind = match.groups()
        # Successors: a branch to another block.
        if behind.startswith("[^"):
            raise _several_blocks(self.skim_location(line))
        regions: tuple[Region, ...] = ()
        opening = ""
        if behind.endswith("({"):
            found, closing = self.regions(values)
            regions = tuple(region for region in found if region is not None)
            opening, behind = behind, closing
        sources = tuple([values[n] for n in operands.split(", ")]) if operands else ()
        if name in TERMINATORS:
            return sources, self.behind(behind)[2]
        parsed, loc = self.parsed(name, opening, behind, regions)
        node = Node(parsed.op, sources, parsed.results, regions, parsed.attrs, loc)
        if result is not None:
            values.define(result, node.results)
        return node

    def regions(self, values: _Values) -> tuple[list[Region | None], str]:
        """The regions of an op, None for an empty one, and the line that closes the last one."""
        regions: list[Region | None] = []
        while True:
            empty = self.lines[self.at].lstrip().startswith("}")
            regions.append(None if empty else self.block(values))
            line = self.next_line().lstrip()
            if line.startswith("})"):
                return regions, line
            if not line.startswith("}, {"):
                raise _several_blocks(self.skim_location(line))

    def parsed(
        self, name: str, opening: str, behind: str, regions: tuple[Region, ...]
    ) -> tuple[_Parsed, Location]:
        """The op of a line, or of the lines around its regions; each text is parsed once."""
        body, _, place = behind.rpartition(" loc(")
        loc = self.places.get(place) or self.place(place)
        key = (name, opening + body) if loc is not None else None
        known = self.tails.get(key) if key is not None else None
        if known is not None and loc is not None:
            operands, results = known.operands, known.results
        else:
            attributes, (operands, results), loc = self.around(opening, behind)
        try:
            if known is None:
                if name not in self.ops:
                    raise unknown_op(name, self.ops)
                op, attrs = read_op(self.ops[name], attributes, results)
                known = _Parsed(op, operands, results, attrs)
            # Regions are not in the key: an op that is known by its text is checked with each of
            # them.
            check_types(known.op, operands, results, regions)
        except WeftError as error:
            listed, given = (", ".join(map(str, types)) for types in (operands, results))
            raise error.at(loc, f"{name}({listed}) -> {given or '()'}") from None
        if key is not None:
            self.tails[key] = known
        return known, loc

    # The text after operands

    def around(
        self, opening: str, closing: str
    ) -> tuple[dict[str, str], tuple[Types, Types], Location]:
        """The attributes, types and location of an op, from the lines around its regions."""
        attributes, _ = _attributes(opening, 0)
        more, types, loc = self.behind(closing.removeprefix("})"))
        return attributes | more, types, loc

    def behind(self, text: str) -> tuple[dict[str, str], tuple[Types, Types], Location]:
        """` <{properties}> {attributes} : (a) -> b loc(...)`."""
        attributes, position = _attributes(text, 0)
        types, position = _signature(text, position)
        loc = UNKNOWN
        if match := _LOC.match(text, position):
            loc = self.location(text[match.end() : balanced(text, match.end() - 1) - 1])
        return attributes, types, loc

    def skim_location(self, line: str) -> Location:
        """The location in this line, or in the next line that has one."""
        for text in (line, *self.lines[self.at :]):
            found = self.place(text.rpartition(" loc(")[2])
            if found is not None:
                return found
        return UNKNOWN


def _without_attribute_aliases(text: str) -> str:
    """The text with aliases such as `#map = ...` expanded; locations keep theirs."""
    defined = dict(_DEFINED.findall(text[: max(0, text.find('"builtin.module"'))]))
    for name in sorted(defined, key=len, reverse=True):
        # re.sub reads backslashes in what it puts in.
        written = defined[name].replace("\\", r"\\")
        text = re.sub(rf"{name}\b(?! = )", written, text)
    return text


def _attributes(text: str, position: int) -> tuple[dict[str, str], int]:
    """The dictionaries that may follow: properties `<{...}>` and attributes `{...}`."""
    attrs: dict[str, str] = {}
    for opening, inset in ((" <{", 2), (" {", 1)):
        if text.startswith(opening, position):
            end = balanced(text, position + 1)
            attrs |= dictionary(text[position + inset : end - inset + 1])
            position = end
    return attrs, position


def _signature(text: str, position: int) -> tuple[tuple[Types, Types], int]:
    """` : (a) -> b`, and the position after it."""
    start = position + 3
    end = balanced(text, start) if text.startswith(" : (", position) else start
    if not text.startswith(" -> ", end):
        raise WeftError(
            f"expected ' : (...) -> ...', found {text[position : position + 40]!r}",
            help="the text is not in MLIR's generic form",
        )
    if text.startswith("(", end + 4):
        stop = balanced(text, end + 4)
    else:
        match = _RESULT_END.search(text, end + 4)
        stop = match.start() if match else len(text)
    return parse_signature(text[start:stop]), stop


def _several_blocks(loc: Location) -> WeftError:
    return Unsupported(
        "a region of several blocks",
        help="write branches with stablehlo.if, case or while",
        loc=loc,
    )


def _unreadable(line: str) -> WeftError:
    return WeftError(f"cannot read {line.strip()[:60]!r}", help="the text is damaged")


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
    import difflib  # imported here: a program that is fine needs no suggestions

    near = difflib.get_close_matches(name, ops, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`weft ops` lists the known ones"
    return Unsupported(f"unknown op {name!r}", help=hint)


def _attribute_list(text: str | None, count: int) -> tuple[Attrs, ...]:
    if text is None:
        return ((),) * count
    return tuple(tuple(sorted(dictionary(part).items())) for part in items(text))
