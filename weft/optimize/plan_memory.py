"""Plan memory: each device's peak, and the place of every value, before anything runs."""

from __future__ import annotations

from typing import Literal

from weft.array.place_buffers import Span, most_alive, place
from weft.errors import WeftError
from weft.ir.memory import without_gc
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.op import Op
from weft.ir.reading import read_inside
from weft.ir.types import TensorType, TupleType
from weft.ops.control import (
    AsyncDone,
    Call,
    Case,
    Composite,
    GetTupleElement,
    If,
    Tuple,
    While,
)
from weft.ops.shape import Constant
from weft.ops.sharding import Computation
from weft.optimize.lifetimes import (
    RENAMED,
    UPDATES,
    donation,
    heirs,
    is_in_place,
    last_uses,
    leaves,
    same_room,
    stored,
)
from weft.optimize.memory_plan import BufferKind, MemoryPlan, Outside, PlannedBuffer, covered


def plan_memory(module: Module, function: str | None = None) -> MemoryPlan:
    """Where every value of a function lives on a device, and the most bytes that are in use.

    Values that are only renamed share a buffer; element by element, in an update of a slice and
    from round to round of a loop, a result takes the buffer of an operand that nothing reads again.
    A donated argument's bytes are free after its last use. Operands of a collective stay until its
    done. Offsets are multiples of 64.
    """
    with without_gc():
        return _Planner(module).function(module.function(function or entry(module)))


def entry(module: Module) -> str:
    """The function that a program begins with: main, or the only one that is not private."""
    if "main" in module.functions:
        return "main"
    public = [name for name, f in module.functions.items() if f.visibility != "private"]
    if len(public) != 1:
        known = ", ".join(module.functions) or "none"
        raise WeftError("the module has no function 'main'", help=f"name one of: {known}")
    return public[0]


class _Buffer:
    """A buffer in the making."""

    __slots__ = (
        "begin",
        "end",
        "fixed",
        "heir",
        "inner",
        "kind",
        "outside",
        "place",
        "size",
        "values",
    )

    def __init__(self, kind: BufferKind, size: int, begin: int, end: int) -> None:
        self.kind: BufferKind = kind
        self.size = size
        self.begin = begin
        self.end = end
        self.values: list[Value] = []
        self.fixed = False  # its content may not be overwritten
        self.heir: int | None = None  # the argument whose place a result must take
        self.outside = False  # it belongs to the program around the region
        self.place: tuple[Literal["argument", "result"], int, int] | None = None  # if outside
        self.inner: tuple[MemoryPlan, ...] = ()


