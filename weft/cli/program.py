"""Programs on the command line: StableHLO files, standard input, or functions of scripts."""

from __future__ import annotations

from weft.capture import normalize, parse
from weft.cli.files import source
from weft.cli.parser import Parser
from weft.cli.script import is_script, load_script
from weft.errors import WeftError
from weft.ir.module import Module
from weft.ir.on_mesh import with_mesh
from weft.mesh import as_mesh
from weft.shard import shard

_PROGRAM = "FILE|script.py:function"
_HELP = (
    "StableHLO text or bytecode (- reads standard input), or a JAX function or PyTorch module of a "
    "script, traced on the script's `function_inputs` (or `inputs`) and split by "
    "`function_shardings`, or by names by `function_plan`"
)


def add_program(parser: Parser, *, nargs: str | None = None, mesh: bool = True) -> None:
    """Add the argument that names the program, or several of them, and the option --mesh."""
    dest = "programs" if nargs == "+" else "program"
    parser.add_argument(dest, nargs=nargs, metavar=_PROGRAM, help=_HELP)
    if mesh:
        parser.add_argument(
            "--mesh",
            metavar="AXIS=SIZE,...",
            help="the sizes of the mesh's axes; a program without a mesh gets this one",
        )


def read_program(text: str, mesh: str | None = None) -> Module:
    """The program named on the command line, on a mesh if --mesh is set."""
    ours = None if mesh is None else as_mesh(mesh)
    if is_script(text):
        return load_script(text).module(ours)
    module = parse(source(text))
    return module if ours is None else with_mesh(module, ours)


def captured_program(text: str, mesh: str | None = None) -> Module:
    """The captured program, normalized, from any source."""
    return normalize(read_program(text, mesh), shard)


def check_mesh(module: Module, text: str) -> None:
    """Refuse a program without a mesh, for commands that need one."""
    if module.meshes:
        return
    where = "function_shardings beside it" if is_script(text) else "annotations of its arguments"
    raise WeftError(
        f"{text} has no mesh, so nothing is split",
        help=f"give --mesh data=2,model=4; {where} define the shardings",
    )
