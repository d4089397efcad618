"""Steps that compute gradients, traced: an exported forward is run on tensors that record them.

Functions that autograd calls backward are mapped to the nodes of the forward graph that they came
from, so that ops of the backward pass keep a module's path and the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from weft.capture.torch.decompositions import decompositions
from weft.capture.torch.export import Exported, functional, replay
from weft.capture.torch.in_place import without_updates
from weft.capture.torch.on_host import like_on_host
from weft.capture.torch.phases import StepPhase, marked

ForwardPass = Callable[[Sequence[Any]], Sequence[Any]]
_KEPT = ("stack_trace", "nn_module_stack")  # what locations are made from


def traced_step(
    forward: Any,
    constants: dict[str, Any],
    values: Sequence[Any],
    step: Callable[[Sequence[Any], ForwardPass], Sequence[Any]],
) -> Exported:
    """The functional graph of `step(values, run)`, which may change the values in place.

    `run` is the exported program: it takes what the placeholders stand for that are none of the
    `constants`. These are inputs of the graph, too, after the values.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = _fake_mode(forward)
    tensors = [*values, *constants.values()]
    if not torch.is_autocast_enabled("cuda"):
        # Autocast for CUDA acts on CUDA tensors alone; else all is traced as on the CPU.
        tensors = [*map(like_on_host, tensors)]
    fakes = [mode.from_tensor(value, static_shapes=True) for value in tensors]
    program = _recording()(forward.graph_module)
    targets = [spec.target for spec in forward.graph_signature.input_specs]
    count = len(values)

    def whole(*values: Any) -> Any:
        held = dict(zip(constants, values[count:], strict=True))

        def run(inputs: Sequence[Any]) -> Sequence[Any]:
            left = iter(inputs)
            taken = [held[target] if target in held else next(left) for target in targets]
            made: Sequence[Any] = program.run(*taken)
            return made

        return [*step(values[:count], run)]

    math = torch.nn.attention.SDPBackend.MATH  # the others have no gradients in basic ops
    with (
        torch.no_grad(),
        torch.nn.attention.sdpa_kernel(math),
        torch.fx.traceback.preserve_node_meta(),
    ):
        made = make_fx(whole, decomposition_table=decompositions())(*fakes)
        graph = made.graph if without_updates(made.graph) else functional(made)
    graph = _without_aliases(graph)
    return Exported(graph, _specs(count, constants), constants, forward.call_spec.out_spec)


def _without_aliases(graph: Any) -> Any:
    """The graph without detached versions of its inputs, which would hide where they are used."""
    aliases = ("aten.detach.default", "aten.alias.default")
    for node in [*graph.nodes]:
        if str(node.target) in aliases and node.args[0].op == "placeholder":
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    return graph


def _fake_mode(forward: Any) -> Any:
    import torch
    from torch._guards import detect_fake_mode

    held = [node.meta.get("val") for node in forward.graph.nodes if node.op == "placeholder"]
    return detect_fake_mode(held) or torch._subclasses.FakeTensorMode()


def _specs(count: int, constants: dict[str, Any]) -> list[Any]:
    """The inputs of a step's graph: values, then constants."""
    from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

    made = [InputSpec(InputKind.USER_INPUT, TensorArgument(f"v{n}"), None) for n in range(count)]
    for name in constants:
        made.append(InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name), name))
    return made


@cache
def _recording() -> Any:
    """Runs a graph node by node, and marks the functions that autograd will call backward."""
    import torch
    from torch.utils._pytree import tree_leaves

    class Recording(replay()):  # type: ignore[misc]
        """An interpreter whose backward functions know their nodes."""

        is_whole = False

        def __init__(self, module: Any) -> None:
            super().__init__(module)
            # Holds the functions, too: autograd wraps one anew, with another identity, once its
            # Python object is dropped.
            self.marked: set[Any] = set()

        def run_node(self, node: Any) -> Any:
            result = super().run_node(node)
            for each in tree_leaves(result):
                if isinstance(each, torch.Tensor) and each.grad_fn is not None:
                    self.mark(each.grad_fn, {key: node.meta.get(key) for key in _KEPT})
            return result

        def mark(self, function: Any, meta: dict[str, Any]) -> None:
            """Give a function, and those before it that are not marked, the place of a node."""
            left = [function]
            while left:
                each = left.pop()
                if each is None or each in self.marked:
                    continue
                self.marked.add(each)
                each.register_prehook(lambda _: place_ops(meta, "backward"))
                left += [before for before, _ in each.next_functions]

    return Recording


def place_ops(meta: dict[str, Any], phase: StepPhase) -> None:
    """Give the nodes that are traced from now on a phase, and the place of another node."""
    import torch.fx.traceback as traceback

    held = {key: each for key, each in meta.items() if each is not None}
    traceback.current_meta = marked(held, phase)
