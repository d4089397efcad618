"""Graphs of `torch.compile` as sources: forward and backward graphs of AOTAutograd."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from weft.capture.options import CallOptions
from weft.capture.torch.export import Exported, functional
from weft.capture.torch.graph import Imported
from weft.capture.torch.sizes.extents import Extent, SizeSymbol
from weft.capture.torch.sizes.shapes import NUMBER, CallShapes, LeafExtents
from weft.capture.torch.source import Tensors, TorchProgram
from weft.records import dataclass

_ATTRIBUTE = re.compile(r"\['([^']*)'\]|\.(\w+)")
_HOLDERS = ("_modules", "_parameters", "_buffers")


@dataclass(frozen=True, slots=True)
class FxGraph:
    """A functional graph of ATen ops, and the names of its inputs."""

    module: Any  # of torch.fx
    names: tuple[str, ...]
    title: str


def graph_program(program: object, options: CallOptions) -> GraphProgram | None:
    """The source of a graph of `torch.compile`; None for other programs."""
    return GraphProgram(program, options) if isinstance(program, FxGraph) else None


class GraphProgram(TorchProgram):
    """A graph that is called with its inputs and gives the list of its outputs."""

    def __init__(self, graph: FxGraph, options: CallOptions) -> None:
        super().__init__(graph.module.forward, None, options)
        self.graph = graph

    @property
    def name(self) -> str:
        return self.graph.title

    def input_names(self, call: Tensors) -> list[str]:
        return [*self.graph.names]

    def traced(self, call: Tensors) -> tuple[Imported, Any]:
        """Import the graph; one with symbolic sizes is traced again for these."""
        from torch.utils._pytree import tree_structure

        graph, inputs = self.graph.module.graph, call.inputs
        if not is_static(graph):
            graph = _traced(self.graph.module, call.leaves)
            inputs = tuple([place for place in inputs if place is not None])
        program = Exported(graph, _specs(len(inputs)), {}, None)
        tree = tree_structure([0] * len(graph.output_node().args[0]))
        return self.imported(program, call, {}, inputs), tree

    def call_shapes(self, leaves: Sequence[Any]) -> CallShapes | None:
        """The symbolic sizes of the graph's inputs; none if one is no linear function of them."""
        graph = self.graph.module.graph
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        reader = _Symbols()
        found = [reader.extents(node.meta.get("val")) for node in inputs]
        if any(each is None for each in found) or len(found) != len(leaves):
            return CallShapes((), ({},) * len(leaves), self.graph.names)
        extents = tuple([each or {} for each in found])
        return CallShapes(tuple(reader.symbols.values()), extents, self.graph.names)


class _Symbols:
    """The symbols of a graph's inputs, in the order in which they are met."""

    def __init__(self) -> None:
        self.symbols: dict[str, SizeSymbol] = {}

    def extents(self, held: Any) -> LeafExtents | None:
        """The extents of a tensor's dims, or of an integer; None if they are not known."""
        import torch

        sizes = {NUMBER: held} if isinstance(held, torch.SymInt) else {}
        if isinstance(held, torch.Tensor):
            sizes = dict(enumerate(held.shape))
        extents: LeafExtents = {}
        for dim, size in sizes.items():
            if isinstance(size, torch.SymInt) and size.node.expr.free_symbols:
                extent = self._extent(size)
                if extent is None:
                    return None
                extents[dim] = extent
        return extents

    def _extent(self, size: Any) -> Extent | None:
        """A symbolic size `scale * symbol + offset`; None for others."""
        expression = size.node.expr
        free = [*expression.free_symbols]
        if len(free) != 1:
            return None
        # The line through two points; the size is linear if nothing is left after subtracting it.
        offset, next_ = (int(expression.subs(free[0], n)) for n in (0, 1))
        if (expression - ((next_ - offset) * free[0] + offset)).expand() != 0:
            return None
        name = str(free[0])
        self.symbols.setdefault(name, SizeSymbol(name))
        return Extent([*self.symbols].index(name), next_ - offset, offset)


def _specs(count: int) -> list[Any]:
    """The inputs of a graph, in order."""
    from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

    return [InputSpec(InputKind.USER_INPUT, TensorArgument(f"v{n}"), None) for n in range(count)]


def is_static(graph: Any) -> bool:
    """Whether all sizes of a graph are numbers."""
    import torch

    for node in graph.nodes:
        held = node.meta.get("val")
        for each in held if isinstance(held, tuple | list) else (held,):
            if isinstance(each, torch.SymInt | torch.SymFloat | torch.SymBool):
                return False
            if isinstance(each, torch.Tensor) and not all(isinstance(s, int) for s in each.shape):
                return False
    return True


def _traced(module: Any, leaves: Sequence[Any]) -> Any:
    """A graph with symbolic sizes for the sizes of these inputs."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = FakeTensorMode()
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    fakes = [mode.from_tensor(leaves[n].detach()) for n in places]

    def run(*tensors: Any) -> Any:
        # Numbers among the inputs stay as they are: they become constants of the trace.
        given = [*leaves]
        for n, tensor in zip(places, tensors, strict=True):
            given[n] = tensor
        return [*torch.fx.Interpreter(module).run(*given)]

    with mode, torch.no_grad(), torch.fx.traceback.preserve_node_meta():
        return functional(make_fx(run)(*fakes))


def input_names(module: Any) -> tuple[str, ...]:
    """The names of a traced module's inputs: `layers.0.weight` for a parameter, `x`."""
    names = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            source = getattr(node.meta.get("grapharg"), "source", None)
            names.append(_name(source.name if isinstance(source.name, str) else source.name())
                         if source is not None else str(node.name))  # fmt: skip
    return tuple(names)


def _name(source: str) -> str:
    """`up.weight` for `L['self']._modules['up']._parameters['weight']`."""
    words = [one or other for one, other in _ATTRIBUTE.findall(source)]
    return ".".join([word for word in words if word not in (*_HOLDERS, "self")]) or source
