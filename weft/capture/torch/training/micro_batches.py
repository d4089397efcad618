"""Gradient accumulation as a loop: one program of the gradients, run for each part of a batch.

The loop carries the sums of the gradients and of the loss, and what the forward pass updates in
place (statistics of batch norms). The optimizer's step follows on the sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from weft.capture.torch.aten.random import DRAW
from weft.capture.torch.build import Build, shape_of, type_of
from weft.capture.torch.graph import SEED, Imported
from weft.ir.location import UNKNOWN, Location, escape
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.names import SHARDING
from weft.ir.rebuild import Rebuild
from weft.ir.types import I64, TensorType
from weft.ir.uses import reads
from weft.mesh import Axis, Sharding
from weft.mesh.sharding import DimSharding
from weft.ops.control import OptimizationBarrier, While
from weft.ops.distributed.annotations import per_value
from weft.ops.distributed.sharding import ShardingConstraint
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Add, Multiply
from weft.ops.shape import Reshape, Transpose
from weft.ops.slicing import DynamicSlice
from weft.records import dataclass

_LINEAR = (Add, Convert, Reshape, Transpose)
_SCALAR = TensorType((), I64)


@dataclass(frozen=True, slots=True)
class AccumulatedStep:
    """A step whose gradients are computed part by part.

    `gradients` takes the arguments with one part of the batch; its results after the updates are
    what is summed. `update` takes the same arguments and the sums.
    """

    gradients: Imported
    update: Imported
    parts: int
    batch: Mapping[int, Sharding | None]  # arguments that are cut into parts, with their shardings
    sums: Sequence[Sharding | None]  # how each sum is held during the loop

    def module(self, name: str, arguments: Sequence[tuple[str, TensorType]]) -> Imported:
        """One program of a loop and an update."""
        args = tuple([Value(type, None, n) for n, (_, type) in enumerate(arguments)])
        names = [word for word, _ in arguments]
        b = Build()
        seed = None
        if self.gradients.is_seeded or self.update.is_seeded:
            seed = Value(_SCALAR, None, len(args))
            names.append(SEED)
        sums, changed = self.loop(b, args, seed)
        arguments_after = [changed.get(n, value) for n, value in enumerate(args)] + sums
        # Arguments of one part of the batch, which no update reads, stand for themselves.
        parameters = [*self.update.module.function("main").body.args]
        became = {
            old: new
            for old, new in zip(parameters, arguments_after, strict=False)
            if old.type is new.type
        }
        if self.update.is_seeded:
            # Draws of the update follow those of all parts.
            became[parameters[-1]] = self.seed_of(b, seed, b.splat(self.parts, _SCALAR))
        results = inlined(b, self.update, became)
        count = len(self.update.updated)
        new = {**changed, **dict(zip(self.update.updated, results[:count], strict=True))}
        # `new` also has what the loop alone updates: outputs move back by as many results.
        outputs = tuple(
            [len(new) + each - count if isinstance(each, int) else each
             for each in self.update.outputs]
        )  # fmt: skip
        values = (*new.values(), *results[count:])
        locs = tuple([Location(f'"{escape(word)}"') for word in names])
        whole = args if seed is None else (*args, seed)
        main = Function("main", Region(whole, b.nodes, values, arg_locs=locs), "public")
        return Imported(Module({"main": main}, name=name), tuple(new), outputs, seed is not None)

    def loop(
        self, b: Build, args: Sequence[Value], seed: Value | None
    ) -> tuple[list[Value], dict[int, Value]]:
        """The sums over all parts, and the new values of arguments that the forward pass updates.

        The body reads other arguments as they are: carried, they would be copied.
        """
        program, body = self.gradients, self.gradients.module.function("main").body
        count = len(program.updated)
        totals = body.results[count:]
        b.loc = next((value.node.loc for value in totals if value.node is not None), UNKNOWN)
        used = {value for node in body.nodes for value in reads(node)} | {*body.results}
        known = args if seed is None else [*args, seed]
        zeros = [b.splat(0, type_of(total)) for total in totals]
        # The carry: the number of the part, the sums, and the arguments that the forward pass
        # updates.
        start = [b.splat(0, _SCALAR), *[*map(partial(_held, b), zeros, self.sums)]]
        start += [args[n] for n in program.updated]
        outside = {
            n: self.stacked(b, known[n], n) if n in self.batch else known[n]
            for n, value in enumerate(body.args)
            if value in used and n not in program.updated
        }
        inner = Build(loc=b.loc)
        carry = tuple([Value(value.type, None, n) for n, value in enumerate(start)])
        number, held = carry[0], iter(carry[1:])
        sums = [next(held) for _ in totals]
        became = {body.args[n]: next(held) for n in program.updated}
        for n, value in outside.items():
            if n in self.batch:
                value = self.part(inner, value, number, type_of(body.args[n]))
            elif n == len(args):
                value = self.seed_of(inner, value, number)
            became[body.args[n]] = value
        # Unmarked, the gradient of a part would be reduced where it is computed: an all_reduce in
        # every iteration instead of one after the loop.
        marks: dict[Node, Sharding] = {}
        for total, sharding in zip(totals, self.sums, strict=True):
            if sharding is not None and sharding.unreduced:
                mark_partial(total, sharding.unreduced, marks)
        results = inlined(inner, program, became, marks)
        inner.loc = b.loc
        added = [inner.op(Add(), *pair) for pair in zip(sums, results[count:], strict=True)]
        added = [*map(partial(_held, inner), added, self.sums)]
        following = inner.op(Add(), number, inner.splat(1, _SCALAR))
        region = Region(carry, inner.nodes, (following, *added, *results[:count]))
        first = tuple([Value(value.type, None, n) for n, value in enumerate(start)])
        test = Build()
        goes_on = test.compare("LT", first[0], test.splat(self.parts, _SCALAR))
        condition = Region(first, test.nodes, (goes_on,))
        _, *after = b.all(While(), *start, regions=(condition, region))
        new = dict(zip(program.updated, after[len(totals) :], strict=False))
        return [*map(partial(_held, b), after[: len(totals)], self.sums)], new

    def stacked(self, b: Build, value: Value, place: int) -> Value:
        """A tensor of the batch; if it is split, with its parts along a first dim, each split so.

        A slice along a split dim would be sent by all devices in each iteration.
        """
        sharding = self.batch[place]
        if sharding is None or not sharding.dims[0].axes:
            return value
        rows, *rest = shape_of(value)
        made = b.reshape(value, (self.parts, rows // self.parts, *rest))
        split = replace(sharding, dims=(DimSharding(), *sharding.dims))
        made = b.op(ShardingConstraint(split), made)
        return b.op(OptimizationBarrier(), made)  # sent before the loop, not part by part

    def part(self, b: Build, value: Value, number: Value, type: TensorType) -> Value:
        """One part of a tensor of the batch."""
        zero = b.splat(0, _SCALAR)
        # A stacked value has one dim more: [parts, rows of a part, ...].
        if shape_of(value)[1:] != type.sizes:  # not stacked
            first, *rest = type.sizes
            number = b.op(Multiply(), number, b.splat(first, _SCALAR))
            return b.op(DynamicSlice(type.sizes), value, number, *[zero] * len(rest))
        cut = b.op(DynamicSlice((1, *type.sizes)), value, number, *[zero] * type.rank)
        return b.reshape(cut, type.sizes)

    def seed_of(self, b: Build, seed: Value | None, number: Value) -> Value:
        """The seed of a part: its draws follow those of the parts before."""
        assert seed is not None, "a program that draws has a seed"
        # The n-th op that draws adds n * DRAW to the seed (`aten.random._key`): part k goes on
        # where part k - 1 ended.
        step = b.splat(self.gradients.draws * DRAW, _SCALAR)
        return b.op(Add(), seed, b.op(Multiply(), number, step))


def sum_sharding(
    parameter: Sharding | None, rank: int, batch: Iterable[Sharding | None]
) -> Sharding | None:
    """How the sum of a parameter's gradients is held, where batches are split.

    As partial sums, which are reduced once, after the loop; but as the parameter is where the axes
    of the batch split it (FSDP): every device would hold a whole gradient.
    """
    axes = tuple(dict.fromkeys([axis for each in batch if each for axis in each.dims[0].axes]))
    if not axes:
        return None
    if parameter is None:
        return Sharding("mesh", (DimSharding(),) * rank, unreduced=axes)
    names = {axis.name for axis in axes}
    if names & {axis.name for dim in parameter.dims for axis in dim.axes}:
        return parameter
    return replace(parameter, unreduced=axes)


def _held(b: Build, value: Value, sharding: Sharding | None) -> Value:
    """The value in a sharding."""
    return value if sharding is None else b.op(ShardingConstraint(sharding), value)


def mark_partial(value: Value, axes: tuple[Axis, ...], marks: dict[Node, Sharding]) -> None:
    """Note that a gradient, and what it is a linear function of, may be partial sums."""
    left = [value]
    while left:
        node = left.pop().node
        if node is not None and node not in marks and len(node.results) == 1:
            dims = (DimSharding(is_open=True),) * type_of(node.results[0]).rank
            marks[node] = Sharding("mesh", dims, unreduced=axes)
            if isinstance(node.op, _LINEAR):
                left += node.operands


def inlined(
    b: Build,
    program: Imported,
    became: Mapping[Value, Value],
    marks: Mapping[Node, Sharding] | None = None,
) -> list[Value]:
    """The results of a program on other values, some of its nodes with shardings."""
    body = program.module.function("main").body
    rebuild = Rebuild(program.module, ())
    rebuild.became.update(became)
    for node in body.nodes:
        rebuild.node(node, b.nodes)
        if marks and node in marks:
            last = b.nodes[-1]
            attrs = (*last.attrs, (SHARDING, per_value([marks[node]])))
            b.nodes[-1] = Node(last.op, last.operands, last.types, last.regions, attrs, last.loc)
            rebuild.becomes(node, b.nodes[-1].results)
    return [rebuild.became.get(value, value) for value in body.results]
