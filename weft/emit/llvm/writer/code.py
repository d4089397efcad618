"""Writing LLVM IR: a function, its instructions, loops, and declarations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class OpenLoop:
    """A loop under construction: its index and loop-carried values."""

    def __init__(self, index: str, carried: Sequence[str]) -> None:
        self.index = index
        self.carried = tuple(carried)
        self.next: tuple[str, ...] = ()

    def carry(self, *values: str) -> None:
        """Set the values for the next iteration; after the loop, `carried` are the final values."""
        self.next = values


class Writer:
    """One LLVM function; SSA names are generated, blocks are sequential."""

    def __init__(
        self,
        name: str,
        params: Sequence[str],
        *,
        internal: bool = False,
        excess_precision: bool = True,
    ) -> None:
        self.name = name
        self.excess_precision = excess_precision  # see Kernel
        self.header = f"define {'internal ' if internal else ''}void @{name}({', '.join(params)})"
        self.lines: list[str] = []
        self.declared: dict[str, None] = {}  # module-level lines: intrinsics, constants
        self.facts: dict[tuple[str, str], str] = {}  # facts about a value: (name, topic) -> text
        self.block = "entry"
        self._count = 0

    def fresh(self, hint: str = "t") -> str:
        """A fresh SSA name, without its %."""
        self._count += 1
        return f"{hint}{self._count}"

    def let(self, text: str, hint: str = "t") -> str:
        """An instruction with a result; returns its name."""
        name = f"%{self.fresh(hint)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {text}")

    def declare(self, text: str) -> None:
        """Add a module-level line, once."""
        self.declared[text] = None

    def call(self, type: str, name: str, *args: tuple[str, str], flags: str = "") -> str:
        """A call of an intrinsic or another declared function, with (type, value) pairs."""
        self.declare(f"declare {type} @{name}({', '.join(t for t, _ in args)})")
        given = ", ".join(f"{t} {v}" for t, v in args)
        return self.let(f"call {flags + ' ' if flags else ''}{type} @{name}({given})")

    def start(self, label: str) -> None:
        """Start a basic block; the previous one must have ended with a branch."""
        self.lines.append(f"{label}:")
        self.block = label

    @contextmanager
    def loop(
        self,
        begin: str | int,
        end: str | int,
        step: str | int = 1,
        carried: Sequence[tuple[str, str]] = (),
        *,
        at_least_once: bool = False,
    ) -> Iterator[OpenLoop]:
        """A loop of i64 from begin to end, with loop-carried (type, initial value) pairs.

        The body calls `carry` with the values for the next iteration. After the loop `carried` are
        the final values.
        """
        head, body, done = self.fresh("head"), self.fresh("body"), self.fresh("done")
        before = self.block
        index = f"%{self.fresh('i')}"
        names = [f"%{self.fresh('c')}" for _ in carried]
        self.do(f"br label %{head}")
        self.start(head)
        place = len(self.lines)
        # A place for the phis: the values that come back from the body are known only at its end.
        self.lines.append("")
        inside = self.let(f"icmp slt i64 {index}, {end}")
        if at_least_once:
            # Tested at the end only: the comparison just written is not needed.
            self.lines.pop()
        else:
            self.do(f"br i1 {inside}, label %{body}, label %{done}")
            self.start(body)
        opened = OpenLoop(index, names)
        yield opened
        last = opened.next or tuple(names)
        assert len(last) == len(names), "a loop carries as many values as it began with"
        # nsw: indices of memory do not overflow, and LLVM may then widen and strength-reduce them.
        following = self.let(f"add nsw i64 {index}, {step}", "n")
        # The block that the body ended in, which need not be the one it began in.
        back = self.block
        if at_least_once:
            again = self.let(f"icmp slt i64 {following}, {end}")
            self.do(f"br i1 {again}, label %{head}, label %{done}")
        else:
            self.do(f"br label %{head}")
        lines = [f"  {index} = phi i64 [{begin}, %{before}], [{following}, %{back}]"]
        lines += [
            f"  {name} = phi {type} [{first}, %{before}], [{value}, %{back}]"
            for name, (type, first), value in zip(names, carried, last, strict=True)
        ]
        self.lines[place] = "\n".join(lines)
        self.start(done)
        if at_least_once:
            opened.carried = tuple(last)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Instructions under a condition; they yield no values."""
        yes, after = self.fresh("then"), self.fresh("after")
        self.do(f"br i1 {condition}, label %{yes}, label %{after}")
        self.start(yes)
        yield
        self.do(f"br label %{after}")
        self.start(after)

    def text(self) -> str:
        """The function's text."""
        return f"{self.header} {{\nentry:\n" + "\n".join([*self.lines, "  ret void", "}"]) + "\n"


def module_text(*functions: Writer) -> str:
    """A module of functions, with all declarations."""
    declared = dict.fromkeys(line for f in functions for line in f.declared)
    return "\n".join([*declared, "", *(f.text() for f in functions)])
