"""Optimizers of PyTorch's inside of a traced step: their own `step`, run on the traced tensors.

An optimizer is written for eager tensors: it reads the step count and the learning rate as Python
numbers. Traced, both are tensors of no dims, so that a schedule of learning rates needs no second
program; `TensorScalars` gives the calls that take only numbers their meaning on tensors.
"""

from __future__ import annotations

import builtins
import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from weft.errors import Unsupported, WeftError

# Choices of an implementation: the plain loop over parameters is what is traced.
_PLAIN = {"foreach": False, "fused": False, "capturable": False, "differentiable": False}


def prepare_state(optimizer: Any) -> None:
    """Make the state of parameters that an optimizer has not seen, as its first step would."""
    import torch

    if isinstance(optimizer, torch.optim.LBFGS):
        raise Unsupported(
            "LBFGS evaluates the loss several times a step, in Python",
            help="use an optimizer that takes one gradient: SGD, Adam, AdamW, Adafactor, Muon",
        )
    for group in optimizer.param_groups:
        fresh = [p for p in group["params"] if p.requires_grad and not optimizer.state.get(p)]
        if not fresh:
            continue
        if isinstance(optimizer, torch.optim.SGD):
            _prepare_momentum(optimizer, group, fresh)
        elif hasattr(optimizer, "_init_group"):
            _init_group(optimizer, group, fresh)


def _prepare_momentum(optimizer: Any, group: Mapping[str, Any], fresh: Sequence[Any]) -> None:
    """SGD takes the first gradient for its momentum, which is what zeros become."""
    import torch

    if not group["momentum"]:
        return
    if group["dampening"]:
        raise Unsupported(
            "SGD's first step with dampening differs from the others",
            help="run one step eagerly before, or leave dampening at 0",
        )
    for parameter in fresh:
        zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        optimizer.state[parameter]["momentum_buffer"] = zeros


def _init_group(optimizer: Any, group: Mapping[str, Any], fresh: Sequence[Any]) -> None:
    """Call the part of a step that makes state, for gradients of zero."""
    import torch

    lists = len(inspect.signature(optimizer._init_group).parameters) - 1
    before = [parameter.grad for parameter in fresh]
    for parameter in fresh:
        parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer._init_group({**group, "params": fresh}, *[[] for _ in range(lists)])
    finally:
        for parameter, grad in zip(fresh, before, strict=True):
            parameter.grad = grad


def state_tensors(optimizer: Any) -> Iterator[tuple[Any, str, Any]]:
    """Each tensor of an optimizer's state: its parameter, its name, and the tensor."""
    import torch

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, held in optimizer.state.get(parameter, {}).items():
                if isinstance(held, torch.Tensor):
                    yield parameter, name, held


def settings(optimizer: Any) -> tuple[object, ...]:
    """Static inputs of a traced step: the options of parameter groups, without learning rates."""
    return tuple(
        tuple([(key, repr(value)) for key, value in group.items() if key not in ("params", "lr")])
        for group in optimizer.param_groups
    )


def learning_rates(optimizer: Any) -> list[Any]:
    """The learning rates of the parameter groups, as tensors."""
    import torch

    return [
        # f64, as the Python number that it is: in f32 it would be rounded before it is used.
        torch.as_tensor(group["lr"], dtype=torch.float64).reshape(())
        for group in optimizer.param_groups
    ]


def apply(
    optimizer: Any,
    parameters: Mapping[Any, Any],
    grads: Mapping[Any, Any],
    state: Mapping[tuple[Any, str], Any],
    rates: Sequence[Any],
) -> None:
    """Run an optimizer's step on traced tensors in the place of its own, which it changes.

    `parameters` and `grads` are by the optimizer's own parameters, `state` also by name; a
    parameter without a gradient is left out, as eager does.
    """
    # A shallow copy: the step writes only through parameters, state and groups, which are replaced
    # below, and the user's optimizer keeps its own.
    twin = copy.copy(optimizer)
    # A check for the capture of CUDA graphs, which does not apply to a trace.
    twin._accelerator_graph_capture_health_check = _nothing
    twin.state = defaultdict(dict)
    twin.param_groups = []
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        with_grads = [p for p in group["params"] if p in grads]
        for parameter in with_grads:
            traced = parameters[parameter]
            traced.grad = grads[parameter]
            own = optimizer.state.get(parameter, {})
            twin.state[traced] = {
                name: state.get((parameter, name), held) for name, held in own.items()
            }
        choices = {key: value for key, value in _PLAIN.items() if key in group}
        params = [parameters[p] for p in with_grads]
        twin.param_groups.append({**group, **choices, "params": params, "lr": rate})
    known = {id(p): {*held} for p, held in twin.state.items()}
    with _scalars()(), _minima_of_tensors(type(optimizer)):
        _stepped(twin, type(optimizer).__name__)
    new = {name for p, held in twin.state.items() for name in held.keys() - known[id(p)]}
    if new:
        raise Unsupported(
            f"{type(optimizer).__name__} makes state in its first step: {', '.join(sorted(new))}",
            help="run one step eagerly before the compiled ones",
        )


