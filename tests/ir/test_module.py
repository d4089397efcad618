"""Modules, nodes and values: built, walked, printed."""

from __future__ import annotations

import pytest

from weft.capture import parse
from weft.errors import WeftError
from weft.ir.location import Location
from weft.ir.module import Function, Module, Node, Region, Value, apply, uses, visit, walk
from weft.ir.types import TOKEN, TupleType, tensor
from weft.ir.write import node_text
from weft.ops.control import CreateToken, If, Tuple
from weft.ops.elementwise.pointwise import Add, Compare, Multiply

X = tensor(2, 3)


def twice_plus(count: int = 1) -> Module:
    """main(x) = x + x + ... + x."""
    x = Value(X)
    nodes: list[Node] = []
    last = x
    for _ in range(count):
        nodes.append(apply(Add(), last, x))
        last = nodes[-1].results[0]
    return Module({"main": Function("main", Region((x,), nodes, (last,)))})


def test_a_node_infers_its_types():
    a, b = Value(X), Value(X)
    node = apply(Compare("LT"), a, b)
    assert node.types == (tensor(2, 3, dtype="i1"),)
    assert node.operand_types == (X, X) and node.operands == (a, b)
    assert node.results[0].node is node and node.results[0].index == 0
    assert repr(node) == ("stablehlo.compare(tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>")
    assert repr(a) == "<argument #0: tensor<2x3xf32>>"
    assert repr(node.results[0]) == "<stablehlo.compare #0: tensor<2x3xi1>>"


def test_a_wrong_node_is_refused_with_its_place():
    place = Location('"model.py":4:2')
    with pytest.raises(WeftError, match="operand 0 is") as caught:
        apply(Add(), Value(X), Value(tensor(3, 2)), loc=place)
    assert caught.value.loc is place and caught.value.node == "stablehlo.add()"
    assert str(caught.value).splitlines()[1:3] == ["  --> model.py:4", "   |  stablehlo.add()"]


def test_ops_match_by_their_fields():
    node = apply(Compare("GE"), Value(X), Value(X))
    match node:
        case Node(Compare(comparison_direction="GE"), (a, _)):
            assert a is node.operands[0]
        case _:
            pytest.fail("no match")
    assert Compare("GE") is node.op and Add() is Add()
    assert Compare("GE").replace(comparison_direction="LT") is Compare("LT")
    assert repr(Compare("GE")) == (
        "stablehlo.compare(comparison_direction='GE', compare_type=None)"
    )


def test_a_module_is_written_as_stablehlo():
    assert twice_plus().text() == (
        "module {\n"
        "  func.func @main(%arg0: tensor<2x3xf32>) -> tensor<2x3xf32> {\n"
        "    %0 = stablehlo.add %arg0, %arg0 : tensor<2x3xf32>\n"
        "    return %0 : tensor<2x3xf32>\n"
        "  }\n"
        "}\n"
    )
    assert str(twice_plus()) == twice_plus().text()


def test_functions_are_found_by_name():
    module = twice_plus()
    assert module.function("main").arg_types == module.function("main").result_types == (X,)
    with pytest.raises(WeftError, match="no function 'other'") as caught:
        module.function("other")
    assert caught.value.help == "known: main"


NESTED = """
func.func @main(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {
  %0 = "stablehlo.if"(%p) ({
    %1 = stablehlo.add %x, %x : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }, {
    stablehlo.return %x : tensor<f32>
  }) : (tensor<i1>) -> tensor<f32>
  %2 = stablehlo.multiply %0, %x : tensor<f32>
  return %2 : tensor<f32>
}
"""


def test_nodes_are_walked_in_program_order():
    module = parse(NESTED)
    names = [n.op.name.partition(".")[2] for n in module.nodes()]
    assert names == ["if", "add", "multiply"]
    seen: list[Node] = []
    visit(module.function("main").body, seen.append)
    assert seen == list(walk(module.function("main").body)) == list(module.nodes())


def test_uses_look_into_regions():
    body = parse(NESTED).function("main").body
    found = uses(body)
    readers = [(node.op.name, index) for node, index in found[body.args[1]]]
    assert readers == [("stablehlo.add", 0), ("stablehlo.add", 1), ("stablehlo.multiply", 1)]


def test_a_region_knows_what_it_combines():
    a, b = Value(tensor(), None, 0), Value(tensor(), None, 1)
    node = apply(Multiply(), b, a)
    assert Region((a, b), [node], node.results).body.combiners == ("stablehlo.multiply",)
    lonely = apply(Multiply(), a, a)
    assert Region((a, b), [lonely], lonely.results).body.combiners == (None,)


def test_tokens_and_tuples_are_types_of_values():
    token = apply(CreateToken()).results[0]
    assert token.type is TOKEN
    pair = apply(Tuple(), token, Value(X)).results[0]
    assert pair.type == TupleType((TOKEN, X))


def test_a_node_alone_has_a_text():
    assert node_text(apply(Add(), Value(X), Value(X))) == ("stablehlo.add %0, %1 : tensor<2x3xf32>")
    branch = Region((), [], ())
    note = (("note", '"100%"'),)
    assert node_text(Node(If(), (Value(tensor(dtype="i1")),), (), (branch, branch), note)) == (
        '"stablehlo.if"(%0) {...} {note = "100%"} : (tensor<i1>) -> ()'
    )


def test_with_the_same_functions_it_is_the_same_module():
    module = twice_plus()
    assert module.with_functions(dict(module.functions)) is module
    assert module.with_functions({}) is not module


def test_long_programs_need_no_deep_stack():
    module = twice_plus(5000)
    assert parse(module.text()).text() == module.text()
