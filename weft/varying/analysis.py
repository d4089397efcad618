"""The dataflow walk over a module: the sub-axes along which the results of every node vary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import reduce

from weft.errors import WeftError
from weft.ir.module import Function, Node, Region, Value
from weft.ir.op import Op
from weft.ir.purity import callee_of
from weft.ir.types import TOKEN
from weft.ir.uses import free_variables
from weft.ops.control import (
    AsyncDone,
    AsyncStart,
    Call,
    Case,
    Composite,
    GetTupleElement,
    If,
    OptimizationBarrier,
    Tuple,
    While,
)
from weft.ops.custom_calls.callbacks import called_by_each
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.distributed.collective import (
    AllGather,
    AllReduce,
    CollectiveBroadcast,
    CollectivePermute,
    DeviceId,
    ReplicaId,
)
from weft.ops.distributed.local import AllSlice, AxisIndex, PermuteAlongAxes
from weft.ops.distributed.ragged import RaggedAllToAll
from weft.ops.distributed.sharding import Computation, NamedComputation
from weft.records import dataclass
from weft.varying.axis_bits import AxisBits
from weft.varying.masks import Mask, Masks, join, same_for_elements, union, with_bits
from weft.varying.world import axes_of


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """The facts of one function, for given masks of its arguments."""

    masks: dict[Value, Mask] = field(default_factory=dict)
    calls: dict[Node, FunctionFacts] = field(default_factory=dict)  # the facts of its callees
    # For loops: the mask of the control flow around them.
    around: dict[Node, int] = field(default_factory=dict)
    results: list[Mask] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TransferFunction:
    """The transfer function of an op on masks of sub-axes; per result for collectives."""

    equal: int = 0  # its results no longer vary along these
    varied: int = 0  # its results vary along these
    spread: tuple[int, ...] = ()  # its results vary along all of each, if an operand does along any

    def applied(self, mask: int) -> int:
        """The mask of a result, from the union of its operands' masks."""
        for all_of in self.spread:
            if mask & all_of:
                mask |= all_of
        return mask & ~self.equal | self.varied


NONE = TransferFunction()


