"""`make mutants`: where sources are changed, and what counts as found."""

from __future__ import annotations

import ast
import base64
import json
import os
import subprocess
import sys
import textwrap
import zlib

import pytest

from tests.mutants import ROOMS, ROOT, drawn, in_turn, mutants, room_of, room_tests, same_code
from tests.reach import Reach, TimedTest, old_line, probed_lines, with_probes


def changes(source):
    source = textwrap.dedent(source).encode()
    found = mutants("weft/x.py", source)
    for mutant in found:
        assert ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source))
    return [(m.before, m.after) for m in found]


def test_operators_and_constants_are_changed():
    assert changes("a < b") == [("<", "<=")]
    assert changes("(a) is not (b)") == [("is not", "is")]
    assert changes("(a not\n in b)") == [("not\n in", "in")]
    assert changes("é = x and y or z") == [("or", "and"), ("and", "or")]
    assert changes("n //= k") == [("//", "*")]
    assert changes("y = not (x - 1)") == [("not", ""), ("-", "+"), ("1", "2")]
    assert changes("f(-x, flag=True)") == [("-", ""), ("True", "False")]
    assert changes("x = 2.5, 0.5, 1e300, 1e999") == [
        ("2.5", "1.25"),
        ("0.5", "1.5"),
        ("1e300", "5e+299"),
        ("1e999", "0.0"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        '"""About 1 + 1."""',
        "x: Literal[1] | None",
        "X: TypeAlias = A | B",
        "X = A | B[1]",
        "def f(x: A | Literal[1]) -> B | Literal[2]: pass",
        "@dataclass(frozen=True, slots=True)\nclass A: pass",
        "__all__ = ['a', 1]",
        "raise E(f'{x + 1}', 1)",
        "assert x, f'{y}' + str(1)",
        "if TYPE_CHECKING:\n    X = 1",
        "isinstance(x, A | B)",
        "for x, y in zip(a, b, strict=True): pass",
        "s = f'{1 + 2}'",
    ],
)
def test_what_no_test_could_see_is_left(source):
    assert changes(source) == []


def test_the_bodies_beside_them_are_changed():
    assert changes("def f(x: Literal[1] = 3, *, y=4) -> A:\n    return 5") == [
        ("3", "4"),
        ("4", "5"),
        ("5", "6"),
    ]
    assert changes("assert x == y, 1") == [("==", "!=")]
    assert changes("x: Literal[1] = 2") == [("2", "3")]


def test_the_same_bytecode_is_known():
    assert same_code(
        b"def f():\n    if 0:\n        return 1\n", b"def f():\n    if 0:\n        return 12\n"
    )
    assert not same_code(b"def f(x):\n    return x < 1\n", b"def f(x):\n    return x <= 1\n")
    assert not same_code(b"x = -0.0\n", b"x = 0.0\n")


def test_drawing_is_seeded_and_of_a_room():
    first = drawn(ROOT, ["cost"], 9, seed=1)
    assert first == drawn(ROOT, ["cost"], 9, seed=1) != drawn(ROOT, ["cost"], 9, seed=2)
    assert {room_of(m.path) for m in first} == {"cost"}
    again = drawn(ROOT, [f"{first[0].path}:{first[0].line}"], 99, seed=1)
    assert first[0] in again and {(m.path, m.line) for m in again} == {
        (first[0].path, first[0].line)
    }


def test_every_room_has_tests():
    files = [p.relative_to(ROOT / "weft") for p in (ROOT / "weft").rglob("*.py")]
    # Of a folder also a file that no test names.
    rooms = {f.parts[0] if len(f.parts) == 1 else f"{f.parts[0]}/unnamed.py" for f in files}
    untested = [name for name in sorted(rooms) if not room_tests(ROOT, f"weft/{name}")]
    assert untested == []
    for extra in ROOMS.values():
        assert all((ROOT / place).exists() for place in extra)


def test_the_mirror_comes_first():
    assert (
        room_tests(ROOT, "weft/optimize/scheduling/split_async.py")[0]
        == "tests/optimize/scheduling/test_split_async.py"
    )


def test_the_nearest_folder_comes_before_the_others():
    found = room_tests(ROOT, "weft/capture/torch/aten/pooling.py")
    near = [file.startswith("tests/capture/torch/") for file in found]
    assert near == sorted(near, reverse=True) and near[0] and not near[-1]


