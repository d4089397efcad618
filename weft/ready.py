"""Compiled programs ready for calls: from a caller's arguments to arrays, and back; summaries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.array import Array
from weft.array.exchange import Writable
from weft.array.host import is_dense
from weft.capture import Captured, Leaf, Source
from weft.capture.signature import signature_of
from weft.columns import Column, cut, table_lines
from weft.cost.sent import bytes_sent, total_sent
from weft.errors import WeftError, warn
from weft.executable.signature import Signature
from weft.ir.types import Type
from weft.machine import bytes_text
from weft.mesh import Mesh, P, Sharding
from weft.pipeline import STAGES, Program
from weft.records import dataclass
from weft.run import run
from weft.run.array_signature import BorrowedStack, KnownParameter, array_signature_of
from weft.run.execute import QuickRun, at_once, is_of_jax
from weft.run.host_tensors import HostTensors
from weft.run.on_device import EnqueuedArrays, EnqueuedTensors
from weft.workers import agree_on_arguments

if TYPE_CHECKING:
    from weft.workers.cluster import Cluster

_NOTES = 4  # the most values of one warning
_LISTED = 12  # the most arguments, and results, with their own line
_NAME, _TYPE = 28, 22  # the widest columns


@dataclass(frozen=True, slots=True)
class ReadyProgram:
    """A compiled program for one cache key of arguments."""

    source: Source
    captured: Captured
    program: Program
    sync_every_op: bool
    parameters: dict[int, KnownParameter] = field(default_factory=dict)  # by argument
    first_run: list[Cluster] = field(default_factory=list)  # the workers, until it has run

    def signature(self) -> Signature:
        """The program's signature, as saved with an executable."""
        module, mesh = self.program.module, self.program.local.mesh
        main = module.function("main")
        return signature_of(self.source.name, self.captured, main, mesh, module.meshes)

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Run the program on flattened arguments; returns flattened results."""
        arrays = self.arguments(values)
        results = run(self.program.local, *arrays, sync_every_op=self.sync_every_op)
        # New values of updated arguments are the first results; the user sees only those behind
        # them.
        count = len(self.captured.updated)
        if count:
            targets = self.captured.targets(values)
            self.source.update(targets, self.captured.updated, results, self.captured.counted)
        made = map(self.source.to_user, results[count:], self.captured.results[count:])
        return [*results[:count], *made]

    def compare_arguments(self, values: Sequence[Any]) -> None:
        """Before the first run: raise if other workers give other values.

        A run would go on with each worker's own, and results of replicated arguments would differ.
        """
        if not self.first_run:
            return
        values = self.captured.spread(values)
        leaves = self.captured.arguments[: len(values)]
        arrays = dict(zip(leaves, map(self.source.to_program, values, leaves), strict=True))
        on_host = {
            leaf.name: array.array if isinstance(array, Writable) else array
            for leaf, array in arrays.items()
            if not isinstance(array, Array)  # global already
        }
        agree_on_arguments(self.first_run.pop(), self.source.name, on_host)

    def check_count(self, values: Sequence[Any]) -> None:
        """Refuse a wrong number of leaves."""
        wanted = len(self.captured.arguments) - self.captured.is_seeded
        if len(values) != wanted:
            raise WeftError(
                f"the program takes {wanted} arguments, not {len(values)}",
                help="give one array for each argument",
            )

    def arguments(self, values: Sequence[Any]) -> list[Any]:
        """Flattened arguments as the immutable arrays that the program takes."""
        values = self.captured.spread(values)
        self.check_count(values)
        if self.captured.is_seeded:
            values = (*values, self.source.seed())
        if not self.source.takes_tensors:
            return [*map(self.source.to_program, values, self.captured.arguments)]
        return [*map(self._argument, range(len(values)), values, self.captured.arguments)]

    def _argument(self, index: int, value: Any, leaf: Leaf) -> Any:
        """An argument; parameters of earlier calls, in the same memory, are not converted again."""
        known = self.parameters.get(index)
        if known is not None and known.is_of(value):
            return known.array
        argument = self.source.to_program(value, leaf)
        if isinstance(argument, np.ndarray) and type(value).__name__ == "Parameter":
            array = array_signature_of(self.program.local).argument(index, argument)
            held = array.stacked
            # Neither a copy nor a strided view, which a run replaces by a copy: these would not
            # follow changes of the parameter.
            is_view = held.is_on_host and is_dense(held.data)
            if is_view and np.may_share_memory(held.data, argument):
                self.parameters[index] = KnownParameter.of(value, array)
                return array
        return argument


class QuickCall:
    """Calls on arrays that are leaves: native code looks at their types."""

    __slots__ = ("is_one", "packed", "run", "seen", "settings")

    def __init__(
        self,
        run: QuickRun | EnqueuedArrays,
        settings: Callable[[], Hashable],
        known: FastPath,
    ) -> None:
        # The bound method: a call of an object looks it up in its class first.
        self.run, self.settings, self.seen = run.__call__, settings, settings()
        self.is_one, self.packed = known.is_one, known.packed

    def __call__(self, args: tuple[Any, ...]) -> Any:
        """The result tree; None if arguments or settings are not those of the program."""
        # JAX's settings change what is traced: x64, the default matmul precision, a mesh in scope.
        if self.settings() != self.seen:
            return None
        made = self.run(args)
        if made is None:
            return None
        return made[0] if self.is_one else self.packed([*made])


class FastPath:
    """A program for arguments whose cheap key was seen before: the fast path of a call."""

    def __init__(self, ready: ReadyProgram, key: Hashable, values: Sequence[Any]) -> None:
        self.ready, self.key, self.local = ready, key, ready.program.local
        self.array_signature = array_signature_of(self.local)
        captured = ready.captured
        self.packed, self.is_one = captured.packed, captured.is_one
        # Whether all leaves are arrays that need no conversion.
        fits = len(values) == len(captured.arguments) and all(map(_is, values, captured.arguments))
        converted = any(map(ready.source.is_converted, captured.results))
        plain = not ready.sync_every_op and not converted
        self.is_plain = plain and fits and self.array_signature.takes(values)
        self.may_borrow = plain and not self.is_plain and self._reads_only(values)
        self.borrowed: list[BorrowedStack | None] | None = None  # by argument; None: an array
        self.enqueued = None if ready.sync_every_op else self._enqueued()
        self.on_arrays = self._on_arrays() if self.is_plain else None
        can = self.is_plain or self.may_borrow
        self.quick = QuickRun.of(self.local, self.array_signature) if can else None
        self.on_tensors = None if ready.sync_every_op else self._on_tensors()

    def __call__(self, values: Sequence[Any]) -> Any:
        """Run on leaves; returns the result tree."""
        if self.on_arrays is not None:
            found = self.on_arrays(values)
            if found is not None:
                return found[0] if self.is_one else self.packed(found)
        if self.enqueued is not None:
            tensors = self._enqueue(values)
            if tensors is not None:
                return self.packed(tensors)
        if self.on_tensors is not None:
            tensors = self.on_tensors(values)
            if tensors is not None:
                return self.packed(self._after_updates(values, tensors))
        arrays = values if self.is_plain else self._borrow([*map(_view, values)])
        if arrays is not None:
            made = at_once(self.local, self.array_signature, arrays, self.local.runs_on)
            if made is not None:
                return made[0] if self.is_one else self.packed([*made])
        results = self.packed(self.ready.run(values))
        if self.may_borrow and self.borrowed is None:
            self._learn(values)
        return results

    def quick_for(self, args: tuple[Any, ...], values: Sequence[Any]) -> QuickCall | None:
        """Calls like this one, whose arguments are leaves, with no look at their types."""
        # Every argument is a leaf itself: no pytree has to be flattened.
        if len(args) != len(values) or not all(map(is_, args, values)):
            return None
        quick: QuickRun | EnqueuedArrays | None = self.quick and self.quick.taking(values)
        if quick is None and self.on_arrays is not None:
            quick = self.on_arrays.quick([value.spec for value in values])
        settings = self.ready.source.settings()
        return None if quick is None or settings is None else QuickCall(quick, settings, self)

    def _enqueued(self) -> EnqueuedTensors | None:
        """The program on PyTorch tensors of its device, where all updates are in place."""
        captured, direct, local = self.ready.captured, self.local.on_device, self.local
        whole = local.here is None and local.mesh.size == 1 and not captured.places
        # A seeded program draws a new seed on the host for each call.
        if direct is None or not whole or not local.is_brief or captured.is_seeded:
            return None
        if not self.ready.source.takes_tensors or direct.over != dict(enumerate(captured.updated)):
            return None
        return EnqueuedTensors(direct, [leaf.shape for leaf in captured.results])

    def _on_tensors(self) -> HostTensors | None:
        """The program on PyTorch tensors of the host, where all updates are in place."""
        captured, source = self.ready.captured, self.ready.source
        brief = self.array_signature.is_brief and self.array_signature.memory.is_host
        if not source.takes_tensors or captured.places or not brief or self.array_signature.excess:
            return None
        updated = captured.updated
        shapes = [leaf.shape for leaf in captured.results[len(updated) :]]
        seed = source.seed if captured.is_seeded else None
        return HostTensors.of(self.local, shapes, updated, seed)

    def _on_arrays(self) -> EnqueuedArrays | None:
        """The program on arrays of its device, without donated ones."""
        local = self.local
        if local.on_device is None or local.donated or not self.array_signature.is_brief:
            return None
        if local.here is not None or local.plan.lent or self.array_signature.excess:
            return None
        specs = self.array_signature.specs
        return EnqueuedArrays(local.on_device, specs, local.runs_on, local.frame)

    def _enqueue(self, values: Sequence[Any]) -> list[Any] | None:
        """Run on tensors where they are; None if an argument has to be converted."""
        stream, local, enqueued = self.local.runs_on, self.local, self.enqueued
        assert enqueued is not None
        if stream.tasks or stream.busy or stream.outside:  # it may write what this program reads
            return None
        results = enqueued(values, local.frame)
        if results is None:
            return None
        return self._after_updates(values, results)

    def _after_updates(self, values: Sequence[Any], results: list[Any]) -> list[Any]:
        """All results of a run that has updated arguments in place."""
        updated = self.ready.captured.updated
        if updated:
            self.ready.source.update(values, updated, ())  # they are
        return [*[None] * len(updated), *results]

    def _reads_only(self, values: Sequence[Any]) -> bool:
        """Whether a brief run only reads its arguments, and these are numpy arrays or Weft's."""
        captured, local = self.ready.captured, self.local
        pairs = zip(values, captured.arguments, strict=False)
        fit = len(values) == len(captured.arguments) == len(self.array_signature.taken)
        fit = fit and all(_is(v, leaf) or _is_numpy(_view(v), leaf) for v, leaf in pairs)
        # Nothing may write to a caller's numpy array, or give a view of it as a result.
        kept = local.donated or local.plan.lent or captured.updated
        return fit and self.array_signature.is_brief and not kept

    def _learn(self, values: Sequence[Any]) -> None:
        """Note how the arguments of a first run become stacks."""
        signature, stacks = self.array_signature, list[BorrowedStack | None]()
        for index, value in zip(signature.taken, values, strict=True):
            is_array = type(value) is Array
            borrowed = None if is_array else signature.borrowed(index)
            if borrowed is None and not (is_array and signature.fits(index, value)):
                self.may_borrow = False
                return
            stacks.append(borrowed)
        self.borrowed = stacks

    def _borrow(self, values: Sequence[Any]) -> list[Array] | None:
        """The arguments as arrays without a copy; None if they have to be converted."""
        if self.borrowed is None:
            return None
        arrays: list[Array] = []
        for value, borrowed in zip(values, self.borrowed, strict=True):
            array = value if borrowed is None else borrowed.of(value)
            if array is None:
                return None
            arrays.append(array)
        return arrays


