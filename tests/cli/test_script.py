"""Functions of scripts, which every command takes as it takes files; and scripts that are wrong."""

from __future__ import annotations

import io
import json
import sys

import pytest

from weft.capture import parse
from weft.cli.script import functions_in

SCRIPT = """import jax
import jax.numpy as jnp
import numpy as np

from weft import P


def product(x, w):
    return jnp.tanh(x @ w)


def product_inputs():
    return np.ones((8, 16), np.float32), np.ones((16, 8), np.float32)


product_shardings = (P("data", None), P(None, "model"))
jitted = jax.jit(lambda x: x + 1)
jitted_inputs = np.arange(4.0, dtype=np.float32)


def wrong(x):
    y = inner(x)
    return y


def inner(x):
    return x @ jnp.ones(5)


def text(x):
    return "text"


def calls(x):
    def host(value):
        raise KeyError("of the host")

    return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def two(x, y):
    return x


def no_inputs(x):
    return x


wrong_inputs = text_inputs = calls_inputs = two_inputs = np.ones(3, np.float32)


def lost(x):
    return x


def lost_inputs():
    return {}["nothing"]
"""
MESH = ("--mesh", "data=2,model=4")


@pytest.fixture
def run(tmp_path, call, monkeypatch):
    """Run a command line in the folder of the script; gives its status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "script.py").write_text(SCRIPT)
    return call


# Every command


def test_shard_gives_a_function_its_shardings(run):
    status, out, _ = run("shard", "script.py:product", *MESH)
    assert status == 0 and '[{"data"}, {"model"}]' in out
    assert list(parse(out).meshes["mesh"].axes) == [("data", 2), ("model", 4)]


@pytest.mark.parametrize("command", [["partition"], ["opt"], ["opt", "-O2"]])
def test_local_programs(run, command):
    status, out, _ = run(*command, "script.py:product", *MESH)
    local = parse(out).function("main")
    assert status == 0
    assert [t.sizes for t in (*local.arg_types, *local.result_types)] == [(4, 16), (16, 2), (4, 2)]


def test_a_file_is_partitioned_by_opt_only_for_a_mesh(run, tmp_path):
    (tmp_path / "p.mlir").write_text(run("shard", "script.py:product", *MESH)[1])
    assert "tensor<8x16xf32>" in str(parse(run("opt", "p.mlir")[1]).function("main").arg_types)
    _, out, _ = run("opt", "p.mlir", "--mesh", "data=4,model=2")
    assert parse(out).function("main").arg_types[0].sizes == (2, 16)


def test_why_names_the_line(run):
    status, out, _ = run("why", "script.py:product", *MESH, "result0")
    assert status == 0 and 'is split by "data"' in out
    assert "script.py:9) carries it from dim 0 of %arg0 (x)" in out


def test_show_has_the_names_of_arguments(run):
    status, out, _ = run("show", "script.py:product", *MESH)
    assert status == 0 and "mesh mesh: data=2 x model=4, 8 devices" in out
    assert "%arg1 (w)" in out and "16x2" in out


@pytest.mark.parametrize("command", ["why", "show"])
def test_without_a_mesh_nothing_is_split(run, command):
    status, _, err = run(command, "script.py:product")
    assert status == 1 and "script.py:product has no mesh, so nothing is split" in err
    assert "give --mesh data=2,model=4; function_shardings beside it define the shardings" in err


def test_check_takes_several_of_both_kinds(run, tmp_path):
    (tmp_path / "p.mlir").write_text(run("shard", "script.py:product", *MESH)[1])
    status, out, err = run("check", "script.py:jitted", "p.mlir", "script.py:wrong")
    assert status == 1 and "ok  script.py:jitted  2 functions, " in out and "ok  p.mlir  " in out
    assert "--> script.py:27:12" in err.replace(str(tmp_path) + "/", "")


def test_kernels_of_a_function(run):
    status, out, _ = run("kernels", "script.py:product", *MESH, "--json")
    assert status == 0 and ["dot_general", "tanh"] in [row["fused"] for row in json.loads(out)]


def test_eval_of_a_function(run):
    status, out, _ = run("eval", "script.py:jitted", "--json")
    assert status == 0 and json.loads(out)["results"][0]["value"] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("command", ["eval", "run"])
def test_arguments_stand_in_the_script(run, command):
    status, _, err = run(command, "script.py:jitted", "x.npz")
    assert status == 1 and "takes its arguments from the script" in err


def test_eval_of_a_function_runs_on_one_device(run):
    status, _, err = run("eval", "script.py:jitted", "--devices", "4")
    assert status == 2 and "goes without --devices" in err


@pytest.mark.parametrize("command", ["check", "eval", "shard", "partition", "opt", "run"])
def test_standard_input(run, monkeypatch, command):
    text = "func.func @main() -> tensor<i32> { %0 = stablehlo.constant dense<7> : tensor<i32> "
    text += "return %0 : tensor<i32> }"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    status, out, err = run(command, "-")
    assert (status, err) == (0, "") and ("7" in out or "ok  standard input  1 function" in out)


def test_standard_input_that_is_closed(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    status, _, err = run("check", "-")
    assert status == 1 and "standard input is closed" in err


# Which function


@pytest.mark.parametrize("word", ["script.py", "script.py:"])
def test_a_script_without_a_function(run, word):
    status, _, err = run("run", word)
    assert status == 1 and "script.py is a script: name one of its functions" in err
    assert (
        "write script.py:product; it has product, wrong, text, calls, two, lost, jitted, inn" in err
    )


def test_plans_are_of_functions_of_scripts(run):
    status, _, err = run("plan", "mlp.mlir", "--machine", "8xh100")
    assert status == 1 and "mlp.mlir is not a function of a script" in err


def test_the_script_is_not_run_to_list_its_functions(run, tmp_path):
    (tmp_path / "script.py").write_text("def f(x): return x\nraise SystemExit(3)")
    assert "write script.py:f; it has f\n" in run("show", "script.py")[2]


@pytest.mark.parametrize("source", ["", "x = (", "\0", "import os"])
def test_scripts_without_functions(run, tmp_path, source):
    (tmp_path / "empty.py").write_text(source)
    assert functions_in("empty.py") == []
    assert "help: write empty.py:function\n" in run("run", "empty.py")[2]


def test_a_typo_of_a_function(run):
    status, _, err = run("run", "script.py:prodct")
    assert (
        status == 1 and "has no function 'prodct'" in err and "did you mean product? it has" in err
    )


@pytest.mark.parametrize("name", ["a.b", "3", "f()", "f g"])
def test_what_is_no_name(run, name):
    status, _, err = run("run", f"script.py:{name}")
    assert status == 1 and f"{name!r} is not a name of a function of script.py" in err


def test_a_folder_in_place_of_a_script(run, tmp_path):
    (tmp_path / "folder.py").mkdir()
    assert "cannot read folder.py: it is a folder" in run("run", "folder.py:f")[2]


# Scripts that raise


@pytest.mark.parametrize(
    ("function", "error", "line"),
    [
        ("wrong", "TypeError: ", "27 |     return x @ jnp.ones(5)"),
        ("lost", "KeyError: 'nothing'", """57 |     return {}["nothing"]"""),
        ("calls", "KeyError: 'of the host'", """36 |         raise KeyError("of the host")"""),
    ],
)
def test_the_users_line_is_shown(run, function, error, line):
    status, _, err = run("run", f"script.py:{function}")
    told = err[err.index("error: ") :]
    assert status == 1 and told.startswith(f"error: {error}") and line in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("x = 1\ny = (", "error: SyntaxError: '(' was never closed"),
        ("import nothing_like_it", "error: ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("\0", "error: SyntaxError: source code string cannot contain null bytes"),
        ("import sys; sys.exit(3)", "error: the script ended with exit status 3 while"),
    ],
)
def test_scripts_that_cannot_be_loaded(run, tmp_path, source, error):
    (tmp_path / "bad.py").write_text(source)
    status, _, err = run("run", "bad.py:f")
    assert status == 1 and err.startswith(error)


def test_a_result_that_jax_does_not_know(run):
    status, _, err = run("run", "script.py:text")
    assert status == 1 and "TypeError" in err and "was raised while text was traced" in err


def test_inputs_that_do_not_fit(run):
    status, _, err = run("run", "script.py:two")
    assert status == 1 and "two(x, y) does not accept its inputs (1 argument)" in err


def test_what_weft_itself_raises_is_not_put_on_the_user(run, monkeypatch):
    monkeypatch.setattr("weft.compiled.compile_module", None)
    with pytest.raises(TypeError, match="not callable"):
        run("run", "script.py:jitted")


# Options and arguments in any order


@pytest.mark.parametrize(
    "line",
    [
        ["why", *MESH, "script.py:product", "%arg0"],
        ["why", "script.py:product", *MESH, "%arg0"],
        ["why", "script.py:product", "%arg0", *MESH],
    ],
)
def test_options_stand_anywhere(run, line):
    status, out, _ = run(*line)
    assert status == 0 and out.startswith("%arg0 (x): argument")


# Command lines that are wrong


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            ["run", "p.mlir", "--tune", "mesure"],
            "unknown --tune 'mesure'; expected off, remembered or me",
        ),
        (["run", "p.mlir", "--tune", "mesure"], "did you mean measure?"),
        (
            ["shard", "p.mlir", "--level", "usr"],
            "unknown --level 'usr'; expected basic, aggressive, op or",
        ),
        (
            ["cache", "shw"],
            "unknown action 'shw'; expected show, clear or why\nhelp: did you mean show?",
        ),
        (["run", "p.mlir", "--seed", "-1"], "argument --seed: '-1' is not a nonnegative integer"),
        (["--mesh", "x=2", "run", "p.mlir"], "error: unknown option '--mesh'\n"),
        (["--nothing"], "error: unknown option '--nothing'\n"),
    ],
)
def test_a_word_that_is_not_known(run, line, text):
    status, out, err = run(*line)
    assert (status, out) == (2, "") and text in err


@pytest.mark.parametrize("line", [["why", "%s", ""], ["show", "%s", "--value", ""]])
def test_a_value_without_a_name(run, line):
    status, _, err = run(*[word.replace("%s", "script.py:product") for word in line], *MESH)
    assert status == 1 and "missing value" in err


def test_too_many_devices(run, tmp_path):
    (tmp_path / "p.mlir").write_text("func.func @main() { return }")
    status, _, err = run("eval", "p.mlir", "--devices", "99999x9999")
    assert status == 1 and "run on 1 to 1,048,576 devices" in err


def test_a_byte_order_mark(run, tmp_path):
    (tmp_path / "p.mlir").write_bytes(b"\xef\xbb\xbffunc.func @main() { return }")
    assert run("check", "p.mlir")[:2] == (0, "ok  p.mlir  1 function, 0 nodes\n")
