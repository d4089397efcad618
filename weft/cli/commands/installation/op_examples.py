"""One example of every op, as MLIR's generic text: `weft ops` shows its rule and its work."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from weft.errors import Unsupported, WeftError
from weft.ir.module import Node
from weft.ir.read import read_module
from weft.ir.scan import split
from weft.ops import BY_NAME

_NAME = re.compile(r'(?:%r(?::\d+)? = )?"([^"]+)"')
_MODULE = """"builtin.module"() ({
{meshes}"func.func"() <{function_type = ({types}) -> (), sym_name = "main"}> ({
^bb0({args}):
{example}
"func.return"() : () -> ()
}) : () -> ()
}) : () -> ()
"""
_MESHES = '"sdy.mesh"() <{mesh = #sdy.mesh<["x"=2, "y"=4]>, sym_name = "mesh"}> : () -> ()\n'


@cache
def texts() -> dict[str, str]:
    """The text of every example, by the name of its op."""
    source = (
        files("weft.cli.commands.installation")
        .joinpath("op_examples.mlir")
        .read_text(encoding="utf-8")
    )
    code = "\n".join(line for line in source.splitlines() if not line.startswith("//"))
    examples: dict[str, str] = {}
    for example in filter(None, (part.strip("\n") for part in re.split(r"\n\s*\n", code))):
        match = _NAME.match(example)
        assert match, f"no op in the example {example!r}"
        examples[match[1]] = example
    return examples


@cache
def example(name: str) -> Node | WeftError:
    """The example of an op as a node, or the reason that it has none: some ops are refused."""
    text = texts().get(name)
    if text is None:
        return WeftError(
            f"{name} has no example",
            help="add one to weft/cli/commands/installation/op_examples.mlir",
        )
    try:
        module = read_module(_wrapped(text), BY_NAME)
    except Unsupported as error:
        return error
    return module.function("main").body.nodes[-1]


def _wrapped(text: str) -> str:
    """A module around an example, whose operands %0, %1, ... become arguments."""
    head = text.partition("(")[2].partition(")")[0]
    operands = [name for name in head.split(", ") if name]
    signature = text.rpartition(" : (")[2].rpartition(") -> ")[0]
    types = split(signature)
    args = ", ".join(f"{name}: {type}" for name, type in zip(operands, types, strict=True))
    parts = {"meshes": _MESHES, "types": ", ".join(types), "args": args, "example": text}
    return re.sub(r"\{(meshes|types|args|example)\}", lambda m: parts[m[1]], _MODULE)
