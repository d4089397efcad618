"""Splitting of constants: a copy per use, so that one use does not constrain another."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.op import Op
from weft.ops.control import Call
from weft.ops.distributed.sharding import ShardingGroup, ShardyConstant
from weft.ops.function_summaries import FunctionSummaries
from weft.ops.shape import BroadcastInDim, Constant
from weft.shard.kinds import is_constant_expression, is_scalar, keeps_constants
from weft.shard.regions import is_shared


def split_constants(module: Module, summaries: FunctionSummaries) -> Module:
    """Copy every constant expression, and every broadcast of a scalar, once per use."""
    keeping = _keeping(module)
    functions: dict[str, Function] = {}
    for name, function in module.functions.items():
        counts, notable = summaries[function.body]
        stays = not any(type(node.op) is ShardingGroup for node in notable) and _is_split(
            function.body, counts, keeping, set()
        )
        functions[name] = function if stays else _function(function, keeping)
    return module.with_functions(functions)


def _is_split(
    region: Region, counts: dict[Value, int], keeping: set[str], constants: set[Node | None]
) -> bool:
    """Whether nothing needs copies: every constant has one use, as in JAX's programs."""
    for node in region.nodes:
        operands, kind = node.operands, type(node.op)
        reads_constant = not operands or operands[0].node in constants
        if reads_constant and _is_constant(node, constants, keeping):
            constants.add(node)
        elif kind is not BroadcastInDim or not is_scalar(operands[0]):
            for inner in node.regions:
                if not _is_split(inner, counts, keeping, constants):
                    return False
            continue
        value = node.results[0]
        count = counts.get(value)
        if len(node.results) != 1 or (count != 1 and not (count and is_scalar(value))):
            return False  # scalars are not copied
    return True


def _is_constant(node: Node, constants: set[Node | None], keeping: set[str]) -> bool:
    """Whether a node is a constant expression, or a call of a function of such."""
    if type(node.op) is Call:
        return node.op.callee in keeping and all(v.node in constants for v in node.operands)
    return is_constant_expression(node, constants)


def _keeping(module: Module) -> set[str]:
    """The functions that consist of constant expressions of their arguments."""
    known: dict[str, bool] = {}

    def keeps(name: str) -> bool:
        if name not in known:
            known[name] = False  # a recursive function does not
            function = module.functions.get(name)
            known[name] = (
                function is not None
                and bool(function.body.results)
                and all(
                    keeps(node.op.callee) if isinstance(node.op, Call) else keeps_constants(node)
                    for node in function.body.nodes
                    if not isinstance(node.op, ShardingGroup)
                )
            )
        return known[name]

    if len(module.functions) == 1:
        return set()
    return {name for name in module.functions if keeps(name)}


def _function(function: Function, keeping: set[str]) -> Function:
    splitter = _Splitter(keeping)
    splitter.find_groups(function.body)
    body = splitter.region(function.body)
    splitter.place()
    return replace(function, body=body)


# The nodes of a region; lists are placeholders for originals, which stay only if used.
NodePlaces = list[Node | list[Node]]


