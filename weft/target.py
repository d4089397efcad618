"""The contract of a target: what it can compute, how large kernels may be, and what runs them.

Tile asks a target what it can (`can`, `takes`), within which limits, and lets it schedule the
kernels that it makes. Run asks it to load kernels and for commands that run them. What kernels
become in between (text, code) is a matter of the target alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from weft.array.host import HOST_MEMORY
from weft.array.memory import Memory, Stream
from weft.array.stacked import Kind, Stacked
from weft.knobs import Tune

if TYPE_CHECKING:
    from weft.ir.op import Op
    from weft.ir.types import DType
    from weft.kernels.group import Launch
    from weft.kernels.kernel import Kernel, Schedule

Addresses: TypeAlias = npt.NDArray[np.uint64]

Where = Literal["loops", "product", "attention", "alone", "numpy", "runtime", ""]


@dataclass(frozen=True, slots=True)
class Cell:
    """How a target computes an op.

    `emitted`: in loops with others, as a product, or alone. `decomposed`: as other ops. `library`:
    numpy or the runtime does it, for a reason. `unsupported`: refused, for a reason.
    """

    how: Literal["emitted", "decomposed", "library", "unsupported"]
    where: Where = ""
    why: str = ""

    def __str__(self) -> str:
        return self.where or self.how


@dataclass(frozen=True, slots=True)
class Limits:
    """How far tile may go for a target: where computing again, or joining kernels, still pays."""

    steps: int = 32  # of one kernel, at most
    near: int = 1 << 12  # bytes of a value that may be computed again for every row
    chain: int = 4  # nodes that are computed again rather than that their result is read
    choices: int = 2  # operands of a concatenation that is computed by choosing
    row: int = 1 << 12  # elements of a row that is read again while it is near
    rows: int = 1  # rows that are enough to share out, however long they are
    saved: int = 1 << 12  # bytes that are worth joining two kernels
    lines: int = 1  # rows or columns of a product that is more than lines
    cut: int = 1  # rows or columns that are to be left of a product that is cut into several
    block: tuple[int, int] = (1, 1)  # rows and columns of a product in registers at once


@dataclass(frozen=True, slots=True)
class Options:
    """What whoever compiles has chosen, the same for every target."""

    fold_sums: bool = True  # whether a product may also sum over devices, which rounds otherwise
    excess_precision: bool = True  # whether steps may compute more exactly than their types say
    tune: Tune = "off"  # whether kernels are measured


Ways: TypeAlias = Mapping[str, Mapping[str, int]]  # options of a schedule, by name
AS_MODELLED = "as modelled"  # the way that a target takes unmeasured, without options


class Candidates(Protocol):
    """Several ways to run the kernels of one class, of which the fastest is to be found."""

    @property
    def kind(self) -> str:
        """What is chosen: the way of a `product`."""
        ...

    @property
    def unworthy(self) -> str:
        """Why nothing is to be gained by measuring, or nothing."""
        ...

    @property
    def shape_class(self) -> str:
        """For which kernels one way is expected to be the best."""
        ...

    @property
    def machine(self) -> str:
        """What measurements depend on besides."""
        ...

    def ways(self) -> Ways:
        """All ways, beginning with AS_MODELLED, then the more promising ones first."""
        ...

    def options(self, name: str) -> Mapping[str, int] | None:
        """The options of a way that was measured before; None if it cannot be had here."""
        ...


class Commands(Protocol):
    """Kernels that run one after another in one native call; written once and run often."""

    def kernel(self, loaded: Any, operands: Sequence[int]) -> int:
        """Add a kernel on operands at these addresses; where in `pointers` they begin."""
        ...

    @property
    def pointers(self) -> Any:
        """The addresses of all operands, as an array of 64-bit integers that may be written to."""
        ...

    def run(self) -> None:
        """Run all kernels, without the GIL."""
        ...


@runtime_checkable
class Repeats(Protocol):
    """Commands that can be the test of a loop which runs without Python."""

    def repeat(self, work: Any, verdict: int, moves: int, limit: int) -> int:
        """Run this, a test, and then other commands, as long as the byte at `verdict` is not 0.

        At `moves` are 64-bit integers that say what changes places after every round: how many
        values do, and for each of them how many levels and buffers it has, the buffer that is
        written next, where each level is now (it becomes what the one above was), the buffers, how
        many operands read each level and how many write it, and where these operands' addresses
        are. How many rounds there were; after `limit` of them it has not been tested again.
        """
        ...


# What a stack has to be, and where in `pointers` its address is to be.
Said: TypeAlias = tuple[Kind, Sequence[int]]  # what a stack is, and where it goes in `pointers`
OnStacks: TypeAlias = Callable[[tuple[Stacked | None, ...], tuple[Stacked, ...]], bool]


@runtime_checkable
class TakesStacks(Protocol):
    """Commands that can find the addresses in stacks, where native code knows how to read them."""

    def unattended(self, keep: object) -> Any:
        """What native code needs to run all kernels by itself, from now on and nobody else.

        What this is, the target and that native code know; it holds on to `keep`.
        """
        ...

    def on_stacks(self, given: Sequence[Said], made: Sequence[Said]) -> OnStacks:
        """What runs all kernels on stacks that are given, and on others that they write to.

        It answers whether the given ones are what they have to be; else nothing has run.
        """
        ...


class Runtime(Protocol):
    """What runs a target's kernels."""

    @property
    def memory(self) -> Memory:
        """Where the operands of kernels are."""
        ...

    @property
    def stream(self) -> Stream | None:
        """The queue that `Commands.run` enqueues kernels on; None if it returns when they ran."""
        ...

    def load(self, kernels: Sequence[Any]) -> Sequence[Any]:
        """Kernels in memory, ready for `Commands.kernel`."""
        ...

    def commands(self) -> Commands:
        """An empty list of commands."""
        ...