class _Planner:
    """Plans the functions of a module, each once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.called: dict[str, MemoryPlan] = {}
        self.running: set[str] = set()

    def function(self, function: Function) -> MemoryPlan:
        """The plan of a function that a host calls: arguments, results and all."""
        work = _Region(self, function, function.body)
        targets: dict[int, int] = {}
        for index, value in enumerate(function.body.args):
            free, output = donation(function, index)
            if output is not None:
                targets[output] = index
            for buffer in work.define(value, "argument", -1):
                buffer.fixed = not free
                buffer.heir = index if output is not None else None
                if not free:
                    buffer.end = len(function.body.nodes)
        work.heirs = heirs(function)
        work.run()
        work.give_results(targets)
        return work.plan()

    def callee(self, name: str) -> MemoryPlan:
        """What a function of the module needs beyond its arguments and results."""
        if name not in self.called:
            function = self.module.function(name)
            if name in self.running:
                raise WeftError(
                    f"function {name!r} calls itself",
                    help="StableHLO has no recursion; write a loop",
                    loc=function.loc,
                )
            self.running.add(name)
            self.called[name] = self.inner(function, function.body)
            self.running.remove(name)
        return self.called[name]

    def inner(
        self, function: Function, region: Region, *, carries: bool = False, gives: bool = True
    ) -> MemoryPlan:
        """What a region needs beyond what it is given, and beyond what it gives to those outside.

        One that `carries` may overwrite what it is given, and leaves its results there.
        """
        work = _Region(self, function, region)
        for index, value in enumerate(region.args):
            for leaf, buffer in enumerate(work.define(value, "argument", -1)):
                buffer.outside = True
                buffer.place = ("argument", index, leaf)
                buffer.fixed = not carries
        work.run()
        if gives:
            work.hand_back(carries)
        return work.plan()


class _Region:
    """One region: the buffer of every value in it."""

    def __init__(self, planner: _Planner, function: Function, region: Region) -> None:
        self.planner = planner
        self.owner = function
        self.region = region
        self.last = last_uses(region)
        self.buffers: list[_Buffer] = []
        self.of: dict[Value, list[_Buffer]] = {}
        self.copies: list[int] = []
        self.heirs: dict[Value, int] = {}

    def define(self, value: Value, kind: BufferKind, at: int) -> list[_Buffer]:
        """New buffers for a value."""
        end = self.last.get(value, at)
        type = value.type
        if isinstance(type, TensorType):
            made = [_Buffer(kind, stored(type), at, end)]
        else:
            made = [_Buffer(kind, stored(leaf), at, end) for leaf in leaves(type)]
        for buffer in made:
            buffer.values.append(value)
        self.buffers += made
        self.of[value] = made
        return made

    def held(self, value: Value) -> list[_Buffer]:
        """The buffers of a value; one from outside the region is not ours to touch."""
        found = self.of.get(value)
        if found is None:
            found = self.define(value, "argument", -1)
            for buffer in found:
                buffer.outside = buffer.fixed = True
        return found

    def share(self, value: Value, buffers: list[_Buffer]) -> None:
        """Have a value live in buffers that there are."""
        end = self.last.get(value, -1)
        for buffer in buffers:
            buffer.end = max(buffer.end, end)
            buffer.values.append(value)
        self.of[value] = buffers

    def run(self) -> None:
        """Give every node's results their buffers."""
        for at, node in enumerate(self.region.nodes):
            kind = _KINDS.get(type(node.op)) or _kind(type(node.op))
            match kind:
                case "new":
                    for value in node.results:
                        self.define(value, "temporary", at)
                case "in place":
                    self.in_place(node, at)
                case "renamed":
                    for value, operand in zip(node.results, node.operands, strict=True):
                        self.share(value, self.held(operand))
                case _:
                    self.special(node, at)

    def special(self, node: Node, at: int) -> None:
        """Nodes that look into their op or their regions."""
        op = node.op
        match op:
            case Constant():
                splat = op.value.is_splat
                for buffer in self.define(node.results[0], "temporary", at):
                    if not splat:  # it is there before the program begins
                        buffer.kind, buffer.fixed = "constant", True
                        buffer.begin, buffer.end = -1, len(self.region.nodes)
            case Tuple():
                self.share(node.results[0], [b for v in node.operands for b in self.held(v)])
            case GetTupleElement(index=index):
                whole = node.operands[0].type
                assert isinstance(whole, TupleType)
                first = sum(len(leaves(t)) for t in whole.types[:index])
                count = len(leaves(whole.types[index]))
                self.share(node.results[0], self.held(node.operands[0])[first : first + count])
            case AsyncDone():
                self.finished(node)
            case While():
                self.loop(node, at)
            case _:
                self.nested(node, at)

    def free_at(self, buffer: _Buffer, at: int, value: Value) -> bool:
        """Whether a value that is made at a node may overwrite a buffer."""
        if buffer.fixed or buffer.end > at:
            return False
        return buffer.heir is None or buffer.heir == self.heirs.get(value)

    def in_place(self, node: Node, at: int) -> None:
        """Results take the buffers of operands of their size that nothing reads again."""
        update = isinstance(node.op, UPDATES)
        for n, value in enumerate(node.results):
            fitting: list[_Buffer] = []
            for operand in node.operands[n : n + 1] if update else node.operands:
                if operand.type is value.type or same_room(operand.type, value.type):
                    (buffer,) = self.held(operand)
                    if self.free_at(buffer, at, value):
                        fitting.append(buffer)
            if update and fitting:  # the other operands are still read while it is written
                others = [b for v in node.operands for b in self.held(v)]
                fitting = [b for b in fitting if others.count(b) == 1]
            if fitting:
                chosen = next((b for b in fitting if b.heir is not None), fitting[0])
                self.share(value, [chosen])
            else:
                self.define(value, "temporary", at)

    def finished(self, node: Node) -> None:
        """The results of a done are where its start has put them."""
        held = iter(self.held(node.operands[0]))
        for value in node.results:
            self.share(value, [next(held) for _ in leaves(value.type)])

    def loop(self, node: Node, at: int) -> None:
        """Carried values stay in one buffer from before the loop to after it."""
        taken = {id(b) for v in read_inside(node) for b in self.of.get(v, ())}
        for value, operand in zip(node.results, node.operands, strict=True):
            buffers = self.held(operand)
            if all(self.free_at(b, at, value) and id(b) not in taken for b in buffers):
                taken.update(id(b) for b in buffers)
                self.share(value, buffers)
            else:
                self.define(value, "temporary", at)
        condition, body = node.regions
        planner = self.planner
        self.scratch(
            at,
            planner.inner(self.owner, condition, gives=False),
            planner.inner(self.owner, body, carries=True),
        )

    def nested(self, node: Node, at: int) -> None:
        """Branches and calls: their results are ours, what they need besides is theirs."""
        for value in node.results:
            self.define(value, "temporary", at)
        match node.op:
            case Call(callee=name) | Composite(decomposition=name):
                self.scratch(at, self.planner.callee(name))
            case If() | Case() | Computation():
                inner = [self.planner.inner(self.owner, region) for region in node.regions]
                self.scratch(at, *inner)

    def scratch(self, at: int, *inner: MemoryPlan) -> None:
        """Room for what a node's regions need, one of them at a time."""
        size = max(plan.peak for plan in inner)
        if size:
            made = _Buffer("inner", size, at, at)
            made.inner = inner
            self.buffers.append(made)

    def give_results(self, targets: dict[int, int]) -> None:
        """Mark what holds the results of a function, in the arguments' place where they ask it."""
        end = len(self.region.nodes)
        given: set[int] = set()
        for index, value in enumerate(self.region.results):
            for leaf, buffer in enumerate(self.held(value)):
                buffer.end = end
                target = self._target(targets.get(index), leaf)
                if buffer.fixed or id(buffer) in given:  # it must stay, so a copy is made
                    self.copy(index, value, buffer, target)
                    continue
                given.add(id(buffer))
                if target is None or target is buffer:
                    if target is None and buffer.kind != "argument":
                        buffer.kind = "result"
                elif target.end < buffer.begin and target.size == buffer.size:
                    target.values += buffer.values
                    target.end = end
                    buffer.outside = True  # it is the target now
                    self.of.update({v: [target] for v in buffer.values})
                else:
                    self.copy(index, value, buffer, target)

    def _target(self, argument: int | None, leaf: int) -> _Buffer | None:
        return None if argument is None else self.of[self.region.args[argument]][leaf]

    def copy(self, index: int, value: Value, buffer: _Buffer, target: _Buffer | None) -> None:
        """A result that moves to its place at the very end: the target, or a buffer of its own."""
        end = len(self.region.nodes)
        self.copies.append(index)
        if target is not None:
            target.end = end
            return
        made = _Buffer("result", buffer.size, end, end)
        made.values.append(value)
        self.buffers.append(made)

    def hand_back(self, carries: bool) -> None:
        """Results of an inner region are written where the region around it has room for them."""
        end = len(self.region.nodes)
        bound: set[int] = set()
        slots = [self.of[v] for v in self.region.args] if carries else []
        for index, value in enumerate(self.region.results):
            for leaf, buffer in enumerate(self.held(value)):
                buffer.end = max(buffer.end, end)
                slot = slots[index][leaf] if carries else None
                if buffer is slot or (buffer.outside and not carries):
                    continue
                if buffer.outside or buffer.fixed:
                    # Another's carried buffer: both may move at once, by way of a third.
                    made = _Buffer("temporary", buffer.size, end, end)
                    made.values.append(value)
                    self.buffers.append(made)
                    self.copies.append(index)
                elif id(buffer) not in bound and (slot is None or slot.end < buffer.begin):
                    bound.add(id(buffer))
                    buffer.outside = True
                    buffer.place = ("result", index, leaf)
                else:
                    self.copies.append(index)

    def plan(self) -> MemoryPlan:
        """All buffers that are ours, each with its place."""
        ours = [b for b in self.buffers if not b.outside]
        fixed = [b for b in ours if b.kind in ("argument", "constant")]
        rest = [b for b in ours if b.kind not in ("argument", "constant")]
        spans = [Span(b.size, b.begin, b.end) for b in (*fixed, *rest)]
        offsets, peak = place(spans)
        buffers = tuple(
            PlannedBuffer(b.kind, offset, b.size, b.begin, b.end, tuple(b.values), b.inner)
            for b, offset in zip((*fixed, *rest), offsets, strict=True)
        )
        body = self.region
        arguments = [b for b in buffers if b.kind == "argument"]
        constants = [b for b in buffers if b.kind == "constant"]
        holding = {id(b) for v in body.results for b in self.of.get(v, ())}
        results = [
            made
            for b, made in zip((*fixed, *rest), buffers, strict=True)
            if b.kind == "result" or (id(b) in holding and not b.fixed)
        ]
        both = covered(arguments) + covered(results) - covered([*arguments, *results])
        return MemoryPlan(
            self.owner,
            tuple(body.nodes),
            buffers,
            peak,
            most_alive(spans),
            sum(stored(t) for v in body.args for t in leaves(v.type)),
            sum(stored(t) for v in body.results for t in leaves(v.type)),
            sum(b.size for b in constants),
            both,
            peak - covered([*arguments, *constants, *results]),
            tuple(dict.fromkeys(self.copies)),
            tuple(Outside(v, *b.place) for b in self.buffers if b.place for v in b.values),
        )


_SPECIAL = (Constant, Tuple, GetTupleElement, AsyncDone, While, Call, Composite)
_BRANCHES = (If, Case, Computation)
_KINDS: dict[type[Op], str] = {}


def _kind(op: type[Op]) -> str:
    """How the results of an op get their buffers."""
    if issubclass(op, RENAMED):
        kind = "renamed"
    elif issubclass(op, (*_SPECIAL, *_BRANCHES)):
        kind = "special"
    else:
        kind = "in place" if is_in_place(op) else "new"
    _KINDS[op] = kind
    return kind
