"""Programs as text that can be checked again: propagated, or with every sharding told.

`python -m tests.partition.program FILE...` checks files, shows what is wrong and the local program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.partition.differential import LENGTH, Checked, Wrong, check, partitioned
from tests.partition.inputs import arguments
from tests.shard.shrink import candidates
from weft.capture import parse
from weft.errors import WeftError
from weft.ir.attrs import Attrs
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.types import Array
from weft.ir.write import SHARDINGS
from weft.mesh import parse_sharding, parse_shardings
from weft.shard import shard

TOLD = "// told: no propagation\n"
_SHARDING = "sdy.sharding"


@dataclass(frozen=True)
class Program:
    """A program with shardings in its text, and what it is run on."""

    text: str
    is_told: bool = False
    arrays: tuple[Array, ...] | None = None  # drawn if not given
    seed: int = 0
    length: int = LENGTH

    def module(self) -> Module:
        """The program."""
        return parse(self.text)

    def sharded(self) -> Module:
        """The program as it is partitioned."""
        return as_told(self.module()) if self.is_told else shard(self.module())

    def check(self) -> Checked:
        """Partition it, run it and compare; Wrong if it is."""
        module = self.module()
        arrays = self.arrays or tuple(arguments(module, self.seed))
        given = as_told(module) if self.is_told else None
        return check(module, arrays, length=self.length, sharded=given)

    def wrong(self) -> Wrong | None:
        """What is wrong with it, if anything."""
        try:
            self.check()
        except Wrong as found:
            return found
        except WeftError as error:
            return Wrong("one device", error.message)
        return None

    def file(self) -> str:
        """The program as it is kept in a file."""
        return (TOLD if self.is_told else "") + self.text

    @classmethod
    def of_file(cls, text: str) -> Program:
        """A program that was kept."""
        return cls(text.removeprefix(TOLD), text.startswith(TOLD))


def as_told(module: Module) -> Module:
    """The module whose shardings, all written in its text, are taken as they are."""
    table: dict[Value, object] = {}
    functions = {name: _told_function(f, table) for name, f in module.functions.items()}
    made = module.with_functions(functions)
    return replace(made, tables={**module.tables, SHARDINGS: table})


def _told_function(function: Function, table: dict[Value, object]) -> Function:
    body = _told_region(function.body, table, {})
    given = function.arg_attrs or ((),) * len(body.args)
    for value, attrs in zip(body.args, given, strict=True):
        if _SHARDING in dict(attrs):
            table[value] = parse_sharding(dict(attrs)[_SHARDING])
    return replace(function, body=body, arg_attrs=tuple(_plain(a) for a in given))


def _told_region(region: Region, table: dict[Value, object], became: dict[Value, Value]) -> Region:
    nodes = []
    for node in region.nodes:
        regions = tuple(_told_region(r, table, became) for r in node.regions)
        operands = tuple(became.get(v, v) for v in node.operands)
        made = Node(node.op, operands, node.types, regions, _plain(node.attrs), node.loc)
        became.update(zip(node.results, made.results, strict=True))
        nodes.append(made)
        if text := dict(node.attrs).get(_SHARDING):
            for value, sharding in zip(made.results, parse_shardings(text), strict=True):
                table[value] = sharding
    results = tuple(became.get(v, v) for v in region.results)
    return Region(region.args, nodes, results, region.loc, region.arg_locs)


def _plain(attrs: Attrs) -> Attrs:
    return tuple(a for a in attrs if a[0] != _SHARDING)


def shrunk(program: Program, found: Wrong) -> Program:
    """A smaller program that is wrong at the same stage."""
    return smaller(program, lambda p: (w := p.wrong()) is not None and w.stage == found.stage)


def smaller(program: Program, is_bad: Callable[[Program], bool]) -> Program:
    """The smallest program found that is still bad; arguments are drawn anew."""
    best = replace(program, arrays=None)
    if not is_bad(best):
        return program
    again = True
    while again:
        again = False
        for candidate in candidates(best.module()):
            try:
                text = candidate.text()
                made = replace(best, text=text)
                bad = len(text) < len(best.text) and is_bad(made)
            except (KeyError, WeftError, ValueError):  # no program
                continue
            if bad:
                best, again = made, True
                break
    return best


def main() -> None:
    """Check files."""
    for name in sys.argv[1:]:
        program = Program.of_file(Path(name).read_text())
        print(program.sharded().text())
        found = program.wrong()
        if found is None or found.local is not None:
            local = found.local if found is not None and found.local else None
            print((local or partitioned(program.sharded())).text())
        print(found or "right")


if __name__ == "__main__":
    main()
