"""`weft kernels`: the kernels of a program: fused nodes, work, time and text."""

from __future__ import annotations

import argparse
import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from weft.cli.commands.run import compiled_file, compiled_script
from weft.cli.parser import Subparsers, command
from weft.cli.passes import add_approximate, add_passes, chosen_machine
from weft.cli.program import add_program
from weft.cli.rules import add_rules
from weft.cli.screen import plural, print_json, print_table, print_text, quantity, working
from weft.cli.script import is_script, load_script
from weft.cli.tuning import logged, tune_summary
from weft.columns import Column
from weft.compiled import Compiled
from weft.cost.kernels import kernel_seconds
from weft.errors import WeftError
from weft.ir.module import Node
from weft.ir.work import Work
from weft.kernels.attention import Attention
from weft.kernels.flow import ControlFlow
from weft.kernels.group import AnyKernel
from weft.kernels.single_node import SingleNode
from weft.kernels.text import kernel_text
from weft.kernels.work import work_of
from weft.knobs import TUNES
from weft.machine import HOST, Machine, machine
from weft.ops.shape import Constant
from weft.records import dataclass
from weft.run.parts import Part, measured_parts, parts_of
from weft.target import Target
from weft.tile.fusion.nodes import unsupported_reason
from weft.tune import Chosen, explained

if TYPE_CHECKING:
    pass

