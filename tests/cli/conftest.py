"""Command lines run in this process."""

from __future__ import annotations

import pytest

from weft.cli import main


@pytest.fixture
def call(capsys):
    """Run a command line; gives its status, its output and its errors."""

    def call(*line: str) -> tuple[int, str, str]:
        try:
            status = main(line)
        except SystemExit as ended:
            status = ended.code
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return call
