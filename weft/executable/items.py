"""The items of a tiled program, in execution order: frozen data without closures.

Values live in numbered slots. A slot is written by one item, or is an argument, a constant, or a
loop-carried value. Leading dims of a stack are the sub-axes of the devices; a mask has a bit
for each leading dim that a value varies along.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from weft.ir.types import TensorType, Type
from weft.ir.write import node_text
from weft.ops.shape import BitcastConvert, Reshape
from weft.records import dataclass
from weft.varying.masks import Mask, Masks, union

if TYPE_CHECKING:
    from weft.executable.divergence import Divergence, OuterValue
    from weft.executable.stack_dims import StackDims
    from weft.ir.location import Location
    from weft.ir.module import Module, Node
    from weft.ir.op import Op
    from weft.kernels.group import AnyKernel, Group
    from weft.varying.world import World

Slot: TypeAlias = int
Slots: TypeAlias = tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """The contents of a slot: a value of all devices; its shape if static, leading dims first."""

    type: Type
    shape: tuple[int, ...] | None

    @property
    def nbytes(self) -> int:
        """The bytes of all devices; 0 where the shape is dynamic."""
        if self.shape is None or not isinstance(self.type, TensorType):
            return 0
        return math.prod(self.shape) * self.type.dtype.numpy.itemsize

    @property
    def piece(self) -> int:
        """The bytes on one device."""
        return piece_bytes(self.type)


def piece_bytes(type: Type) -> int:
    """The bytes of a value on one device."""
    return type.size * type.dtype.numpy.itemsize if isinstance(type, TensorType) else 0


@dataclass(frozen=True, slots=True)
class Site:
    """A node in its context: masks of its operands and results, and the stack dims."""

    node: Node
    stack_dims: StackDims
    world: World
    module: Module  # functions callable from its regions
    given: Masks
    made: Masks
    # Leading dims that operands were already reduced over, and that results are reduced over here,
    # by the number of the value among operands and results; 0 except in `all_reduce(dot)`.
    summed: tuple[int, ...] = ()
    spread_by_readers: bool = False  # a broadcast left to its readers

    @property
    def op(self) -> Op:
        """The op."""
        return self.node.op

    @property
    def lead(self) -> int:
        """The number of leading dims."""
        return self.stack_dims.lead

    def operand(self, index: int) -> TensorType:
        """The local type of an operand."""
        type = self.node.operands[index].type
        assert isinstance(type, TensorType)
        return type

    def result(self, index: int = 0) -> TensorType:
        """The local type of a result."""
        type = self.node.results[index].type
        assert isinstance(type, TensorType)
        return type

    def mask(self, index: int) -> int:
        """The mask of an operand."""
        return union(self.given[index])

    def out(self, index: int = 0) -> int:
        """The mask of a result."""
        return union(self.made[index])

    def summed_before(self, index: int) -> int:
        """The leading dims that an operand was already summed over."""
        return self.summed[index] if self.summed else 0

    def summed_here(self, index: int = 0) -> int:
        """The leading dims that a contraction sums over by itself."""
        return self.summed[len(self.node.operands) + index] if self.summed else 0


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a host node that the memory planner reads."""

    shares: bool = False  # a result may alias an operand
    writes: bool = False  # the result can be written into a preallocated buffer
    in_place: tuple[int, ...] = ()  # operands that the result may overwrite
    sees_outside: bool = False  # values captured by its regions follow the operands
    reads_rows: bool = False  # the active rows follow all operands


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """A launch of a target's kernel for all devices of this process."""

    kernel: AnyKernel
    ins: Slots
    outs: Slots
    loc: Location
    group: Group | None = None  # the nodes it computes, where known

    @property
    def operands(self) -> list[Slot]:
        """The operand slots in the kernel's order."""
        ins, outs = iter(self.ins), iter(self.outs)
        return [next(outs if operand.output else ins) for operand in self.kernel.operands]

    @property
    def node(self) -> Node | None:
        """The last node that it computes."""
        return self.group.nodes[-1] if self.group is not None else None


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """A node that the host computes."""

    site: Site
    ins: Slots
    outs: Slots
    traits: Traits

    @property
    def loc(self) -> Location:
        """The user's line."""
        return self.site.node.loc

    @property
    def node(self) -> Node:
        """The node."""
        return self.site.node


@dataclass(frozen=True, slots=True, eq=False)
class Collective(Host):
    """A collective that is not fused into a kernel."""


@dataclass(frozen=True, slots=True, eq=False)
class Start(Collective):
    """An asynchronous collective's start; its result is a handle for its `Done`."""

    stream: str | None = None  # the stream that the schedule assigns


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """An asynchronous collective's completion: `ins` are the handle and the operands being sent."""

    ins: Slots
    outs: Slots
    loc: Location
    node: Node | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Moves between slots: aliases (`same`), `pack`, `unpack`, a tuple's `part`, a `token`."""

    how: Literal["same", "pack", "unpack", "part", "token"]
    ins: Slots
    outs: Slots
    loc: Location
    index: int = 0  # index of a part
    node: Node | None = None  # the original node, where known


