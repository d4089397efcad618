"""Arguments that share memory: a program has a value for each, and changes one of them alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.capture.torch.locations import location_of
from weft.errors import WeftError
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class SharedArguments:
    """The tensors among a call's arguments, and the pairs of them whose memory overlaps."""

    names: Sequence[str] = ()
    pairs: Sequence[tuple[int, int]] = ()


def refuse_shared(graph: Any, inputs: Sequence[Any], shared: SharedArguments) -> None:
    """Refuse a graph that reads or changes an argument after it has changed another in its memory.

    `inputs` are the placeholders of the arguments.
    """
    names = dict(zip(inputs, shared.names, strict=True))
    others: dict[Any, set[Any]] = {}
    for left, right in shared.pairs:
        others.setdefault(inputs[left], set()).add(inputs[right])
        others.setdefault(inputs[right], set()).add(inputs[left])
    roots: dict[Any, Any] = {}  # the tensor that a view or an alias of it shows
    changed: dict[Any, None] = {}
    for node in graph.nodes:
        for each in node.all_input_nodes:
            root = roots.get(each, each)
            stale = [other for other in changed if other in others.get(root, ())]
            if stale:
                first, second = names[stale[0]], names[root]
                raise WeftError(
                    f"the arguments {first} and {second} share memory, and {second} is used after "
                    f"{first} was changed in place",
                    help="pass a copy of one of them: x.clone()",
                    loc=location_of(node),
                )
        schema = getattr(node.target, "_schema", None)
        if schema is None or not node.args or not hasattr(node.args[0], "op"):
            continue
        for formal, given in zip(schema.arguments, node.args, strict=False):
            if formal.alias_info is not None and hasattr(given, "op"):
                roots.setdefault(node, roots.get(given, given))
                if formal.alias_info.is_write:
                    changed[roots.get(given, given)] = None
