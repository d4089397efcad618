"""The parser of tiled programs; errors name the line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from weft.errors import WeftError
from weft.executable.definitions import SlotDefinitions
from weft.executable.divergence import Divergence, OuterValue
from weft.executable.items import (
    Block,
    Branch,
    Collective,
    DivergentBranch,
    DivergentLoop,
    Done,
    Host,
    Item,
    Launch,
    Loop,
    Move,
    Site,
    Slot,
    Slots,
    Start,
    Tiled,
    Traits,
)
from weft.executable.plan import MemoryBytes, Plan, RotatingBuffer
from weft.executable.stack_dims import StackDims
from weft.executable.words import (
    IndentedLines,
    attributes,
    branch_way,
    dedented,
    location,
    mask,
    masks,
    pair,
    slot_of,
    slots,
    symbol,
    type_of,
)
from weft.ir.attrs import SYMBOL, Attrs
from weft.ir.location import Location
from weft.ir.module import Function, Module, Region, Value
from weft.ir.read import read_module, read_node
from weft.ir.types import Array
from weft.kernels.opaque import opaque_kernel
from weft.kernels.tokens import Line, syntax_error
from weft.mesh import Mesh, parse_mesh
from weft.mesh.sub_axes import SubAxes
from weft.ops import ON_DEMAND
from weft.ops.control import stream_of
from weft.varying.masks import Mask, Masks
from weft.varying.world import World

if TYPE_CHECKING:
    from weft.kernels.group import AnyKernel

CONSTANT = "stablehlo.constant"


def read_tiled(
    text: str, resources: Mapping[str, Array] = {}, *, opaque: bool = False
) -> tuple[Tiled, Plan]:
    """Parse a tiled program and its memory plan, given the constants stored next to the text.

    With `opaque`, kernels have precompiled code: only their names and operands are parsed.
    """
    reader = _Reader(text, resources, opaque)
    try:
        return reader.program()
    except WeftError as error:
        error.loc = error.loc or Location(f'"tiled":{reader.at}:1')
        raise
    # Whatever malformed text may cause in the parsers of types, attributes and nested regions.
    except (ValueError, KeyError, IndexError, TypeError, AssertionError, RecursionError) as error:
        raise syntax_error(f"line {reader.at}: {error}") from None


class _Reader(IndentedLines):
    def __init__(self, text: str, resources: Mapping[str, Array], opaque: bool) -> None:
        # The first line of an emitted text is not of the tiled program.
        super().__init__(text, 1 if text.startswith("emitted for ") else 0)
        self.opaque = opaque
        self.defs = SlotDefinitions(resources)
        self.kernels: dict[str, AnyKernel] = {}
        self.meshes: dict[str, Mesh] = {}
        self.rotations: dict[Slot, tuple[RotatingBuffer, ...]] = {}
        self.own: dict[Slot, frozenset[int]] = {}

    # The program

    def program(self) -> tuple[Tiled, Plan]:
        head = self.after("tiled")
        name = SYMBOL.read(symbol(head))
        head.expect("on")
        first, second = head.take(), head.take()
        shape = (int(first), int(second.removeprefix("x")))
        head.expect("devices", ",")
        if not head.accept("digits"):  # the word of format 1, as `take` and `give` are below
            head.expect("stacked")
        sizes = head.listed("[", "]", head.integer)
        head.expect(",")
        absent: list[int] = []
        if head.accept("absent"):
            absent = head.listed("[", "]", head.integer)
            head.expect(",")
        head.expect("arena")
        arena = head.integer()
        loc = location(head)
        while self.begins("mesh"):
            label, _, mesh = self.raw("mesh").partition(" = ")
            self.meshes[SYMBOL.read(label)] = parse_mesh(mesh)
        world = World(shape, parse_mesh(self.raw("order")), self.meshes)
        world.sub_axes = SubAxes(tuple(sizes))
        if world.sub_axes.count != shape[0] * shape[1] or world.mesh.size != world.sub_axes.count:
            raise syntax_error(
                f"stacked sizes {sizes} do not factor {shape} devices on {world.mesh}"
            )
        if absent != sorted({*absent} & {*range(len(sizes))}):
            raise syntax_error(f"absent dims {absent}; expected ascending positions in {sizes}")
        stack_dims = StackDims(world.sub_axes, absent=tuple(absent))
        inputs, masks, donated, main = self.signature(name, loc)
        functions = {name: main}
        while self.begins("function"):
            self.at += 1
            functions |= _functions(self.below())
        self.module = Module(functions, self.meshes)
        self.world = world
        constants: dict[Slot, object] = {}
        while self.begins("const"):
            line = self.after("const")
            slot = self.defs.define(line)
            line.expect("=")
            constants[slot] = self.defs.constant(line)
            line.finish()
        block = self.block(stack_dims)
        rest = self.memory()
        # Emitted kernel texts may follow, which only the target reads.
        if self.next and not self.begins("text"):
            raise syntax_error(f"the program should end before {self.next.strip()[:40]!r}")
        stacks_by_slot = self.defs.stacks
        stacks = tuple([stacks_by_slot.get(n) for n in range(max(stacks_by_slot) + 1)])
        result_masks = self.result_masks
        tiled = Tiled(
            self.module, name, world, stack_dims, block, inputs, stacks, constants, masks,
            result_masks, donated,
        )  # fmt: skip
        defs, own = self.defs, self.own
        plan = Plan(arena, defs.places, defs.over, defs.donors, self.rotations, own, *rest)
        return tiled, plan

    def raw(self, word: str) -> str:
        """The rest of a line after a word."""
        text = self.next.strip()
        if not text.startswith(f"{word} "):
            raise syntax_error(f"expected {word!r}, found {text[:40]!r}")
        self.at += 1
        return text.removeprefix(f"{word} ")

    def signature(self, name: str, loc: Location) -> tuple[Slots, Masks, tuple[int, ...], Function]:
        inputs: list[Slot] = []
        masks: list[Mask] = []
        donated: list[int] = []
        args: list[Value] = []
        arg_attrs: list[Attrs] = []
        arg_locs: list[Location] = []
        while self.begins("argument", "take"):
            line = self.after_any("argument", "take")
            slot = self.defs.define(line)
            line.expect("along")
            masks.append(mask(line))
            if line.accept("donated"):
                donated.append(len(inputs))
            arg_attrs.append(attributes(line))
            arg_locs.append(location(line))
            inputs.append(slot)
            args.append(Value(self.defs.stack(slot).type))
        results: list[Value] = []
        res_attrs: list[Attrs] = []
        result_masks: list[Mask] = []
        while self.begins("result", "give"):
            line = self.after_any("result", "give")
            results.append(Value(type_of(line)))
            line.expect("along")
            result_masks.append(mask(line))
            res_attrs.append(attributes(line))
            line.finish()
        self.result_masks = tuple(result_masks)
        region = Region(tuple(args), [], tuple(results), loc, tuple(arg_locs))
        main = Function(
            name, region, arg_attrs=tuple(arg_attrs), res_attrs=tuple(res_attrs), loc=loc
        )
        return tuple(inputs), tuple(masks), tuple(donated), main

    def memory(self) -> tuple[Any, ...]:
        owned: frozenset[Slot] = frozenset()
        lent: dict[int, int] = {}
        reused: tuple[int, ...] = ()
        if self.begins("owned"):
            owned = frozenset(slots(self.after("owned")))
        if self.begins("lent"):
            line = self.after("lent")
            lent = dict(line.separated(lambda: pair(line)))
        if self.begins("reused"):
            line = self.after("reused")
            reused = tuple(line.separated(line.integer))
        memory = self.bytes_of("all")
        self.bytes_of("one")  # memory-use line: informative, derived from the rest
        return owned, lent, reused, memory

    def bytes_of(self, word: str) -> MemoryBytes:
        line = self.after("memory", "of", word, ":")
        sizes = []
        for name in ("arguments", "results", "arena", "others", "reused"):
            line.expect(name)
            sizes.append(line.integer())
        line.finish()
        return MemoryBytes(*sizes)

    # Items

    def block(self, stack_dims: StackDims) -> Block:
        items: list[Item] = []
        while self.next and not self.begins("yield"):
            items.append(self.item(stack_dims))
        line = self.after("yield")
        results = slots(line) if line.token else ()
        return Block(tuple(items), results)

    def item(self, stack_dims: StackDims) -> Item:
        line = self.line()
        word = line.take()
        match word:
            case "launch":
                return self.launch(line)
            case "host" | "collective":
                return self.host(line, Host if word == "host" else Collective, stack_dims)
            case "start":
                return self.start(line, stack_dims)
            case "done":
                return Done(*self.flow(line))
            case "move":
                return self.move(line)
            case "loop" if line.accept("apart"):  # the format's word for divergent
                return self.divergent_loop(line, stack_dims)
            case "loop":
                return self.loop(line, stack_dims)
            case "branch" if line.accept("apart"):
                return self.divergent_branch(line, stack_dims)
            case "branch":
                return self.branch(line, stack_dims)
        raise syntax_error(f"unknown item {word!r}")

    def flow(self, line: Line) -> tuple[Slots, Slots, Location]:
        ins = self.defs.operands(line)
        line.expect("-", ">")
        outs = self.defs.define_all(line)
        return ins, outs, location(line)

    def launch(self, line: Line) -> Launch:
        name = line.name()
        if line.accept("'"):
            name += f"'{line.integer()}"
        ins, outs, loc = self.flow(line)
        if name not in self.kernels:  # only the first launch of a kernel has its text below
            self.kernels[name] = self.kernel(dedented(self.below()))
        return Launch(self.kernels[name], ins, outs, loc)

    def kernel(self, lines: list[str]) -> AnyKernel:
        if self.opaque:
            return cast("AnyKernel", opaque_kernel(lines[0]))  # sufficient to run it
        from weft.kernels.read import parse_kernel  # imported here: the kernel parser and all ops

        return parse_kernel("\n".join(lines))

    def host(self, line: Line, kind: type[Host], stack_dims: StackDims) -> Host:
        ins, outs, loc = self.flow(line)
        depth = self.depth
        line = self.after("along")
        in_masks, out_masks = masks(line), masks(line)
        summed = masks(line) if line.accept("summed") else ()
        spread = bool(line.accept("spread"))
        shares, writes = bool(line.accept("shares")), bool(line.accept("writes"))
        in_place: Sequence[int] = ()
        if line.accept("in"):
            line.expect("place")
            in_place = line.separated(line.integer)
        sees, rows = bool(line.accept("sees")), bool(line.accept("rows"))
        line.finish()
        lines = self.deeper(depth)
        operands = ins[:-1] if rows else ins  # the active rows are no operand of the node
        types = tuple([self.defs.stack(slot).type for slot in operands])
        *constants, node = read_node("\n".join(lines), types, ON_DEMAND)
        if not all(n.op.name == CONSTANT for n in constants):
            raise syntax_error("a host item is one node, preceded by constants")
        node.loc = loc
        rest = (in_masks, out_masks, tuple(m for m in summed if isinstance(m, int)), spread)
        site = Site(node, stack_dims, self.world, self.module, *rest)
        return kind(site, ins, outs, Traits(shares, writes, tuple(in_place), sees, rows))

    def start(self, line: Line, stack_dims: StackDims) -> Start:
        stream = stream_of(attributes(line))
        begun = self.host(line, Collective, stack_dims)
        return Start(begun.site, begun.ins, begun.outs, begun.traits, stream)

    def move(self, line: Line) -> Move:
        how = line.name()
        if how not in ("same", "pack", "unpack", "part", "token"):
            raise syntax_error(f"unknown kind of move {how!r}")
        index = line.integer() if how == "part" else 0
        ins, outs, loc = self.flow(line)
        return Move(how, ins, outs, loc, index)  # type: ignore[arg-type]

    def carried(self) -> Slots:
        return self.defs.define_all(self.after("carry"))

    def blocks(self, stack_dims: StackDims) -> tuple[Block, ...]:
        blocks: list[Block] = []
        while self.begins("block"):
            line = self.after("block")
            if line.integer() != len(blocks):
                raise syntax_error(f"expected block {len(blocks)}")
            blocks.append(self.block(stack_dims))
        return tuple(blocks)

    def loop(self, line: Line, stack_dims: StackDims) -> Loop:
        ins, outs, loc = self.flow(line)
        carried = self.carried()
        line = self.after("along")
        in_masks, out_masks, held = masks(line), masks(line), masks(line)
        if line.accept("own"):
            self.own[carried[0]] = frozenset(line.separated(line.integer))
        rotations: list[RotatingBuffer] = []
        while line.accept("turn"):  # the format's word for a rotating buffer
            indices = tuple(line.separated(line.integer))
            line.expect("from")
            result = slot_of(line)
            line.expect("in")
            buffers, places = line.integer(), list[int]()
            while line.accept("@"):
                places.append(line.integer())
            which = tuple([carried[n] for n in indices])
            rotations.append(RotatingBuffer(indices, which, result, buffers, tuple(places)))
        line.finish()
        if rotations:
            self.rotations[carried[0]] = tuple(rotations)
        test, body = self.blocks(stack_dims)
        return Loop(test, body, carried, ins, outs, stack_dims, in_masks, out_masks, held, loc)

    def branch(self, line: Line, stack_dims: StackDims) -> Branch:
        way = branch_way(line)
        ins, outs, loc = self.flow(line)
        line = self.after("along")
        held, block_masks = masks(line), list[Masks]()
        while line.token:
            block_masks.append(masks(line))
        blocks = self.blocks(stack_dims)
        return Branch(way, blocks, ins, outs, stack_dims, tuple(block_masks), held, loc)

    def divergence(self, outer: StackDims) -> tuple[Divergence, tuple[OuterValue, ...]]:
        line = self.after("rows")
        rows = tuple(line.separated(line.integer))
        line.expect("of")
        which = mask(line)
        line.expect("active")
        active = slot_of(line)
        self.defs.stacks[active] = None
        inner = replace(outer, rows=rows, active=active)
        assert isinstance(which, int), "rows are of leading dims"
        seen: list[OuterValue] = []
        while self.begins("see"):
            line = self.after("see")
            outer_slot = slot_of(line)
            line.expect("as")
            slot = self.defs.define(line)
            line.expect("along")
            seen.append(OuterValue(outer_slot, slot, mask(line), mask(line)))
        return Divergence(outer, inner, which), tuple(seen)

    def divergent_loop(self, line: Line, stack_dims: StackDims) -> DivergentLoop:
        ins, outs, loc = self.flow(line)
        carried = self.carried()
        line = self.after("along")
        in_masks, entered, out_masks, held, results = [masks(line) for _ in range(5)]
        divergence, seen = self.divergence(stack_dims)
        test, body = self.blocks(divergence.inner)
        return DivergentLoop(
            test,
            body,
            carried,
            ins,
            outs,
            divergence,
            seen,
            in_masks,
            entered,
            out_masks,
            held,
            results,
            loc,
        )

    def divergent_branch(self, line: Line, stack_dims: StackDims) -> DivergentBranch:
        way = branch_way(line)
        ins, outs, loc = self.flow(line)
        line = self.after("along")
        (chooser,), results = masks(line), masks(line)
        divergence, seen = self.divergence(stack_dims)
        blocks = self.blocks(divergence.inner)
        return DivergentBranch(way, blocks, ins, outs, divergence, seen, chooser, results, loc)


def _functions(lines: Sequence[str]) -> dict[str, Function]:
    text = "\n".join(['"builtin.module"() ({', *lines, "}) : () -> ()"])
    return dict(read_module(text, ON_DEMAND).functions)
