"""PyTorch's export of a module for arguments, decomposed to ops with lowerings."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import cache
from pathlib import Path
from typing import Any

from weft.capture.torch.aliasing import SharedArguments, refuse_shared
from weft.capture.torch.attention import (
    drops_out,
    plain_attention,
    scaled_dot_product,
    whole_attention,
)
from weft.capture.torch.checks import drop_checks
from weft.capture.torch.decompositions import DIFFERENTIATED, decompositions
from weft.capture.torch.decompositions.checked import without_checks
from weft.capture.torch.flex import drop_block_tables, flex_attention, flex_meaning
from weft.capture.torch.grouped import GROUPED, grouped_product
from weft.capture.torch.on_host import on_host
from weft.capture.torch.own_gradients import APPLICATION, function_calls, replayed
from weft.capture.torch.transforms import balanced_transforms, exported_program
from weft.errors import Unsupported, WeftError
from weft.ir.location import UNKNOWN, Location, escape
from weft.records import dataclass

_OWN = str(Path(__file__).parents[2])
# In messages of Python code that needs the elements of tensors which have none while it is traced.
_NOT_TRACED = re.compile(
    "get value out of a tracing tensor|FakeTensor|fake tensor|functorch tensor|object has no "
    "attribute 'constant'|data is not allocated yet|expected to contain only concrete integers"
)
# Other errors of tracing, why they are raised, and what to do.
_REASONS = (
    (r"Found <class '([^']+)'> in output", r"it returns a \1",
     "register the class, by torch.export.register_dataclass, or return tuples and dicts"),
    (r"\.numpy\(\) is not supported", "it makes an array of numpy of a tensor",
     "keep it a tensor inside of what is compiled"),
    (r"does not require grad", "it calls backward()",
     "use torch.func.grad, or weft.train_step for a loss"),
    (r"Optional\[Generator\]", "it draws from a generator of its own",
     "leave generator= out: torch.manual_seed sets the seed of all draws"),
)  # fmt: skip
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')  # in the message of an error, while replayed
_ROUNDS = 3  # decompositions may update tensors in place; the next round functionalizes these


@dataclass(frozen=True, slots=True)
class Exported:
    """A functional program with its signature."""

    graph: Any  # of torch.fx; in-place updates are copies into its inputs at the end
    specs: Sequence[Any]  # of the inputs
    constants: Mapping[str, Any]  # tensors that are neither parameters nor buffers
    outputs: Any  # the TreeSpec of the results


def export(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    shared: SharedArguments | None = None,
) -> Exported:
    """The exported program of a module for arguments, in core ATen ops."""
    with exported(module, args, kwargs) as made:
        if shared is not None:
            refuse_shared(made.graph, _inputs(made), shared)
        graph = functional(made.graph_module)
    specs = made.graph_signature.input_specs
    return Exported(graph, specs, made.constants, made.call_spec.out_spec)


def _inputs(program: Any) -> list[Any]:
    """The placeholders of the user's tensors."""
    nodes = program.graph.find_nodes(op="placeholder")
    pairs = zip(nodes, program.graph_signature.input_specs, strict=True)
    return [node for node, spec in pairs
            if spec.kind.name == "USER_INPUT" and not hasattr(spec.arg, "value")]  # fmt: skip


@contextmanager
def exported(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, grad: bool = False
) -> Iterator[Any]:
    """PyTorch's ExportedProgram; errors, also those of the `with` body, name the user's line."""
    import torch
    from torch._dynamo.exc import UserError
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
    )
    from torch.fx.experimental.symbolic_shapes import (
        GuardOnDataDependentSymNode,
        PendingUnbackedSymbolNotFound,
    )

    if name := next((n for n, p in module.named_parameters() if hasattr(p, "placements")), None):
        raise WeftError(
            f"{name.removeprefix('inner.')} is a DTensor, of which this process has a shard alone",
            help="compile the module as it was before, with plan=this_module for its placements",
        )
    refused = (
        UserError,
        DataDependentOutputException,
        DynamicOutputShapeException,
        GuardOnDataDependentSymNode,
        PendingUnbackedSymbolNotFound,
    )
    try:
        # Tracing advances the random generator, so that of the caller is restored. oneDNN's
        # recurrent layers are opaque ops; without oneDNN they are traced step by step.
        with (
            balanced_transforms(),
            torch.set_grad_enabled(grad),
            torch.random.fork_rng(devices=()),
            _without_onednn(),
            _without_partial_graphs(),
            without_checks()(),
            function_calls() as kept_functions,
        ):
            keeping = kept_functions() if grad else nullcontext()
            with on_host(module, args, kwargs) as (values, named), keeping:
                made = exported_program(module, values, named, grad=grad)
            _restore_values(made, module)
            yield made
    except Unsupported as error:
        if error.loc is not None:
            raise
        raise error.at(_place(error)) from None
    except (RuntimeError, TypeError, AttributeError) as error:  # the others are RuntimeErrors, too
        found = _reason(error)
        if not found and not isinstance(error, refused) and not _NOT_TRACED.search(str(error)):
            raise
        branches = isinstance(error, GuardOnDataDependentSymNode)
        why, help = found or (
            "it branches on elements of a tensor" if branches else _first_line(error),
            "branches and sizes must not depend on the elements of tensors: use torch.where, "
            "or take the decision outside of what is compiled",
        )
        raise Unsupported(
            f"PyTorch cannot export {type(module).__name__}: {why}", help=help, loc=_place(error)
        ) from error


def _reason(error: BaseException) -> tuple[str, str] | None:
    """Why an error of tracing is raised, and what to do, if it is a known one."""
    for pattern, why, help in _REASONS:
        if found := re.search(pattern, str(error)):
            return found.expand(why), help
    return None


