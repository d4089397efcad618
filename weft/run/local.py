"""A local program, compiled once, that runs on all its virtual devices in lockstep."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from weft.array.atoms import Atoms
from weft.array.place_buffers import most_alive, place
from weft.array.room import aligned_bytes
from weft.array.stacked import Kind, Stacked, kind_of
from weft.errors import WeftError
from weft.ir.attrs import Attrs
from weft.ir.memory import without_gc
from weft.ir.module import Module, Node
from weft.ir.names import DONATED, GLOBAL
from weft.ir.scan import parse_type
from weft.ir.types import TensorType, Type
from weft.mesh import Mesh
from weft.ops.callbacks import host_functions
from weft.ops.custom import CustomCall
from weft.run.arguments import Arguments
from weft.run.code import checking, shortage
from weft.run.compile import Compiler
from weft.run.direct import Direct, direct_of
from weft.run.launch import Launches, is_brief, is_native
from weft.run.layout import Layout, Mask
from weft.run.plan import Memory, Planner, outside_arena, piece_bytes
from weft.run.reuse import choose_turns, owned, reuse_carried, reuse_donated
from weft.run.target import Target
from weft.run.vary import Scope, argument_masks
from weft.run.world import World, sharding_in, world_of


class LocalProgram:
    """A function of a local module as instructions over stacks of all devices' values.

    `program(*stacks)` takes and gives a `Stacked` for each argument and result. Arguments vary
    along the axes that their `weft.sharding` names, or along all where they have none. Without
    `fold` every value is computed as it is written, for those who look at each. A target runs
    groups of nodes as kernels of its own; what it has no kernel for is computed by numpy. With a
    world, that of another program of the same meshes, stacks are as they are there.
    """

    def __init__(
        self,
        module: Module,
        function: str = "main",
        *,
        devices: int | tuple[int, int] | None = None,
        donate: Sequence[int] | None = None,
        fold: bool = True,
        target: Target | None = None,
        world: World | None = None,
    ) -> None:
        self.module = module
        self._world = world
        self.frames: list[list[Any]] = []
        self.face: Any = None  # what it is to those who have arrays
        self.target = target if fold else None
        self._given = (function, devices, donate, fold)
        with without_gc():
            self._compile(*self._given)

    def _compile(
        self,
        function: str,
        devices: int | tuple[int, int] | None,
        donate: Sequence[int] | None,
        fold: bool,
    ) -> None:
        """Turn the function into instructions."""
        module = self.module
        self.function = module.function(function)
        self.host = host_functions(module)  # kept alive as long as the program may call them
        self.calls_host = any(isinstance(node.op, CustomCall) for node in module.nodes())
        self.world = self._world or world_of(module, self.function, devices)
        body = self.function.body
        attrs = self.function.arg_attrs or ((),) * len(body.args)
        self.shardings = tuple([sharding_in(a) for a in attrs])
        self.result_shardings = tuple(
            [sharding_in(a) for a in self.function.res_attrs or ((),) * len(body.results)]
        )
        compiler = Compiler(fold=fold, target=self.target)
        scope = Scope(module, self.world, Layout(self.atoms))
        self.masks: tuple[Mask, ...] = argument_masks(scope, self.shardings, body.args)
        scope.let(body.args, self.masks)
        self.inputs = tuple([compiler.new() for _ in body.args])
        scope.slots.update(zip(body.args, self.inputs, strict=True))
        self.code = compiler.region(body, scope, frees=True)
        self.result_masks = scope.of(body.results)
        self.layout = scope.layout
        self.donated = donated_arguments(attrs, donate)
        self._plan(compiler)
        self.code.bind(compiler.settled)
        self.launches = compiler.launches
        places = {} if self.launches is None else self.launches.places
        self.arguments = Arguments(self.function, self.masks, self.layout, self.inputs, places)
        self.template: list[Any] = [None] * compiler.slots
        for slot, value in compiler.constants.items():
            self.template[slot] = value
        between = (*self.inputs, *self.code.results)
        self.lasting = [(slot, self.template[slot]) for slot in dict.fromkeys(between)]
        self.known = self._known_kinds()
        self.is_brief = is_brief(self.code, self.memory().peak)
        self.is_native = self.launches is not None and is_native(self.code)
        self.direct: Direct | None = None
        if self.launches is not None:
            rest = (self.arguments, self.results, self.donated, self.frames)
            self.direct = direct_of(self.code, self.launches, *rest)

    def _plan(self, compiler: Compiler) -> None:
        """Decide where results live."""
        choose_turns(self.code)
        planner = Planner(self.code, self.inputs, compiler.constants)
        self.arena, compiler.slots = planner.plan(compiler.slots)
        taken = reuse_donated(planner, {self.inputs[n]: self._size(n) for n in self.donated})
        self.reused = [n for n in self.donated if self.inputs[n] in taken]
        reuse_carried(planner)
        self._pieces, self._others = planner.piece_spans(), [*outside_arena(planner)]
        own = owned(planner)
        self.results = [(slot, slot in own) for slot in self.code.results]
        # By number, the results that lie in the memory of an argument, and which one that is.
        root = planner.lives.root
        given = {root(slot): n for n, slot in enumerate(self.inputs)}
        roots = [root(slot) for slot in self.code.results]
        self.lent = {n: given[found] for n, found in enumerate(roots) if found in given}
        if compiler.target is not None:
            launches = Launches(compiler.target, self.code, compiler.constants, compiler.new)
            compiler.launches = launches

    def _known_kinds(self) -> list[tuple[int, Kind]]:
        """The results that kernels write into memory of their own, and what they are."""
        if self.launches is None:
            return []
        return [
            (n, kind_of(self.atoms, self.layout.shape(mask) + type.sizes, type.dtype.numpy))
            for n, (slot, _) in enumerate(self.results)
            if slot in self.launches.fresh
            and isinstance(type := self.result_types[n], TensorType)
            and isinstance(mask := self.result_masks[n], int)
        ]

    def memory(self) -> Memory:
        """The bytes that one run holds, all devices together, equal parts counted once."""
        return Memory(
            sum(map(self._bytes, self.arg_types, self.masks)),
            sum(map(self._bytes, self.result_types, self.result_masks)),
            self.arena,
            most_alive([whole for whole, _ in self._others]),
            sum(self._size(n) for n in self.reused),
        )

    def memory_of_one(self) -> Memory:
        """The bytes that one run holds of one device."""
        return Memory(
            sum(map(piece_bytes, self.arg_types)),
            sum(map(piece_bytes, self.result_types)),
            place(self._pieces)[1],
            most_alive([piece for _, piece in self._others]),
            sum(piece_bytes(self.arg_types[n]) for n in self.reused),
        )

    def _size(self, index: int) -> int:
        return self._bytes(self.arg_types[index], self.masks[index])

    def _bytes(self, type: Type, mask: Mask) -> int:
        if not isinstance(type, TensorType) or not isinstance(mask, int):
            return 0
        return math.prod(self.layout.shape(mask) + type.sizes) * type.dtype.numpy.itemsize

    def frame(self) -> list[Any]:
        """Slots for one run: those of an earlier one, with its memory, or new ones."""
        try:
            return self.frames.pop()
        except IndexError:
            made = self.template.copy()
            try:
                made[0] = aligned_bytes(self.arena)
            except MemoryError:
                raise self.shortage("temporaries", self.arena) from None
            if self.launches is not None:
                self.launches.fill(made)
            return made

    def shortage(self, what: str, needed: int) -> WeftError:
        """The refusal of values that do not fit into memory, at the line of the largest."""
        return shortage(self.code.items, what, needed)

    @property
    def atoms(self) -> Atoms:
        """The digits of the devices' numbers that the program uses."""
        return self.world.atoms

    @property
    def mesh(self) -> Mesh:
        """The mesh in whose order the stacks are."""
        return self.world.mesh

    @cached_property
    def arg_types(self) -> tuple[Type, ...]:
        """The local types of the arguments."""
        return self.function.arg_types

    @cached_property
    def result_types(self) -> tuple[Type, ...]:
        """The local types of the results."""
        return self.function.result_types

    def __call__(self, *stacks: Stacked | None) -> tuple[Stacked, ...]:
        """Run on all devices."""
        for n in self.lent.values():
            if n < len(stacks) and (given := stacks[n]) is not None:
                given.owned = False  # from now on a result lies there, too
        if self.direct is not None:
            return self.direct(stacks, self.frame)
        slots = self.frame()
        self.arguments.put(stacks, slots)
        slots[1] = self._writable(stacks) if self.donated else NOTHING
        if self.is_native:
            self.code.run(slots)
        else:
            with np.errstate(all="ignore"):
                self.code.run(slots)
        atoms = self.atoms
        made = [Stacked(slots[slot], atoms, owned) for slot, owned in self.results]
        for stacked, kind in self.known:
            made[stacked].kind = kind
        for slot, value in self.lasting:
            slots[slot] = value
        self.frames.append(slots)
        return tuple(made)

    def checked(
        self, *stacks: Stacked | None, watch: Callable[[Node, list[Stacked]], None] | None = None
    ) -> tuple[Stacked, ...]:
        """Run on all devices, waiting for every op and looking at what it gives; so does `watch`.

        What only some devices compute, in a branch that others do not take, is not shown to it.
        A target's kernels give no results of single ops, so this is done without the target.
        """
        if self.target is not None:
            return self._without_target.checked(*stacks, watch=watch)

        def see(node: Node, made: tuple[Any, ...]) -> None:
            lead = len(self.atoms.sizes)
            alike = [
                isinstance(array, np.ndarray)
                and isinstance(value.type, TensorType)
                and array.shape[lead:] == value.type.sizes
                for value, array in zip(node.results, made, strict=True)
            ]
            if watch is not None and all(alike):
                watch(node, [Stacked(array, self.atoms) for array in made])

        with checking(None if watch is None else see):
            return self(*stacks)

    @cached_property
    def _without_target(self) -> LocalProgram:
        function, devices, donate, fold = self._given
        return LocalProgram(
            self.module,
            function,
            devices=devices,
            donate=donate,
            fold=fold,
            target=None,
            world=self._world,
        )

    def _writable(self, stacks: Sequence[Stacked | None]) -> frozenset[int]:
        """The slots of donated arguments whose memory nobody else holds."""
        writable = self.arguments.writable(stacks, self.donated)
        return frozenset([self.inputs[n] for n in writable])

    def global_shape(self, index: int) -> tuple[int, ...] | None:
        """The shape of a whole result, where the program says it."""
        attrs = self.function.res_attrs[index] if self.function.res_attrs else ()
        text = dict(attrs).get(GLOBAL)
        if text is None:
            return None
        type = parse_type(text)
        assert isinstance(type, TensorType), f"{text} is no type of a whole result"
        return type.sizes


NOTHING: frozenset[int] = frozenset()


def donated_arguments(attrs: Sequence[Attrs], donate: Sequence[int] | None) -> tuple[int, ...]:
    """The arguments whose memory results may take, as the program says or as is asked."""
    if donate is not None:
        return tuple(donate)
    return tuple(n for n, listed in enumerate(attrs) if DONATED & {name for name, _ in listed})
