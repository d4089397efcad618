"""Programs that differentiate inside of themselves: `torch.func`, and `torch.autograd.grad`.

PyTorch's export records the calls of function transforms, and takes what they have wrapped for
constants. Such programs are traced below autograd instead, where only their basic ops are left.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

from weft.errors import Unsupported

_RECORDED = "torch._functorch.predispatch"  # the module of calls that an exported graph records
_TRANSFORMS = re.compile(r"_functorch/(apis|eager_transforms|vmap)\.py$")
_LOST = re.compile("does not require grad|fake tensor in the exported program constant")


def exported_program(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, grad: bool
) -> Any:
    """PyTorch's ExportedProgram of a module, of basic ops where it differentiates inside."""
    import torch

    try:
        # Not strict: the module's Python code runs as it is. TorchDynamo's analysis of its bytecode
        # takes longer, and refuses more.
        made = torch.export.export(module, tuple(args), dict(kwargs), strict=False)
        if not _records_transforms(made.graph_module):
            return made
    except (RuntimeError, AttributeError) as error:
        if not _differentiates(error):
            raise
    try:
        with _no_block_without_gradients()() if grad else nullcontext():
            return _exported_below(module, args, kwargs)
    except (RuntimeError, IndexError) as error:
        # An IndexError of PyTorch's own: its graph has an input for each recorded gradient.
        if isinstance(error, RuntimeError) and not _LOST.search(str(error)):
            raise
        if grad:
            raise Unsupported(
                "a training step cannot differentiate by torch.autograd.grad inside of its loss",
                help="use torch.func.grad, vmap or jacrev, of which the gradient is taken",
            ) from error
    with _recording_gradients(module):
        return _exported_below(module, args, kwargs)


def _records_transforms(module: Any) -> bool:
    import torch

    nodes = [n for part in module.modules() if isinstance(part, torch.fx.GraphModule)
             for n in part.graph.nodes]  # fmt: skip
    return any(getattr(node.target, "__module__", None) == _RECORDED for node in nodes)


def _differentiates(error: BaseException) -> bool:
    """Whether an error is one of exporting function transforms or gradients."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(_LOST.search(str(error))) or any(_TRANSFORMS.search(f.filename) for f in frames)


def _exported_below(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The program traced below autograd, functional already; updates are copies at its end."""
    import torch
    from torch.export._trace import _export

    with balanced_transforms():  # of the attempt before
        made = _export(module, tuple(args), dict(kwargs), strict=False, pre_dispatch=False)
    graph, signature = made.graph_module.graph, made.graph_signature
    inputs = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    names = {spec.target: spec.arg.name for spec in signature.input_specs if spec.target}
    output = graph.output_node()
    results = []
    with graph.inserting_before(output):
        for spec, value in zip(signature.output_specs, output.args[0], strict=True):
            if spec.kind.name == "USER_OUTPUT":
                results.append(value)
            elif spec.kind.name.endswith("_MUTATION"):
                target = inputs[names.get(spec.target, spec.target)]
                copy = graph.call_function(torch.ops.aten.copy_.default, (target, value))
                copy.meta = dict(value.meta)
    output.args = (tuple(results),)
    return made


@cache
def _no_block_without_gradients() -> Any:
    """The mode that refuses `torch.no_grad()`, of which nothing is left below autograd."""
    import torch

    class Refusing(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        """Autograd is off while ops are traced below it; transforms alone enable it."""

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is torch._C._set_grad_enabled and not (args[0] or torch.is_grad_enabled()):
                raise Unsupported(
                    "a training step has a block without gradients beside transforms of torch.func",
                    help="detach its results instead: x.detach()",
                )
            return function(*args, **(kwargs or {}))

    return Refusing


@contextmanager
def _recording_gradients(module: Any) -> Iterator[None]:
    """Run a module with gradients recorded inside of it, as its caller does in eager mode."""
    import torch
    from torch.utils._pytree import tree_map_only

    forward: Callable[..., Any] = module.forward

    def recorded(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            results = forward(*args, **kwargs)
        return tree_map_only(torch.Tensor, lambda tensor: tensor.detach(), results)

    module.forward = recorded
    try:
        yield
    finally:
        del module.forward


@contextmanager
def balanced_transforms() -> Iterator[None]:
    """Leave the transforms that an error has left entered: every later op would fail in them."""
    from torch._C import _functorch

    depth = _functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        if _functorch.get_dynamic_layer_stack_depth() > depth:
            _functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