class OneByOne:
    """Commands of a target that launches each kernel by itself."""

    def __init__(self, launch: Callable[[Any, Addresses], None]) -> None:
        self.launch = launch
        self.listed: list[tuple[Any, slice]] = []
        self.operands: list[int] = []

    def kernel(self, loaded: Any, operands: Sequence[int]) -> int:
        """Add a kernel."""
        start = len(self.operands)
        self.operands += operands
        self.listed.append((loaded, slice(start, len(self.operands))))
        return start

    @cached_property
    def pointers(self) -> Addresses:
        """The addresses of all operands, from when they are first asked for."""
        return np.array(self.operands, np.uint64)

    def run(self) -> None:
        """Launch all kernels."""
        for loaded, part in self.listed:
            self.launch(loaded, self.pointers[part])


@cache
def _loops_table() -> Mapping[type[Op], Cell]:
    """A target that has kernels of loops only; what runs kernels does not ask what it could."""
    from weft.kernels.ops import LOOPS
    from weft.ops import OPS

    loops, rest = Cell("emitted", "loops"), Cell("library", why="no kernel of loops computes it")
    return MappingProxyType({op: loops if op in LOOPS else rest for op in OPS})


@dataclass(frozen=True)
class Target(ABC):
    """What turns nodes into kernels and runs them.

    A target has a name, and a runtime: `load` and `commands`. What it does not say otherwise is as
    here: kernels of loops, as tile has them, are run in the order of their factors.
    """

    options: Options = Options()

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is asked for by."""

    # What it can

    @property
    def table(self) -> Mapping[type[Op], Cell]:
        """For every op one answer, and no hole."""
        return _loops_table()

    def can(self, op: Op, given: tuple[DType, ...], made: tuple[DType, ...]) -> str | None:
        """Why no kernel computes an op of such types, or None if one does."""
        cell = self.table[type(op)]
        return None if cell.how == "emitted" else cell.why

    def takes(self, kernel: Launch) -> str | None:
        """Why a whole kernel cannot be emitted, or None if it can.

        Kernels that are read from a file are asked for, too, with whatever schedule they have.
        """
        from weft.kernels.kernel import Kernel

        return None if isinstance(kernel, Kernel) else "it is not a kernel of loops"

    # How kernels are to be

    @property
    def limits(self) -> Limits:
        """How far tile may go."""
        return Limits()

    def schedule(self, kernel: Kernel) -> Schedule:
        """How the loops of a kernel run."""
        from weft.kernels.kernel import Schedule

        return Schedule("in_order", tuple(range(len(kernel.factors))))

    def candidates(self, kernel: Launch) -> Candidates | None:
        """Ways to run a kernel that may be worth measuring; None if there is one way only."""
        return None

    # What they become

    @property
    def forms(self) -> Mapping[str, str]:
        """The forms of `text`, the usual one first, and how files of them end."""
        return {"contract": "txt"}

    def text(self, kernel: Launch, form: str = "") -> str:
        """What a kernel becomes, to be read: in the first one of `forms`, or another."""
        from weft.kernels.text import kernel_text

        return kernel_text(kernel)

    @property
    def identity(self) -> str | None:
        """What its decisions depend on besides a kernel; None if none of them may be kept."""
        return None

    def remember(self, kernels: Sequence[Launch], name: str) -> None:  # noqa: B027  # optional
        """Keep what kernels become under a name, for other processes of the same user."""

    def recall(self, kernels: Sequence[Launch], name: str) -> None:  # noqa: B027  # optional
        """Take what an earlier process has kept of these kernels, if it has."""

    def packed(self, kernels: Sequence[Launch]) -> Mapping[str, bytes]:
        """What different kernels become, for files that are trusted: `emitted` text and `code`."""
        return {}

    def adopt(self, kernels: Sequence[Launch], text: bytes) -> bool:
        """Use the `emitted` text of a trusted file; False if it is of another version."""
        return False

    # What runs them

    @property
    def memory(self) -> Memory:
        """Where the operands of kernels are: what else a program has is copied there and back."""
        return HOST_MEMORY

    @property
    def stream(self) -> Stream | None:
        """The queue that kernels are enqueued on; None if `Commands.run` waits for them."""
        return None

    @abstractmethod
    def load(self, kernels: Sequence[Any]) -> Sequence[Any]:
        """Kernels in memory, ready for `Commands.kernel`."""

    @abstractmethod
    def commands(self) -> Commands:
        """An empty list of commands."""

    def with_options(self, options: Options) -> Self:
        """The same target for another program."""
        return replace(self, options=options)
