"""`torch.compile(model, backend="weft")`: graphs of TorchDynamo, compiled by Weft."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from weft.capture.torch.attention import (
    define_attention,
    drops_out,
    plain_attention,
    scaled_dot_product,
    whole_attention,
)
from weft.capture.torch.constrain import define_constraint
from weft.capture.torch.export import decompositions
from weft.capture.torch.graphs import FxGraph, input_names
from weft.compiled import OPTIONS, compile  # noqa: A004  # the word users know
from weft.errors import WeftError

# Options of weft.compile that have no meaning for a graph that Dynamo has captured.
_NOT_HERE = {"in_shardings", "out_shardings", "donate_argnums", "static_argnums"}
# TorchDynamo traces calls of weft.constrain and weft.attention before it calls the backend.
define_attention()
define_constraint()
BACKEND_OPTIONS = tuple([name for name in OPTIONS if name not in _NOT_HERE])


def backend(
    module: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph of TorchDynamo, and its backward pass where gradients are needed.

    Registered under the name `weft`. The options are those of `weft.compile`: mesh, plan (patterns
    of the names of parameters and arguments), level, target. A graph of symbolic sizes is compiled
    for each size that it is called with.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch.nn.attention import SDPBackend, sdpa_kernel

    given = dict(options or {})
    _check(given)
    plan = given.pop("plan", None)
    names = input_names(module)
    _map_attention(module, is_trained=any(getattr(x, "requires_grad", False) for x in inputs))

    def forward(graph: Any, _: Any) -> Any:
        known = _matching(names, graph)
        used = _used(plan, known)
        return _boxed(FxGraph(graph, known, "forward"), used, given)

    def backward(graph: Any, _: Any) -> Any:
        return _boxed(FxGraph(graph, _matching((), graph), "backward"), None, given)

    compiler = aot_autograd(
        fw_compiler=forward, bw_compiler=backward, decompositions=decompositions()
    )
    with sdpa_kernel(SDPBackend.MATH):  # the others have no gradients in basic ops
        made: Callable[..., Any] = compiler(module, inputs)
    return made


def _map_attention(module: Any, *, is_trained: bool) -> None:
    """Replace attention by one op, or where gradients are needed by its meaning, which is fused."""
    from torch.nn.functional import scaled_dot_product_attention

    whole = whole_attention()
    attend = plain_attention if is_trained else whole
    for node in module.graph.nodes:
        if node.target is whole:
            node.target = attend
        if node.target is scaled_dot_product_attention and not drops_out(node.args, node.kwargs):
            node.target = partial(scaled_dot_product, attend)
    module.recompile()


def _matching(names: Sequence[str], graph: Any) -> tuple[str, ...]:
    """The names of a graph's inputs: Dynamo's, which come first, then AOTAutograd's own."""
    own = [str(node.name) for node in graph.graph.nodes if node.op == "placeholder"]
    return (*names[: len(own)], *own[len(names) :])


def _used(plan: Any, names: Sequence[str]) -> Any:
    """The patterns of a plan that match here: a module may have several graphs."""
    if not isinstance(plan, Mapping):
        return plan
    return {p: s for p, s in plan.items() if any(fnmatchcase(name, p) for name in names)}


def _boxed(graph: FxGraph, plan: Any, options: Mapping[str, Any]) -> Any:
    """The compiled graph by AOTAutograd's convention: a list of inputs, which it may free."""
    compiled = compile(graph, plan=plan, **options)  # type: ignore[arg-type]

    def boxed(inputs: list[Any]) -> Any:
        given = [*inputs]
        inputs.clear()
        return compiled(*given)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def _check(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in BACKEND_OPTIONS:
            raise WeftError(
                f"the backend weft has no option {name!r}",
                help=f"options are {', '.join(BACKEND_OPTIONS)}",
            )
