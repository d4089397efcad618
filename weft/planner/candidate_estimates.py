"""Estimates of candidates without compiling them: work over shards, sums and gathers over axes.

The estimate only chooses which candidates are compiled and simulated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

from weft.cost import TrafficKind, group_extent, travel_seconds, work_seconds
from weft.ir.types import DType
from weft.ir.work import Work
from weft.machine import Machine
from weft.mesh import Axis, Mesh, MeshAxes
from weft.planner.candidates import FSDP, PlanCandidate, fsdp_dim, sharding_of
from weft.planner.facts import DimClass, NodeFact, ProgramFacts, TensorFact
from weft.records import dataclass

# Both only rank candidates before the simulation, which computes fusion and overlap itself.
_FUSED = 0.35  # the share of pointwise results that reach memory after fusion
_HIDDEN = 0.7  # the share of compute time that can hide gathers of weights


@dataclass(frozen=True, slots=True)
class CandidateEstimate:
    """The estimate of a candidate."""

    candidate: PlanCandidate
    seconds: float
    memory: float

    def cost(self, limit: float) -> float:
        """The cost that candidates are compared by: seconds, and far more where memory runs out."""
        # Not infinite: memory is a rough estimate too, and where nothing fits the least excess
        # wins.
        over = self.memory / limit
        return self.seconds * (1 if over <= 1 else 10 * over)


class CandidateEstimator:
    """Estimates of one program on one machine."""

    def __init__(self, facts: ProgramFacts, machine: Machine) -> None:
        self.facts, self.machine = facts, machine
        self.travels: dict[object, float] = {}
        self.known: dict[object, float] = {}
        used = {c for argument in facts.arguments for c in argument.classes}
        # Unsharded seconds by the classes that may split them, without launches: those are not
        # split.
        self.work: dict[tuple[tuple[DimClass, ...], bool], float] = {}
        self.launches = 0.0
        batch = {*facts.batch_dims, *facts.sequence_dims}
        for node, count in facts.nodes.items():
            classes = tuple(sorted({c for c in node.factors if c in used}))
            # Elementwise work without a dim of the batch is the optimizer's on weights: it is split
            # along fsdp as well, like its state.
            key = (classes, bool(classes) and not node.is_product and not batch & {*node.factors})
            seconds = self.node_seconds(node) - machine.launch
            self.work[key] = self.work.get(key, 0.0) + count * max(0.0, seconds)
            self.launches += count * machine.launch * (1 if node.is_product else _FUSED)
        self.products = [
            (node, count, tuple([c for c in node.factors if c in used]))
            for node, count in facts.nodes.items()
            if node.is_product
        ]

    def node_seconds(self, node: NodeFact) -> float:
        """Seconds of a node on one device."""
        if not node.is_product:
            return work_seconds(
                Work(flops=node.flops, bytes=int(_FUSED * node.bytes)),
                self.machine.vector,
                self.machine,
            )
        assert isinstance(node.dtype, DType)
        work = Work(flops=node.flops, bytes=node.bytes)
        return work_seconds(work, self.machine.rate(node.dtype), self.machine)

    def estimate(self, candidate: PlanCandidate) -> CandidateEstimate:
        """The seconds and the bytes of one device."""
        one = _Estimate(self, candidate)
        return CandidateEstimate(candidate, one.seconds, one.memory)

    def travel(self, kind: TrafficKind, size: float, mesh: Mesh, axes: tuple[str, ...]) -> float:
        """Seconds of a collective along axes."""
        # Cached by powers of two, and scaled: thousands of candidates ask for similar sizes.
        rounded = 1 << max(8, math.ceil(math.log2(size))) if size > 0 else 0
        key = (kind, rounded, mesh, axes)
        seconds = self.travels.get(key)
        if seconds is None:
            along = group_extent(
                MeshAxes(mesh, tuple(map(Axis, axes))), {}, mesh.size, self.machine
            )
            seconds = travel_seconds(kind, rounded, along, self.machine, "bf16")
            self.travels[key] = seconds
        return seconds * (size / rounded if rounded else 0)


class _Estimate:
    """The estimate of one candidate."""

    def __init__(self, screen: CandidateEstimator, candidate: PlanCandidate) -> None:
        self.screen, self.facts, self.candidate = screen, screen.facts, candidate
        self.sizes = candidate.sizes
        self.split: Mapping[DimClass, tuple[str, ...]] = dict(candidate.split)
        self.mesh = Mesh(candidate.axes)

    def shards(self, classes: tuple[DimClass, ...]) -> int:
        """The number of pieces of dims of these classes; an axis counts once."""
        axes = {a for c in classes for a in self.split.get(c, ())}
        return math.prod([self.sizes[a] for a in axes])

    @cached_property
    def seconds(self) -> float:
        """Compute time, exposed sums and gathers, and the traffic of state that is not hidden."""
        screen, split, axes_of = self.screen, self.split, self.split.get
        computing = screen.launches
        further_split = self.sizes.get(FSDP, 1)
        for (classes, is_state), seconds in screen.work.items():
            computing += seconds / self.shards(classes) / (further_split if is_state else 1)
        exposed = 0.0
        for node, count, classes in screen.products:
            axes = [a for c in classes for a in axes_of(c, ())]
            # Two factors of one product cannot be split along one axis: one of them is gathered.
            if len(set(axes)) < len(axes):
                key = (node, tuple(map(axes_of, classes)), self.candidate.axes)
                gather = screen.known.get(key)
                if gather is None:
                    gather = screen.known[key] = self.gathered(node)
                exposed += count * gather
        exposed += sum(self.sums(c, along) for c, along in split.items())
        hidden = self.state_traffic
        # A tenth is exposed at least: nothing hides the first gather and the last sum.
        return computing + exposed + max(0.1 * hidden, hidden - _HIDDEN * computing)

    def sums(self, c: DimClass, along: tuple[str, ...]) -> float:
        """Seconds of the sums of activations over a class that is split."""
        known, total = self.screen.known, 0.0
        for tensor, count in self.facts.partial.get(c, {}).items():
            if not self.is_gradient(tensor):
                key = (tensor, along, tuple(map(self.split.get, tensor.classes)), self.mesh.axes)
                seconds = known.get(key)
                if seconds is None:
                    seconds = known[key] = self.summed(tensor, along)
                total += count * seconds
        return total

    def gathered(self, node: NodeFact) -> float:
        """Seconds to gather the operands of a product two of whose factors have the same axis."""
        seen: dict[str, DimClass] = {}
        total = 0.0
        for c in node.factors:
            for axis in self.split.get(c, ()):
                if axis in seen:
                    total += min(self.gather(node, d, axis) for d in (c, seen[axis]))
                seen[axis] = c
        return total

    def gather(self, node: NodeFact, c: DimClass, axis: str) -> float:
        """Seconds to gather the operands and the result that are split along one class."""
        held = [t for t in (*node.operands, node.result) if c in t.classes]
        sizes = [t.bytes / self.shards(tuple(d for d in t.classes if d != c)) for t in held]
        return sum(self.screen.travel("gather", s, self.mesh, (axis,)) for s in sizes)

    def summed(self, tensor: TensorFact, axes: tuple[str, ...]) -> float:
        """Seconds of a sum over axes; scattered where a dim of the sum has the same axis."""
        scattered = any(a in self.split.get(c, ()) for c in tensor.classes for a in axes)
        others = tuple([c for c in tensor.classes if not set(self.split.get(c, ())) & set(axes)])
        size = tensor.bytes / self.shards(others)
        return self.screen.travel("scatter" if scattered else "reduce", size, self.mesh, axes)

    def is_gradient(self, tensor: TensorFact) -> bool:
        """Whether a sum is a gradient of weights: no dim of the batch is left."""
        return not set(tensor.classes) & {*self.facts.batch_dims, *self.facts.sequence_dims}

    @cached_property
    def state_traffic(self) -> float:
        """Seconds to gather weights and to sum gradients, which other work may hide."""
        total = 0.0
        rows = next((axes for c, axes in self.split.items() if c in self.facts.batch_dims), ())
        for weight in self.facts.weights:
            dims = [*sharding_of(weight, self.candidate)]
            used = {a for axes in dims for a in axes}
            local = weight.type.nbytes / math.prod([self.sizes[a] for a in used])
            # The axes of the batch along which every device has a partial sum of the gradient.
            summed = tuple([a for a in rows if a not in used])
            if not summed:
                continue
            travel, once = self.screen.travel, 0.0
            is_split = fsdp_dim(weight, self.candidate, dims) is not None
            rest = tuple([a for a in summed if a != FSDP])
            if is_split and FSDP in summed:
                passes = 2 if self.facts.trains else 1  # the backward pass reads them again
                once += passes * travel("gather", local, self.mesh, (FSDP,))
                if weight.is_updated:
                    once += travel("scatter", local, self.mesh, (FSDP,))
                    if rest:
                        once += travel("reduce", local / self.sizes[FSDP], self.mesh, rest)
            elif weight.is_updated:
                once += travel("reduce", local, self.mesh, summed)
            total += weight.times * once
        return total

    @cached_property
    def memory(self) -> float:
        """State, gradients, and activations that are saved for the backward pass."""
        total = 0.0
        for argument in self.facts.arguments:
            dims = [*sharding_of(argument, self.candidate)]
            along = fsdp_dim(argument, self.candidate, dims)
            pieces = math.prod([self.sizes[a] for axes in dims for a in axes])
            pieces *= self.sizes[FSDP] if along is not None else 1
            both = 2 if argument.role == "weight" and argument.is_updated else 1  # and its gradient
            total += both * argument.times * argument.type.nbytes / pieces
        return total + sum(n * t.bytes / self.shards(t.classes) for t, n in self.facts.saved)