def _restore_values(program: Any, module: Any) -> None:
    """Put the module's own tensors in the place of those that it was traced with."""
    own = dict(module.named_parameters(remove_duplicate=False))
    own |= dict(module.named_buffers(remove_duplicate=False))
    for held in (program.state_dict, program.constants):
        held.update({name: own[name] for name in held.keys() & own.keys()})


@contextmanager
def _without_onednn() -> Iterator[None]:
    """PyTorch's own kernels; torch.backends.mkldnn.flags does the same, with a warning."""
    import torch

    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def _without_partial_graphs() -> Iterator[None]:
    """Suppress the partial graph that PyTorch prints on an error, which names the user's line."""

    class Shown:
        """stderr without what is printed while such an error is handled."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def write(self, text: str) -> int:
            if hasattr(sys.exc_info()[1], "partial_fx_graph"):
                return len(text)
            return int(self.stream.write(text))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.stream, name)

    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with redirect_stderr(Shown(sys.stderr)):
            yield
    finally:
        log.setLevel(level)


def functional(module: Any) -> Any:
    """The functionalized and decomposed graph.

    `ExportedProgram.run_decompositions` does the same but takes seconds: it replaces hundreds of
    dispatcher entries each time.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    inputs = [n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"]
    table = decompositions()
    for _ in range(_ROUNDS):
        run = replay()(module).run
        flat = torch.func.functionalize(_as_tuple(run), remove="mutations")
        with torch.fx.traceback.preserve_node_meta():
            module = make_fx(flat, decomposition_table=table)(*inputs)
        # Functionalization runs before decompositions, so in-place updates by these remain.
        if not any(map(_changes_another, module.graph.nodes)):
            break
    return module.graph


def _as_tuple(run: Any) -> Any:
    return lambda *values: tuple(run(*values))


def _changes_another(node: Any) -> bool:
    """Whether a node changes a tensor in place that is not an input of the graph."""
    import torch

    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    is_update = target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder"
    return bool(target._schema.is_mutable) and not is_update


@cache
def replay() -> Any:
    """The interpreter class that retraces a graph: attention as one op, regions in their modes."""
    import torch

    scaled = torch.ops.aten.scaled_dot_product_attention.default

    class Replay(torch.fx.Interpreter):  # type: ignore[misc]
        """An interpreter that keeps each node's module path and line."""

        is_whole = True  # attention as one op, which has no gradient

        def __init__(self, module: Any) -> None:
            drop_block_tables(module)
            drop_checks(module)
            super().__init__(module)
            self.current: Any = None
            self.flex = {
                node: flex_meaning(node, module)
                for node in module.graph.nodes
                if node.target is torch.ops.higher_order.flex_attention
            }

        def run_node(self, node: Any) -> Any:
            self.current = node
            return super().run_node(node)

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if target is scaled and not drops_out(args, kwargs):
                attend = whole_attention() if self.is_whole else plain_attention
                return scaled_dot_product(attend, *args, **kwargs)
            if target is torch.ops.higher_order.flex_attention:
                attend = whole_attention() if self.is_whole else plain_attention
                return flex_attention(attend, self.flex[self.current], *args, **kwargs)
            if target is torch.ops.aten.view.default:
                return torch.reshape(*args)  # strides may differ from those that were traced
            if str(target) == "weft.attention.default" and not self.is_whole:
                return plain_attention(*args, **kwargs)
            if str(target) in DIFFERENTIATED and not self.is_whole:
                return DIFFERENTIATED[str(target)](*args, **kwargs)
            if str(target) in GROUPED:
                return grouped_product(*args, **kwargs)
            if target is torch.ops.higher_order.cond:
                return select_branch(*args, **kwargs)
            if target is torch.ops.higher_order.wrap_with_set_grad_enabled:
                enabled, body, *values = args
                # Where gradients are recorded, those of a `torch.no_grad()` block are not.
                with torch.set_grad_enabled(enabled and not self.is_whole):
                    return body(*values)
            if str(target) == APPLICATION:
                return replayed(*args)
            if str(target).startswith("profiler."):
                return None
            if target is torch.ops.aten.batch_norm.default and args[5] and args[3] is not None:
                # The op whose schema says that it changes the statistics.
                legit = torch.ops.aten._native_batch_norm_legit.default
                return legit(*args[:8])[0]
            if target is torch.ops.higher_order.wrap_with_autocast:
                device, dtype, enabled, cached, body, *values = args
                if device == "cuda" and not torch.is_autocast_enabled("cuda"):
                    device = "cpu"  # where this is traced
                with torch.autocast(device, dtype, enabled, cached):
                    return body(*values)
            return super().call_function(target, args, kwargs)

    return Replay


def select_branch(condition: Any, yes: Any, no: Any, operands: Sequence[Any] = ()) -> Any:
    """`torch.cond` by both branches, which have no effects: the results of one are selected."""
    import torch
    from torch.utils._pytree import tree_map

    if not isinstance(condition, torch.Tensor):
        return (yes if condition else no)(*operands)
    condition = condition.reshape(())
    return tree_map(lambda a, b: torch.where(condition, a, b), yes(*operands), no(*operands))


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _place(error: BaseException) -> Location:
    """The user's innermost line in an error's traceback."""
    import torch

    library = str(Path(torch.__file__).parent)
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    frames += [(name, int(line)) for name, line in _FRAME.findall(str(error))]
    for name, line in reversed(frames):
        if not name.startswith((library, _OWN, "<")) and line:
            return Location(f'"{escape(name)}":{line}:0')
    return UNKNOWN
