"""Sharding rules on the command line: `--rules FILE.py`, a script that defines `rules`."""

from __future__ import annotations

from weft.cli.parser import Parser
from weft.cli.script import run_script
from weft.errors import WeftError
from weft.shard import Rules
from weft.shard.rules import as_rules


def add_rules(parser: Parser) -> None:
    """Add the option --rules."""
    parser.add_argument(
        "--rules",
        metavar="FILE.py",
        help="a script with `rules`, the sharding rules of custom calls and composites: a dict "
        'such as {"gemm": "i k, k j -> i j"}, or weft.shard.Rules',
    )


def read_rules(path: str | None) -> Rules:
    """The rules of a script; none without a script."""
    if path is None:
        return Rules()
    rules = run_script(path).get("rules")
    if rules is None:
        raise WeftError(
            f"{path} has no `rules`", help='define there: rules = {"gemm": "i k, k j -> i j"}'
        )
    return as_rules(rules)
