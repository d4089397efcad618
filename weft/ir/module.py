"""Modules, functions, regions, nodes and values: the program as immutable data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from weft.errors import WeftError
from weft.ir.attrs import Attrs
from weft.ir.location import UNKNOWN, Location
from weft.ir.op import Body, Op, infer
from weft.ir.types import TensorType, Type, Types
from weft.ir.write import module_text
from weft.mesh import Mesh
from weft.records import dataclass


class Value:
    """A result of a node, or an argument of a region (then it has no node)."""

    __slots__ = ("index", "node", "type")

    def __init__(self, type: Type, node: Node | None = None, index: int = 0) -> None:
        self.type = type
        self.node = node
        self.index = index

    def __repr__(self) -> str:
        source = self.node.op.name if self.node else "argument"
        return f"<{source} #{self.index}: {self.type}>"


def tensor_of(value: Value) -> TensorType:
    """The type of a value that is known to be a tensor."""
    assert isinstance(value.type, TensorType), f"{value!r} is not a tensor"
    return value.type


class Node:
    """One use of an op: operands, results, regions, other attributes, and where it comes from."""

    __slots__ = ("attrs", "loc", "op", "operands", "regions", "results")
    __match_args__ = ("op", "operands")

    def __init__(
        self,
        op: Op,
        operands: tuple[Value, ...],
        types: Types,
        regions: tuple[Region, ...] = (),
        attrs: Attrs = (),
        loc: Location = UNKNOWN,
    ) -> None:
        self.op = op
        self.operands = operands
        self.regions = regions
        self.attrs = attrs
        self.loc = loc
        # The common case without an enumerate: a program has a node for each of its values, nearly.
        if len(types) == 1:
            self.results: tuple[Value, ...] = (Value(types[0], self),)
        else:
            self.results = tuple([Value(t, self, n) for n, t in enumerate(types)])

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The signatures of its regions."""
        return tuple([region.body for region in self.regions]) if self.regions else ()

    @property
    def operand_types(self) -> Types:
        """The types of the operands."""
        return tuple([value.type for value in self.operands])

    @property
    def types(self) -> Types:
        """The types of the results."""
        return tuple([value.type for value in self.results])

    def rebuilt(self, operands: tuple[Value, ...], regions: tuple[Region, ...]) -> Node:
        """The same op on other operands and regions, with the attributes and location kept."""
        node = Node(self.op, operands, (), regions, self.attrs, self.loc)
        if len(self.results) == 1:
            node.results = (Value(self.results[0].type, node),)
        else:
            node.results = tuple([Value(v.type, node, v.index) for v in self.results])
        return node

    def __repr__(self) -> str:
        operands = ", ".join(str(v.type) for v in self.operands)
        return f"{self.op.name}({operands}) -> {', '.join(str(v.type) for v in self.results)}"


class Region:
    """A block of nodes with arguments and results, the operands of its terminator."""

    __slots__ = ("__weakref__", "_body", "arg_locs", "args", "loc", "nodes", "results")

    def __init__(
        self,
        args: tuple[Value, ...],
        nodes: list[Node],
        results: tuple[Value, ...],
        loc: Location = UNKNOWN,
        arg_locs: tuple[Location, ...] = (),
    ) -> None:
        self.args = args
        self.arg_locs = arg_locs or (UNKNOWN,) * len(args)
        self.nodes = nodes
        self.results = results
        self.loc = loc
        self._body: Body | None = None

    @property
    def body(self) -> Body:
        """The region's signature, as its op's rules see it."""
        if self._body is None:
            self._body = Body(
                tuple([v.type for v in self.args]),
                tuple([v.type for v in self.results]),
                tuple(self._combiner(n) for n in range(len(self.results))),
            )
        return self._body

    def _combiner(self, n: int) -> str | None:
        node = self.results[n].node
        if node is None or len(self.args) != 2 * len(self.results) or len(node.operands) != 2:
            return None
        pair = (self.args[n], self.args[n + len(self.results)])
        given = node.operands
        # The reductions of StableHLO leave the order open, so that both orders of operands are the
        # same combiner.
        matches = given == pair or given == (pair[1], pair[0])
        return node.op.name if matches and not node.regions else None