def test_found_and_survived(tmp_path):
    (tmp_path / "weft" / "room").mkdir(parents=True)
    (tmp_path / "tests" / "room").mkdir(parents=True)
    (tmp_path / "weft" / "__init__.py").touch()
    (tmp_path / "weft" / "room" / "seen.py").write_text("def f(x):\n    return x + x\n")
    (tmp_path / "weft" / "room" / "unseen.py").write_text("def g(x):\n    return x < 0\n")
    test = "from weft.room.seen import f\n\ndef test_f():\n    assert f(3) == 6\n"
    (tmp_path / "tests" / "room" / "test_seen.py").write_text(test)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    line = [sys.executable, ROOT / "tests/mutants.py", "--count", "3", "--room", "room"]
    ended = subprocess.run([*line, "--root", tmp_path], capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    told = ended.stdout
    assert "found    weft/room/seen.py:2  + -> -  tests/room/test_seen.py::test_f" in told
    assert "SURVIVED weft/room/unseen.py:2  < -> <=" in told
    assert "    +    return x <= 0" in told
    assert "1 of 3 found (33%), seed 0" in told
    assert (tmp_path / "weft/room/seen.py").read_text().endswith("x + x\n")  # only copies change


def test_one_test_of_each_function_and_then_another():
    tests = [TimedTest(f"far.py::f[{n}]", n) for n in (3, 1, 2)] + [
        TimedTest("near.py::g", 9),
        TimedTest("q::h", 0),
    ]
    order = ["near.py::g", "q::h", "far.py::f[1]", "far.py::f[2]", "far.py::f[3]"]
    assert in_turn(tests, ["near.py"], 99) == order
    assert in_turn(tests, ["near.py"], 12) == order[:4]
    assert in_turn(tests, ["near.py"], 1) == order[:1]  # one is always tried


PROBED = """\
from __future__ import annotations
LIMIT = 3
@cache
def f(x, most=4):
    if x > LIMIT:
        return [y + 1
            for y in x]
    elif x < 0:
        return "none"
    return 5
@native
def g(x):
    return x + 1
"""


def test_a_probe_precedes_each_statement_that_can_change():
    source = PROBED.encode()
    assert probed_lines("weft/x.py", source) == {
        2: (2, False),
        4: (3, False),  # the default is evaluated where the function is defined
        5: (5, True),
        6: (6, True),
        8: (5, True),  # nothing can precede an elif
        10: (10, True),
    }
    text = with_probes(source, {2: 0, 3: 1, 5: 2, 6: 3, 10: 4}).decode()
    reached = {}
    names = {"cache": lambda f: f, "native": lambda f: f, "_weft_probes": reached}
    exec(text.replace("import weft_reach_map\n", ""), names)
    assert sorted(reached) == [0, 1]
    assert names["f"](-1) == "none" and sorted(reached) == [0, 1, 2]
    assert names["f"](1) == 5 and sorted(reached) == [0, 1, 2, 4]


def test_lines_are_followed_through_changes():
    old, new = b"a\nb\nc\nd\n", b"a\nnew\nb\nother\nd\n"
    assert [old_line(old, new, n) for n in range(1, 6)] == [1, 0, 2, 3, 4]
    assert old_line(old, old, 3) == 3


def test_of_two_records_of_a_test_the_later_counts(tmp_path):
    source = "from __future__ import annotations\n\n\ndef f(x):\n    return x + 1\n"
    (tmp_path / "tree" / "weft").mkdir(parents=True)
    (tmp_path / "tree" / "weft" / "x.py").write_text(source)
    (tmp_path / "probes.json").write_text(json.dumps({"weft/x.py": {"begin": 0, "lines": [5]}}))
    rows = {"tests-2": [("a", 9, 0), ("b", 3, 128)], "tests-1": [("a", 1, 128), ("c", 2, 0)]}
    for time, (name, tests) in enumerate(rows.items()):
        lines = [
            json.dumps([test, seconds, base64.b64encode(zlib.compress(bytes([bits]))).decode()])
            for test, seconds, bits in tests
        ]
        (tmp_path / name).write_text("\n".join(lines))
        os.utime(tmp_path / name, (time, time))
    reach = Reach(tmp_path)
    assert reach.reaching("weft/x.py", 5, source.encode()) == [TimedTest("a", 1), TimedTest("b", 3)]
    assert reach.reaching("weft/y.py", 5, source.encode()) is None
