"""Activation checkpointing: what a module computes is computed again by its backward pass.

A graph of a step keeps every value of the forward pass that the backward pass reads. Of the calls
of chosen modules only the inputs and outputs are kept: the other values are computed again, just
before the backward pass of the call reads them, from inputs behind a barrier that no later pass
looks through.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any

from weft.capture.torch.build import AtenLowering, Build
from weft.capture.torch.locations import own_path
from weft.capture.torch.phases import marked, parameter_views, phase_of
from weft.errors import WeftError
from weft.ir.module import Value
from weft.ops.control import OptimizationBarrier
from weft.records import dataclass

_COPY = "aten.copy_.default"
_ORIGINAL = "weft_original"  # the metadata of a copy: the node that it computes again


def check_patterns(patterns: Sequence[str], module: Any) -> None:
    """Refuse a pattern that no module's name matches."""
    names = [name for name, _ in module.named_modules() if name]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, n=3) or names[:3]
            raise WeftError(
                f"checkpoint: the pattern {pattern!r} matches no module",
                help=f"modules are like {', '.join(near) or 'none'}; * stands for any characters",
            )


def original_of(node: Any) -> Any:
    """The node that a copy computes again; None for others."""
    return node.meta.get(_ORIGINAL)


def recompute(graph: Any, patterns: Sequence[str], state: Collection[Any]) -> None:
    """Let the backward pass of each call of the named modules compute its values again.

    `state` are the placeholders of parameters and buffers, which are kept in any case: they, and
    views of them, are read as they are, so that FSDP gathers them once for a call's backward pass.
    """
    state_nodes = {*state, *parameter_views(graph, state)}
    calls = _calls(graph, patterns)
    order = {node: n for n, node in enumerate(graph.nodes)}
    for call in {id(call): call for call in calls.values()}.values():
        _recompute_call(graph, call, calls, state_nodes, order)


@dataclass(eq=False)
class ModuleCall:
    """The nodes of one call of a module, by phase."""

    forward: dict[Any, None] = field(default_factory=dict)
    backward: dict[Any, None] = field(default_factory=dict)


def _calls(graph: Any, patterns: Sequence[str]) -> dict[Any, ModuleCall]:
    """The call that a node belongs to. After its backward pass a module is called anew."""
    calls: dict[Any, ModuleCall] = {}
    current: dict[str, ModuleCall] = {}
    for node in graph.nodes:
        if node.op != "call_function" or str(node.target) == _COPY:
            continue
        if node.target is operator.getitem:
            # An element goes with the op whose tuple it is in: copied without it, it would still
            # read the tuple of the forward pass.
            call = calls.get(node.args[0])
        else:
            key = _key(node, patterns)
            call = None if key is None else current.get(key)
            if key is not None and (call is None or (call.backward and _is_forward(node))):
                call = current[key] = ModuleCall()
        if call is not None:
            calls[node] = call
            (call.forward if _is_forward(node) else call.backward)[node] = None
    return calls


def _key(node: Any, patterns: Sequence[str]) -> str | None:
    """The outermost call of a named module that a node belongs to, or None."""
    for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        name = own_path(path)
        if name and any(fnmatchcase(name, pattern) for pattern in patterns):
            return str(key)
    return None


def _is_forward(node: Any) -> bool:
    return phase_of(node) == "forward"


def _recompute_call(
    graph: Any,
    call: ModuleCall,
    calls: Mapping[Any, ModuleCall],
    state_nodes: Collection[Any],
    order: Mapping[Any, int],
) -> None:
    """Copy the nodes of a call that its backward pass needs, to where it begins."""
    readers = {node: [*_readers(node, call, calls)] for node in call.forward}
    users = [user for node_readers in readers.values() for user in node_readers]
    if not users:
        return
    first = min(users, key=order.__getitem__)
    again = _closure(
        [node for node, node_readers in readers.items() if node_readers], call, first, order
    )
    inputs = dict.fromkeys(
        [given for node in again for given in node.all_input_nodes
         if given not in again and given not in state_nodes]
    )  # fmt: skip
    with graph.inserting_before(first):
        became = _behind_barrier(graph, [*inputs], _gradient(call, first, order), first)
        for node in again:
            copy = became[node] = graph.node_copy(node, lambda given: became.get(given, given))
            copy.meta = {**marked(dict(node.meta), "backward"), _ORIGINAL: node}
    for node, node_readers in readers.items():
        for user in node_readers:
            if node in became:
                user.replace_input_with(node, became[node])


def _readers(node: Any, call: ModuleCall, calls: Mapping[Any, ModuleCall]) -> Iterator[Any]:
    """The nodes of the backward pass for which a value is computed again.

    An output, which others read in the forward pass, is computed again for its own call alone.
    """
    is_output = any(
        user not in call.forward and (user.op == "output" or _is_forward(user))
        for user in node.users
    )
    for user in node.users:
        if user.op != "call_function" or str(user.target) == _COPY or _is_forward(user):
            continue
        if calls.get(user) is call or not is_output:
            yield user


def _closure(
    wanted: Sequence[Any], call: ModuleCall, first: Any, order: Mapping[Any, int]
) -> list[Any]:
    """The nodes of a call that these depend on, in order.

    A node that reads an argument which is updated in between is not computed again.
    """
    closure: set[Any] = set()
    left = [*wanted]
    while left:
        node = left.pop()
        if node not in closure and node in call.forward and not _is_stale(node, first, order):
            closure.add(node)
            left += node.all_input_nodes
    return sorted(closure, key=order.__getitem__)


def _is_stale(node: Any, first: Any, order: Mapping[Any, int]) -> bool:
    """Whether an input of a node is updated in place before `first`."""
    return any(
        str(user.target) == _COPY and user.args[0] is given and order[user] < order[first]
        for given in node.all_input_nodes
        if given.op == "placeholder"
        for user in given.users
    )


def _gradient(call: ModuleCall, first: Any, order: Mapping[Any, int]) -> Any:
    """A gradient that comes into a call's backward pass, or None."""
    gradients = [
        given
        for node in call.backward
        for given in node.all_input_nodes
        if given.op == "call_function" and not _is_forward(given) and given not in call.backward
        if order.get(given, len(order)) < order[first]
    ]
    # The latest of them, so that nothing is computed again before the backward pass gets here.
    return max(gradients, key=order.__getitem__, default=None)


def _behind_barrier(graph: Any, inputs: Sequence[Any], gradient: Any, first: Any) -> dict[Any, Any]:
    """The inputs as values that are there once the gradient is."""
    if not inputs:
        return {}
    operands = [*inputs, *([] if gradient is None else [gradient])]
    meta = {key: first.meta[key] for key in ("stack_trace", "nn_module_stack") if key in first.meta}
    barrier = graph.call_function(BARRIER, tuple(operands))
    barrier.meta = {
        **marked(meta, "backward"),
        "val": tuple([each.meta["val"] for each in operands]),
    }
    replacements = {}
    for n, each in enumerate(inputs):
        part = replacements[each] = graph.call_function(operator.getitem, (barrier, n))
        part.meta = {**barrier.meta, "val": each.meta["val"]}
    return replacements


class GraphBarrier:
    """The target of a node that returns its operands, as an op that no other is merged across."""

    __name__ = "barrier"

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        return values

    def __str__(self) -> str:
        return "weft.barrier"


BARRIER = GraphBarrier()


def barrier(b: Build, *values: Value) -> tuple[Value, ...]:
    """One barrier for all values."""
    return b.all(OptimizationBarrier(), *values)


LOWERINGS: dict[str, AtenLowering] = {str(BARRIER): barrier}
