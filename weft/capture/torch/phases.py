"""Phases of a traced step, and where its parameters are used: forward, backward, update.

The phase of a node is kept in its metadata, under the key that PyTorch copies from node to node.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Literal

from weft.capture.torch.locations import module_path

StepPhase = Literal["forward", "backward", "update"]
_KEY = "custom"
_VIEWS = {
    f"aten.{name}"
    for name in (
        "permute.default", "transpose.int", "t.default", "view.default", "reshape.default",
        "_unsafe_view.default", "expand.default", "unsqueeze.default", "squeeze.dim",
        "squeeze.dims", "_to_copy.default", "clone.default", "alias.default", "detach.default",
    )
}  # fmt: skip
_NUMBERED = re.compile(r"^(.*?\.)?\d+(?=\.|$)")


def marked(meta: dict[str, Any], phase: StepPhase) -> dict[str, Any]:
    """The metadata of a node, with its phase."""
    return {**meta, _KEY: {**(meta.get(_KEY) or {}), "weft": phase}}


def phase_of(node: Any) -> StepPhase:
    """The phase of a node; a graph without phases is a forward pass."""
    found: StepPhase = (node.meta.get(_KEY) or {}).get("weft", "forward")
    return found


def layer_of(node: Any) -> str:
    """The layer that a node belongs to: `layers.3` for `layers.3.mlp.up`."""
    path = module_path(node)
    numbered = _NUMBERED.match(path)
    return numbered[0] if numbered else path


def layer_segments(graph: Any, parameters: Collection[Any]) -> dict[Any, int]:
    """The nodes that use parameters, numbered by the stretches in which one layer is computed.

    The backward pass of a layer is another stretch than its forward pass, unless it follows at
    once. Views and conversions of parameters are repeated in every stretch that uses them, so that
    none keeps a gathered parameter from one to the next. Nodes that update parameters are in none.
    """
    segments: dict[Any, int] = {}
    views = parameter_views(graph, parameters)
    number, before = -1, None
    again: dict[tuple[Any, int], Any] = {}
    for node in [*graph.nodes]:
        if node.op != "call_function" or phase_of(node) == "update" or node in views:
            continue
        used = [each for each in node.all_input_nodes if each in parameters or each in views]
        if not used:
            continue
        layer = layer_of(node)
        if layer != before:
            number, before = number + 1, layer
        segments[node] = number
        for each in used:
            if each in views:
                node.replace_input_with(each, _repeated(graph, each, node, number, again, segments))
    for view in reversed([*views]):
        if not view.users:
            graph.erase_node(view)
    return segments


def parameter_views(graph: Any, parameters: Collection[Any]) -> dict[Any, None]:
    """Nodes that only view or convert a parameter, in order."""
    views: dict[Any, None] = {}
    for node in graph.nodes:
        if str(node.target) in _VIEWS and len(node.all_input_nodes) == 1:
            (source,) = node.all_input_nodes
            if source in parameters or source in views:
                views[node] = None
    return views


def _repeated(
    graph: Any,
    view: Any,
    user: Any,
    number: int,
    again: dict[tuple[Any, int], Any],
    segments: dict[Any, int],
) -> Any:
    """A view of a parameter, once for every stretch."""
    key = (view, number)
    if key not in again:
        with graph.inserting_before(user):
            copy = graph.node_copy(view)
        (source,) = view.all_input_nodes
        if str(source.target) in _VIEWS:
            copy.replace_input_with(source, _repeated(graph, source, copy, number, again, segments))
        copy.meta = marked(dict(view.meta), phase_of(user))
        segments[copy], again[key] = number, copy
    return again[key]
