"""The text form of tiled programs, which `read_tiled` reads back exactly.

    tiled @main on 1x8 devices, stacked [2, 2, 2], arena 65536
      mesh @mesh = <["data"=2, "model"=4]>
      argument b2: f32[2,1,1|8,64] {weft.sharding = ...}
      ...
      launch contract_maximum_583b932d(b2, b3) -> b6@0: f32[2,2,2|8,64]   ; mlp.py:4
        kernel ...

`b6` is a slot; `@0` is its arena offset; its type lists the element type, the leading device dims,
and the dims of one device's piece. A kernel follows its first launch. A host node follows its line
in MLIR's generic form, with operands %arg0, %arg1 ... Masks name the leading dims that values vary
along: `d0.d2`, or `-` for none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

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
    Slot,
    Slots,
    Stack,
    Start,
    Tiled,
    all_items,
)
from weft.executable.memory import MemoryUse, memory_use
from weft.executable.plan import MemoryBytes, Plan
from weft.ir.attrs import STRING, SYMBOL, Attrs
from weft.ir.dense import Dense
from weft.ir.location import Location
from weft.ir.module import Function, Node
from weft.ir.names import STREAM
from weft.ir.purity import callee_of
from weft.ir.types import Array, TensorType
from weft.ir.uses import free_variables
from weft.ir.write import attributes_text, generic_function, generic_lines
from weft.kernels.group import AnyKernel
from weft.kernels.text import kernel_text
from weft.ops.shape import Constant
from weft.records import dataclass
from weft.varying.masks import Mask, Masks, bits

INLINE = 1 << 10  # bytes; a larger constant is a resource


@dataclass(frozen=True, slots=True)
class TiledText:
    """The text, and the constants stored next to it."""

    text: str
    resources: Mapping[str, Array] = field(default_factory=dict)


def tiled_text(tiled: Tiled, plan: Plan, *, locations: bool = True) -> TiledText:
    """The text of a tiled program; source lines are abbreviated without `locations`."""
    writer = _Writer(tiled, plan, locations)
    return TiledText("\n".join([*writer.lines(), ""]), writer.resources)


class _Writer:
    def __init__(self, tiled: Tiled, plan: Plan, locations: bool) -> None:
        self.tiled, self.plan, self.locations = tiled, plan, locations
        self.resources: dict[str, Array] = {}
        self.names = kernel_names(tiled)
        self.shown: set[AnyKernel] = set()

    # Head

    def lines(self) -> Iterator[str]:
        tiled, world = self.tiled, self.tiled.world
        stacked = ", ".join(map(str, world.sub_axes.sizes))
        shape = "x".join(map(str, world.shape))
        main = tiled.module.function(tiled.function)
        head = f"tiled {SYMBOL.write(tiled.function)} on {shape} devices, stacked [{stacked}]"
        if tiled.stack_dims.absent:
            head += f", absent [{', '.join(map(str, tiled.stack_dims.absent))}]"
        yield f"{head}, arena {self.plan.arena}{self.place(main.loc)}"
        for name, mesh in tiled.module.meshes.items():
            yield f"  mesh {SYMBOL.write(name)} = {mesh}"
        yield f"  order {world.mesh}"
        yield from self.signature(main)
        for function in self.functions():
            yield "  function"
            yield from [f"    {line}" for line in generic_function(function)]
        for slot, value in tiled.constants.items():
            yield f"  const {self.defined(slot)} = {self.constant(slot, value)}"
        yield from self.block(tiled.block, "  ")
        yield from self.memory()

    def signature(self, main: Function) -> Iterator[str]:
        body, tiled = main.body, self.tiled
        attrs = main.arg_attrs or ((),) * len(body.args)
        for n, (slot, listed, loc) in enumerate(
            zip(tiled.inputs, attrs, body.arg_locs, strict=True)
        ):
            donated = " donated" if n in tiled.donated else ""
            place = f" {loc}" if loc.known else ""
            text = f"{self.defined(slot)} along {mask_text(tiled.masks[n])}"
            yield f"  argument {text}{donated}{_attrs(listed)}{place}"
        attrs = main.res_attrs or ((),) * len(body.results)
        for value, listed, mask in zip(body.results, attrs, tiled.result_masks, strict=True):
            yield f"  result {value.type} along {mask_text(mask)}{_attrs(listed)}"

    def memory(self) -> Iterator[str]:
        plan = self.plan
        if plan.owned:
            yield f"  owned {slots_text(sorted(plan.owned))}"
        if plan.lent:
            yield f"  lent {', '.join(f'{n}={m}' for n, m in plan.lent.items())}"
        if plan.reused:
            yield f"  reused {', '.join(map(str, plan.reused))}"
        # The second line is for readers; `read_tiled` skips it.
        one, all_ = memory_use(self.tiled, plan), plan.memory
        yield f"  memory of all: {memory_text(all_, all_.reused)}"
        yield f"  memory of one: {memory_text(one, one.aliased)}"

    def functions(self) -> Iterator[Function]:
        """The functions called from regions of host nodes."""
        module, callees = self.tiled.module, dict[str, Function]()
        waiting = [
            n for i in all_items(self.tiled.block) if isinstance(i, Host) for n in _inside(i)
        ]
        while waiting:
            name = callee_of(waiting.pop().op)
            if name is not None and name not in callees:
                callees[name] = module.function(name)
                waiting += callees[name].body.nodes
        return iter(callees.values())

    # Values

    def defined(self, slot: Slot) -> str:
        """A definition: slot, arena offset and type."""
        plan, stack = self.plan, self.tiled.stacks[slot]
        text = f"b{slot}"
        if slot in plan.places:
            text += f"@{plan.places[slot]}"
        if slot in plan.donors:
            text += f" over b{plan.donors[slot]}"
        if slot in plan.over:
            index, always = plan.over[slot]
            text += f" over {'own ' if always else ''}operand {index}"
        assert stack is not None, "only values are defined"
        return f"{text}: {stack_text(stack)}"

    def all_defined(self, slots: Slots) -> str:
        return ", ".join(map(self.defined, slots))

    def constant(self, slot: Slot, value: Any) -> str:
        if value is None:
            return "none"
        if isinstance(value, tuple):
            parts = [self.constant(slot, part) for part in value]
            return f"({', '.join(parts)})"
        array = np.asarray(value)
        stack = self.tiled.stacks[slot]
        known = stack is not None and isinstance(stack.type, TensorType)
        type = TensorType(array.shape, stack.type.dtype) if known else None  # type: ignore[union-attr]
        dense = Dense(array, type)
        if dense.elements.nbytes <= INLINE:
            return str(dense)
        name = f"c{len(self.resources)}"
        self.resources[name] = dense.elements.reshape(array.shape)
        return f"resource {name}: {dense.type}"

    def place(self, loc: Location) -> str:
        if self.locations:
            return f" {loc}"
        return f"   ; {loc.describe()}" if loc.known else ""

    # Items

    def block(self, block: Block, indent: str) -> Iterator[str]:
        for item in block.items:
            for line in self.item(item):
                yield indent + line
        yield f"{indent}yield {slots_text(block.results)}".rstrip()

    def item(self, item: Item) -> Iterator[str]:
        ins, outs = slots_text(item.ins), self.all_defined(item.outs)
        flow, place = f"({ins}) -> {outs}".rstrip(), self.place(item.loc)
        match item:
            case Launch(kernel=kernel):
                yield f"launch {self.names[kernel]}{flow}{place}"
                if kernel not in self.shown:
                    self.shown.add(kernel)
                    yield from [f"  {line}" for line in kernel_text(kernel).splitlines()]
            case Host():
                yield from self.host(item, flow, place)
            case Done():
                yield f"done {flow}{place}"
            case Move(how=how, index=index):
                yield f"move {how}{f' {index}' if how == 'part' else ''} {flow}{place}"
            case Loop():
                masks = " ".join(map(masks_text, (item.given, item.made, item.masks)))
                yield f"loop {flow}{place}"
                yield f"  carry {self.all_defined(item.carried)}".rstrip()
                yield f"  along {masks}{self.rotations(item)}"
                yield from self.blocks(item.blocks)
            case Branch():
                masks = " ".join(map(masks_text, (item.masks, *item.made)))
                yield f"branch {item.way} {flow}{place}"
                yield f"  along {masks}"
                yield from self.blocks(item.blocks)
            case DivergentLoop():
                inside = (item.entered, item.made, item.masks)
                masks = " ".join(map(masks_text, (item.given, *inside, item.results)))
                yield f"loop apart {flow}{place}"
                yield f"  carry {self.all_defined(item.carried)}".rstrip()
                yield f"  along {masks}"
                yield from self.divergence(item)
                yield from self.blocks(item.blocks)
            case DivergentBranch():
                yield f"branch apart {item.way} {flow}{place}"
                yield f"  along {masks_text((item.given,))} {masks_text(item.results)}"
                yield from self.divergence(item)
                yield from self.blocks(item.blocks)

    def host(self, item: Host, flow: str, place: str) -> Iterator[str]:
        site, word = item.site, "collective" if isinstance(item, Collective) else "host"
        if isinstance(item, Start):
            stream = () if item.stream is None else ((STREAM, STRING.write(item.stream)),)
            word = f"start{_attrs(stream)}"
        yield f"{word} {flow}{place}"
        more = f" summed {masks_text(site.summed)}" if site.summed else ""
        more += " spread" if site.spread_by_readers else ""
        traits = item.traits
        more += " shares" if traits.shares else ""
        more += " writes" if traits.writes else ""
        if traits.in_place:
            more += f" in place {', '.join(map(str, traits.in_place))}"
        more += " sees" if traits.sees_outside else ""
        more += " rows" if traits.reads_rows else ""
        yield f"  along {masks_text(site.given)} {masks_text(site.made)}{more}"
        outside = free_variables(site.node) if traits.sees_outside else ()
        lines = generic_lines(site.node, _constants(site.node), outside)
        yield from [f"  {line.strip()}" for line in lines]

    def rotations(self, loop: Loop) -> str:
        first = loop.carried[0] if loop.carried else -1
        text = ""
        if own := self.plan.own.get(first):
            text += f" own {', '.join(map(str, sorted(own)))}"
        for rotation in self.plan.rotations.get(first, ()):
            places = "".join([f" @{place}" for place in rotation.places])
            indices = ", ".join(map(str, rotation.indices))
            text += f" turn {indices} from b{rotation.result} in {rotation.buffers}{places}"
        return text

    def divergence(self, item: DivergentLoop | DivergentBranch) -> Iterator[str]:
        inner = item.divergence.inner
        rows = ", ".join(map(str, inner.rows))
        yield f"  rows {rows} of {mask_text(item.divergence.mask)} active b{inner.active}"
        for seen in item.seen:
            masks = f"{mask_text(seen.mask)} {mask_text(seen.inner)}"
            yield f"  see b{seen.outer} as {self.defined(seen.slot)} along {masks}"

    def blocks(self, blocks: Sequence[Block]) -> Iterator[str]:
        for number, block in enumerate(blocks):
            yield f"  block {number}"
            yield from self.block(block, "    ")


def kernel_names(tiled: Tiled) -> dict[AnyKernel, str]:
    """Names of the distinct kernels, in the order of their first launches."""
    names: dict[AnyKernel, str] = {}
    seen: Counter[str] = Counter()
    for item in all_items(tiled.block):
        if isinstance(item, Launch) and item.kernel not in names:
            kernel = item.kernel
            # Kernels of one name that differ, as in their shapes, are distinguished by a number.
            names[kernel] = (
                f"{kernel.name}'{seen[kernel.name]}" if seen[kernel.name] else kernel.name
            )
            seen[kernel.name] += 1
    return names


def emitted_text(tiled: str, target: str, texts: Mapping[str, str]) -> str:
    """The text of an emitted program: the tiled text followed by its kernels' code."""
    lines = [f"emitted for {target}", *tiled.splitlines()]
    for name, text in texts.items():
        lines += [f"text {name}", *[f"  {line}".rstrip() for line in text.splitlines()]]
    return "\n".join([*lines, ""])


