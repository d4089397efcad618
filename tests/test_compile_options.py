"""Options of weft.compile and of commands: rules, streams, combining, machines, tolerances."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import weft
from tests.tolerance import assert_close
from weft.cli import main
from weft.compare import difference
from weft.errors import WeftWarning
from weft.knobs import KNOBS
from weft.ops.control import AsyncStart, stream_of
from weft.shard import Rules

NORM = """
sdy.mesh @mesh = <["x"=4]>
func.func private @norm(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.multiply %a, %a : tensor<8x16xf32>
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.reduce(%0 init: %c) applies stablehlo.add across dimensions = [1]
      : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<8xf32>) -> tensor<8x16xf32>
  %3 = stablehlo.divide %a, %2 : tensor<8x16xf32>
  return %3 : tensor<8x16xf32>
}
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> tensor<8x16xf32> {
  %0 = stablehlo.composite "my.norm" %a {decomposition = @norm}
      : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}"""
ROWS = {"my.norm": "i j -> i j"}
WHOLE = {"my.norm": ("i j -> i j", {"need_replication_factors": ("i", "j")})}
X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


# Rules


@pytest.mark.parametrize(
    "rules, gathers",
    [
        (None, 1),  # opaque, so its result is whole
        (ROWS, 0),
        (Rules().add("my.norm", "i j -> i j"), 0),
        ({"my.norm": lambda operands, results: "i j -> i j"}, 0),
        (WHOLE, 1),  # its operand is gathered first
    ],
)
def test_rules_reach_the_partitioner(rules, gathers):
    compiled = weft.compile(NORM, rules=rules)
    assert sum(row.count for row in compiled.collectives()) == gathers
    assert ('stablehlo.composite"(%arg0)' in compiled.text("partitioned")) == (
        rules is not None and gathers == 0
    )
    assert_close(np.asarray(compiled(X)[0]), X / (X * X).sum(1, keepdims=True))


def test_wrong_rules_are_refused():
    with pytest.raises(weft.WeftError, match="are not rules"):
        weft.compile(NORM, rules=["i j -> i j"])
    with pytest.raises(weft.WeftError, match="'my.norm': sharding rule i j: there must be one ->"):
        weft.compile(NORM, rules={"my.norm": "i j"})
    with pytest.raises(weft.WeftError, match="operand 0 has 1 dim, but is tensor<8x16xf32>"):
        weft.compile(NORM, rules={"my.norm": "i -> i"})


@pytest.fixture
def files(tmp_path):
    (tmp_path / "norm.mlir").write_text(NORM)
    (tmp_path / "mine.py").write_text(f"rules = {ROWS!r}\n")
    (tmp_path / "none.py").write_text("rule = {}\n")
    (tmp_path / "broken.py").write_text("rules = {\n    1: 1 / 0,\n}\n")
    return tmp_path


@pytest.mark.parametrize(
    "command, text, more",
    [
        ("shard", '[{"x"}, {}]', 2),  # the composite and the result
        ("partition", "stablehlo.all_gather", -1),
        ("opt --mesh x=4", "stablehlo.all_gather", -1),
        ("show", "[{x}, {}]  2x16", 2),
        ("run --check", "all_gather", -1),
    ],
)
def test_rules_of_commands(files, capsys, command, text, more):
    name, *options = command.split()
    counts = []
    for rules in ([], ["--rules", str(files / "mine.py")]):
        assert main([name, str(files / "norm.mlir"), *options, *rules]) == 0
        counts.append(capsys.readouterr().out.count(text))
    assert counts[1] - counts[0] == more


def test_why_follows_rules(files, capsys):
    line = ["why", str(files / "norm.mlir"), "result0"]
    assert main(line) == 0
    assert 'is split by "x"' not in capsys.readouterr().out
    assert main([*line, "--rules", str(files / "mine.py")]) == 0
    assert 'dim 0 (size 8) is split by "x"' in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, told",
    [
        ("none.py", "none.py has no `rules`"),
        ("broken.py", "ZeroDivisionError"),
        ("missing.py", "missing.py: no such file"),
    ],
)
def test_files_without_rules_are_refused(files, capsys, name, told):
    assert main(["shard", str(files / "norm.mlir"), "--rules", str(files / name)]) == 1
    assert told in capsys.readouterr().err


# Streams, combining, machines

SUMS = """
sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %b: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16xf32>, tensor<16xf32>) {
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %c) applies stablehlo.add across dimensions = [0]
      : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
  %1 = stablehlo.reduce(%b init: %c) applies stablehlo.add across dimensions = [0]
      : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
  return %0, %1 : tensor<16xf32>, tensor<16xf32>
}"""


@pytest.mark.parametrize(
    "options, count",
    [
        ({}, 1),
        ({"combine_ops": 1}, 2),
        ({"combine_ops": 0}, 2),
        ({"combine_bytes": 2 * 64}, 1),
        ({"combine_bytes": 2 * 64 - 1}, 2),
        ({"combine_bytes": 0}, 2),
        ({"level": 0}, 2),
    ],
)
def test_combining(options, count):
    compiled = weft.compile(SUMS, **options)
    assert compiled.text().count("stablehlo.all_reduce") == count
    for result in compiled(X, X):
        assert_close(np.asarray(result), X.sum(0))


def test_streams():
    mesh, specs = weft.Mesh(x=2, y=2), (weft.P("x", None), weft.P("y", None))
    x = np.ones((64, 64), np.float32)

    def streams(**options):
        made = weft.compile(
            lambda a, b: (a @ a, b @ b), x, x, mesh=mesh, in_shardings=specs, level=2, **options
        )
        assert_close(np.asarray(made(x, x)[1]), x @ x)
        nodes = made.program.module.nodes()
        return {stream_of(n.attrs) for n in nodes if isinstance(n.op, AsyncStart)}

    assert streams() == {"communication.0"}
    assert streams(communication_streams=2) == {"communication.0", "communication.1"}


def test_a_machine_whose_links_work_beside_its_compute():
    type = "tensor<32768x32768xbf16>"
    text = f"""
    sdy.mesh @mesh = <["x"=8]>
    func.func @main(%a: {type} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}},
                    %b: {type} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}})
        -> ({type} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}) {{
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({type}, {type}) -> {type}
      return %0 : {type}
    }}"""
    gathered, ring = (weft.compile(text, level=2, machine=m).text() for m in (None, "h100"))
    assert "stablehlo.all_gather" in gathered and "permute" not in gathered
    assert "permute" in ring and "stablehlo.all_gather" not in ring


@pytest.mark.parametrize("name", ["compute_streams", "communication_streams"])
@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2"])
def test_streams_are_counted_from_one(name, count):
    with pytest.raises(weft.WeftError, match=f"{name}={count!r}: expected a number from 1 on"):
        weft.compile(SUMS, **{name: count})


def test_combining_on_the_command_line(files, capsys):
    (files / "sums.mlir").write_text(SUMS)
    line = ["opt", str(files / "sums.mlir"), "--mesh", "x=4"]
    counts = []
    for more in (
        [],
        ["--combine-ops", "1"],
        ["--combine-bytes", "100"],
        ["--combine-bytes", "1KB"],
    ):
        assert main([*line, *more]) == 0
        counts.append(capsys.readouterr().out.count("stablehlo.all_reduce"))
    assert counts == [1, 2, 2, 1]
    assert main(["run", str(files / "sums.mlir"), "--combine-ops", "0"]) == 0
    assert re.search(r"^in all +2 ", capsys.readouterr().out, re.M)
    assert main([*line, "--compute-streams", "0"]) == 1
    assert "compute_streams=0: expected a number from 1 on" in capsys.readouterr().err


# Tolerances


@pytest.mark.parametrize(
    "given, expected, rtol, atol, is_close",
    [
        ([1.0, 1.5e-3], [1.0, 2e-3], None, None, True),  # of the largest
        ([1.0, 1.5e-3], [1.0, 2e-3], 1e-1, None, False),  # of each
        ([1.0, 1.5e-3], [1.0, 2e-3], 1e-1, 1e-2, True),
        ([1.0, 1.5e-3], [1.0, 2e-3], None, 1e-2, True),
        ([1.0, 2.0], [1.0, 2.0], 0.0, 0.0, True),
        ([1.0, np.nan], [1.0, np.nan], 0.0, None, True),
        ([1.0, np.nan], [1.0, 2.0], 1.0, 1.0, False),
        ([1.0, 2.0], [1.0, np.inf], 1.0, 1.0, False),
        ([-np.inf, 2.0], [np.inf, 2.0], 1.0, 1.0, False),
        ([3, 5], [3, 4], None, None, False),
        ([3, 5], [3, 4], None, 1.0, True),
    ],
)
def test_tolerances(given, expected, rtol, atol, is_close):
    kind = np.float32 if isinstance(expected[0], float) else np.int32
    found = difference("x", np.array(given, kind), np.array(expected, kind), rtol=rtol, atol=atol)
    assert found.is_close == is_close


def test_tolerances_of_the_check(capsys):
    line = ["run", "examples/sharded_mlp.mlir", "--check"]
    with pytest.warns(WeftWarning):  # of another matter
        assert main([*line, "--rtol", "1e-12"]) == 1
    assert "✗ result 0" in capsys.readouterr().out
    with pytest.warns(WeftWarning):
        assert main([*line, "--rtol", "1e-12", "--atol", "1"]) == 0
    assert "✓ result 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "more, told",
    [
        (["--check", "--rtol", "-1"], "'-1' is not a tolerance, such as 1e-5"),
        (["--check", "--atol", "nan"], "'nan' is not a tolerance, such as 1e-5"),
        (["--atol", "1"], "--rtol and --atol are tolerances of --check"),
    ],
)
def test_wrong_tolerances_are_refused(capsys, more, told):
    with pytest.raises(SystemExit) as ended:
        main(["run", "examples/sharded_mlp.mlir", *more])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


# Knobs


@pytest.fixture
def no_knobs(monkeypatch):
    for knob in KNOBS:
        monkeypatch.delenv(knob.name, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return monkeypatch


def test_every_knob_is_shown(no_knobs, capsys):
    no_knobs.setenv("WEFT_THREADS", "3")
    no_knobs.setenv("XDG_CACHE_HOME", "/kept")
    assert main(["knobs", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(found) == [knob.name for knob in KNOBS]
    assert all(row["about"] and row["ok"] for row in found.values())
    shown = {name: (row["value"], row["from"]) for name, row in found.items()}
    assert shown["WEFT_THREADS"] == ("3", "environment")
    assert shown["WEFT_DEVICES"] == ("8", "default")
    assert shown["WEFT_CACHE"] == ("/kept/weft", "XDG_CACHE_HOME")
    assert shown["WEFT_TRACE"] == ("not set", "default")
    assert shown["WEFT_EXPLAIN"] == ("0", "default")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_of_knobs_fits(no_knobs, capsys, width):
    no_knobs.setenv("COLUMNS", str(width))
    no_knobs.setenv("WEFT_TUNE", "sometimes")
    no_knobs.setenv("WEFT_TRACE", "/a" * 50)
    assert main(["knobs"]) == 1
    told = capsys.readouterr().out
    assert all(len(line) <= width for line in told.splitlines())
    assert "…" not in told
    assert "sometimes" in told and "invalid" in told