class Analysis:
    """The state shared by the walks over all functions of a module."""

    def __init__(self, functions: Mapping[str, Function], axis_bits: AxisBits) -> None:
        self.functions, self.axis_bits = functions, axis_bits
        self.bodies: dict[tuple[str, Masks, int], FunctionFacts] = {}
        self.changes: dict[Op, TransferFunction] = {}
        self.plain: dict[Op, bool] = {}  # whether nodes of an op are plain: most are
        self.active: set[str] = set()  # functions whose walk is under way

    def body(self, function: Function, args: Masks, around: int = 0) -> FunctionFacts | None:
        """The facts of a function; None in a recursive call."""
        key = (function.name, args, around)
        facts = self.bodies.get(key)
        if facts is None and function.name not in self.active:
            # Functions are analysed anew for each combination of masks: a helper that is called on
            # replicated and on split values has facts for both.
            self.active.add(function.name)
            facts = FunctionFacts()
            facts.results.extend(_Walk(self, facts).region(function.body, args, around))
            self.active.remove(function.name)
            self.bodies[key] = facts
        return facts

    def change(self, op: Op) -> TransferFunction:
        """The transfer function of an op without regions."""
        transfer = self.changes.get(op)
        if transfer is None:
            transfer = self.changes[op] = self._change(op)
        return transfer

    def _change(self, op: Op) -> TransferFunction:
        axis_bits = self.axis_bits
        if op.collective:
            return self._collective(op)
        if isinstance(op, AllSlice | AxisIndex):
            axes = axes_of(op)
            assert axes is not None
            # Each device takes its own slice: results vary along these axes, even of a uniform
            # operand.
            return TransferFunction(varied=axis_bits.affected_bits(axes))
        if isinstance(op, DeviceId):
            return TransferFunction(varied=self._place(op) | axis_bits.skew)
        # Code of the user's, once on each device: nothing is known about its results.
        if isinstance(op, Computation) or (isinstance(op, CustomCall) and called_by_each(op)):
            return TransferFunction(varied=axis_bits.everything)
        # An effect may read state, such as a random generator's, which advances per execution.
        return NONE if op.pure else TransferFunction(varied=axis_bits.skew)

    def _place(self, op: DeviceId) -> int:
        """The sub-axes that replica_id or partition_id depends on."""
        axis_bits, world = self.axis_bits, self.axis_bits.world
        replicas, partitions = world.shape
        # Replicas are major: a device's number is replica * partitions + partition.
        span = (partitions, replicas) if isinstance(op, ReplicaId) else (1, partitions)
        sub_axes = world.sub_axes.dims(span) if world.mesh.device_ids is None else None
        if sub_axes is None:
            return axis_bits.everything
        world_frame = axis_bits.frames[0]
        return world_frame.bits(sub_axes) | (sum(axis_bits.others(world_frame)) if sub_axes else 0)

    def _collective(self, op: Op) -> TransferFunction:
        """The transfer function of a collective along axes, or in groups that are sub-axes."""
        axis_bits, axes, sub_axes = self.axis_bits, axes_of(op), self._group_sub_axes(op)
        if axes is None and sub_axes is None:
            return TransferFunction(varied=axis_bits.everything)
        covered, touched, meets = 0, [], False
        # Groups are known in one frame, that of their mesh; in the others a collective may connect
        # any two devices.
        for frame in axis_bits.frames:
            inside, along = 0, frame.everything
            if axes is not None and frame is axis_bits.frame_of(axes):
                inside, along = axis_bits.along(axes)
                meets |= along > 0
            elif sub_axes is not None and frame is axis_bits.frames[0]:
                inside = along = frame.bits(sub_axes)
                meets |= along > 0
            covered |= inside
            touched.append(along)
        if not meets:  # groups of one device
            return NONE
        # A difference along part of a group reaches the whole group, and its skew likewise.
        spread = (*touched, *[along << axis_bits.width for along in touched])
        # All devices of a group get the same value, and wait for each other: it is uniform along
        # the group, and no device is ahead.
        if isinstance(op, AllReduce | AllGather | CollectiveBroadcast):
            return TransferFunction(equal=covered | covered << axis_bits.width, spread=spread)
        # A permutation of equal values is equal, but zeros on devices without a source differ.
        if isinstance(op, PermuteAlongAxes | CollectivePermute) and not self._holes(op):
            return TransferFunction(spread=spread)
        # Everything else gives each device of a group a part of its own, as reduce_scatter does.
        return TransferFunction(varied=sum(touched))

    def _holes(self, op: PermuteAlongAxes | CollectivePermute) -> bool:
        """Whether some devices get zeros where others get data."""
        return bool((self.axis_bits.world.moves(op)[1] < 0).any())

    def _group_sub_axes(self, op: Op) -> tuple[int, ...] | None:
        """The sub-axes of a collective's groups, if all groups are alike."""
        world = self.axis_bits.world
        try:
            if isinstance(op, CollectivePermute):
                return world.moves(op)[0]
            return world.group_sub_axes(op)
        except WeftError:  # invalid groups for this many devices: the engine reports them
            return None


