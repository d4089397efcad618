"""PyTorch modules and functions as sources: exported once for each cache key of arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from typing import Any

from weft.array.exchange import Writable, to_numpy
from weft.capture.captured import Captured, Leaf
from weft.capture.options import CallOptions
from weft.capture.shardings import annotate, mesh_of, shardings_of
from weft.capture.torch.aliasing import SharedArguments
from weft.capture.torch.constrain import held_shardings, place_constraints
from weft.capture.torch.dtypes import dtype_of_torch
from weft.capture.torch.export import Exported, export
from weft.capture.torch.functions import (
    as_module,
    check_caches,
    check_tensor,
    modules_of,
    parameter_names_of,
    register_caches,
    state_of,
    static_key,
    with_held,
)
from weft.capture.torch.graph import SEED, Imported, import_graph
from weft.capture.torch.overlaps import (
    LastCall,
    MemoryOverlaps,
    lazy_views,
    overlapping_tensors,
    tracing_modes,
)
from weft.capture.torch.plans.by_name import (
    PlannedShardings,
    gathers_of,
    input_shardings,
    output_shardings,
    planned,
)
from weft.capture.torch.plans.experts import dispatch_experts
from weft.capture.torch.plans.fused import split_fused
from weft.capture.torch.plans.placements import placed_plan
from weft.capture.torch.plans.ready import ready_plan
from weft.capture.torch.plans.sequence import split_sequences, splits_heads, unmerge_batches
from weft.capture.torch.results import Packing, counted_updates, own_tensor, write_updates
from weft.capture.torch.sizes.call import SizedCall, SizedProgram
from weft.capture.torch.sizes.instance import size_name
from weft.capture.torch.sizes.shapes import CallShapes
from weft.errors import WeftError
from weft.ir.types import I64, TensorType, dtype_of
from weft.records import dataclass


def torch_program(program: object, options: CallOptions) -> TorchProgram | None:
    """The source of a PyTorch module or one of its methods; None for other objects."""
    # Not imported: a program of JAX's must not load PyTorch, and a module of PyTorch's has loaded
    # it.
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(program, torch.nn.Module):
        return TorchProgram(program, program, options)
    owner = getattr(program, "__self__", None)
    if callable(program) and isinstance(owner, torch.nn.Module):
        return TorchProgram(program, owner, options)
    return None


def torch_function(program: Callable[..., Any], options: CallOptions) -> TorchProgram:
    """The source of a function of tensors, and of the modules that it reads."""
    return TorchProgram(program, modules_of(program), options)


def holds_tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether there are PyTorch tensors among the arguments."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    from torch.utils._pytree import tree_leaves

    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((args, kwargs)))


@dataclass(frozen=True, slots=True)
class Tensors:
    """Flattened arguments of a call: state, then the user's tensors, and static leaves."""

    values: tuple[Any, ...]
    places: dict[str, int]  # argument numbers of parameters and buffers, tied ones sharing one
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: tuple[Any, ...]
    inputs: tuple[int | None, ...]  # the argument number of each leaf, None for static leaves
    overlapping: frozenset[int] = frozenset()  # arguments that share memory with others
    sized: SizedCall | None = None  # whose sizes are the last values


