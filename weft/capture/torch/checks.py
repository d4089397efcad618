"""Assertions in a graph: of types, which hold, and of elements, which a program does not make."""

from __future__ import annotations

from typing import Any

CHECKS = {
    "aten._assert_async.default",
    "aten._assert_async.msg",
    "aten._assert_tensor_metadata.default",
    "aten._assert_scalar.default",
    "aten._linalg_check_errors.default",  # singular matrices give NaN or infinity
}


def only_checked(graph: Any) -> list[Any]:
    """Assertions, and what nothing else reads, such as Python numbers: from the last on."""
    found: dict[Any, None] = {}
    for node in reversed(graph.nodes):
        is_read = any(user not in found for user in node.users)
        if str(node.target) in CHECKS or (
            node.op == "call_function" and node.users and not is_read
        ):
            found[node] = None
    return [*found]


def drop_checks(module: Any) -> None:
    """Remove assertions, with what they alone read, from a graph that is to be traced again."""
    for node in only_checked(module.graph):
        module.graph.erase_node(node)