@dataclass(frozen=True, slots=True)
class Block:
    """A sequence of items."""

    items: tuple[Item, ...]
    results: Slots


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A uniform loop: all devices leave together. `carried` are the slots of its carried values."""

    test: Block
    body: Block
    carried: Slots
    ins: Slots
    outs: Slots
    stack_dims: StackDims
    # Masks of the initial values, of the body's results, and of the carried values.
    given: Masks
    made: Masks
    masks: Masks
    loc: Location
    node: Node | None = None

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The test and the body."""
        return (self.test, self.body)


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A uniform branch: all devices take the same block."""

    way: Literal["if", "case"]
    blocks: tuple[Block, ...]
    ins: Slots  # the predicate or the index
    outs: Slots
    stack_dims: StackDims
    made: tuple[Masks, ...]  # masks of each block's results
    masks: Masks  # masks of the branch's results
    loc: Location
    node: Node | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DivergentLoop:
    """A divergent loop: devices leave at different times; it runs on the active ones."""

    test: Block
    body: Block
    carried: Slots
    ins: Slots  # carried values, then outer values
    outs: Slots
    divergence: Divergence
    seen: tuple[OuterValue, ...]
    given: Masks  # outer masks of the carried values
    entered: Masks  # inner masks of the same
    made: Masks
    masks: Masks
    results: Masks  # outer masks
    loc: Location
    node: Node | None = None

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The test and the body."""
        return (self.test, self.body)


@dataclass(frozen=True, slots=True, eq=False)
class DivergentBranch:
    """A divergent branch: each block runs on the devices that take it."""

    way: Literal["if", "case"]
    blocks: tuple[Block, ...]
    ins: Slots  # the predicate or index, then outer values
    outs: Slots
    divergence: Divergence
    seen: tuple[OuterValue, ...]
    given: Mask  # mask of the predicate
    results: Masks
    loc: Location
    node: Node | None = None


Item: TypeAlias = Launch | Host | Done | Move | Loop | Branch | DivergentLoop | DivergentBranch


def moved(move: Move, values: Sequence[Any]) -> tuple[Any, ...]:
    """The values of a move's results."""
    match move.how:
        case "same":
            return tuple(values)
        case "pack":
            return (tuple(values),)
        case "unpack":
            return tuple(values[0])
        case "part":
            return (values[0][move.index],)
        case "token":
            return (None,) * len(move.outs)


def is_view(item: Host, stacks: Sequence[Stack | None]) -> bool:
    """Whether a node of the host gives its operand as it lies in memory."""
    if not isinstance(item.node.op, Reshape | BitcastConvert) or len(item.ins) != 1:
        return False
    source, view = stacks[item.ins[0]], stacks[item.outs[0]]
    shapes = [stack.shape for stack in (source, view) if stack is not None]
    if len(shapes) < 2 or None in shapes:
        return False
    return source is not None and view is not None and source.nbytes == view.nbytes


def item_text(item: Item) -> str:
    """A one-line description of an item."""
    if item.node is not None:
        return node_text(item.node)
    return item.kernel.name if isinstance(item, Launch) else type(item).__name__.lower()


def blocks_of(item: Item) -> tuple[Block, ...]:
    """The blocks inside an item."""
    return () if isinstance(item, Launch | Host | Done | Move) else item.blocks


def all_items(block: Block) -> Iterator[Item]:
    """Every item in pre-order."""
    for item in block.items:
        yield item
        for inner in blocks_of(item):
            yield from all_items(inner)


def all_blocks(block: Block) -> Iterator[Block]:
    """A block and the blocks nested in it."""
    yield block
    for item in block.items:
        for inner in blocks_of(item):
            yield from all_blocks(inner)


def with_kernels(block: Block, change: Callable[[AnyKernel], AnyKernel]) -> Block:
    """The block with its kernels mapped, in nested blocks too."""
    return Block(tuple([_with_kernels(item, change) for item in block.items]), block.results)


def _with_kernels(item: Item, change: Callable[[AnyKernel], AnyKernel]) -> Item:
    match item:
        case Launch(kernel=kernel):
            return item if (new := change(kernel)) is kernel else replace(item, kernel=new)
        case Loop():
            test, body = (with_kernels(block, change) for block in item.blocks)
            return replace(item, test=test, body=body)
        case Branch():
            return replace(item, blocks=tuple([with_kernels(b, change) for b in item.blocks]))
        case _:  # divergent code has no kernels: their sizes are static, its number of rows is not
            return item


@dataclass(frozen=True, slots=True)
class Tiled:
    """A program as items over slots, before memory planning; slots 0 and 1 are reserved."""

    module: Module
    function: str
    world: World
    stack_dims: StackDims
    block: Block
    inputs: Slots
    stacks: tuple[Stack | None, ...]  # indexed by slot
    constants: dict[Slot, object] = field(default_factory=dict)
    masks: Masks = ()  # of the arguments
    result_masks: Masks = ()
    donated: tuple[int, ...] = ()
