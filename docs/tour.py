"""The blocks and pictures of docs/tour.md: the real text of `examples/block.py` after each stage.

One block of docs/tile.md is also from here. `python docs/tour.py` names what is out of date;
`--write` (`make tour`) renews it.
"""

from __future__ import annotations

import re
import runpy
import string
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import chdir
from functools import cached_property
from pathlib import Path

import weft
from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.texts import emitted_for
from weft.explain import lookup, reasons
from weft.mesh import Mesh
from weft.optimize import PassRecord, optimize
from weft.pipeline import STAGES
from weft.report.mesh_picture import mesh_picture
from weft.report.svg import LINE, QUIET, Svg
from weft.run.parts import parts_of
from weft.shard import propagate

DOCS = Path(__file__).parent
PAGE, STAGES_PICTURE, PIECES_PICTURE = (
    DOCS / name for name in ("tour.md", "tour_stages.svg", "tour_pieces.svg")
)
EXAMPLE, MESH = "examples/block.py", Mesh(data=2, model=2)
WIDTH = 100
_CLOSES = {f"{c}>" for c in "]}>)" + string.digits + string.ascii_letters + '"'}  # not of an arrow
# Text is emitted for one processor, whichever writes the page.
PROCESSOR = Processor("x86_64-unknown-linux-gnu", "haswell", "+avx2,+fma")
_BLOCK = re.compile(r"^<!-- (\w+) -->\n```(\w+)\n.*?^```$", re.M | re.S)