def _nothing() -> None:
    pass


def _stepped(twin: Any, name: str) -> None:
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        twin.step()
    except (GuardOnDataDependentSymNode, TypeError) as error:
        raise Unsupported(
            f"{name} decides in Python by the elements of a tensor: {error}".splitlines()[0],
            help="use SGD, Adam, AdamW, Adafactor, Muon, or an optimizer that computes on tensors",
        ) from error


@cache
def _scalars() -> Any:
    """Calls that take numbers, on tensors of no dims."""
    import torch
    from torch.overrides import TorchFunctionMode

    tensor = torch.Tensor

    def added(self: Any, other: Any, *, alpha: Any) -> Any:
        return self.add_(other * alpha.to(self.dtype))

    def subtracted(self: Any, other: Any, *, alpha: Any) -> Any:
        return self.sub_(other * alpha.to(self.dtype))

    def divided(self: Any, one: Any, other: Any, *, value: Any) -> Any:
        return self.add_(one / other * value.to(self.dtype))

    def multiplied(self: Any, one: Any, other: Any, *, value: Any) -> Any:
        return self.add_(one * other * value.to(self.dtype))

    meanings: dict[Any, tuple[str, Callable[..., Any]]] = {
        tensor.add_: ("alpha", added),
        tensor.sub_: ("alpha", subtracted),
        tensor.addcdiv_: ("value", divided),
        tensor.addcmul_: ("value", multiplied),
    }

    class TensorScalars(TorchFunctionMode):  # type: ignore[misc]
        """Reads of a tensor's number give a tensor, and numbers may be tensors."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            # A traced tensor has no number; in f64, as Python's own arithmetic on it would be.
            if func is tensor.item:
                return args[0].to(torch.float64)
            word, meaning = meanings.get(func, ("", None))
            if meaning is not None and isinstance(kwargs.get(word), tensor):
                return meaning(*args, **kwargs)
            if func is tensor.lerp_ and len(args) == 3 and isinstance(args[2], tensor):
                # By its overload: a tensor of no dims would be read as a number.
                return torch.ops.aten.lerp_.Tensor(*args[:2], args[2].to(args[0].dtype))
            return func(*args, **kwargs)

    return TensorScalars


@contextmanager
def _minima_of_tensors(cls: type) -> Iterator[None]:
    """`min` and `max` in the file of an optimizer take tensors of no dims."""
    import torch

    def of_tensors(word: str, op: Any) -> Callable[..., Any]:
        plain = getattr(builtins, word)

        def dispatched(*values: Any, **options: Any) -> Any:
            if not any(isinstance(value, torch.Tensor) for value in values):
                return plain(*values, **options)
            first, second = (torch.as_tensor(value, dtype=torch.float64) for value in values)
            return op(first, second)

        return dispatched

    # Python's min calls `<` and takes the truth of it, which a traced tensor has not. A name in the
    # module's globals comes before the builtin.
    home = inspect.unwrap(cls.step).__globals__  # type: ignore[attr-defined]
    words = {"min": torch.minimum, "max": torch.maximum}
    before = {word: home[word] for word in words if word in home}
    home.update({word: of_tensors(word, op) for word, op in words.items()})
    try:
        yield
    finally:
        for word in words:
            del home[word]
        home.update(before)


def check_optimizer(optimizer: Any, parameters: Sequence[Any]) -> None:
    """Refuse what is no optimizer, and parameters that are not the module's."""
    import torch

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise WeftError(
            f"the optimizer is a {type(optimizer).__name__}",
            help="give one of torch.optim: weft.train_step(model, loss, AdamW(model.parameters()))",
        )
    known = {id(parameter) for parameter in parameters}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in known:
                raise WeftError(
                    f"the optimizer updates a tensor of shape {[*parameter.shape]} that is not a "
                    "parameter of the module",
                    help="make the optimizer from the module: AdamW(model.parameters())",
                )
