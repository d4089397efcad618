"""Training steps of PyTorch modules: loss, gradients and an optimizer's changes, as one program."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from weft.capture.captured import Captured, Leaf
from weft.capture.options import CallOptions
from weft.capture.shardings import mesh_of, shardings_of
from weft.capture.torch.dtypes import dtype_of_torch
from weft.capture.torch.export import Exported, exported
from weft.capture.torch.functions import parameter_names_of
from weft.capture.torch.graph import import_graph
from weft.capture.torch.overlaps import MemoryOverlaps
from weft.capture.torch.plans.by_name import PlannedShardings, gathers_of
from weft.capture.torch.source import Tensors, TorchProgram, leaf_of
from weft.capture.torch.training.backward import ForwardPass, place_ops, traced_step
from weft.capture.torch.training.micro_batches import AccumulatedStep, sum_sharding
from weft.capture.torch.training.objective import objective, takes_module
from weft.capture.torch.training.optimizers import (
    apply,
    check_optimizer,
    learning_rates,
    prepare_state,
    settings,
    state_tensors,
)
from weft.capture.torch.training.recompute import check_patterns, recompute
from weft.errors import WeftError
from weft.ir.module import Module
from weft.ir.types import TensorType, dtype_of
from weft.mesh import Sharding
from weft.mesh.plans import ShardingPlan
from weft.records import dataclass

_UNROLLED = 2  # parts of a batch up to which a loop would save little


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How gradients are computed and used."""

    accumulate: int = 1  # parts of a batch whose gradients are averaged
    clip: float | None = None  # the largest norm of all gradients together
    precision: Any = None  # the dtype of the forward pass; parameters keep theirs
    checkpoint: tuple[str, ...] = ()  # patterns of modules whose backward pass computes them again


@dataclass(frozen=True, slots=True)
class Training:
    """A step to be compiled: a module, its loss, and what changes its parameters."""

    module: Any
    loss: Any
    optimizer: Any
    options: TrainingOptions


def training_step(program: object, options: CallOptions) -> TrainingStep | None:
    """The source of a training step; None for all else."""
    return TrainingStep(program, options) if isinstance(program, Training) else None


@dataclass(frozen=True, slots=True)
class StepTensors(Tensors):
    """The arguments of a step: the module's state, the batch, the optimizer's state, rates."""

    state: tuple[tuple[Any, str], ...] = ()  # parameter and name of each tensor, in order
    batch_end: int = 0  # how many values are the module's or the batch's