def _constants(node: Node) -> list[Node]:
    """Splat constants among the operands, which are printed inline."""
    producers = [value.node for value in dict.fromkeys(node.operands) if value.node is not None]
    return [n for n in producers if isinstance(n.op, Constant) and n.op.value.is_splat]


def _inside(item: Host) -> list[Any]:
    nodes = [n for region in item.site.node.regions for n in region.nodes]
    for node in nodes:  # which grows meanwhile, by the nodes of nested regions
        nodes += [n for region in node.regions for n in region.nodes]
    return nodes


def _attrs(attrs: Attrs) -> str:
    return f" {attributes_text(attrs)}" if attrs else ""


def slots_text(slots: Sequence[Slot]) -> str:
    """`b1, b2`."""
    return ", ".join([f"b{slot}" for slot in slots])


def mask_text(mask: Mask) -> str:
    """`d0.d2`, `-` for none; parts in brackets."""
    if isinstance(mask, tuple):
        return f"({', '.join(map(mask_text, mask))})"
    return ".".join([f"d{dim}" for dim in bits(mask)]) or "-"


def masks_text(masks: Masks) -> str:
    """`[d0, -]`."""
    return f"[{', '.join(map(mask_text, masks))}]"


def stack_text(stack: Stack) -> str:
    """`f32[2,1|8,64]`; leading dims are dynamic in divergent code."""
    type = stack.type
    if not isinstance(type, TensorType) or not all(isinstance(n, int) for n in type.shape):
        return f"<{type}>"
    dims = ",".join(map(str, type.sizes))
    if stack.shape is None:
        return f"{type.dtype.name}[?|{dims}]"
    head = ",".join(map(str, stack.shape[: len(stack.shape) - type.rank]))
    return f"{type.dtype.name}[{head}|{dims}]"


def memory_text(memory: MemoryBytes | MemoryUse, reused: int) -> str:
    """Memory use of a run."""
    return (
        f"arguments {memory.arguments} results {memory.results} arena {memory.arena} "
        f"others {memory.others} reused {reused}"
    )
