"""Settings for all tests: hypothesis the same every time, and golden files to compare with."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    deadline=None,
    max_examples=int(os.environ.get("WEFT_EXAMPLES", "25")),
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
settings.load_profile("default")
# Machines of the tests are those that Weft brings along, whatever this user has calibrated.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent / "no_such_folder")
# Tests start hundreds of processes: without bytecode each of them would compile all of Weft anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

OWN_SETTINGS: dict[Callable[..., object], settings] = {}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a parametrized test its own settings back.

    The plugin of hypothesis wraps them at every call of the test, and looks through all wrappers;
    after a thousand calls that is too deep.
    """
    test = getattr(item, "obj", None)
    found = getattr(test, "_hypothesis_internal_use_settings", None)
    if found is not None:
        test._hypothesis_internal_use_settings = OWN_SETTINGS.setdefault(test, found)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files anew; review the diff"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with the whole of a file, or write the file with --update-golden."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{path.name} differs; --update-golden writes it anew"

    return compare