class TrainingStep(TorchProgram):
    """The source of a step: a call gives the loss, and changes parameters, buffers and state."""

    def __init__(self, step: Training, options: CallOptions) -> None:
        super().__init__(step.module, step.module, options)
        check_optimizer(step.optimizer, [*step.module.parameters()])
        check_patterns(step.options.checkpoint, step.module)
        self.loss, self.optimizer, self.training = step.loss, step.optimizer, step.options
        self.state_memory = MemoryOverlaps()
        self.example: Any = None  # the latest batch that a program was captured for, as types

    @property
    def name(self) -> str:
        return f"train_{type(self.module).__name__}"

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Hashable, Tensors]:
        key, batch = super().flatten(args, kwargs)
        # PyTorch makes an optimizer's state in its first step; here it must exist before, as
        # arguments of the program.
        prepare_state(self.optimizer)
        held = [*state_tensors(self.optimizer)]
        marks = tuple([(name, tensor.shape, tensor.dtype) for _, name, tensor in held])
        # Part of the key: freezing a parameter between steps changes the program.
        trained = tuple([p.requires_grad for p in self.module.parameters()])
        rates = learning_rates(self.optimizer)
        values = (*batch.values, *[tensor for _, _, tensor in held], *rates)
        overlapping = self.state_memory.overlaps(values)
        call = StepTensors(
            values=values,
            places=batch.places,
            args=args,
            kwargs=kwargs,
            leaves=batch.leaves,
            inputs=batch.inputs,
            overlapping=overlapping,
            state=tuple([(parameter, name) for parameter, name, _ in held]),
            batch_end=len(batch.values),
        )
        return (key, marks, trained, settings(self.optimizer), overlapping), call

    def quick_key(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, Sequence[Any]]:
        key, call = self.flatten(args, kwargs)
        return key, call.values

    # Names and shardings

    def arguments(self, call: Tensors) -> tuple[Leaf, ...]:
        """Tensors of the optimizer's state are named after their parameters."""
        assert isinstance(call, StepTensors)
        # Reversed: of the names of a tied parameter the first one stays.
        names = {id(call.values[n]): name for name, n in reversed(call.places.items())}
        leaves = [*super().arguments(replace(call, values=call.values[: call.batch_end]))]
        rest = iter(call.values[call.batch_end :])
        for parameter, word in call.state:
            leaves.append(leaf_of(f"{names[id(parameter)]}.{word}", next(rest)))
        return (*leaves, *[leaf_of(f"lr[{n}]", rate) for n, rate in enumerate(rest)])

    def parameter_names(self, count: int) -> list[str]:
        """Names for the batch: parameters of the module's `forward`, then of the loss."""
        own = super().parameter_names(count)
        if self.loss is None:
            return own
        named = parameter_names_of(getattr(self.loss, "forward", self.loss))[1:]
        return named if takes_module(self.loss, count) else [*own[:1], *named]

    def shardings(self, arguments: Sequence[Leaf], call: Tensors) -> PlannedShardings:
        """State of a parameter's shape is split as the parameter is, unless a plan names it."""
        assert isinstance(call, StepTensors)
        end = call.batch_end
        plan = super().shardings(arguments[:end], call)
        shardings = plan.arguments
        places = {id(value): n for n, value in enumerate(call.values[:end])}
        ours = self.options.plan if isinstance(self.options.plan, ShardingPlan) else None
        # Learning rates follow the optimizer's state; they are scalars, and stay replicated.
        for (parameter, _), leaf in zip(call.state, arguments[end:], strict=False):
            same = leaf.shape == tuple(parameter.shape)
            named = None if ours is None else ours(leaf.name)
            # Moments are updated elementwise with the parameter: any other split would reshard them
            # in every step.
            shardings.append(named or (shardings[places[id(parameter)]] if same else None))
        return PlannedShardings(
            [*shardings, *[None] * (len(arguments) - len(shardings))], plan.gathered
        )

    def update(
        self,
        values: Sequence[Any],
        updated: Sequence[int],
        results: Sequence[Any],
        counted: Sequence[tuple[int, float]] = (),
    ) -> None:
        super().update(values, updated, results, counted)
        self.optimizer._opt_called = True  # which schedules of learning rates ask for

    # Programs

    def capture(self, call: Tensors) -> Captured:
        """Trace loss, gradients and the optimizer's step for arguments of these types."""
        assert isinstance(call, StepTensors)
        self.example = _on_device((call.args, call.kwargs), "meta")
        args, kwargs = self._part_of(call.args, call.kwargs)
        called = objective(self.module, self.loss, len(args), self.training.precision)
        with self.constrained(call), exported(called, args, kwargs, grad=True) as forward:
            constants = _constants(forward, call.places)
            trace = _Trace(self, call, forward, constants)
            if self.training.accumulate > _UNROLLED:
                looped = self._looped(call, trace, forward, constants)
                if looped is not None:
                    return looped
                # The attempt has changed the trace; a new one unrolls the parts.
                trace = _Trace(self, call, forward, constants)
            program = traced_step(forward, constants, call.values, trace.step)
        self._checkpoint(program, call)
        imported = self.imported(program, call, {}, range(len(call.values)))
        return self.lowered(imported, program.outputs, call)

    def variants(self) -> Iterator[tuple[str, Module]]:
        """The latest program with fewer, larger parts of a batch, and the option to write."""
        parts = self.training.accumulate
        if self.example is None or parts == 1:
            return
        held = next(self.module.parameters(), None)
        args, kwargs = _on_device(self.example, "cpu" if held is None else held.device)
        _, call = self.flatten(args, kwargs)
        while parts > 1:
            parts //= next(n for n in range(2, parts + 1) if parts % n == 0)
            other = copy(self)
            other.training = replace(self.training, accumulate=parts)
            yield f"weft.train_step(..., accumulate={parts})", other.capture(call).module

    def _checkpoint(self, program: Exported, call: StepTensors) -> None:
        """Let the backward pass of chosen modules compute their values again."""
        if self.training.checkpoint:
            inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
            state = {inputs[place] for place in call.places.values()}
            recompute(program.graph, self.training.checkpoint, state)

    def _looped(
        self, call: StepTensors, trace: _Trace, forward: Any, constants: dict[str, Any]
    ) -> Captured | None:
        """The step with a loop over the parts of the batch: one program, however many there are.

        None if the module updates a tensor of the batch in place.
        """
        parts = self.training.accumulate
        batch = [place for place in call.inputs if place is not None]
        values = [*call.values]
        for place in batch:
            # A clone, not a view: see `_part_of`.
            values[place] = _parts(values[place], parts)[0].clone()
        trace.parts = 1  # of the values that it sees
        program = traced_step(forward, constants, values, trace.sums)
        self._checkpoint(program, call)
        totals = trace.totals_like(program)
        # Without constants: the update does not run the forward pass.
        after = traced_step(forward, {}, [*values, *totals], trace.update)

        arguments = self.arguments(call)
        plan = self.shardings(arguments, call)
        gathers = gathers_of(plan, arguments, self.options.mesh)
        mesh = mesh_of(self.options.mesh, plan.arguments)
        in_shardings = shardings_of("the sharding of", plan.arguments, arguments, mesh)
        typed = [(leaf.name, TensorType(leaf.shape, dtype_of(leaf.dtype))) for leaf in arguments]
        one = [*typed]
        for place in batch:
            one[place] = (typed[place][0], typed[place][1].with_shape(tuple(values[place].shape)))
        more = [("sum", TensorType(tuple(t.shape), dtype_of_torch(t.dtype))) for t in totals]
        gradients = import_graph(program, self.name, one, {}, range(len(one)), gathers)
        if {*batch} & {*gradients.updated}:
            return None
        whole = [*one, *more]
        # Without `gathers`: an optimizer updates each device's shards, and needs no whole
        # parameter.
        update = import_graph(after, self.name, whole, {}, range(len(whole)))
        split = {n: _on_mesh(in_shardings[n]) for n in batch}
        places = {id(value): n for n, value in trace.trained.items()}
        sums: list[Sharding | None] = [None]  # the loss is a number
        for each in trace.used:
            held = _on_mesh(in_shardings[places[id(each)]])
            sums.append(sum_sharding(held, each.dim(), split.values()))
        step = AccumulatedStep(gradients, update, parts, split, sums).module(self.name, typed)
        return self.captured(step, after.outputs, arguments, call, plan)

    def _part_of(self, args: Any, kwargs: Any) -> Any:
        """The first part of a batch, as it is exported for."""
        import torch
        from torch.utils._pytree import tree_map_only

        parts = self.training.accumulate
        if parts == 1:
            return args, kwargs
        # Not as views: PyTorch would take the sizes of their bases for symbols.
        return tree_map_only(
            torch.Tensor, lambda held: _parts(held, parts)[0].clone(), (args, kwargs)
        )


