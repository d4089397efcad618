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
from weft.capture.torch.decompositions import DIFFERENTIATED_FUNCTIONS, decompositions
from weft.capture.torch.export import select_branch
from weft.capture.torch.graphs import FxGraph, input_names, is_static
from weft.capture.torch.grouped import GROUPED, define_grouped_product, grouped_product
from weft.capture.torch.strides import permute_outputs, permuted
from weft.compiled import OPTIONS, compile  # noqa: A004  # the word users know
from weft.errors import Unsupported, WeftError
from weft.ir.location import UNKNOWN, Location, escape
from weft.records import dataclass
from weft.run.parts import hosts_of

# Options of weft.compile that have no meaning for a graph that Dynamo has captured.
_NOT_HERE = {"in_shardings", "out_shardings", "donate_argnums", "static_argnums", "dynamic",
             "dynamic_shapes"}  # fmt: skip
# TorchDynamo traces calls of weft.constrain and weft.attention before it calls the backend.
define_attention()
define_constraint()
define_grouped_product()
BACKEND_OPTIONS = (*[name for name in OPTIONS if name not in _NOT_HERE], "strict")
_RESUMED = "torch_dynamo_resume_in"  # the beginning of the names of what follows a graph break


@dataclass(frozen=True, slots=True)
class Recompilation:
    """A function that TorchDynamo gave to Weft once more, and the guard that failed."""

    function: str
    place: str  # file:line
    count: int  # of its graphs so far, this one included
    reason: str


_graphs: dict[tuple[str, str], int] = {}  # by function and place: how many graphs it has had
_recompilations: list[Recompilation] = []


def recompilations() -> tuple[Recompilation, ...]:
    """The recompilations by TorchDynamo of what this process has compiled with Weft, in order."""
    return tuple(_recompilations)


