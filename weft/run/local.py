"""Loaded programs: a tiled program bound to run on all devices of this process."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.array.addressable import Addressable, addressable
from weft.array.host import HOST_MEMORY, aligned_bytes
from weft.array.stacked import Kind, Stacked, kind_of
from weft.array.stream import DEFAULT
from weft.errors import WeftError
from weft.executable.brief import is_brief
from weft.executable.items import Host, Launch, all_items
from weft.ir.gc_pause import without_gc
from weft.ir.module import walk
from weft.ir.names import GLOBAL
from weft.ir.scan import parse_type
from weft.ir.types import TensorType, Type
from weft.ops.custom_calls.callbacks import has_calls, host_functions
from weft.recording import recorder
from weft.run.arguments import Arguments
from weft.run.bind import Binder, is_enqueued, is_native
from weft.run.code import checking, out_of_memory_error
from weft.run.direct import Direct, direct_of, one_call_of
from weft.run.launch import Calls
from weft.run.on_device import DirectOnDevice, direct_on_device
from weft.varying.world import World, sharding_in

if TYPE_CHECKING:
    from weft.executable.items import Tiled
    from weft.executable.memory import MemoryUse
    from weft.executable.plan import MemoryBytes, Plan
    from weft.executable.stack_dims import StackDims
    from weft.ir.module import Module, Node
    from weft.mesh import Mesh
    from weft.mesh.sub_axes import SubAxes
    from weft.run.binding import HostKernels
    from weft.run.recorded import RecordedProgram
    from weft.target import Runtime, Target


class LocalProgram:
    """A program on stacks of all devices' values: `program(*stacks)` returns a `Stacked` a result.

    The target, or another runtime, launches its kernels; the host computes other nodes. `op_by_op`
    builds the same program without kernels, to inspect every op.
    """

    def __init__(
        self,
        tiled: Tiled,
        plan: Plan,
        host: HostKernels,
        target: Target | None = None,
        op_by_op: Callable[[], LocalProgram] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.tiled, self.plan, self.host, self.target = tiled, plan, host, target
        self.op_by_op = op_by_op
        self.runtime = target if runtime is None and target and target.has_kernels else runtime
        self.recorded = self._recorded()
        self.held_in = HOST_MEMORY if self.runtime is None else self.runtime.memory
        self.stream = None if self.runtime is None else self.runtime.stream
        self.is_on_host = self.held_in.is_host
        self.module: Module = tiled.module
        self.function = tiled.module.function(tiled.function)
        self.frames: list[list[Any]] = []
        self.array_signature: Any = None  # its array signature, cached
        self.here = self._addressable() if tiled.stack_dims.absent else None
        process = host.process
        self.runs_on = DEFAULT if process is None else process.stream
        with without_gc():
            self._load()
        if self.recorded is not None:
            stream, digest = self.stream, self.ops_digest
            self.recorded.attach(tiled, self.code, self.calls, stream, self.here, digest)
        # Most small programs need nothing around their direct form: one question for all of it.
        plain = self.recorded is None and self.here is None and not self.plan.lent
        self.plain = self.direct if plain else None

    def _recorded(self) -> RecordedProgram | None:
        """The recorder of this program's runs, if this process is profiled."""
        recording = recorder()
        if recording is None:
            return None
        # Imported by profiled processes only: others start sooner without them.
        from weft.run.recorded import RecordedProgram
        from weft.run.separate import SeparateTarget

        if isinstance(self.runtime, SeparateTarget):  # its launches are observed already
            return None
        program = RecordedProgram(recording)
        if self.runtime is not None:
            self.runtime = SeparateTarget(self.runtime, program.around)
        return program

    def _addressable(self) -> Addressable | None:
        """The devices of this process; raises if the program spans processes and none is given."""
        process, world, stack_dims = self.host.process, self.tiled.world, self.tiled.stack_dims
        count = world.count
        if process is None or not 0 <= process.device < count:
            raise WeftError(
                f"{self.tiled.function} spans several processes, and this one does not know "
                f"which of the {count} devices it has",
                help="pass a Process: one of its devices, and the transport to the others",
            )
        return addressable(world.sub_axes, stack_dims.absent, int(world.places()[process.device]))

    def _load(self) -> None:
        """Load the kernels and bind the items."""
        tiled, function = self.tiled, self.function
        self.callbacks = host_functions(self.module)  # keeps callbacks alive
        self.calls_host = has_calls(self.module)
        no_attrs = ((),)
        arg_attrs = function.arg_attrs or no_attrs * len(function.body.args)
        res_attrs = function.res_attrs or no_attrs * len(function.body.results)
        self.shardings = tuple([sharding_in(a) for a in arg_attrs])
        self.result_shardings = tuple([sharding_in(a) for a in res_attrs])
        self.masks, self.result_masks = tiled.masks, tiled.result_masks
        self.inputs, self.donated = tiled.inputs, tiled.donated
        slots = itertools.count(len(tiled.stacks))
        self.calls = None if self.runtime is None else Calls(self.runtime, tiled, self.plan, slots)
        binder = Binder(tiled, self.plan, self.host, self.calls, slots)
        self.code = binder.code(tiled.block, tiled.inputs)
        self.results = [(slot, slot in self.plan.owned) for slot in self.code.results]
        places = {} if self.calls is None else self.calls.places
        rest = (self.masks, self.stack_dims, self.inputs, places, self.held_in)
        self.arguments = Arguments(function, *rest)
        # The slots of a new frame. 0 is the arena, 1 the donated slots that the run may overwrite.
        self.template: list[Any] = [None] * binder.new()
        constants = tiled.constants if self.calls is None else self.calls.constants
        for slot, value in constants.items():
            self.template[slot] = value
        between = (*self.inputs, *self.code.results)
        self.lasting = [(slot, self.template[slot]) for slot in dict.fromkeys(between)]
        self.known = self._known_kinds()
        self.is_native = self.calls is not None and is_native(self.code)
        # Enqueueing kernels on a device's stream is brief, whatever they take.
        enqueued = self.stream is not None and is_enqueued(self.code)
        self.is_brief = enqueued or is_brief(tiled.block, self.memory().peak)
        self.direct: Direct | None = None
        self.on_device: DirectOnDevice | None = None
        if self.calls is not None:
            known = (self.arguments, self.results, self.donated, self.frames)
            program = one_call_of(self.code, self.calls, *known)
            if program is not None:
                self.direct, self.on_device = direct_of(program), direct_on_device(program)

    def _known_kinds(self) -> list[tuple[int, Kind]]:
        """The results with buffers of their own, and their kinds."""
        fresh = () if self.calls is None else self.calls.fresh
        kinds = zip(self.results, self.result_kinds(), strict=True)
        return [(n, kind) for n, ((slot, _), kind) in enumerate(kinds) if kind and slot in fresh]

    def result_kinds(self) -> list[Kind | None]:
        """The kinds of the results in kernels' memory; None for tokens."""
        kinds: list[Kind | None] = []
        for type, mask in zip(self.result_types, self.result_masks, strict=True):
            if isinstance(type, TensorType) and isinstance(mask, int):
                shape = self.stack_dims.shape(mask) + type.sizes
                memory = self.arguments.memory
                kinds.append(kind_of(self.sub_axes, shape, type.dtype.numpy, memory))
            else:
                kinds.append(None)
        return kinds

    def memory(self) -> MemoryBytes:
        """Memory use of a run over all devices, replicated values counted once."""
        return self.plan.memory

    def memory_of_one(self) -> MemoryUse:
        """Memory use of a run on one device."""
        from weft.executable.memory import memory_use  # computed on demand: no run needs it

        return memory_use(self.tiled, self.plan)

    def frame(self) -> list[Any]:
        """A frame for one run: a pooled one with its arena, or a new one."""
        try:
            return self.frames.pop()
        except IndexError:
            frame = self.template.copy()
            try:
                frame[0] = aligned_bytes(self.plan.arena, self.held_in)
            except MemoryError:
                raise self.shortage("temporaries", self.plan.arena) from None
            if self.calls is not None:
                self.calls.fill(frame)
            return frame

    def shortage(self, what: str, needed: int) -> WeftError:
        """The out-of-memory error, at the source line of the largest value."""
        return out_of_memory_error(self.code.units, self.tiled.stacks, what, needed)

    @property
    def stack_dims(self) -> StackDims:
        """The stack dims."""
        return self.tiled.stack_dims

    @property
    def world(self) -> World:
        """The devices."""
        return self.tiled.world

    @property
    def lent(self) -> Any:
        """Results that alias an argument, by number."""
        return self.plan.lent

    @property
    def reused(self) -> tuple[int, ...]:
        """Donated arguments that results overwrite."""
        return self.plan.reused

    @property
    def sub_axes(self) -> SubAxes:
        """The sub-axes of the program's devices."""
        return self.tiled.world.sub_axes

    @property
    def mesh(self) -> Mesh:
        """The mesh whose device order the stacks have."""
        return self.tiled.world.mesh

    @cached_property
    def ops_digest(self) -> str:
        """A digest of launches, ops and types: a process that runs another program is found by it.

        It is that of the items: a program that was read has no other nodes, and neither operands
        nor loops of native kernels.
        """
        stacks, listed = self.tiled.stacks, list[str]()
        for item in all_items(self.tiled.block):
            names = [item.kernel.name] if isinstance(item, Launch) else [type(item).__name__]
            if isinstance(item, Host):
                node = item.site.node
                names += [n.op.name for n in (node, *(m for r in node.regions for m in walk(r)))]
            types = [stack.type for slot in item.outs if (stack := stacks[slot]) is not None]
            listed.append(" ".join(map(str, (*names, *types))))
        return hashlib.blake2b("\n".join(listed).encode(), digest_size=8).hexdigest()

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
        if self.plain is not None:
            return self.plain(stacks, self.frame)
        if self.recorded is not None and not self.recorded.is_running:
            return self.recorded.run(self, stacks)
        for n in self.plan.lent.values():
            if n < len(stacks) and (stack := stacks[n]) is not None:
                # Before the run: a kernel must not overwrite an argument whose memory a result
                # shares. A stack that is moved now owns its memory, and would be moved by the run.
                if stack.kind is None:
                    stack.located()
                stack.owned = False  # a result aliases it from here on
        if self.here is not None:
            assert self.host.process is not None, "checked when it was loaded"
            self.host.process.transport.begin_run(self.function.name, self.ops_digest)
        if self.direct is not None:
            return self.direct(stacks, self.frame)
        if self.on_device is not None:
            outputs = self.on_device(stacks, self.frame)
            if outputs is not None:
                return outputs
        slots = self.frame()
        self.arguments.put(stacks, slots)
        slots[1] = self._writable(stacks) if self.donated else NOTHING
        if self.is_native:
            self.code.run(slots)
        else:
            # Divisions by 0 and overflows are defined by StableHLO; numpy would warn of each.
            with np.errstate(all="ignore"):
                self.code.run(slots)
        sub_axes = self.sub_axes
        if not self.is_on_host:
            self._place_results(slots)
        results = [Stacked(slots[slot], sub_axes, owned) for slot, owned in self.results]
        # Known without a look at them: the next program that takes one is on its fast path.
        for number, kind in self.known:
            results[number].kind = kind
        # The frame is reused: holding on to arguments and results would keep them alive, and look
        # like another reference to donated ones.
        for slot, value in self.lasting:
            slots[slot] = value
        self.frames.append(slots)
        return tuple(results)

    def _place_results(self, slots: list[Any]) -> None:
        """Move all results to the runtime's memory, with ready events."""
        event = None if self.stream is None else self.stream.record()
        for slot, _ in self.results:
            if slots[slot] is not None:
                slots[slot] = self.held_in.place(slots[slot])
                slots[slot].event = event

    def checked(
        self, *stacks: Stacked | None, watch: Callable[[Node, list[Stacked]], None] | None = None
    ) -> tuple[Stacked, ...]:
        """Run synchronously, checking every op's result and showing it to `watch`.

        Results of divergent code are not shown. Fused kernels have no results of single ops, so
        this runs without the target.
        """
        if self.calls is not None:
            return self._op_by_op.checked(*stacks, watch=watch)

        def see(node: Node, arrays: tuple[Any, ...]) -> None:
            lead = len(self.sub_axes.sizes)
            alike = [
                isinstance(array, np.ndarray)
                and isinstance(value.type, TensorType)
                and array.shape[lead:] == value.type.sizes
                for value, array in zip(node.results, arrays, strict=True)
            ]
            if watch is not None and all(alike):
                watch(node, [Stacked(array, self.sub_axes) for array in arrays])

        with checking(None if watch is None else see):
            return self(*stacks)

    @cached_property
    def _op_by_op(self) -> LocalProgram:
        if self.op_by_op is None:
            raise WeftError(
                "this program has kernels only, and cannot run op by op",
                help="compile it from its source",
            )
        return self.op_by_op()

    def _writable(self, stacks: Sequence[Stacked | None]) -> frozenset[int]:
        """The slots of donated arguments with no other reference."""
        writable = self.arguments.writable(stacks, self.donated)
        return frozenset([self.inputs[n] for n in writable])

    def global_shape(self, index: int) -> tuple[int, ...] | None:
        """The global shape of a result, where known."""
        attrs = self.function.res_attrs[index] if self.function.res_attrs else ()
        text = dict(attrs).get(GLOBAL)
        if text is None:
            return None
        type = parse_type(text)
        assert isinstance(type, TensorType), f"{text} is not a global result type"
        return type.sizes


NOTHING: frozenset[int] = frozenset()