def _view(value: Any) -> Any:
    """JAX's array on its CPU device as a numpy array of the same memory."""
    return np.asarray(value) if is_of_jax(value) else value


def _is_numpy(value: Any, leaf: Leaf) -> bool:
    """Whether a value is a numpy array of the leaf's shape and type."""
    return type(value) is np.ndarray and value.shape == leaf.shape and value.dtype == leaf.dtype


def _is(value: Any, leaf: Leaf) -> bool:
    """Whether a value is a Weft array of the leaf's shape and type."""
    return type(value) is Array and value.shape == leaf.shape and value.dtype == leaf.dtype


# Summaries


def warn_of_notes(program: Program) -> None:
    """Warn once of all values that are less split than their inferred sharding."""
    if program.notes:
        lines = [f"\n  {note}" for note in program.notes[:_NOTES]]
        left = len(program.notes) - len(lines)
        more = f"\n  and {left} more, in notes.txt of a trace (WEFT_TRACE)" if left else ""
        help_ = "name them in in_shardings or out_shardings for padded pieces, or as replicated"
        warn(f"sizes that do not divide:{''.join(lines)}{more}\n{help_}")


def described(
    name: str, program: Program, arguments: Sequence[Leaf], results: Sequence[Leaf]
) -> str:
    """The summary of a program, in 80 columns."""
    local = program.local
    mesh = next((m for m in program.module.meshes.values() if m.axes), None)
    shown = program.stages.get(STAGES[0], program.module).function("main")
    lines = [f"{name} on {mesh_text(mesh)}"]
    for word, leaves, types, shardings in (
        ("arguments", arguments, shown.arg_types, local.shardings),
        ("results", results, shown.result_types, local.result_shardings),
    ):
        lines += [f"  {word}", *_values(leaves, types, shardings)]
    counts = [
        f"{stage} {sum(1 for _ in module.nodes()):,}" for stage, module in program.stages.items()
    ]
    lines.append(f"  nodes        {', '.join(counts)}")
    rows = bytes_sent(program.module)
    sent = f", {bytes_text(round(total_sent(rows)))} sent by each device" if rows else ""
    lines.append(f"  collectives  {sum(row.count for row in rows):,}{sent}")
    lines.append(f"  memory       {bytes_text(local.memory_of_one().peak)} on each device")
    return "\n".join(lines)


