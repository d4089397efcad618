"""Text: what is printed is read again, locations, attributes, names and meshes included."""

from __future__ import annotations

import pytest

from weft.capture import parse
from weft.errors import Unsupported, WeftError
from weft.evaluate import evaluate
from weft.ir.read import read_module
from weft.ops import BY_NAME

PROGRAMS = {
    "attributes": """module @"my program" attributes {mhlo.num_partitions = 8 : i32} {
  func.func public @main(%arg0: tensor<2xf32> {jax.buffer_donor = true, my.note = "a, b"}) -> (tensor<2xf32> {jax.result_info = "x"}) attributes {execution_thread = "main"} {
    %0 = stablehlo.add %arg0, %arg0 {my.flag, my.note = "100% \\22sure\\22"} : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
""",  # noqa: E501
    "names": """module {
  func.func private @"f g"(%arg0: tensor<f32>) -> tensor<f32> {
    return %arg0 : tensor<f32>
  }
  func.func @main(%arg0: tensor<f32>) -> tensor<f32> {
    %0 = "func.call"(%arg0) <{callee = @"f g"}> : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}
""",
    "quoted keys": """module {
  func.func @main() attributes {"a b\\0A\\22" = 1 : i64} {
    return
  }
}
""",
    "bounded dims": """module {
  func.func @main(%arg0: tensor<?x4xf32, #stablehlo.bounds<8, ?>>) -> tensor<?x4xf32, #stablehlo.bounds<8, ?>> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<?x4xf32, #stablehlo.bounds<8, ?>>
    return %0 : tensor<?x4xf32, #stablehlo.bounds<8, ?>>
  }
}
""",  # noqa: E501
    "tuples": """module {
  func.func @main(%arg0: tensor<f32>) -> tuple<tensor<f32>, tensor<f32>> {
    %0 = "stablehlo.tuple"(%arg0, %arg0) : (tensor<f32>, tensor<f32>) -> tuple<tensor<f32>, tensor<f32>>
    return %0 : tuple<tensor<f32>, tensor<f32>>
  }
}
""",  # noqa: E501
    "tokens": """module {
  func.func @main(%arg0: !stablehlo.token) -> !stablehlo.token {
    %0 = "stablehlo.after_all"(%arg0, %arg0) : (!stablehlo.token, !stablehlo.token) -> !stablehlo.token
    return %0 : !stablehlo.token
  }
}
""",  # noqa: E501
    "several results": """module {
  func.func @main(%arg0: tensor<2xf32>, %arg1: tensor<i32>) -> (tensor<2xf32>, tensor<i32>) {
    %0:2 = "stablehlo.optimization_barrier"(%arg0, %arg1) : (tensor<2xf32>, tensor<i32>) -> (tensor<2xf32>, tensor<i32>)
    return %0#0, %0#1 : tensor<2xf32>, tensor<i32>
  }
}
""",  # noqa: E501
    "meshes": """module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  sdy.mesh @ordered = <["x"=2], device_ids=[1, 0]>
  func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}]>}) -> tensor<8xf32> {
    return %arg0 : tensor<8xf32>
  }
}
""",  # noqa: E501
    "nothing": "module {\n}\n",
    "no results": "module {\n  func.func @main() {\n    return\n  }\n}\n",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_is_kept(name: str):
    assert parse(PROGRAMS[name]).text() == PROGRAMS[name]


@pytest.mark.parametrize("name", PROGRAMS)
def test_locations_are_kept(name: str):
    located = parse(PROGRAMS[name]).text(locations=True)
    again = parse(located)
    assert again.text(locations=True) == located
    assert again.text() == PROGRAMS[name]


LOCATED = """module {
  func.func @main(%x: tensor<f32> loc("x")) -> tensor<f32> {
    %0 = stablehlo.add %x, %x : tensor<f32> loc("jit(f)/add"(callsite("m.py":3:1 at "n.py":9:2)))
    %1 = stablehlo.add %0, %x : tensor<f32> loc(fused["a.py":1:1, "b c.py":2:2])
    return %1 : tensor<f32> loc(unknown)
  } loc("f.py":1:0)
} loc("whole")
"""


def test_locations_are_read():
    module = parse(LOCATED)
    main = module.function("main")
    first, second = main.body.nodes
    assert first.loc.name == "jit(f)/add" and first.loc.line == ("m.py", 3)
    assert first.loc.frames == (("m.py", 3, 1), ("n.py", 9, 2))
    assert second.loc.frames == (("a.py", 1, 1), ("b c.py", 2, 2))
    assert main.body.arg_locs[0].name == "x" and not main.body.loc.known
    assert main.loc.line == ("f.py", 1) and module.loc.name == "whole"


def test_without_locations_the_place_in_the_text_is_one():
    (node,) = parse(PROGRAMS["attributes"]).nodes()
    assert node.loc.line == ("-", 3)


def test_what_is_unknown_at_run_time_is_not_evaluated():
    import numpy as np

    with pytest.raises(WeftError, match="known only at run time"):
        evaluate(parse(PROGRAMS["bounded dims"]), np.zeros((3, 4), np.float32))


# Reading refuses


@pytest.mark.parametrize(
    "body, message",
    [
        ("%0 = stablehlo.nothing %x : tensor<f32>", "nothing"),
        ('%0 = "stablehlo.nothing"(%x) : (tensor<f32>) -> tensor<f32>', "nothing"),
        ('%0 = "foo.bar"(%x) : (tensor<f32>) -> tensor<f32>', "unknown op 'foo.bar'"),
        ("%0 = stablehlo.add %x, %y : tensor<f32>", "undeclared SSA value"),
        ('%0 = "stablehlo.iota"() {iota_dimension = 4 : i64} : () -> tensor<2xf32>', "iota"),
        ("cf.br ^a\n  ^a:", "several blocks|unregistered|cf.br|unknown"),
    ],
)
def test_wrong_programs_are_refused_with_their_line(body: str, message: str):
    text = f"func.func @main(%x: tensor<f32>) {{\n  {body}\n  return\n}}\n"
    with pytest.raises(WeftError, match=message) as caught:
        parse(text)
    assert caught.value.loc is not None and caught.value.loc.line == ("-", 2)
    assert caught.value.help


def test_unknown_ops_come_with_the_nearest_names():
    text = """"builtin.module"() ({
  "func.func"() <{function_type = () -> (), sym_name = "main"}> ({
    "stablehlo.ad"() : () -> ()
    "func.return"() : () -> ()
  }) : () -> ()
}) : () -> ()
"""
    with pytest.raises(Unsupported, match=r"unknown op 'stablehlo\.ad'") as caught:
        read_module(text, BY_NAME)
    assert "stablehlo.add" in caught.value.help


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "holds no module"),
        ("nonsense", "holds no module"),
        ('"builtin.module"() ({\n', "ends too early"),
        ('"builtin.module"() ({\n  what is this\n}) : () -> ()\n', "cannot read"),
        ('"builtin.module"() ({\n  "a.b"() : () -> ()\n}) : () -> ()\n', "at the top of a module"),
    ],
)
def test_damaged_generic_text_is_refused(text: str, message: str):
    with pytest.raises(WeftError, match=message):
        read_module(text, BY_NAME)


def test_declarations_are_refused():
    with pytest.raises(Unsupported, match="declared without a body"):
        parse("func.func private @f(tensor<f32>) -> tensor<f32>\n")


def test_attribute_aliases_are_written_out():
    text = """#note = "a \\\\ b"
"builtin.module"() ({
  "func.func"() <{function_type = () -> (), sym_name = "main"}> ({
    %0 = "stablehlo.constant"() <{value = dense<1> : tensor<i32>}> {n = #note} : () -> tensor<i32>
    "func.return"() : () -> ()
  }) : () -> ()
}) : () -> ()
"""
    (node,) = read_module(text, BY_NAME).nodes()
    assert node.attrs == (("n", '"a \\\\ b"'),)