class Tour:
    """The example, compiled, and the text of every block of the page."""

    @cached_property
    def example(self) -> dict[str, object]:
        """The names that the example's script defines."""
        with chdir(DOCS.parent):  # so that its lines are those of examples/block.py
            return runpy.run_path(EXAMPLE)

    @cached_property
    def compiled(self) -> weft.Compiled:
        """The example's function, compiled for its mesh."""
        shardings = self.example["block_shardings"]
        return weft.compile(
            self.example["block"],
            *self.example["block_inputs"](),
            mesh=MESH,
            in_shardings=shardings,
            target="llvm",
        )

    # Blocks, by the name in the page's comment.

    def function(self) -> str:
        """The function and its shardings, as the script has them."""
        lines = (DOCS.parent / EXAMPLE).read_text().splitlines()
        return "\n".join(_from(lines, "import jax.numpy", "if __name__"))

    def captured(self) -> str:
        """The module that JAX lowered."""
        return self.compiled.text("captured")

    def sharded(self) -> str:
        """The nodes of main up to the call, with their shardings."""
        lines = self.compiled.text("sharded").splitlines()
        return "\n".join(["...", *_from(lines, "    %0", "%6"), "..."])

    def why(self) -> str:
        """Why the hidden features are split as they are."""
        module = self.compiled.program.stages["captured"]
        (value,) = lookup(module, "%3")
        (story,) = reasons(propagate(module)).of(value)
        return story.text()

    def partitioned(self) -> str:
        """The program of one device."""
        lines = self.compiled.text("partitioned").splitlines()
        norm = _from(lines, "  func.func private @norm", "%2 =")
        main = _from(lines, "    %4", "  func.func private")
        return "\n".join(["...", *main, *norm, "..."])

    def passes(self) -> str:
        """The passes that changed the program."""
        seen: list[PassRecord] = []
        module = self.compiled.program.stages["partitioned"]
        optimize(module, 1, watch=seen.append)
        return "\n".join(ran.name for ran in seen if ran.changed)

    def optimized(self) -> str:
        """The program of one device, as it is after the passes."""
        lines = self.compiled.text("optimized").splitlines()
        return "\n".join(["...", *_from(lines, "    %4", "return"), "..."])

    def tiled(self) -> str:
        """Launches, kernels and buffers."""
        return self.compiled.text("tiled")

    def launch(self) -> str:
        """The second launch and its kernel, for docs/tile.md."""
        lines = self.compiled.text("tiled").splitlines()
        _, second, third, *_ = [n for n, line in enumerate(lines) if line.startswith("  launch")]
        return textwrap.dedent("\n".join(lines[second:third]))

    def emitted(self) -> str:
        """The LLVM text of the last kernel, for a processor with AVX2."""
        *_, last = parts_of(self.compiled.program.local)
        assert last.group is not None
        return emitted_for(last.group.kernel, PROCESSOR).text

    def summary(self) -> str:
        """The compiled function as it prints itself, and its collectives."""
        rows = [
            f"{row.name} over {row.over}: {row.count} x {row.bytes:.0f} bytes, {row.loc.describe()}"
            for row in self.compiled.collectives()
        ]
        return "\n".join([str(self.compiled), *rows])

    # Pictures

    def pieces(self) -> str:
        """The pieces of the hidden features on the mesh."""
        module = self.compiled.program.stages["sharded"]
        (value,) = lookup(module, "%3")
        return mesh_picture("hidden, %3", value.type, module.tables["sharding"][value], MESH)

    def stages(self) -> str:
        """The stages in a row, with what the example is after each."""
        picture = Svg("the stages of a program")
        facts = dict(self.facts())
        wide, tall = 132, 104
        for n, (name, about) in enumerate(ROW):
            x = 24 + n * (wide + 20)
            middle = x + wide / 2
            picture.rect(x, 24, wide, tall, "#f5f7fb", stroke=LINE, round=8)
            picture.text(middle, 46, name, size=13.5, bold=True, anchor="middle")
            for line, text in enumerate(about):
                picture.text(middle, 65 + 14 * line, text, size=10, fill=QUIET, anchor="middle")
            for line, text in enumerate(facts[name]):
                picture.text(middle, 101 + 14 * line, text, size=10.5, anchor="middle")
            if n:
                picture.text(x - 10, 80, "→", size=15, fill=QUIET, anchor="middle")
        return picture.document()

    def facts(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Figures of the example for each stage."""
        program = self.compiled.program
        for stage in STAGES[:4]:
            nodes = [*program.stages[stage].nodes()]
            sums = sum(node.op.name == "stablehlo.all_reduce" for node in nodes)
            sent = (f"{sums} all_reduce{'s' if sums > 1 else ''}",) if sums else ()
            yield stage, (f"{len(nodes)} nodes", *sent)
        kernels = len([*parts_of(program.local)])
        yield "tiled", (f"{kernels} kernels",)
        yield "emitted", (f"{kernels} texts",)
        yield "run", (f"{MESH.size} devices",)


# The boxes of the picture: a stage, and what it is in two lines.
ROW = (
    ("captured", ("StableHLO,", "one global program")),
    ("sharded", ("a sharding", "for every value")),
    ("partitioned", ("one device's program", "with collectives")),
    ("optimized", ("the same, after", "the passes")),
    ("tiled", ("launches of kernels,", "buffers with offsets")),
    ("emitted", ("LLVM text", "for each kernel")),
    ("run", ("all devices,", "in lockstep")),
)


def _from(lines: list[str], first: str, before: str) -> list[str]:
    """The lines from one that begins with `first` up to one that begins with `before`."""
    begin = next(n for n, line in enumerate(lines) if line.startswith(first))
    rest = lines[begin:]
    for n, line in enumerate(rest[1:], 1):
        if line.lstrip().startswith(before.lstrip()) and (before or not line):
            return rest[:n]
    return rest


def wrapped(text: str) -> str:
    """A text whose long lines are broken at spaces, the rest indented."""
    lines = []
    for line in text.rstrip().splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        while len(line) > WIDTH and (at := _break(line, len(indent) + 20)):
            lines.append(line[:at].rstrip())
            line = indent + line[at:].lstrip()
        lines.append(line)
    return "\n".join(lines)


def _break(line: str, after: int) -> int:
    """Where to break a line: the last space of those inside the fewest brackets."""
    places, depth = [], 0
    for at, character in enumerate(line[:WIDTH]):
        depth += (character in "([{<") - (character in ")]}" or line[at - 1 : at + 1] in _CLOSES)
        if character == " " and at > after:
            places.append((-depth, at))
    return max(places, default=(0, 0))[1]


def renewed(page: str, tour: Tour) -> str:
    """The page with every block as the compiler writes it now."""

    def block(match: re.Match[str]) -> str:
        write: Callable[[], str] = getattr(tour, match[1])
        return f"<!-- {match[1]} -->\n```{match[2]}\n{wrapped(write())}\n```"

    return _BLOCK.sub(block, page)


def files(tour: Tour) -> dict[Path, str]:
    """The pages and pictures, as they are to be."""
    return {
        **{page: renewed(page.read_text(), tour) for page in (PAGE, DOCS / "tile.md")},
        STAGES_PICTURE: tour.stages(),
        PIECES_PICTURE: tour.pieces(),
    }


def main() -> int:
    """Say which files are out of date, or write them."""
    stale = [
        (path, text)
        for path, text in files(Tour()).items()
        if not path.exists() or path.read_text() != text
    ]
    for path, text in stale:
        if "--write" in sys.argv[1:]:
            path.write_text(text)
        print(f"{path.name} {'written' if '--write' in sys.argv[1:] else 'is out of date'}")
    return 0 if "--write" in sys.argv[1:] else int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