class _Trace:
    """One trace of a step on tensors that stand for its arguments."""

    def __init__(
        self, source: TrainingStep, call: StepTensors, forward: Any, constants: Mapping[str, Any]
    ) -> None:
        self.source, self.call, self.parts = source, call, source.training.accumulate
        self.used: list[Any] = []  # the parameters of the gradients that are summed
        self.sources = _inputs_of(forward, call, constants)
        optimized = {id(p) for group in source.optimizer.param_groups for p in group["params"]}
        self.trained = {
            n: value
            for n, value in enumerate(call.values[: call.batch_end])
            if id(value) in optimized and value.requires_grad
        }

    def step(self, values: Sequence[Any], run: ForwardPass) -> list[Any]:
        """Compute the loss and its gradients, and let the optimizer change the parameters."""
        import torch

        # `traced_step` traces under no_grad, as an optimizer's step runs.
        with torch.enable_grad():
            outputs, grads = self.gradients(values, run)
        self.change(values, grads)
        return outputs

    def sums(self, values: Sequence[Any], run: ForwardPass) -> list[Any]:
        """The summands of one part of a batch: its loss, and gradients."""
        import torch

        with torch.enable_grad():
            outputs, grads = self.gradients(values, run)
        self.used = [*grads]
        return [*outputs, *grads.values()]

    def totals_like(self, program: Exported) -> list[Any]:
        """Tensors like the sums."""
        import torch

        (loss, *_) = program.graph.find_nodes(op="output")[0].args[0]
        made = [torch.empty_like(each.detach()) for each in self.used]
        return [torch.zeros((), dtype=loss.meta["val"].dtype), *made]

    def update(self, values: Sequence[Any], run: ForwardPass) -> list[Any]:
        """Let the optimizer change the parameters, by the means of the sums."""
        count, parts = len(self.call.values), self.source.training.accumulate
        loss, *grads = [total / parts for total in values[count:]]
        self.change(values[:count], dict(zip(self.used, grads, strict=True)))
        return [loss]

    def change(self, values: Sequence[Any], grads: Mapping[Any, Any]) -> None:
        """Clip the gradients, and let the optimizer change the parameters."""
        training, call = self.source.training, self.call
        place_ops({}, "update")
        if training.clip is not None:
            grads = _clipped(grads, training.clip)
        tensors = [*values[call.batch_end :]]
        state = dict(zip(call.state, tensors, strict=False))
        apply(
            self.source.optimizer,
            {parameter: values[n].detach() for n, parameter in self.trained.items()},
            grads,
            state,
            tensors[len(state) :],
        )

    def gradients(
        self, values: Sequence[Any], run: ForwardPass
    ) -> tuple[list[Any], dict[Any, Any]]:
        """The objective's results, and a gradient for each parameter that it depends on."""
        import torch

        parts = self.parts
        leaves = {n: values[n].detach().requires_grad_() for n in self.trained}
        known = {n: leaves.get(n, value) for n, value in enumerate(values)}
        summed: list[Any] = [None] * len(leaves)
        outputs: list[Any] = []
        for part in range(parts):
            inputs = [self.input(source, known, part) for source in self.sources]
            loss, *others = run(inputs)
            _check_loss(loss, self.source.loss)
            if others and self.source.training.accumulate > 1:
                raise WeftError(
                    "accumulate= needs a loss function that returns the loss alone",
                    help="return the loss alone where gradients are accumulated",
                )
            # `grad`, not `backward`: it leaves no `.grad` on tensors that live only during the
            # trace.
            grads = torch.autograd.grad(loss, [*leaves.values()], allow_unused=True)
            summed = [_added(one, other) for one, other in zip(summed, grads, strict=True)]
            outputs = [_added(outputs[0] if outputs else None, loss.detach()), *others]
        if parts > 1:
            summed = [None if grad is None else grad / parts for grad in summed]
            outputs[0] = outputs[0] / parts
        pairs = zip(self.trained.values(), summed, strict=True)
        return outputs, {parameter: grad for parameter, grad in pairs if grad is not None}

    def input(self, source: tuple[str, Any], known: Mapping[int, Any], part: int) -> Any:
        """The value of a placeholder of the objective, for a part of the batch."""
        kind, held = source
        if kind == "static":
            return held
        if kind == "state":
            return known[held]
        return _parts(known[held], self.parts)[part]