def mesh_text(mesh: Mesh | None) -> str:
    """`8 devices, data=2 x model=4`."""
    if mesh is None or mesh.size == 1:
        return "1 device"
    return f"{mesh.size:,} devices, " + " x ".join(f"{axis}={size}" for axis, size in mesh.axes)


def _values(
    leaves: Sequence[Leaf], types: Sequence[Type], shardings: Sequence[Sharding | None]
) -> list[str]:
    rows = [
        (_end(leaf.name, _NAME), cut(_type_text(type), _TYPE), _split_text(sharding, leaf))
        for leaf, type, sharding in zip(leaves, types, shardings, strict=True)
    ]
    columns = (Column(), Column(), Column(fit="cut"))
    lines = [f"    {line}" for line in table_lines(columns, rows[:_LISTED])]
    more = len(rows) - _LISTED
    lines += [f"    and {more:,} more"] if more > 0 else []
    return lines or ["    none"]


def _type_text(type: Type) -> str:
    return str(type).removeprefix("tensor<").removesuffix(">")


def _split_text(sharding: Sharding | None, leaf: Leaf) -> str:
    donated = "donated" if leaf.donated else ""
    if sharding is None or not any(dim.axes for dim in sharding.dims):
        return donated
    return f"{P(*sharding.dims)} {donated}".rstrip()


def _end(text: str, width: int) -> str:
    """A name, truncated at its start: leaves of a tree share prefixes."""
    return text if len(text) <= width else f"…{text[1 - width :]}"