_TEXTS = {
    "contract": "loops and steps",
    "llvm": "LLVM text",
    "asm": "assembly",
    "triton": "Triton functions and calls of PyTorch",
}


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "kernels",
        "Show the kernels of a program: what was fused, bytes, flops and times, or one's text.",
        "weft kernels examples/llama.py:train_step --mesh data=2,model=4 --measure",
    )
    add_program(parser)
    add_rules(parser)
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="one kernel: its number, or how its name begins"
    )
    for text, what in _TEXTS.items():
        parser.add_argument(
            f"--{text}", dest="text", action="store_const", const=text, help=f"print its {what}"
        )
    add_passes(parser)
    add_approximate(parser)
    parser.add_argument("--measure", action="store_true", help="run each kernel and time it")
    parser.add_argument(
        "--tune",
        choices=TUNES,
        help="measure: time the candidates of every large product (and of other kernels of a GPU) "
        "and cache the fastest; "
        "remembered (the default): use cached choices; off: use the cost model",
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.set_defaults(arguments=None, seed=0, sync_every_op=False)


def run(arguments: argparse.Namespace) -> int:
    """Show the table, or one kernel."""
    the_machine = chosen_machine(arguments) or machine(HOST.name)
    whole: float | None = None
    with working(f"compiling {arguments.program}"), logged(arguments.tune) as log:
        compiled, values = compiled_program(arguments)
        program = compiled.program.local
    if arguments.measure and arguments.name is None:
        with working("measuring every kernel"):
            parts, whole = measured_parts(program, values)
    else:
        parts = parts_of(program)
    listing = listed(parts, the_machine, whole, program.target)
    if arguments.name is not None:
        row = named(listing, arguments.name)
        print(text_of(row, arguments.text or "contract", program.target))
    elif arguments.text is not None:
        arguments.parser.error(f"--{arguments.text} prints one kernel: give its name")
    elif arguments.json:
        others = [other_json(part, program.target) for part in listing.others]
        print_json([*map(as_json, listing.rows), *others])
    else:
        show(listing, the_machine)
        for line in tune_summary(log.tried):
            print_text(line)
    return 0


def compiled_program(arguments: argparse.Namespace) -> tuple[Compiled, list[Any]]:
    """The program, and arguments for it."""
    if is_script(arguments.program):
        return compiled_script(load_script(arguments.program), arguments)
    return compiled_file(arguments)


# Rows


@dataclass(slots=True)
class KernelRow:
    """A kernel, its launches in a run, and the work and time of a launch."""

    number: int
    kernel: AnyKernel
    nodes: tuple[Node, ...]
    work: Work
    cost: float  # predicted seconds
    way: Chosen | None = None  # of a product: its tuning candidate
    launches: int = 0
    spent: float | None = None  # the measured seconds of all launches in a run

    @property
    def time(self) -> float | None:
        """The measured seconds of one launch."""
        return None if self.spent is None else self.spent / (self.launches or 1)

    @property
    def seconds(self) -> float:
        """The seconds of all launches in a run: as measured, or else as predicted."""
        return self.launches * self.cost if self.spent is None else self.spent


@dataclass(slots=True)
class Listing:
    """The distinct kernels of a program, and the nodes outside kernels."""

    rows: list[KernelRow] = field(default_factory=list)
    others: list[Part] = field(default_factory=list)
    whole: float | None = None  # the measured seconds of a run
    target: Target | None = None


def listed(
    parts: Sequence[Part],
    the_machine: Machine,
    whole: float | None = None,
    target: Target | None = None,
) -> Listing:
    """The listing, with one row for equal kernels."""
    listing = Listing(whole=whole, target=target)
    known: dict[AnyKernel, KernelRow] = {}
    for part in parts:
        kernel = None if part.group is None else part.group.kernel
        if part.group is None or kernel is None:
            listing.others.append(part)
            continue
        row = known.get(kernel)
        if row is None:
            units = None if target is None else target.units
            seconds = kernel_seconds(kernel, the_machine, units)
            way = None if target is None else explained(kernel, target)
            row = KernelRow(
                len(listing.rows), kernel, part.group.nodes, work_of(kernel), seconds, way
            )
            known[kernel] = row
            listing.rows.append(row)
        row.launches += part.runs
        if part.seconds is not None:
            row.spent = (row.spent or 0.0) + part.seconds
    return listing


def named(listing: Listing, name: str) -> KernelRow:
    """The kernel of that number or name, which may be a prefix."""
    if name.isdigit() and int(name) < len(listing.rows):
        return listing.rows[int(name)]
    names = [row.kernel.name for row in listing.rows]
    matches = [row for row in listing.rows if row.kernel.name.startswith(name)]
    exact = [row for row in matches if row.kernel.name == name]
    if len(matches) == 1 or exact:
        return (exact or matches)[0]
    near = difflib.get_close_matches(name, names, n=3) or [row.kernel.name for row in matches]
    hint = f"did you mean {' or '.join(near)}?" if near else "`weft kernels FILE` lists them"
    problem = "several kernels begin with" if matches else "unknown kernel"
    raise WeftError(f"{problem} {name!r}", help=hint)


def text_of(row: KernelRow, text: str, target: Target | None) -> str:
    """One kernel in full."""
    if text == "contract" or target is None:
        return kernel_text(row.kernel)
    if text not in target.forms:
        forms = " or ".join(f"--{form}" for form in dict.fromkeys(("contract", *target.forms)))
        raise WeftError(f"kernels of the {target.name} target have no {text}", help=f"try {forms}")
    return target.text(row.kernel, text)


def short(node: Node) -> str:
    """The name of a node's op, without its dialect."""
    return node.op.name.rpartition(".")[2]


def fused(nodes: Sequence[Node]) -> str:
    """`dot_general, add, multiply x3, tanh`: the ops of a kernel, in program order."""
    counts = Counter(short(n) for n in nodes if not isinstance(n.op, Constant))
    return ", ".join(f"{name} x{count}" if count > 1 else name for name, count in counts.items())


def loops(kernel: AnyKernel) -> str:
    """`[8]x64x256 over 1024`: the sizes of the loops, of devices in brackets, reductions last."""
    match kernel:
        case Attention(outer=outer, queries=queries, keys=keys, depth=depth):
            return "x".join(map(str, (*outer, queries, keys))) + f" over {depth}"
        case ControlFlow():
            return f"{len(kernel.kernels)} kernels"
        case SingleNode():
            return "x".join(map(str, kernel.outputs[0].shape)) or "1"
    sizes = {True: list[str](), False: list[str]()}
    for factor in kernel.factors:
        if factor.size > 1:
            size = f"[{factor.size}]" if factor.device else str(factor.size)
            sizes[factor.role == "reduction"].append(size)
    over = f" over {'x'.join(sizes[True])}" if sizes[True] else ""
    return ("x".join(sizes[False]) or "1") + over


def as_json(row: KernelRow) -> dict[str, Any]:
    """A row as data."""
    return {
        "name": row.kernel.name,
        "fused": [short(n) for n in row.nodes],
        "loops": loops(row.kernel),
        "launches": row.launches,
        "work": {name: n for name, n in asdict(row.work).items() if name != "sent"},
        "cost": row.cost,
        "time": row.time,
        "way": None if row.way is None else {"name": row.way.name, "why": row.way.why},
    }


def other_json(part: Part, target: Target | None) -> dict[str, Any]:
    """A node that runs in numpy, as data; it has no name."""
    return {
        "name": None,
        "fused": [short(part.node)],
        "launches": part.runs,
        "time": part.seconds,
        "why": reason(part.node, target),
    }


# Display


def show(listing: Listing, the_machine: Machine) -> None:
    """The table, and below it the totals and the nodes outside kernels."""
    timed = listing.whole is not None
    columns = (
        Column(right=True),
        Column("kernel", fit="wrap", least=8),
        *[Column(head, right=True) for head in ("runs", "bytes", "flops", "cost")],
        *([Column("time", right=True)] if timed else []),
        Column("share", right=True),
    )
    whole = listing.whole or sum(row.seconds for row in listing.rows) or 1.0
    rows = []
    for row in listing.rows:
        what = f"{row.kernel.name}\n{loops(row.kernel)}\n{fused(row.nodes) or 'copy'}"
        what += "" if row.way is None else f"\n{row.way.name} ({row.way.why})"
        times = [row.cost, *([row.time or 0.0] if timed else [])]
        rows.append(
            (
                str(row.number),
                what,
                str(row.launches),
                quantity(row.work.bytes, "B"),
                quantity(row.work.flops + row.work.transcendentals),
                *map(time_text, times),
                f"{100 * row.seconds / whole:.1f}%",
            )
        )
    if rows:
        print_table(columns, rows, _kernel_style)
        print()
    for line in summary(listing, the_machine):
        print_text(line)


def _kernel_style(row: int, column: int, nth: int) -> str:
    """The style of a cell: kernel names are highlighted."""
    return "" if column > 1 else "dim" if column == 0 or nth else "bold"


def summary(listing: Listing, the_machine: Machine) -> list[str]:
    """The totals of all kernels, and the nodes outside kernels."""
    rows = listing.rows
    count = sum(row.launches for row in rows)
    work = [row.work for row in rows for _ in range(row.launches)]
    moved = quantity(sum(w.bytes for w in work), "B")
    done = quantity(sum(w.flops + w.transcendentals for w in work))
    cost = time_text(sum(row.launches * row.cost for row in rows))
    several = f" ({len(rows)} of them distinct)" if len(rows) < count else ""
    line = f"{plural(count, 'kernel')}{several}"
    lines = [f"{line}: {moved} moved, {done} flops, a cost of {cost} on {the_machine.name}"]
    if listing.whole is not None:
        kernels = sum(row.seconds for row in rows)
        numpy = sum(part.seconds or 0.0 for part in listing.others)
        split = f"{time_text(kernels)} in kernels"
        split += f", {time_text(numpy)} in numpy" if numpy else ""
        lines.append(f"measured: {time_text(listing.whole)} a run: {split}")
    if listing.others:
        lines.append("in no kernel, run by numpy:")
        lines += [f"  {line}" for line in others_text(listing.others, listing.target)]
    return lines


def others_text(others: Sequence[Part], target: Target | None = None) -> list[str]:
    """`3 x sort, 1.2 ms: reason`: the nodes that run in numpy, slowest first."""
    alike: dict[tuple[str, str], list[Part]] = {}
    for part in others:
        alike.setdefault((short(part.node), reason(part.node, target)), []).append(part)
    lines: list[tuple[float, str]] = []
    for (name, why), parts in alike.items():
        seconds = sum(part.seconds or 0.0 for part in parts)
        took = f", {time_text(seconds)}" if seconds else ""
        times = f"{len(parts)} x " if len(parts) > 1 else ""
        lines.append((-seconds, f"{times}{name}{took}: {why}"))
    return [line for _, line in sorted(lines)]


def reason(node: Node, target: Target | None) -> str:
    """The reason that a node is in no kernel of the target."""
    cell = target.table.get(type(node.op)) if target is not None else None
    if cell is not None and cell.how == "library":
        return cell.why
    why = unsupported_reason(node, target) if target is not None else None
    if why is not None:
        return why
    types = ", ".join(dict.fromkeys(map(str, (*node.operand_types, *node.types))))
    return f"not in this form, of {types}"


def time_text(seconds: float) -> str:
    """`1.25 ms`: seconds in three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
