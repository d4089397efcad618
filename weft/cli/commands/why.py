"""`weft why`: explain the sharding of a value, or list all conflicts of the program."""

from __future__ import annotations

import argparse

from weft.cli.parser import Subparsers, command
from weft.cli.program import add_program, captured_program, check_mesh
from weft.cli.rules import add_rules, read_rules
from weft.cli.screen import plural, print_json, print_text, working
from weft.errors import WeftError
from weft.explain import Explanation, Reasons, Remark, lookup, made_by, reasons
from weft.ir.module import Module
from weft.optimize import optimize
from weft.partition import partition
from weft.shard import propagate, shard

LEVELS = ("basic", "aggressive", "op", "user")


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "why",
        "Explain the sharding of a value: the annotation it came from, the ops on its path, and "
        "the conflicts that stopped it. Without a value: every conflict in the program, once for "
        "each line.",
        "weft why examples/llama.py:loss --mesh data=2,model=4 llama.py:54",
    )
    add_program(parser)
    add_rules(parser)
    parser.add_argument(
        "value",
        nargs="?",
        metavar="VALUE",
        help="%%12, %%arg3 or result0 (as numbered in the program's text, which `weft shard` "
        "prints), model.py:41 (all values of a line), or a tracer's name such as "
        "layer0/dot_general",
    )
    parser.add_argument("--func", metavar="NAME", help="where %%12 is looked up (default: main)")
    parser.add_argument(
        "--level", choices=LEVELS, default="user", help="how far shardings spread (default: user)"
    )
    parser.add_argument(
        "--stage",
        choices=("partitioned", "optimized"),
        help="instead look VALUE up in the program after this stage, and print the stage or pass "
        "that introduced it, and its line",
    )
    parser.add_argument("--json", action="store_true", help="print the explanations as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Find the values, and print their explanations."""
    module = captured_program(arguments.program, arguments.mesh)
    check_mesh(module, arguments.program)
    if arguments.stage is not None:
        return _show_origin(module, arguments)
    rules = read_rules(arguments.rules)
    with working(f"sharding {arguments.program}"):
        the_reasons = reasons(propagate(module, arguments.level, rules, pads="named"))
    if arguments.value is None:
        _show_notes(the_reasons.notes(), arguments.json)
        return 0
    explained = explanations(the_reasons, module, arguments.value, arguments.func)
    if arguments.json:
        print_json([explanation_json(one) for one in explained])
    else:
        print_text("\n".join(one.text() for one in explained).rstrip("\n"))
    return 0


def _show_origin(module: Module, arguments: argparse.Namespace) -> int:
    """Print the stage or pass that introduced a value."""
    if arguments.value is None:
        raise WeftError("missing value", help="name one of that stage's program, such as %3")
    stages: list[tuple[str, Module]] = [("capture", module)]
    rules = read_rules(arguments.rules)
    sharded = shard(module, level=arguments.level, rules=rules, pads="named")
    stages += [("shard", sharded), ("partition", partition(sharded, rules))]
    if arguments.stage == "optimized":
        optimize(stages[-1][1], watch=lambda ran: stages.append((ran.name, ran.module)))
    for value in lookup(stages[-1][1], arguments.value, arguments.func):
        found = made_by(stages, arguments.value, value)
        text = f"{arguments.value}: an argument" if found is None else found.text()
        print_text(text.rstrip("\n"))
    return 0


def explanations(
    reasons: Reasons, module: Module, what: str, function: str | None
) -> list[Explanation]:
    """The explanations of all values of a name."""
    if what.startswith("result") and what[6:].isdigit():
        return [reasons.of_result(int(what[6:]), function)]
    explained = [one for v in lookup(module, what, function) for one in reasons.of(v)]
    if not explained:
        raise WeftError(
            f"{what}: nothing reads it, so it has no sharding", help="ask for a value that is read"
        )
    return explained


def explanation_json(value: Explanation) -> dict[str, object]:
    """An explanation as data."""
    return {
        "value": value.name,
        "what": value.what,
        "type": str(value.type),
        "sharding": None if value.sharding is None else value.sharding.body(),
        "line": value.loc.line,
        "dims": [
            {"dim": d.dim, "size": d.size, "axes": d.axes, "why": list(d.sentences)}
            for d in value.dims
        ],
    }


def _show_notes(notes: tuple[Remark, ...], as_json: bool) -> None:
    if as_json:
        keys = ("kind", "message", "count")
        print_json([{k: getattr(n, k) for k in keys} | {"line": n.loc.line} for n in notes])
        return
    for note in notes:
        print_text(note.text())
    print_text(f"{plural(len(notes), 'note')}; `weft why FILE %3` explains one value")