def backend(
    module: Any,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of TorchDynamo, and its backward pass where gradients are needed.

    Registered under the name `weft`. The options are those of `weft.compile`: mesh, plan (patterns
    of the names of parameters and arguments), level, target. Inputs of symbolic sizes are padded to
    a few sizes where that changes no result. With `strict`, graph breaks and ops that no kernel
    computes are errors.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch.nn.attention import SDPBackend, sdpa_kernel

    settings = dict(options or {})
    _check(settings)
    if mode not in (None, "default"):
        raise WeftError(
            f"the backend weft has no mode {mode!r}, which is Inductor's",
            help='leave mode out; options={"tune": "measure"} times candidates of large products',
        )
    plan, strict = settings.pop("plan", None), bool(settings.pop("strict", False))
    if strict:
        _refuse_break(module)
    _count(module)
    names = input_names(module)
    _map_functions(module, is_trained=any(getattr(x, "requires_grad", False) for x in inputs))

    def forward(graph: Any, _: Any) -> Any:
        known = _matching(names, graph)
        used = _used(plan, known)
        undone = permute_outputs(graph, _visible_outputs(graph))
        return _boxed(FxGraph(graph, known, "forward"), used, settings, strict, undone)

    def backward(graph: Any, _: Any) -> Any:
        return _boxed(FxGraph(graph, _matching((), graph), "backward"), None, settings, strict, {})

    compiler = aot_autograd(
        fw_compiler=forward, bw_compiler=backward, decompositions=decompositions()
    )
    with sdpa_kernel(SDPBackend.MATH):  # the others have no gradients in basic ops
        made: Callable[..., Any] = compiler(module, inputs)
    return made


def _map_functions(module: Any, *, is_trained: bool) -> None:
    """Replace attention by one op, or where gradients are needed by its meaning, which is fused.

    So are grouped products, conditions, and functions whose gradients have no lowering.
    """
    import torch
    import torch.nn.functional as functions

    differentiated = {getattr(functions, k): each for k, each in DIFFERENTIATED_FUNCTIONS.items()}
    scaled = functions.scaled_dot_product_attention
    whole = whole_attention()
    attend = plain_attention if is_trained else whole
    for node in module.graph.nodes:
        if node.target is whole:
            node.target = attend
        if node.target is torch.ops.higher_order.cond:
            node.target = select_branch
        if node.op == "call_function" and _name(node.target) in GROUPED:
            node.target = grouped_product
        if is_trained and node.op == "call_function" and node.target in differentiated:
            node.target = differentiated[node.target]
        if node.target is scaled and not drops_out(node.args, node.kwargs):
            node.target = partial(scaled_dot_product, attend)
    module.recompile()


def _name(target: Any) -> str:
    """The full name of an op, of its default overload if none is named; of a function its own."""
    import torch

    functions = torch.nn.functional
    if target in (getattr(functions, "grouped_mm", None), getattr(torch, "_grouped_mm", None)):
        return "aten._grouped_mm.default"
    is_packet = isinstance(target, torch._ops.OpOverloadPacket)
    return str(target.default if is_packet and "default" in target.overloads() else target)


def _matching(names: Sequence[str], graph: Any) -> tuple[str, ...]:
    """The names of a graph's inputs: Dynamo's, which come first, then AOTAutograd's own."""
    own = [str(node.name) for node in graph.graph.nodes if node.op == "placeholder"]
    return (*names[: len(own)], *own[len(names) :])


def _used(plan: Any, names: Sequence[str]) -> Any:
    """The patterns of a plan that match here: a module may have several graphs."""
    if not isinstance(plan, Mapping):
        return plan
    return {p: s for p, s in plan.items() if any(fnmatchcase(name, p) for name in names)}


def _visible_outputs(graph: Any) -> range:
    """The outputs of a forward graph that the caller sees: the others are for the backward one."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    outputs = len(graph.graph.output_node().args[0])
    if meta is None:
        return range(outputs)
    # New values of mutated inputs come first; AOTAutograd copies them itself.
    return range(meta.num_mutated_inp_runtime_indices, min(meta.num_forward_returns, outputs))


def _boxed(
    graph: FxGraph,
    plan: Any,
    options: Mapping[str, Any],
    strict: bool,
    undone: Mapping[int, tuple[int, ...]],
) -> Any:
    """The compiled graph by AOTAutograd's convention: a list of inputs, which it may free.

    Outputs that were permuted are permuted back.
    """
    varies = not is_static(graph.module.graph)
    compiled = compile(graph, plan=plan, dynamic=varies, **options)  # type: ignore[arg-type]

    def boxed(inputs: list[Any]) -> Any:
        given = [*inputs]
        inputs.clear()
        results = compiled(*given)
        return permuted(results, undone) if undone else results

    def checked(inputs: list[Any]) -> Any:
        compiled.prepare(*inputs)
        _refuse_fallbacks(compiled)
        return boxed(inputs)

    checked._boxed_call = True  # type: ignore[attr-defined]
    if strict:
        return checked

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


# Strictness


def _refuse_break(module: Any) -> None:
    """Refuse a graph that ends at a graph break, or begins after one."""
    reason = getattr(module, "compile_subgraph_reason", None)
    if reason is not None and reason.graph_break:
        frame = reason.user_stack[-1] if reason.user_stack else None
        loc = UNKNOWN if frame is None else Location(f'"{escape(frame.filename)}":{frame.lineno}:0')
        raise WeftError(
            f"strict: a graph break: {_sentence(reason.reason)}",
            help="take that line out of what is compiled, or leave strict out to run it eagerly",
            loc=loc,
        )
    name, place = _compiled_function()
    if name.startswith(_RESUMED):
        raise WeftError(
            f"strict: {name.removeprefix(_RESUMED).strip('_')}, of {place}, has a graph break",
            help="torch._dynamo.explain names it; take it out, or leave strict out",
        )


def _sentence(text: str) -> str:
    """The first lines of a reason, in one."""
    return " ".join(" ".join(str(text).split()).split()[:40])


def _refuse_fallbacks(compiled: Any) -> None:
    """Refuse a program with nodes that no kernel computes."""
    local = compiled.program.local
    if local.calls is None:
        return
    fallbacks = [host.node for host in hosts_of(local)]
    if fallbacks:
        names = sorted({node.op.name.rpartition(".")[2] for node in fallbacks})
        raise Unsupported(
            f"strict: no kernel computes {', '.join(names)}, which numpy would run",
            help="write it with other ops, or leave strict out",
            loc=fallbacks[0].loc,
        )


# Recompilations


def _compiled_function() -> tuple[str, str]:
    """The function that TorchDynamo is compiling, and its place."""
    from torch._dynamo.symbolic_convert import tls

    tx = getattr(tls, "current_tx", None)
    code = getattr(tx, "f_code", None)
    if code is None:
        return "", ""
    return code.co_name, f"{code.co_filename}:{code.co_firstlineno}"


def _count(module: Any) -> None:
    """Count a graph; another one of the same function is a recompilation, with its reason."""
    from torch._dynamo.utils import get_metrics_context

    function = _compiled_function()
    metrics = getattr(get_metrics_context(), "_metrics", {})
    reason = metrics.get("recompile_reason")
    _graphs[function] = _graphs.get(function, 0) + 1 if reason else 1
    if reason:
        _recompilations.append(Recompilation(*function, _graphs[function], _sentence(reason)))


def _check(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in BACKEND_OPTIONS:
            raise WeftError(
                f"the backend weft has no option {name!r}",
                help=f"options are {', '.join(BACKEND_OPTIONS)}",
            )
