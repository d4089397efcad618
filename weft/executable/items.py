"""The items of a tiled program, in the order in which they run: frozen, and without closures.

Values live in numbered slots. A slot is written by one item, or is an argument, a constant, or what
a loop carries. Leading dims of a stack are the digits of the devices' numbers; a mask has a bit for
each leading dim that a value varies along.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from weft.ir.types import TensorType, Type
from weft.ir.write import node_text
from weft.varying.masks import Mask, union

if TYPE_CHECKING:
    from weft.executable.divergence import Divergence, OuterValue
    from weft.executable.layout import Layout
    from weft.ir.location import Location
    from weft.ir.module import Module, Node
    from weft.ir.op import Op
    from weft.kernels.group import Group
    from weft.kernels.group import Launch as AnyKernel
    from weft.varying.world import World

Slot: TypeAlias = int
Slots: TypeAlias = tuple[Slot, ...]
Masks: TypeAlias = tuple[Mask, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """What a slot holds: a value of all devices; its shape, leading dims first, if it is known."""

    type: Type
    shape: tuple[int, ...] | None

    @property
    def nbytes(self) -> int:
        """The bytes of all devices together; 0 where the shape is not known."""
        if self.shape is None or not isinstance(self.type, TensorType):
            return 0
        return math.prod(self.shape) * self.type.dtype.numpy.itemsize

    @property
    def piece(self) -> int:
        """The bytes that one device has."""
        return piece_bytes(self.type)


def piece_bytes(type: Type) -> int:
    """The bytes that one device has of a value."""
    return type.size * type.dtype.numpy.itemsize if isinstance(type, TensorType) else 0


@dataclass(frozen=True, slots=True)
class Site:
    """A node where it stands: what its operands and results vary along, and on which devices."""

    node: Node
    layout: Layout
    world: World
    module: Module  # of the functions that its regions may call
    given: Masks
    made: Masks
    # Leading dims that operands were summed over already, and that results are summed over here,
    # by the value's number among operands and results; 0 everywhere but in `all_reduce(dot)`.
    summed: tuple[int, ...] = ()
    spread_by_readers: bool = False  # a broadcast whose readers repeat its elements

    @property
    def op(self) -> Op:
        """The op."""
        return self.node.op

    @property
    def lead(self) -> int:
        """The number of leading dims."""
        return self.layout.lead

    def operand(self, index: int) -> TensorType:
        """The type of an operand, on one device."""
        type = self.node.operands[index].type
        assert isinstance(type, TensorType)
        return type

    def result(self, index: int = 0) -> TensorType:
        """The type of a result, on one device."""
        type = self.node.results[index].type
        assert isinstance(type, TensorType)
        return type

    def mask(self, index: int) -> int:
        """What an operand varies along."""
        return union(self.given[index])

    def out(self, index: int = 0) -> int:
        """What a result varies along."""
        return union(self.made[index])

    def summed_before(self, index: int) -> int:
        """The leading dims that an operand has been summed over already."""
        return self.summed[index] if self.summed else 0

    def summed_here(self, index: int = 0) -> int:
        """The leading dims that a product sums over at once."""
        return self.summed[len(self.node.operands) + index] if self.summed else 0


@dataclass(frozen=True, slots=True)
class Traits:
    """What the memory plan has to know of how a host node is computed."""

    shares: bool = False  # a result may share the memory of an operand
    writes: bool = False  # the result can be written into memory that is given
    in_place: tuple[int, ...] = ()  # operands in whose memory the result may be written
    sees_outside: bool = False  # values that its regions read follow the operands
    reads_rows: bool = False  # the rows that are active follow all operands


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """A kernel of the target on all devices of this process."""

    kernel: AnyKernel
    ins: Slots
    outs: Slots
    loc: Location
    group: Group | None = None  # the nodes that it computes, where they are still known

    @property
    def operands(self) -> list[Slot]:
        """The slots of the kernel's operands, in its own order."""
        ins, outs = iter(self.ins), iter(self.outs)
        return [next(outs if operand.output else ins) for operand in self.kernel.operands]

    @property
    def node(self) -> Node | None:
        """The last node that it computes."""
        return self.group.nodes[-1] if self.group is not None else None


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """A node without a kernel, which the host computes."""

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
    """A node in which devices meet, as no kernel's sum does it."""


