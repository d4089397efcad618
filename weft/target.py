"""The target interface: capabilities, limits, schedules, emission and the runtime.

Tile queries a target's capabilities (`can`, `takes`) and limits, and lets it schedule the kernels.
Run loads kernels and launches them by commands. The intermediate forms of a kernel (text, code) are
internal to the target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from weft.array.host import HOST_MEMORY
from weft.array.memory import Memory, Stream
from weft.array.stacked import Kind, Stacked
from weft.knobs import Tune
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.ir.op import Op
    from weft.ir.types import DType
    from weft.kernels.group import AnyKernel
    from weft.kernels.kernel import Kernel, Schedule

Addresses: TypeAlias = npt.NDArray[np.uint64]

Where = Literal["loops", "product", "attention", "alone", "numpy", "runtime", ""]


@dataclass(frozen=True, slots=True)
class OpSupport:
    """How a target computes an op.

    `emitted`: in fused loops, as a contraction, or as a single-node kernel. `decomposed`: as other
    ops. `library`: by numpy or the runtime, with the reason. `unsupported`: with the reason.
    """

    how: Literal["emitted", "decomposed", "library", "unsupported"]
    where: Where = ""
    why: str = ""

    def __str__(self) -> str:
        return self.where or self.how


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of fusion for a target: where recomputation and merging of kernels still pay off."""

    steps: int = 32  # steps of one kernel
    near: int = 1 << 12  # bytes of a value that may be recomputed for every row
    chain: int = 4  # nodes that are recomputed rather than stored
    choices: int = 2  # operands of a concatenation computed by selects
    row: int = 1 << 12  # elements of a row that stays in cache for a second read
    rows: int = 1  # rows that suffice for parallelism, however long
    saved: int = 1 << 12  # bytes saved that justify merging two kernels
    lines: int = 1  # rows or columns; smaller contractions are vector-like
    cut: int = 1  # rows or columns left when a contraction is split
    prologues: bool = True  # contractions compute an operand's elementwise op while packing it
    shared: int = 0  # bytes of a value whose readers are merged; 0 if they are not
    crossed: bool = False  # kernels of rows may also sum along columns
    channels_last: bool = False  # large convolutions are better with channels last
    unrolled: bool = False  # small windows are better as elementwise ops of slices
    narrow: bool = False  # contractions store a wide result rounded, where it is rounded anyway
    block: tuple[int, int] = (1, 1)  # register block of a contraction, rows and columns


@dataclass(frozen=True, slots=True)
class Options:
    """Compile options, the same for every target."""

    fold_sums: bool = True  # allow contractions that also sum over devices, with other rounding
    excess_precision: bool = True  # allow steps more precision than their types
    tune: Tune = "off"  # tune mode
    flows: bool = True  # loops and branches of small kernels are one kernel


Ways: TypeAlias = Mapping[str, Mapping[str, int]]  # schedule options by name
AS_MODELLED = "as modelled"  # the cost model's choice, without options


class Candidates(Protocol):
    """The candidate schedules of one class of kernels, to be tuned."""

    @property
    def kind(self) -> str:
        """The kind of choice, such as `product`."""
        ...

    @property
    def why_not_tuned(self) -> str:
        """Why tuning cannot pay off, or an empty string."""
        ...

    @property
    def shape_class(self) -> str:
        """The class of kernels that share a best candidate."""
        ...

    @property
    def machine(self) -> str:
        """The machine properties that measurements depend on."""
        ...

    def ways(self) -> Ways:
        """All candidates: AS_MODELLED first, then by decreasing promise."""
        ...

    def options(self, name: str) -> Mapping[str, int] | None:
        """The options of a candidate measured earlier; None if unavailable here."""
        ...


class Commands(Protocol):
    """A launch queue: kernels run in order by one native call; built once and run often."""

    def kernel(self, loaded: Any, operands: Sequence[int]) -> int:
        """Append a kernel with these operand addresses; returns its first index in `pointers`."""
        ...

    @property
    def pointers(self) -> Any:
        """The addresses of all operands, as a writable array of 64-bit integers."""
        ...

    def run(self) -> None:
        """Run all kernels, without the GIL."""
        ...


