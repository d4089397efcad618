"""The importer of an exported graph: every node through the lowering of its op."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from weft.array.exchange import to_numpy
from weft.capture.torch.aten import LOWERINGS
from weft.capture.torch.build import Build, LoweredResults
from weft.capture.torch.checks import CHECKS, only_checked
from weft.capture.torch.dtypes import dtype_of_torch
from weft.capture.torch.export import Exported
from weft.capture.torch.locations import location_of, module_path
from weft.capture.torch.phases import layer_segments
from weft.capture.torch.training.recompute import original_of
from weft.errors import Unsupported
from weft.ir.location import Location, escape
from weft.ir.module import Function, Module, Region, Value
from weft.ir.types import TensorType
from weft.mesh import Sharding
from weft.ops.control import OptimizationBarrier
from weft.ops.distributed.sharding import ShardingConstraint
from weft.records import dataclass

_INSTEAD = {
    "aten.bincount.default": "use torch.zeros(size).index_add(0, x, weights)",
    "aten.nonzero.default": "use torch.nonzero_static(x, size=...), or torch.where and masks",
    "aten.repeat_interleave.Tensor": "give output_size=",
    "aten._local_scalar_dense.default": "keep it a tensor: no .item(), .tolist(), int() or float()",
    "aten.masked_select.default": "use torch.where(mask, x, 0), which keeps shapes",
}
_COPY = "aten.copy_.default"
_ELEMENT = "aten._local_scalar_dense.default"
_RANDOM = "poisson cauchy geometric log_normal binomial"
SEED = "seed"  # the name of the argument that random numbers depend on


@dataclass(frozen=True, slots=True)
class GraphConstant:
    """A leaf of the outputs that is not a tensor."""

    value: object


@dataclass(frozen=True, slots=True)
class Imported:
    """A module, and its results' places in the exported program's outputs."""

    module: Module
    updated: tuple[int, ...]  # the arguments updated in place, one for each of the first results
    outputs: tuple[int | GraphConstant, ...]  # per leaf: the index of a result, or a constant
    is_seeded: bool  # whether it draws random numbers: then the last argument is their seed
    draws: int = 0  # ops that draw


def import_graph(
    program: Exported,
    name: str,
    arguments: Sequence[tuple[str, TensorType]],
    places: Mapping[str, int],
    inputs: Sequence[int | None],
    gathers: Mapping[int, Sharding] | None = None,
) -> Imported:
    """The module of an exported program.

    `places` maps parameters and buffers to argument numbers; `inputs` has the argument number of
    each leaf of the user's arguments, None for constants. `gathers` has the sharding that an
    argument is gathered to wherever a layer uses it.
    """
    args = tuple([Value(type, None, n) for n, (_, type) in enumerate(arguments)])
    importer = _Importer(program, args, places, inputs, gathers or {})
    values, outputs = importer.run()
    names = [word for word, _ in arguments]
    if importer.build.seed_value is not None:
        args, names = (*args, importer.build.seed_value), [*names, SEED]
    locs = tuple([Location(f'"{escape(word)}"') for word in names])
    region = Region(args, importer.build.nodes, values, arg_locs=locs)
    main = Function("main", region, "public")
    updated, is_seeded = tuple(importer.updated), len(args) > len(arguments)
    module = Module({"main": main}, name=name)
    return Imported(module, updated, outputs, is_seeded, importer.build.draws)


class _Importer:
    def __init__(
        self,
        program: Exported,
        args: Sequence[Value],
        places: Mapping[str, int],
        inputs: Sequence[int | None],
        gathers: Mapping[int, Sharding],
    ) -> None:
        self.program, self.args = program, args
        self.places, self.inputs, self.gathers = places, inputs, gathers
        self.build = Build(seed_index=len(args))
        self.values: dict[Any, Any] = {}  # by node: a value, a tuple of them, or a number
        self.argument_numbers: dict[Any, int] = {}  # placeholders that are arguments
        self.segments: dict[Any, int] = {}  # nodes that use gathered parameters
        self.begun: dict[int, Value] = {}  # an operand of the first node of each stretch
        self.whole: dict[tuple[int, int], Value] = {}  # gathered, by argument and stretch
        self.drawn: dict[Any, int] = {}  # random draws before a node that draws
        self.updated: dict[int, Value] = {}  # the new values of arguments that are updated in place

    def run(self) -> tuple[tuple[Value, ...], tuple[int | GraphConstant, ...]]:
        """Lower every node; returns the results, and the outputs among them."""
        graph, leaves = self.program.graph, iter(self.inputs)
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        for node, spec in zip(inputs, self.program.specs, strict=False):
            made = self.values[node] = self.input(node, spec, leaves)
            if isinstance(made, Value) and made.node is None:
                self.argument_numbers[node] = made.index
        gathered = {node for node, place in self.argument_numbers.items() if place in self.gathers}
        self.segments = layer_segments(graph, gathered) if gathered else {}
        skipped, last = {*only_checked(graph)}, _last_op(graph)
        past_ops = last is None  # after it only in-place updates follow
        for node in graph.nodes:
            past_ops = past_ops or node is last
            if node in skipped:
                continue
            match node.op:
                case "placeholder":
                    pass
                case "get_attr":
                    self.values[node] = self.attribute(node)
                case "call_function" if str(node.target) == _COPY:
                    self.update(node, seen_later=not past_ops)
                case "call_function":
                    sharded = self.gather_for(node)
                    self.values[node] = self.call(node)
                    # Back to the shards: other stretches gather anew, so that no whole parameter
                    # stays alive.
                    self.values.update(sharded)
                case "output":
                    return self.results(self.value(node.args[0]))
                case _:
                    raise _refuse(node, "has no lowering")
        raise AssertionError("an exported graph ends with its output")

    def input(self, node: Any, spec: Any, leaves: Any) -> Any:
        """The value of a placeholder."""
        match spec.kind.name:
            case "PARAMETER" | "BUFFER":
                return self.args[self.places[spec.target]]
            case "CONSTANT_TENSOR":
                return self.build.constant(to_numpy(self.program.constants[spec.target]))
            case "USER_INPUT":
                place = next(leaves)
                return getattr(spec.arg, "value", None) if place is None else self.args[place]
        raise _refuse(node, f"is an input of the kind {spec.kind.name}")

    def gather_for(self, node: Any) -> dict[Any, Value]:
        """Replace the sharded parameters that a layer's node uses by gathered ones.

        Returns what they were. Each stretch of a layer gathers its own, after the stretch before
        it has begun: two layers at most are whole at a time, and one can be gathered ahead.
        """
        number = self.segments.get(node)
        if number is None:
            return {}
        used = [each for each in dict.fromkeys(node.all_input_nodes)
                if self.argument_numbers.get(each) in self.gathers]  # fmt: skip
        if number not in self.begun:
            others = [self.values.get(each) for each in node.all_input_nodes if each not in used]
            first = next((value for value in others if isinstance(value, Value)), None)
            if first is not None:
                self.begun[number] = first
        before = {each: self.values[each] for each in used}
        self.build.loc = location_of(node)
        self.values.update(
            {each: self.gathered(self.argument_numbers[each], number) for each in used}
        )
        return before

    def gathered(self, place: int, segment: int) -> Value:
        """A parameter, gathered for a stretch of a layer's nodes."""
        parameter = self.whole.get((place, segment))
        if parameter is None:
            value, begun = self.args[place], self.begun.get(segment - 1)
            if begun is not None:  # which also keeps two gathers of one parameter apart
                value = self.build.all(OptimizationBarrier(), value, begun)[0]
            value = self.build.op(ShardingConstraint(self.gathers[place]), value)
            parameter = self.build.op(OptimizationBarrier(), value)  # after which it is gathered
            self.whole[place, segment] = parameter
        return parameter

    def attribute(self, node: Any) -> Value:
        """A constant tensor created while tracing."""
        held = getattr(node.graph.owning_module, node.target)
        if hasattr(held, "graph"):  # the body of a higher-order op
            raise _refuse(
                next(iter(node.users)),
                "has no lowering in Weft",
                "write a loop of a fixed number of steps, with torch.where",
            )
        return self.build.constant(to_numpy(held))

    def update(self, node: Any, *, seen_later: bool) -> None:
        """An in-place update of an argument, written back after a run.

        Decompositions update arguments, too, before other ops read them again.
        """
        target, source = (self.values[each] for each in node.args[:2])
        place = self.argument_numbers.get(node.args[0])
        if place is None:
            raise _refuse(
                node, "updates a tensor in place that is not an argument", "return it instead"
            )
        source = self.build.convert(source, target.type.dtype)
        assert source.type is target.type, f"{source} is written to {target}"
        self.updated[place] = source
        self.values[node] = source
        if seen_later:
            self.values[node.args[0]] = source

    def results(
        self, outputs: Sequence[Any]
    ) -> tuple[tuple[Value, ...], tuple[int | GraphConstant, ...]]:
        """New values of arguments first, then the outputs' tensors."""
        values = [*self.updated.values()]
        leaves: list[int | GraphConstant] = []
        for output in outputs:
            if isinstance(output, Value):
                leaves.append(len(values))
                values.append(output)
            else:
                leaves.append(GraphConstant(output))
        return tuple(values), tuple(leaves)

    def value(self, argument: Any) -> Any:
        """An argument of a node, with nodes replaced by their values, also inside lists."""
        import torch

        if isinstance(argument, torch.fx.Node):
            return self.values[argument]
        if isinstance(argument, tuple | list):
            return [self.value(each) for each in argument]
        return argument

    def call(self, node: Any) -> LoweredResults | None:
        """Lower one op; its result types are checked against PyTorch's."""
        target = str(node.target)
        if node.target is operator.getitem:
            return self.value(node.args[0])[node.args[1]]  # type: ignore[no-any-return]
        if target == "with_effects" and str(node.args[1]) in CHECKS:
            return self.value(node.args[0]), None  # AOTAutograd's token, for the next one
        if target == _ELEMENT and all(_indexes(user, node) for user in node.users):
            return self.value(node.args[0])  # type: ignore[no-any-return]
        lowering = LOWERINGS.get(target)
        build = self.build
        build.loc, build.target = location_of(node), target
        build.outs = types_of(node)
        if lowering is None:
            raise _refuse(node, *_why(target))
        # Lowerings leave out results that nothing reads (attention's logsumexp).
        gets = [u for u in node.users if u.target is operator.getitem]
        build.used = frozenset([get.args[1] for get in gets if get.users])
        kwargs = {word: self.value(each) for word, each in node.kwargs.items()}
        before, original = build.draws, original_of(node)
        build.draws = self.drawn.get(original, before)  # a node computed again draws the same
        results: LoweredResults = lowering(build, *self.value(node.args), **kwargs)
        if original is not None:
            build.draws = before
        elif build.draws != before:
            self.drawn[node] = before
        self.check(node, results)
        return results

    def check(self, node: Any, made: LoweredResults) -> None:
        listed = made if isinstance(made, tuple) else (made,)
        for value, wanted in zip(listed, self.build.outs, strict=True):
            same = value is None or wanted is None or value.type is wanted
            assert same, f"{node.target} gives {value}, but PyTorch {wanted}, at {self.build.loc}"


