"""The runner of JAX's own tests, on a checkout of a few tests that pass, fail, crash and hang."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.upstream.record_results import OfCheckout

RUN = Path(__file__).parent / "run.py"

TESTS = """
import os, sys, time, unittest

ON_WEFT = os.environ["JAX_PLATFORMS"] == "weft"

class SomeTest(unittest.TestCase):
    def test_a_passes(self): assert "--jax_test_dut=cpu" in sys.argv
    def test_b_fails_on_weft(self): assert not ON_WEFT, "a difference"
    def test_c_fails_on_both(self): raise ValueError
    def test_d_crashes_on_weft(self):
        if ON_WEFT: os.abort()
    def test_e_is_skipped(self): self.skipTest("always")
    def test_f_hangs_on_weft(self):
        if ON_WEFT: time.sleep(60)
    def test_g_passes(self): open(os.environ["COUNTED"], "a").write("x")
"""
COLUMNS = "passed failed crashed timeout skipped not_run CPU_passes unexplained".split()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTED", str(tmp_path / "counted"))
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "version.py").write_text(f'_version = "{version("jax")}"\n')
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "some_test.py").write_text(TESTS)
    (tmp_path / "tests" / "mosaic_test.py").write_text("raise ValueError\n")
    return tmp_path


def run(checkout, *more: str) -> tuple[int, dict[str, int], str]:
    """The exit status, the row of the table, and all that is printed."""
    options = ["--results", str(checkout / "results"), "--seconds-a-test", "5", *more]
    done = subprocess.run(
        [sys.executable, str(RUN), str(checkout), *options], capture_output=True, text=True
    )
    row = next((x for x in done.stdout.splitlines() if x.startswith("all ")), "")
    counts = dict(zip(COLUMNS, map(int, row.split()[1:]), strict=bool(row)))
    return done.returncode, counts, done.stdout + done.stderr


def test_every_test_has_a_result(checkout):
    status, counts, text = run(checkout)
    assert status == 1
    expected = {"passed": 2, "failed": 2, "crashed": 1, "timeout": 1, "skipped": 1}
    assert counts == {**expected, "not_run": 0, "CPU_passes": 3, "unexplained": 3}, text
    assert "mosaic_test" not in text
    assert "tests/some_test.py::SomeTest::test_b_fails_on_weft\n      Assertion" in text
    assert "test_c_fails_on_both\n" not in text
    # A second run takes what is recorded; failures run once more if they are asked for.
    assert run(checkout)[1:] == (counts, text)
    assert (checkout / "counted").read_text() == "x"
    file = checkout / "tests" / "some_test.py"
    file.write_text(TESTS.replace("time.sleep(60)", "pass").replace("os.abort()", "pass"))
    _, again, text = run(checkout, "some_test", "--again", "failed")
    assert again == {**counts, "passed": 4, "crashed": 0, "timeout": 0} | {
        "CPU_passes": 1,
        "unexplained": 1,
    }, text
    assert (checkout / "counted").read_text() == "x"


def test_a_sample_grows(checkout):
    """A larger sample keeps the results of a smaller one, up to all tests of a file."""
    counting = "open(os.environ['COUNTED'], 'a').write('x')"
    tests = "".join(f"def test_{name}(): {counting}\n" for name in "abcd")
    (checkout / "tests" / "some_test.py").write_text("import os\n" + tests)
    for size, ran in (("2", 2), ("3", 3), ("0", 4)):
        _, counts, text = run(checkout, "--sample", size)
        assert (counts["passed"], counts["not_run"]) == (ran, 4 - ran), text
        assert (checkout / "counted").read_text() == ran * "x"


def test_what_cannot_be_imported_on_either_is_no_failure(checkout):
    (checkout / "tests" / "some_test.py").write_text("import no_such_package\n")
    status, counts, text = run(checkout)
    assert (status, set(counts.values())) == (0, {0})
    assert "some_test: ModuleNotFoundError: No module named 'no_such_package'" in text


def test_another_version_is_refused(checkout):
    (checkout / "jax" / "version.py").write_text('_version = "0.4.1"\n')
    status, _, text = run(checkout)
    assert status == 2
    assert f"is JAX 0.4.1, and {version('jax')} is installed" in text


def test_utilities_that_the_wheel_leaves_out_are_the_checkouts(tmp_path, monkeypatch):
    utilities = tmp_path / "jax" / "_src" / "utilities"
    utilities.mkdir(parents=True)
    for name in ("__init__.py", "one.py"):
        (utilities / name).touch()
    monkeypatch.chdir(tmp_path)
    find = OfCheckout().find_spec
    assert find("jax._src.utilities", None).submodule_search_locations == [str(utilities)]
    assert find("jax._src.utilities.one", None).origin == str(utilities / "one.py")
    assert find("jax._src.utilities.two", None) is None
    assert find("jax.utilities", None) is None