@dataclass(frozen=True, slots=True, eq=False)
class Start(Collective):
    """A collective that begins here; its one result is what its `Done` waits for."""

    stream: str | None = None  # as the schedule says


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """The end of a collective: `ins` are what its start gave, and the operands that were sent."""

    ins: Slots
    outs: Slots
    loc: Location
    node: Node | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Values that change hands: the `same` ones, `pack`ed, `unpack`ed, a `part`, a `token`."""

    how: Literal["same", "pack", "unpack", "part", "token"]
    ins: Slots
    outs: Slots
    loc: Location
    index: int = 0  # of a part
    node: Node | None = None  # what it was, where that is still known


@dataclass(frozen=True, slots=True)
class Block:
    """Items that run one after another."""

    items: tuple[Item, ...]
    results: Slots


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop that all devices leave together; `carried` is where values are when a round begins."""

    test: Block
    body: Block
    carried: Slots
    ins: Slots
    outs: Slots
    layout: Layout
    # What values vary along: as they are given, as a round makes them, and as they are carried.
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
    """A branch that all devices take together."""

    way: Literal["if", "case"]
    blocks: tuple[Block, ...]
    ins: Slots  # the predicate or the index
    outs: Slots
    layout: Layout
    made: tuple[Masks, ...]  # what the results of each block vary along
    masks: Masks  # what the results of the branch vary along
    loc: Location
    node: Node | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DivergentLoop:
    """A loop that devices leave at different times: it runs on those that are still in it."""

    test: Block
    body: Block
    carried: Slots
    ins: Slots  # what is carried, and then what is seen from outside
    outs: Slots
    divergence: Divergence
    seen: tuple[OuterValue, ...]
    given: Masks  # outside, of what is carried
    entered: Masks  # the same inside
    made: Masks
    masks: Masks
    results: Masks  # outside
    loc: Location
    node: Node | None = None

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The test and the body."""
        return (self.test, self.body)


@dataclass(frozen=True, slots=True, eq=False)
class DivergentBranch:
    """A branch that devices take differently: every block runs on those that take it."""

    way: Literal["if", "case"]
    blocks: tuple[Block, ...]
    ins: Slots  # the predicate or the index, and then what is seen from outside
    outs: Slots
    divergence: Divergence
    seen: tuple[OuterValue, ...]
    given: Mask  # of the predicate
    results: Masks
    loc: Location
    node: Node | None = None


Item: TypeAlias = Launch | Host | Done | Move | Loop | Branch | DivergentLoop | DivergentBranch


def moved(move: Move, values: Sequence[Any]) -> tuple[Any, ...]:
    """What values are that change hands."""
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


def item_text(item: Item) -> str:
    """What an item is, in a line."""
    if item.node is not None:
        return node_text(item.node)
    return item.kernel.name if isinstance(item, Launch) else type(item).__name__.lower()


def blocks_of(item: Item) -> tuple[Block, ...]:
    """The blocks inside an item."""
    return () if isinstance(item, Launch | Host | Done | Move) else item.blocks


def all_items(block: Block) -> Iterator[Item]:
    """Every item, inner ones after what encloses them."""
    for item in block.items:
        yield item
        for inner in blocks_of(item):
            yield from all_items(inner)


def all_blocks(block: Block) -> Iterator[Block]:
    """A block and those inside of it."""
    yield block
    for item in block.items:
        for inner in blocks_of(item):
            yield from all_blocks(inner)


def with_kernels(block: Block, change: Callable[[AnyKernel], AnyKernel]) -> Block:
    """The same block with other kernels, its inner blocks, too."""
    return Block(tuple([_with_kernels(item, change) for item in block.items]), block.results)


def _with_kernels(item: Item, change: Callable[[AnyKernel], AnyKernel]) -> Item:
    match item:
        case Launch(kernel=kernel):
            return item if (made := change(kernel)) is kernel else replace(item, kernel=made)
        case Loop():
            test, body = (with_kernels(block, change) for block in item.blocks)
            return replace(item, test=test, body=body)
        case Branch():
            return replace(item, blocks=tuple([with_kernels(b, change) for b in item.blocks]))
        case _:  # where devices go different ways there are no kernels
            return item


@dataclass(frozen=True, slots=True)
class Tiled:
    """A program as items over slots, without memory; slots 0 and 1 are the runtime's."""

    module: Module
    function: str
    world: World
    layout: Layout
    block: Block
    inputs: Slots
    stacks: tuple[Stack | None, ...]  # by slot
    constants: dict[Slot, object] = field(default_factory=dict)
    masks: Masks = ()  # of the arguments
    result_masks: Masks = ()
    donated: tuple[int, ...] = ()