@dataclass(frozen=True, slots=True)
class Function:
    """A named region with attributes on itself, its arguments and its results."""

    name: str
    body: Region
    visibility: str | None = None
    arg_attrs: tuple[Attrs, ...] = ()
    res_attrs: tuple[Attrs, ...] = ()
    attrs: Attrs = ()
    loc: Location = UNKNOWN

    def restricted(self, body: Region, args: Sequence[int], results: Sequence[int]) -> Function:
        """The function with a body that has some of its arguments and results, by number."""
        return replace(
            self,
            body=body,
            arg_attrs=tuple([self.arg_attrs[n] for n in args]) if self.arg_attrs else (),
            res_attrs=tuple([self.res_attrs[n] for n in results]) if self.res_attrs else (),
        )

    @property
    def arg_types(self) -> Types:
        """The types of the arguments."""
        return tuple(v.type for v in self.body.args)

    @property
    def result_types(self) -> Types:
        """The types of the results."""
        return tuple(v.type for v in self.body.results)


@dataclass(frozen=True, slots=True)
class Module:
    """A program: functions by name, meshes by name, and side tables about its values."""

    functions: Mapping[str, Function]
    meshes: Mapping[str, Mesh] = field(default_factory=dict)
    name: str | None = None
    attrs: Attrs = ()
    loc: Location = UNKNOWN
    tables: Mapping[str, Mapping[Value, object]] = field(default_factory=dict)

    def function(self, name: str) -> Function:
        """The function of that name; an error with the known names if there is none."""
        if found := self.functions.get(name):
            return found
        known = ", ".join(self.functions) or "none"
        raise WeftError(f"the module has no function {name!r}", help=f"known: {known}")

    def text(self, *, locations: bool = False) -> str:
        """The module as StableHLO and sdy text."""
        return module_text(self, locations=locations)

    def with_functions(self, functions: Mapping[str, Function]) -> Module:
        """The same module with other functions; the module itself if they are the ones it has."""
        same = all(self.functions.get(name) is f for name, f in functions.items())
        if same and len(functions) == len(self.functions):
            return self
        return replace(self, functions=functions)

    def nodes(self) -> Iterator[Node]:
        """Every node, outer before inner, in program order."""
        for function in self.functions.values():
            yield from walk(function.body)

    def __str__(self) -> str:
        return self.text()


def walk(region: Region) -> Iterator[Node]:
    """Every node of a region and of the regions inside it, in program order."""
    for node in region.nodes:
        yield node
        for inner in node.regions:
            yield from walk(inner)


def visit(region: Region, see: Callable[[Node], None]) -> None:
    """Call `see` on every node in the order of `walk`, without the cost of a generator."""
    for node in region.nodes:
        see(node)
        for inner in node.regions:
            visit(inner, see)


def apply(
    op: Op,
    *operands: Value,
    regions: tuple[Region, ...] = (),
    attrs: Attrs = (),
    loc: Location = UNKNOWN,
) -> Node:
    """A node whose result types are inferred."""
    bodies = tuple([region.body for region in regions])
    try:
        types = infer(op, tuple([v.type for v in operands]), bodies)
    except WeftError as error:
        raise error.at(loc, f"{op!r}") from None
    return Node(op, operands, types, regions, attrs, loc)


def uses(region: Region) -> dict[Value, list[tuple[Node, int]]]:
    """The use lists of a region's values: reading nodes with operand numbers."""
    use_lists: dict[Value, list[tuple[Node, int]]] = {}
    for node in walk(region):
        for index, value in enumerate(node.operands):
            use_lists.setdefault(value, []).append((node, index))
    return use_lists


def is_elementwise(region: Region) -> bool:
    """Whether a scalar region can run on whole arrays elementwise."""
    return all(node.op.elementwise and not node.regions for node in region.nodes)