def _indexes(user: Any, number: Any) -> bool:
    """Whether a node reads an element of a tensor as the index of a slice, or only checks it."""
    name = str(user.target)
    place = {"aten.select.int": 2, "aten.select_scatter.default": 3}.get(name)
    if place is None:
        return user in only_checked(user.graph)
    return [n for n, each in enumerate(user.args) if each is number] == [place]


def _last_op(graph: Any) -> Any:
    """The last node that computes something."""
    computing = [n for n in graph.nodes
                 if n.op == "call_function" and str(n.target) != _COPY]  # fmt: skip
    return computing[-1] if computing else None


def types_of(node: Any) -> tuple[TensorType | None, ...]:
    """The result types of a node by PyTorch's metadata; None for a result that is not a tensor."""
    held = node.meta.get("val")
    listed = held if isinstance(held, tuple | list) else (held,)
    return tuple([_type_of(node, each) for each in listed])


def _type_of(node: Any, held: Any) -> TensorType | None:
    import torch

    if not isinstance(held, torch.Tensor):
        return None
    if not all(isinstance(size, int) for size in held.shape):
        raise _refuse(
            node,
            f"gives a tensor of shape {[*held.shape]}, which depends on elements of others",
            _INSTEAD.get(str(node.target), "use torch.where and masks, which keep shapes"),
        )
    return TensorType(tuple(held.shape), dtype_of_torch(held.dtype))


def _why(target: str) -> tuple[str, str]:
    name = target.removeprefix("aten.").lstrip("_")
    if any(name.startswith((word, f"native_{word}")) for word in _RANDOM.split()):
        return "draws random numbers", "pass random tensors as arguments"
    if target in _INSTEAD:
        return "gives a Python number, which depends on elements", _INSTEAD[target]
    return (
        "has no lowering in Weft",
        "write it with other ops, or register a decomposition of it with torch.library",
    )


def _refuse(node: Any, what: str, help: str = "write it with other ops") -> Unsupported:
    path = module_path(node)
    where = f", in module {path}" if path else ""
    return Unsupported(f"{node.target} {what}{where}", help=help, loc=location_of(node))
