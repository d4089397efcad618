"""What Weft says about shardings, word by word.

A file in tests/golden/explain is a program, then sections that begin with `// ----- ` and a
question: `notes` (every conflict of the program) or a value, whose story is explanations.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.capture import parse
from weft.cli.commands.why import explanations
from weft.explain import Reasons, reasons
from weft.shard import propagate

FOLDER = Path(__file__).parent.parent / "golden" / "explain"
MARK = "// ----- "


def answered(found: Reasons, question: str) -> str:
    if question == "notes":
        return "".join(note.text() for note in found.notes()) or "none\n"
    assert found.propagated.given is not None
    return "".join(s.text() for s in explanations(found, found.propagated.given, question, None))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.mlir")), ids=lambda path: path.stem)
def test_the_text_is_this(path, golden):
    program, *sections = path.read_text().split(MARK)
    found = reasons(propagate(parse(program)))
    parts = [program]
    for section in sections:
        question = section.splitlines()[0]
        parts.append(f"{MARK}{question}\n{answered(found, question)}")
    golden(path, "".join(parts))


def test_there_is_a_file_for_every_kind_of_conflict():
    text = "".join(path.read_text() for path in FOLDER.glob("*.mlir"))
    for words in (
        "closes it",
        "already",
        "keeps it whole along",
        "it is unreduced along",
        "which do not divide",
        "would not be contiguous",
        ", dim 0 of %arg1 by",
        "a propagation barrier stands between",
        "passes no sharding along it",
        "it is gathered first",
        "the last are padded",
        "nothing reached it",
        "keeps it whole\n",
        "the sharding group carries it",
        "the manual computation",
        "priority 1",
    ):
        assert words in text, words
