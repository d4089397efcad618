"""In-place ops of a traced graph, as ops that return new values; updates of inputs at its end.

PyTorch's own functionalization traces a graph once more, which takes as long as the first trace.
Most steps change parameters and the optimizer's state only, which no view outlives.
"""

from __future__ import annotations

from typing import Any

from weft.capture.torch.aten import LOWERINGS

_ALIASES = ("aten.detach.default", "aten.alias.default")
_COPY = "aten.copy_.default"


def without_updates(graph: Any) -> bool:
    """Replace the in-place ops of a graph; False, and the graph is as it was, if one is not simple.

    Simple is an op on a tensor itself, of which no view is read after it, and whose form that
    returns a new value has a lowering.
    """
    updates = _Updates(graph)
    if not updates.are_simple():
        return False
    updates.replace()
    return True


class _Updates:
    """The in-place ops of a graph, and what they change."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.order = {node: n for n, node in enumerate(graph.nodes)}
        self.roots: dict[Any, Any] = {}  # the tensor that an alias of it stands for
        self.changes: dict[Any, Any] = {}  # in-place ops, and the ops that return their value
        self.views: dict[Any, list[Any]] = {}  # of a tensor

    def root(self, node: Any) -> Any:
        """The tensor whose memory a node has, if it has all of it."""
        return self.roots.get(node, node)

    def are_simple(self) -> bool:
        """Whether all in-place ops can be replaced."""
        for node in self.graph.nodes:
            if node.op != "call_function" or not hasattr(node.target, "_schema"):
                continue
            schema, name = node.target._schema, str(node.target)
            first = node.args[0] if node.args else None
            if name in _ALIASES:
                self.roots[node] = self.root(first)
            elif schema.is_mutable:
                found = self._functional(node, name)
                if found is None:
                    return False
                self.changes[node] = found
                self.roots[node] = self.root(first)
            elif node.target.is_view and hasattr(first, "op"):
                self.views.setdefault(self.root(first), []).append(node)
        # A view of a changed tensor would show the old value, since replaced ops write to no
        # memory: none may be read after the first change.
        first_change: dict[Any, Any] = {}
        for node in self.changes:
            first_change.setdefault(self.root(node.args[0]), node)
        return not any(
            _is_view(root)
            or any(self._is_read_after(view, change) for view in self._all_views(root))
            for root, change in first_change.items()
        )

    def _all_views(self, root: Any) -> list[Any]:
        found = [*self.views.get(root, ())]
        for view in found:
            found += self.views.get(view, ())
        return found

    def _is_read_after(self, view: Any, change: Any) -> bool:
        aliases = [view, *[node for node, root in self.roots.items() if root is view]]
        users = [user for alias in aliases for user in alias.users]
        return any(self.order[user] > self.order[change] for user in users)

    def _functional(self, node: Any, name: str) -> Any:
        """The op that returns the new value; the copied value itself for a copy."""
        import torch

        held = [each.meta.get("val") for each in node.args[:2] if hasattr(each, "meta")]
        if name == _COPY:
            plain = len(held) == 2 and all(isinstance(each, torch.Tensor) for each in held)
            same = plain and held[0].shape == held[1].shape and held[0].dtype == held[1].dtype
            return node.args[1] if same and len(node.args) == 2 else None
        # aten.add_.Tensor -> aten.add.Tensor
        word, _, overload = name.removeprefix("aten.").partition(".")
        if not word.endswith("_") or not name.startswith("aten."):
            return None
        packet = getattr(torch.ops.aten, word[:-1], None)
        found = getattr(packet, overload, None)
        return found if str(found) in LOWERINGS else None

    def replace(self) -> None:
        """Put new values in the place of changed tensors, and copies into inputs at the end."""
        import torch

        current: dict[Any, Any] = {}  # the newest value of each tensor that has changed

        def now(each: Any) -> Any:
            return current.get(self.root(each), each)

        for node in [*self.graph.nodes]:
            if node.op == "placeholder":
                continue
            changes = node in self.changes
            node.args = torch.fx.map_arg(node.args, now)
            node.kwargs = torch.fx.map_arg(node.kwargs, now)
            if not changes:
                continue
            root, change = self.root(node), self.changes[node]
            if isinstance(change, torch.fx.Node):  # a copy
                current[root] = node.args[1]
                continue
            node.target = change
            current[root] = node
        output = self.graph.output_node()
        with self.graph.inserting_before(output):
            for root, value in current.items():
                if root.op == "placeholder" and value is not root:
                    self.graph.call_function(_copy(), (root, value)).meta = dict(value.meta)
        # Backwards, so that a node has no users any more when it is erased.
        for node in [*self.graph.nodes][::-1]:
            is_copied = str(node.target) == _COPY and node in self.changes
            if is_copied or str(node.target).startswith("profiler."):
                self.graph.erase_node(node)
        self.graph.eliminate_dead_code()


def _is_view(node: Any) -> bool:
    """Whether a tensor that is changed is part of another."""
    return node.op == "call_function" and bool(getattr(node.target, "is_view", False))


def _copy() -> Any:
    import torch

    return torch.ops.aten.copy_.default
