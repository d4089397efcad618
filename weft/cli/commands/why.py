"""`weft why`: tell why a value is split as it is, or what stood in the way anywhere."""

from __future__ import annotations

import argparse

from weft.cli.parser import Subparsers, command
from weft.cli.program import add_program, captured_program, check_mesh
from weft.cli.rules import add_rules, read_rules
from weft.cli.screen import plural, print_json, print_text, working
from weft.errors import WeftError
from weft.explain import Reasons, Remark, Story, lookup, made_by, reasons
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
        "Tell why a value has its sharding: the annotation it came from, the ops on its way, and "
        "what stopped it. Without a value: every conflict in the program, once for each line.",
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
        help="instead look VALUE up in the program after this stage, and tell which stage or pass "
        "made it and for which line",
    )
    parser.add_argument("--json", action="store_true", help="print the stories as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Find the values, and tell their stories."""
    module = captured_program(arguments.program, arguments.mesh)
    check_mesh(module, arguments.program)
    if arguments.stage is not None:
        return _show_maker(module, arguments)
    rules = read_rules(arguments.rules)
    with working(f"sharding {arguments.program}"):
        found = reasons(propagate(module, arguments.level, rules, pads="named"))
    if arguments.value is None:
        _show_notes(found.notes(), arguments.json)
        return 0
    stories = told(found, module, arguments.value, arguments.func)
    if arguments.json:
        print_json([story_json(story) for story in stories])
    else:
        print_text("\n".join(story.text() for story in stories).rstrip("\n"))
    return 0


def _show_maker(module: Module, arguments: argparse.Namespace) -> int:
    """Say which stage or pass made a value."""
    if arguments.value is None:
        raise WeftError("no value is named", help="name one of that stage's program, such as %3")
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


def told(found: Reasons, module: Module, what: str, function: str | None) -> list[Story]:
    """The stories of all values that are meant."""
    if what.startswith("result") and what[6:].isdigit():
        return [found.of_result(int(what[6:]), function)]
    stories = [story for v in lookup(module, what, function) for story in found.of(v)]
    if not stories:
        raise WeftError(
            f"{what}: nothing reads it, so it has no sharding", help="ask for a value that is read"
        )
    return stories


def story_json(story: Story) -> dict[str, object]:
    """A story as data."""
    return {
        "value": story.name,
        "what": story.what,
        "type": str(story.type),
        "sharding": None if story.sharding is None else story.sharding.body(),
        "line": story.loc.line,
        "dims": [
            {"dim": d.dim, "size": d.size, "axes": d.axes, "why": list(d.sentences)}
            for d in story.dims
        ],
    }


def _show_notes(notes: tuple[Remark, ...], as_json: bool) -> None:
    if as_json:
        keys = ("kind", "message", "count")
        print_json([{k: getattr(n, k) for k in keys} | {"line": n.loc.line} for n in notes])
        return
    for note in notes:
        print_text(note.text())
    print_text(f"{plural(len(notes), 'note')}; `weft why FILE %3` tells the story of one value")