@runtime_checkable
class SupportsLoops(Protocol):
    """A launch queue that can be the test of a native loop."""

    def repeat(self, work: Any, verdict: int, moves: int, limit: int) -> int:
        """Run this test, then `work`, while the byte at `verdict` is not 0; returns the iterations.

        `moves` is the address of 64-bit integers that describe rotating buffers: their number, and
        for each the numbers of levels and buffers, the index of the next output buffer, the address
        of each level (an iteration replaces it by the one above), the buffers' addresses, the
        numbers of operands that read each level and that write the output, and the addresses of
        these operands' table entries. It stops after `limit` iterations without testing again.
        """
        ...


# The kind required of a stack, and the index of its address in `pointers`.
StackBinding: TypeAlias = tuple[Kind, Sequence[int]]  # kind of a stack, and its index in `pointers`
OnStacks: TypeAlias = Callable[[tuple[Stacked | None, ...], tuple[Stacked, ...]], bool]


@runtime_checkable
class SupportsStacks(Protocol):
    """A launch queue that reads operand addresses from stacks natively."""

    def raw_launch(self, keep: object) -> Any:
        """Handles for native code to launch these kernels without Python; the caller owns them.

        The result is opaque to Weft, and keeps `keep` alive.
        """
        ...

    def on_stacks(self, given: Sequence[StackBinding], made: Sequence[StackBinding]) -> OnStacks:
        """A function that runs all kernels on input stacks and output stacks.

        It returns False, without running anything, if an input has an unexpected kind.
        """
        ...


@runtime_checkable
class SupportsGraphs(Protocol):
    """A launch queue that replays what it has enqueued before, by a key of its addresses."""

    def replayed(self, key: Hashable) -> bool:
        """Enqueue all kernels as they were under this key; False, with no effect, if unknown."""
        ...

    def run_as(self, key: Hashable) -> None:
        """Enqueue all kernels with the addresses in `pointers`, to be replayed by this key."""
        ...


class Runtime(Protocol):
    """The runtime that launches a target's kernels."""

    @property
    def memory(self) -> Memory:
        """The memory of kernels' operands."""
        ...

    @property
    def stream(self) -> Stream | None:
        """The stream of `Commands.run`; None if it is synchronous."""
        ...

    def load(self, kernels: Sequence[Any]) -> Sequence[Any]:
        """Load kernels for `Commands.kernel`."""
        ...

    def commands(self) -> Commands:
        """An empty launch queue."""
        ...


class KernelList:
    """Kernels in order, and the addresses of their operands in one array."""

    def __init__(self) -> None:
        self.listed: list[tuple[Any, slice]] = []
        self.operands: list[int] = []

    def kernel(self, loaded: Any, operands: Sequence[int]) -> int:
        """Append a kernel; returns the offset of its operands' addresses."""
        start = len(self.operands)
        self.operands += operands
        self.listed.append((loaded, slice(start, len(self.operands))))
        return start

    @cached_property
    def pointers(self) -> Addresses:
        """The addresses of all operands, allocated on first use."""
        return np.array(self.operands, np.uint64)


class SequentialLaunches(KernelList):
    """A launch queue for targets that launch kernels one by one."""

    def __init__(self, launch: Callable[[Any, Addresses], None]) -> None:
        super().__init__()
        self.launch = launch

    def run(self) -> None:
        """Launch all kernels."""
        for loaded, part in self.listed:
            self.launch(loaded, self.pointers[part])


@cache
def _loops_table() -> Mapping[type[Op], OpSupport]:
    """The table of a target with loop kernels only."""
    from weft.kernels.ops import LOOPS
    from weft.ops import OPS

    loops, rest = (
        OpSupport("emitted", "loops"),
        OpSupport("library", why="no kernel of loops computes it"),
    )
    return MappingProxyType({op: loops if op in LOOPS else rest for op in OPS})


