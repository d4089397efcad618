"""Programs to damage: an example of every op, and some whole programs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from tests.ops.catalogue import EXAMPLES
from tests.ops.example import Example
from tests.oracles.forms import binary_forms

PROGRAMS = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.mlir"))


def drawn(strategy: SearchStrategy[Example], count: int = 3) -> str:
    """The longest text of a few examples, always the same."""
    found: list[str] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def keep(example: Example) -> None:
        found.append(example.module().text())

    keep()
    return max(found, key=len)


@cache
def texts() -> tuple[str, ...]:
    """The programs as text."""
    whole = [path.read_text() for path in PROGRAMS]
    return (*(drawn(strategy) for strategy in EXAMPLES.values()), *whole)


@cache
def binaries() -> tuple[bytes, ...]:
    """The same as bytecode and as artifacts."""
    return tuple(form for text in texts() for form in binary_forms(text))