class _Splitter:
    """Rebuilds one function: copies come right before the original."""

    def __init__(self, keeping: set[str]) -> None:
        self.keeping = keeping  # functions
        self.became: dict[Value, Value] = {}  # new values of nodes that are not copied
        self.constants: set[Node | None] = set()  # without broadcasts of scalars
        # The copies of each original: constants and broadcasts of scalars.
        self.copies: dict[Node | None, list[Node]] = {}
        self.originals: dict[Node | None, Node] = {}  # used originals
        self.ops: dict[Op, Op] = {}  # constants that passes do not merge
        self.groups: dict[Node, list[Node]] = {}  # sharding groups of a node's results
        self.grouped: list[tuple[Node, list[Node]]] = []  # groups of originals, and their positions
        self.regions: list[tuple[Region, NodePlaces]] = []

    def find_groups(self, region: Region) -> None:
        """Find the sharding groups that have to be copied with a constant."""
        for node in region.nodes:
            if type(node.op) is ShardingGroup and (owner := node.operands[0].node) is not None:
                self.groups.setdefault(owner, []).append(node)
            for inner in node.regions:
                self.find_groups(inner)

    def region(self, region: Region) -> Region:
        """The region; its nodes are assembled once the used originals are known."""
        places: NodePlaces = []
        self.became.update(zip(region.args, region.args, strict=True))
        self.nodes(region, places)
        results = tuple([self.became.get(v) or self.copy_for_use(v) for v in region.results])
        made = Region(region.args, [], results, region.loc, region.arg_locs)
        self.regions.append((made, places))
        return made

    def nodes(self, region: Region, places: NodePlaces) -> None:
        """Rebuild the nodes of a region."""
        became, constants, copies, add = self.became, self.constants, self.copies, places.append
        for node in region.nodes:
            sources, op = node.operands, node.op
            kind = type(op)
            if not sources or sources[0].node in constants or kind is ShardingGroup:
                if self.original(node, places):
                    continue
            elif kind is BroadcastInDim and is_scalar(sources[0]):
                held: list[Node] = []
                copies[node] = held
                add(held)
                continue
            operands = tuple([became.get(v) or self.copy_for_use(v) for v in sources])
            regions = node.regions
            if regions:
                regions = tuple([r if is_shared(op, r) else self.region(r) for r in regions])
            results = node.results
            if len(results) == 1:
                value = results[0]
                copy = Node(op, operands, (value.type,), regions, node.attrs, node.loc)
                became[value] = copy.results[0]
            else:
                copy = Node(op, operands, node.types, regions, node.attrs, node.loc)
                became.update(zip(results, copy.results, strict=True))
            add(copy)

    # Originals

    def original(self, node: Node, places: NodePlaces) -> bool:
        """Defer a constant expression, or a group of one; False if it is neither."""
        if type(node.op) is ShardingGroup:
            if node.operands[0].node not in self.copies:
                return False
            self.grouped.append((node, []))
            places.append(self.grouped[-1][1])
            return True
        if not _is_constant(node, self.constants, self.keeping):
            return False
        self.constants.add(node)
        copies = self.copies[node] = []
        places.append(copies)
        return True

    def renewed(self, node: Node, operands: tuple[Value, ...]) -> Node:
        """A constant expression on new operands."""
        op = self.ops.get(node.op)
        if op is None:
            given = node.op
            op = ShardyConstant(given.value) if isinstance(given, Constant) else given
            self.ops[given] = op
        return Node(op, operands, node.types, (), node.attrs, node.loc)

    def shared(self, value: Value) -> Value:
        """The original's result; the value itself if it is not copied."""
        node = value.node
        if node is None or node not in self.copies:
            return self.became.get(value, value)
        original = self.originals.get(node)
        if original is None:
            operands = tuple([self.shared(v) for v in node.operands])
            original = self.originals[node] = self.renewed(node, operands)
        result = original.results[value.index]
        if is_scalar(value):
            self.became[value] = result  # shared by all later uses
        return result

    # Uses

    def copy_for_use(self, value: Value) -> Value:
        """The copy of a value for one use."""
        node = value.node
        if node is None or node not in self.copies:
            return value
        if is_scalar(value):
            return self.shared(value)
        if self.groups or len(node.operands) > 1 or len(node.results) != 1:
            return self.copy(value, {})
        # The fast path of `copy`, for a constant and for the broadcast of a scalar.
        for operand in node.operands:
            if not is_scalar(operand):
                return self.copy(value, {})
        made = self.renewed(node, tuple([self.shared(v) for v in node.operands]))
        self.copies[node].append(made)
        return made.results[0]

    def copy(self, value: Value, done: dict[Value, Value]) -> Value:
        """A copy of the whole expression of a value; scalars are shared."""
        if is_scalar(value) or value.node is None:
            return self.shared(value)
        if value in done:
            return done[value]
        node = value.node
        made = self.renewed(node, tuple([self.copy(v, done) for v in node.operands]))
        copies = self.copies[node]
        copies.append(made)
        done.update(zip(node.results, made.results, strict=True))
        for group in self.groups.get(node, ()):
            read = (done[group.operands[0]],)
            copies.append(Node(group.op, read, (), (), group.attrs, group.loc))
        return done[value]

    # Assembly

    def place(self) -> None:
        """Put used originals after their copies, and assemble all nodes."""
        for node, made in self.originals.items():
            self.copies[node].append(made)
        for group, place in self.grouped:
            (value,) = group.operands
            if value.node in self.originals:
                read = (self.shared(value),)
                place.append(Node(group.op, read, (), (), group.attrs, group.loc))
        for region, places in self.regions:
            for item in places:
                if type(item) is list:
                    region.nodes.extend(item)
                else:
                    region.nodes.append(item)  # type: ignore[arg-type]