@dataclass(frozen=True)
class Target(ABC):
    """A target: turns nodes into kernels and runs them.

    A subclass needs a name and a runtime: `load` and `commands`. The defaults are loop kernels as
    built by tile, run in the order of their factors.
    """

    options: Options = Options()

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name, as in `target=`."""

    # Capabilities

    @property
    def has_kernels(self) -> bool:
        """Whether it groups nodes into kernels; without, the host computes every node."""
        return True

    @property
    def table(self) -> Mapping[type[Op], OpSupport]:
        """How each op is computed; total."""
        return _loops_table()

    def unsupported_op(
        self, op: Op, given: tuple[DType, ...], made: tuple[DType, ...]
    ) -> str | None:
        """Why no kernel computes an op on these types, or None if one does."""
        support = self.table[type(op)]
        return None if support.how == "emitted" else support.why

    def unsupported_kernel(self, kernel: AnyKernel) -> str | None:
        """Why a whole kernel cannot be emitted, or None if it can.

        Also called for kernels read from files, with arbitrary schedules.
        """
        from weft.kernels.kernel import Kernel

        return None if isinstance(kernel, Kernel) else "it is not a kernel of loops"

    # Limits and schedules

    @property
    def limits(self) -> Limits:
        """The limits of fusion."""
        return Limits()

    def schedule(self, kernel: Kernel) -> Schedule:
        """The schedule of a kernel's loops."""
        from weft.kernels.kernel import Schedule

        return Schedule("in_order", tuple(range(len(kernel.factors))))

    def candidates(self, kernel: AnyKernel) -> Candidates | None:
        """Candidate schedules worth measuring; None if there is one only."""
        return None

    @property
    def measures_apart(self) -> bool:
        """Whether candidates are timed in another process, which may crash or hang."""
        return False

    def units(self, kernel: AnyKernel) -> Mapping[str, float]:
        """A kernel's instructions by the names of `weft.machine.OVERHEADS`; none if not counted."""
        return {}

    # Emission

    @property
    def forms(self) -> Mapping[str, str]:
        """The formats of `text`, the default first, with their file suffixes."""
        return {"contract": "txt"}

    def text(self, kernel: AnyKernel, form: str = "") -> str:
        """The emitted form of a kernel, for readers: in the first of `forms`, or another."""
        from weft.kernels.text import kernel_text

        return kernel_text(kernel)

    @property
    def identity(self) -> str | None:
        """The cache key of its decisions besides the kernel; None if they must not be cached."""
        return None

    def remember(self, kernels: Sequence[AnyKernel], name: str) -> None:  # noqa: B027  # optional
        """Cache the emitted form of kernels under a name."""

    def recall(self, kernels: Sequence[AnyKernel], name: str) -> None:  # noqa: B027  # optional
        """Load the emitted form of these kernels from the cache, if present."""

    def packed(self, kernels: Sequence[AnyKernel]) -> Mapping[str, bytes]:
        """The emitted form of kernels for trusted files: `emitted` text and `code`."""
        return {}

    def adopt(self, kernels: Sequence[AnyKernel], text: bytes) -> bool:
        """Use the `emitted` text of a trusted file; False if its version differs."""
        return False

    # The runtime

    @property
    def memory(self) -> Memory:
        """The memory of kernels' operands; other values are copied there and back."""
        return HOST_MEMORY

    @property
    def stream(self) -> Stream | None:
        """The stream of launches; None if `Commands.run` is synchronous."""
        return None

    @abstractmethod
    def load(self, kernels: Sequence[Any]) -> Sequence[Any]:
        """Load kernels for `Commands.kernel`."""

    @abstractmethod
    def commands(self) -> Commands:
        """An empty launch queue."""

    def with_options(self, options: Options) -> Self:
        """The same target with other options."""
        return replace(self, options=options)