def _inputs_of(
    forward: Any, call: StepTensors, constants: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Each placeholder of an objective that is no constant: state, batch, or what is no tensor."""
    leaves = iter(zip(call.leaves, call.inputs, strict=True))
    sources: list[tuple[str, Any]] = []
    for spec in forward.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            leaf, place = next(leaves)
            sources.append(("static", leaf) if place is None else ("batch", place))
        elif spec.target not in constants:
            sources.append(("state", call.places[_own(spec.target)]))
    return sources


def _on_mesh(sharding: Sharding | None) -> Sharding | None:
    """A sharding on the program's own mesh."""
    return None if sharding is None else replace(sharding, mesh="mesh")


def _constants(forward: Any, places: Mapping[str, int]) -> dict[str, Any]:
    """Tensors that are neither the module's nor the batch's: PyTorch's own, and a criterion's."""
    constants = {}
    for spec in forward.graph_signature.input_specs:
        if spec.kind.name == "CONSTANT_TENSOR":
            constants[spec.target] = forward.constants[spec.target]
        elif spec.kind.name != "USER_INPUT" and _own(spec.target) not in places:
            known = forward.state_dict.get(spec.target)
            constants[spec.target] = forward.constants[spec.target] if known is None else known
    return constants


def _on_device(tree: Any, device: Any) -> Any:
    """Tensors of these types on a device, which hold zeros."""
    import torch
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, lambda t: torch.zeros_like(t, device=device), tree)


def _own(target: str) -> str:
    """The name that a parameter has in the user's module."""
    return target.removeprefix("inner.")


def _parts(tensor: Any, count: int) -> Sequence[Any]:
    """The parts of a tensor of a batch, along its first dim."""
    if count == 1:
        return [tensor]
    if not tensor.dim() or tensor.shape[0] % count:
        raise WeftError(
            f"accumulate={count} does not divide a tensor of shape {[*tensor.shape]} in the batch",
            help="give batches whose first dim is a multiple of it",
        )
    size = tensor.shape[0] // count
    return [tensor.narrow(0, n * size, size) for n in range(count)]


def _added(one: Any, other: Any) -> Any:
    """A sum in which None is left out."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _clipped(grads: Mapping[Any, Any], largest: float) -> dict[Any, Any]:
    """Gradients scaled so that their common norm is at most `largest`."""
    import torch

    norms = [torch.linalg.vector_norm(grad) for grad in grads.values()]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    # The formula of torch.nn.utils.clip_grad_norm_, with its epsilon, so that results agree bit by
    # bit.
    scale = torch.clamp(largest / (norm + 1e-6), max=1.0)
    return {parameter: grad * scale.to(grad.dtype) for parameter, grad in grads.items()}


def _check_loss(loss: Any, function: Any) -> None:
    import torch

    if not isinstance(loss, torch.Tensor) or loss.dim() or not loss.is_floating_point():
        what = f"shape {[*loss.shape]}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise WeftError(
            f"the loss is not a scalar: it has {what}"
            if "shape" in what
            else f"the loss is {what}",
            help="return one number of a float type, as cross_entropy and loss.mean() do",
        )
    if loss.grad_fn is None:
        name = getattr(function, "__name__", "the loss")
        raise WeftError(
            f"{name} does not depend on any parameter that requires gradients",
            help="compute it from the module's outputs, outside of torch.no_grad()",
        )