class _Walk:
    """The walk over the body of one function."""

    def __init__(self, analysis: Analysis, body: FunctionFacts) -> None:
        self.analysis, self.body = analysis, body

    def of(self, values: Iterable[Value]) -> Masks:
        """The masks of values that are already visited."""
        known = self.body.masks
        return tuple([known[v] for v in values])

    def region(self, region: Region, args: Iterable[Mask], around: int) -> Masks:
        """Compute the masks of all values of a region; returns those of its results."""
        known, plain = self.body.masks, self.analysis.plain
        known.update(zip(region.args, args, strict=True))
        for node in region.nodes:
            op = node.op
            if op not in plain:
                plain[op] = _is_plain(node)
            if not plain[op]:
                masks = self.flow(node, self.of(node.operands), around)
                known.update(zip(node.results, masks, strict=True))
                continue
            mask = 0
            for value in node.operands:
                mask |= known[value]  # type: ignore[operator]  # nodes that read tuples are not plain
            for value in node.results:
                known[value] = mask
        return self.of(region.results)

    def flow(self, node: Node, in_masks: Masks, around: int) -> Masks:
        """The masks of control flow, collectives, effects and device ids."""
        match node.op:
            case Call() | Composite():
                return self.call(node, in_masks, around)
            case While():
                return self.loop(node, in_masks, around)
            case If() | Case():
                return self.branch(node, in_masks, around)
            case NamedComputation():
                return self.region(node.regions[0], in_masks, around)
            case AsyncStart():
                return (self.region(node.regions[0], in_masks, around),)
            case AsyncDone():
                return _parts(in_masks)
            case Tuple():
                return (in_masks,)
            case GetTupleElement(index=index):
                return (_parts(in_masks)[index],)
            case OptimizationBarrier():
                return in_masks
            case RaggedAllToAll():  # one result of all operands
                change = self.analysis.change(node.op)
                return (change.applied(union(*in_masks)),)
            case op if op.collective:
                change = self.analysis.change(op)
                return tuple([change.applied(union(mask)) for mask in in_masks])
        return self.others(node, in_masks, around)

    def call(self, node: Node, masks: Masks, around: int) -> Masks:
        """The masks of a call's results; full ones for recursion."""
        analysis, callee = self.analysis, callee_of(node.op)
        function = analysis.functions.get(callee or "")
        facts = function and analysis.body(function, masks, around)
        if not facts:
            # Sound without a fixed point over call graphs; StableHLO programs have no recursion.
            return tuple(
                [same_for_elements(v.type, analysis.axis_bits.everything) for v in node.results]
            )
        self.body.calls[node] = facts
        return tuple(facts.results)

    def loop(self, node: Node, masks: Masks, around: int) -> Masks:
        """The masks of carried values at the fixed point; results also vary as the predicate does.

        Devices that leave a loop at different times are in different iterations of it unless they
        run in lockstep, so carried values are skewed along the predicate's sub-axes.
        """
        condition, body = node.regions
        inside, carried = around, masks
        while True:
            again = union(*self.region(condition, carried, inside))
            results = self.region(body, carried, inside | again)
            skew = self.analysis.axis_bits.skewed(again)
            pairs = zip(carried, results, strict=True)
            after = tuple([with_bits(join(a, b), skew) for a, b in pairs])
            # A fixed point: masks only grow, and there are finitely many bits. The predicate's own
            # sub-axes count as control flow around the body, hence the second condition.
            if after == carried and not again & ~inside:
                self.body.around[node] = around
                return tuple([with_bits(m, again) for m in carried])
            # Once more with the larger masks; the predicate's own mask may have grown with the
            # carried values.
            carried, inside = after, inside | again

    def branch(self, node: Node, masks: Masks, around: int) -> Masks:
        """The union of the branches' masks and the predicate's."""
        # Devices that take different branches have different results, though each is uniform.
        predicate = union(masks[0])
        rows = [self.region(region, (), around | predicate) for region in node.regions]
        return tuple(
            [with_bits(reduce(join, column), predicate) for column in zip(*rows, strict=True)]
        )

    def others(self, node: Node, masks: Masks, around: int) -> Masks:
        """Elementwise and unknown regions, effects, and device ids.

        A token only orders effects, so it never varies.
        """
        if node.op.control:
            # An unknown op may pass any value to its regions.
            everything = self.analysis.axis_bits.everything
            for region in node.regions:
                self.region(
                    region, [same_for_elements(v.type, everything) for v in region.args], around
                )
        mask = self.analysis.change(node.op).applied(union(*masks, *self.of(free_variables(node))))
        return tuple(
            [0 if v.type is TOKEN else same_for_elements(v.type, mask) for v in node.results]
        )


def _is_plain(node: Node) -> bool:
    """Whether a node's results depend on its operands alone, the common case."""
    op = node.op
    moves = op.collective or op.control or isinstance(op, _PARTS)
    return op.pure and not moves and not node.regions


_PARTS = (AsyncDone, Tuple, GetTupleElement, OptimizationBarrier)


def _parts(masks: Masks) -> Masks:
    """The masks of the elements of one tuple."""
    (parts,) = masks
    assert isinstance(parts, tuple)
    return parts