class TorchProgram:
    """A module of PyTorch's, one of its methods, or a function of tensors."""

    needs_arguments = True
    takes_tensors = True

    def __init__(self, function: Any, module: Any, options: CallOptions) -> None:
        if options.static_argnums or options.donate_argnums:
            raise WeftError(
                "static_argnums and donate_argnums are options of JAX functions",
                help="leave them out: other arguments are static, and tensors are not donated",
            )
        self.function, self.module, self.options = function, module, options
        register_caches(module)
        self.memory = MemoryOverlaps()
        self.last = LastCall()

    @property
    def name(self) -> str:
        found = self.function if self.module is not self.function else type(self.module)
        return str(getattr(found, "__name__", type(found).__name__))

    # Arguments

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Hashable, Tensors]:
        import torch
        from torch.utils._pytree import tree_flatten

        sized = _sized(args)
        if sized is not None:
            key, call = self.flatten(sized.args, sized.kwargs)
            # Apart from the key of a plain call of these shapes, whose program does not take sizes.
            return (key, SizedCall), replace(
                call, values=(*call.values, *sized.values), sized=sized
            )
        values: list[Any] = []
        marks: list[object] = []
        places: dict[str, int] = {}
        if self.module is not None:
            seen: dict[int, int] = {}
            for name, held in state_of(self.module, "", marks):
                # Tied parameters are one tensor under several names, and one argument of the
                # program.
                place = seen.get(id(held))
                if place is None:
                    place = seen[id(held)] = len(values)
                    values.append(held)
                    marks.append((held.shape, held.dtype, held.device.type))
                places[name] = place
                # Which names are tied is a part of the key: untying them later makes another
                # program.
                marks.append(place)
        leaves, tree = tree_flatten((args, kwargs))
        inputs: list[int | None] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                check_tensor(leaf)
                inputs.append(len(values))
                values.append(leaf)
                marks.append((leaf.shape, leaf.dtype, leaf.device.type))
            else:
                inputs.append(None)
                marks.append((type(leaf), static_key(leaf)))
        # Modes that change what is traced belong to the key: the same call under autocast is
        # another program.
        overlapping = self.memory.overlaps(values) | lazy_views(values)
        key = (tree, tuple(marks), tracing_modes(), overlapping)
        call = Tensors(
            tuple(values), places, args, kwargs, tuple(leaves), tuple(inputs), overlapping
        )
        return key, call

    def quick_key(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, Sequence[Any]]:
        sized = _sized(args)
        if sized is not None:
            return (sized.seen, SizedCall), (*sized.tensors, *sized.values)
        tensors = self.last.values(args, kwargs)
        # The last call's structure: flattening a module of many parameters costs more than a small
        # program runs.
        if tensors is None:
            key, call = self.flatten(args, kwargs)
            self.last.note(self.module, args, kwargs, call.values, key, self.memory.views)
            return key, call.values
        # Tensors of the same types, but perhaps in other memory.
        overlapping = self.memory.overlaps(tensors, self.last.views)
        return self.last.key_with(overlapping), tensors

    def settings(self) -> None:
        return None  # parameters and buffers of the module are arguments, too

    # Programs

    def capture(self, call: Tensors) -> Captured:
        """Export for arguments of these types, and lower the graph."""
        if call.sized is not None:
            return self._captured_sized(call, call.sized.program)
        return self.lowered(*self.traced(call), call)

    def traced(self, call: Tensors) -> tuple[Imported, Any]:
        """The program for arguments of these types, without shardings, and its result tree."""
        check_caches(call.args, call.kwargs)
        function, args, kwargs = with_held(self.function, call.args, call.kwargs)
        with self.constrained(call):
            shared = self._shared(call) if call.overlapping else None
            program = export(as_module(function, self.module), args, kwargs, shared)
        # `as_module` puts the modules that a function reads under this name.
        prefix = "" if self.module is function else "inner."
        places = {f"{prefix}{name}": place for name, place in call.places.items()}
        return self.imported(program, call, places, call.inputs), program.outputs

    def _captured_sized(self, call: Tensors, program: SizedProgram) -> Captured:
        """A program at the sizes of a bucket, with the sizes of a call as arguments."""
        count = len(program.symbols)
        padded = replace(call, values=call.values[:-count], sized=None)
        arguments = self.arguments(padded)
        plan = self.shardings(arguments, padded)
        sizes = [Leaf(size_name(name), (), I64.numpy) for name in program.symbols]
        plan = replace(plan, arguments=[*plan.arguments, *[None] * count])
        return self.captured(program.imported, program.tree, (*arguments, *sizes), padded, plan)

    def call_shapes(self, leaves: Sequence[Any]) -> CallShapes | None:
        """The sizes that vary by the program itself; None if only its user knows them."""
        return None

    def fixed_sizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[int]:
        """Sizes of parameters, buffers and arguments."""
        _, call = self.flatten(args, kwargs)
        return {size for value in call.values for size in value.shape}

    @contextmanager
    def constrained(self, call: Tensors) -> Iterator[None]:
        """The module with a plan's constraints inside of it, while it is traced."""
        options, count = self.options, len(set(call.places.values()))
        leaves = self.arguments(call)
        inputs = [leaves[n] for n in call.inputs if n is not None]
        plan = None if options.in_shardings is not None else options.plan
        with (
            split_sequences(options.plan, self.module, leaves[:count], options.our_mesh),
            dispatch_experts(plan, self.module, inputs, options.our_mesh, options.capacity),
        ):
            yield

    def _shared(self, call: Tensors) -> SharedArguments:
        """The arguments that share memory."""
        named = zip(call.inputs, self.input_names(call), strict=True)
        tensors = [(call.values[n], name) for n, name in named if n is not None]
        pairs = combinations(range(len(tensors)), 2)
        overlapping = [(n, m) for n, m in pairs
                       if overlapping_tensors((tensors[n][0], tensors[m][0]))]  # fmt: skip
        return SharedArguments([name for _, name in tensors], overlapping)

    def imported(
        self,
        program: Exported,
        call: Tensors,
        places: Mapping[str, int],
        inputs: Sequence[int | None],
    ) -> Imported:
        """The program of a graph."""
        arguments = self.arguments(call)
        typed = [(leaf.name, TensorType(leaf.shape, dtype_of(leaf.dtype))) for leaf in arguments]
        gathers = gathers_of(self.shardings(arguments, call), arguments, self.options.mesh)
        return import_graph(program, self.name, typed, places, inputs, gathers)

    def lowered(self, program: Imported, tree: Any, call: Tensors) -> Captured:
        """The program with the shardings of its arguments."""
        arguments = self.arguments(call)
        return self.captured(program, tree, arguments, call, self.shardings(arguments, call))

    def captured(
        self,
        program: Imported,
        tree: Any,
        arguments: tuple[Leaf, ...],
        call: Tensors,
        plan: PlannedShardings,
    ) -> Captured:
        """The program with its shardings."""
        options, inside = self.options, plan.arguments
        if splits_heads(options.our_mesh):
            program = replace(program, module=unmerge_batches(program.module))
        types = program.module.function("main").result_types[len(program.updated) :]
        returned = [_result(f"result {n}", type) for n, type in enumerate(types)]
        outside = output_shardings(options.out_shardings, returned)
        mesh = mesh_of(options.mesh, [*inside, *outside, *held_shardings(program.module)])
        places, overlapping = tuple[int, ...](), call.overlapping
        fused = split_fused(program, arguments, plan, mesh)
        if fused is not None:
            program, arguments, inside = fused.program, fused.arguments, fused.shardings
            places = fused.places
            overlapping = frozenset([n for n, place in enumerate(places) if place in overlapping])
        results = (*[_new(arguments[n]) for n in program.updated], *returned)
        arguments = _donated(arguments, program.updated, overlapping)
        if program.is_seeded:
            # The last argument is drawn by the run: it is not a value of the call.
            arguments, inside = (*arguments, Leaf(SEED, (), I64.numpy)), [*inside, None]
        # An argument that is updated in place keeps its sharding: the new value goes where it was.
        outside = [*[inside[n] for n in program.updated], *outside]
        in_shardings = shardings_of("the sharding of", inside, arguments, mesh)
        out_shardings = shardings_of("the sharding of", outside, results, mesh)
        takes = [*zip(arguments, in_shardings, strict=True)]
        module = annotate(program.module, mesh, takes, [*zip(results, out_shardings, strict=True)])
        module = place_constraints(module, mesh)
        packing = Packing(tree, program.outputs, program.updated)
        return Captured(
            module, mesh, None, packing, arguments, results,
            updated=program.updated, counted=counted_updates(program),
            is_seeded=program.is_seeded,
            places=places,
        )  # fmt: skip

    def shardings(self, arguments: Sequence[Leaf], call: Tensors) -> PlannedShardings:
        """The shardings of the arguments that are named: by `in_shardings`, else by the plan."""
        state = len(set(call.places.values()))
        options, plan = self.options, self.options.plan
        if plan is None and options.mesh is not None and options.in_shardings is None:
            # A mesh alone means the plan by the names of its axes.
            plan = "auto" if self.module is not None else None
        if isinstance(plan, str):
            mesh, known = options.our_mesh, arguments[:state]
            plan_shardings = ready_plan(plan, self.module, known, arguments[state:], mesh)
        elif hasattr(plan, "named_parameters"):  # a module
            plan_shardings = placed_plan(
                plan, arguments[:state], arguments[state:], options.our_mesh
            )
        else:
            plan_shardings = PlannedShardings(planned(plan, arguments))
        spelled = input_shardings(self.options.in_shardings, call, arguments[state:])
        pairs = zip(spelled, plan_shardings.arguments[state:], strict=True)
        inputs = [by_name if s is None else s for s, by_name in pairs]
        return PlannedShardings(
            [*plan_shardings.arguments[:state], *inputs], plan_shardings.gathered
        )

    def arguments(self, call: Tensors) -> tuple[Leaf, ...]:
        """Every tensor by its name: that of a parameter or buffer, or its path in the arguments."""
        names: dict[int, str] = {}
        for name, place in call.places.items():
            names.setdefault(place, name)
        for n, name in zip(call.inputs, self.input_names(call), strict=True):
            if n is not None:
                names[n] = name
        return tuple([leaf_of(names[n], value) for n, value in enumerate(call.values)])

    def input_names(self, call: Tensors) -> list[str]:
        """`batch['x']` for each leaf, by the names of the function's parameters."""
        from torch.utils._pytree import keystr, tree_flatten_with_path

        known = self.parameter_names(len(call.args))
        paths, _ = tree_flatten_with_path((call.args, call.kwargs))
        names = []
        for path, _leaf in paths:
            which = path[1]
            if path[0].idx == 1:
                head = str(which.key)
            else:
                head = known[which.idx] if which.idx < len(known) else f"args[{which.idx}]"
            names.append(f"{head}{keystr(path[2:])}")
        return names

    def parameter_names(self, count: int) -> list[str]:
        """The names by which a call of `count` arguments is known."""
        return parameter_names_of(
            self.function.forward if self.function is self.module else self.function
        )

    # Values

    def to_program(self, value: Any, leaf: Leaf) -> Any:
        """The tensor's own memory, without a copy: a call returns only when the program is done."""
        value = leaf.part_of(value)
        if value.device.type != "cpu":  # a program on that device takes it as it is
            return Writable(value) if leaf.donated else value
        if leaf.donated:
            return Writable(to_numpy(value))
        shared = to_numpy(value).view()
        # Read-only, so that no result is written over memory that the caller keeps.
        shared.flags.writeable = False
        return shared

    def to_user(self, array: Any, leaf: Leaf) -> Any:
        """A tensor in memory of its own: no argument's, nor another result's."""
        return own_tensor(array, leaf)

    def is_converted(self, leaf: Leaf) -> bool:
        return True

    def seed(self) -> Any:
        """A number of PyTorch's own generator, which torch.manual_seed sets."""
        import torch

        return torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64)

    def update(
        self,
        values: Sequence[Any],
        updated: Sequence[int],
        results: Sequence[Any],
        counted: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Write new values into the caller's tensors, unless the program has done so itself."""
        write_updates(values, updated, results, counted)

    def is_traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return False

    def inlined(self) -> Callable[..., Any]:
        raise AssertionError("no tensor of PyTorch's is traced")


def _sized(args: tuple[Any, ...]) -> SizedCall | None:
    """The call with padded arguments that the arguments are, if so."""
    return args[0] if len(args) == 1 and type(args[0]) is SizedCall else None


def _donated(
    arguments: Sequence[Leaf], updated: Sequence[int], overlapping: Collection[int]
) -> tuple[Leaf, ...]:
    """The arguments, with those that the program may update in place marked."""
    leaves = [*arguments]
    for result, place in enumerate(updated):
        if place not in overlapping:
            leaves[place] = replace(leaves[place], donated=True, updated_by=result)
    return tuple(leaves)


def leaf_of(name: str, value: Any) -> Leaf:
    """A tensor by its name, shape and type."""
    return Leaf(name, tuple(value.shape), dtype_of_torch(value.dtype).numpy)


def _new(leaf: Leaf) -> Leaf:
    """The new value of an argument."""
    return Leaf(f"new {leaf.name}", leaf.shape, leaf.dtype)


def _result(name: str, type: Any) -> Leaf:
    return Leaf(name, type.sizes, type.dtype.numpy)
