"""Rewriting: rules, tables that follow their values, locations, and what is shared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.capture import parse
from weft.evaluate import evaluate
from weft.ir.dense import Dense
from weft.ir.location import UNKNOWN
from weft.ir.module import Module, Node, Region, Value, apply
from weft.ir.rebuild import Rewritten, rewrite, without
from weft.ir.verify import verify
from weft.ops.elementwise.pointwise import Add, Multiply
from weft.ops.shape import Constant

TEXT = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<2xf32>
  %0 = stablehlo.add %x, %zero : tensor<2xf32>
  %1 = stablehlo.multiply %0, %x : tensor<2xf32>
  return %1 : tensor<2xf32>
}
func.func @other(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}
"""


def fold_zero(n: Node) -> Rewritten:
    """add(x, 0) -> x."""
    match n:
        case Node(Add(), (x, Value(node=Node(Constant(value=Dense(is_splat=True) as zero))))):
            return (x,) if zero.elements[0] == 0 else None
    return None


def double_instead(n: Node) -> Rewritten:
    """multiply(x, y) -> add(x, y) + 1, with a new constant before it."""
    if not isinstance(n.op, Multiply):
        return None
    one = apply(Constant(Dense(np.ones(2, np.float32))))
    return apply(Add(), *apply(Add(), *n.operands).results, *one.results)


def names(module: Module) -> list[str]:
    return [n.op.name.partition(".")[2] for n in module.nodes()]


def test_a_rule_may_give_values():
    before = parse(TEXT)
    after = verify(rewrite(before, fold_zero))
    assert names(after) == ["constant", "multiply"]
    assert names(before) == ["constant", "add", "multiply"]  # the input is not changed
    multiply = after.function("main").body.nodes[1]
    assert multiply.operands == after.function("main").body.args * 2
    x = np.array([3, 4], np.float32)
    assert np.array_equal(evaluate(before, x)[0], evaluate(after, x)[0])


def test_a_rule_may_give_a_node_with_new_ones_before_it():
    after = verify(rewrite(parse(TEXT), double_instead))
    assert names(after) == ["constant", "add", "add", "constant", "add"]
    assert evaluate(after, np.array([3, 4], np.float32))[0].tolist() == [7, 9]


def test_rules_run_until_none_applies():
    after = rewrite(parse(TEXT), double_instead, fold_zero)
    assert names(after) == ["constant", "add", "constant", "add"]


def test_locations_are_kept():
    before = parse(TEXT)
    place = before.function("main").body.nodes[2].loc
    after = rewrite(before, double_instead)
    assert after.function("main").body.nodes[-1].loc == place != UNKNOWN
    kept = rewrite(before, fold_zero).function("main").body.nodes[1]
    assert kept.loc == place


def test_tables_follow_their_values():
    before = parse(TEXT)
    zero, add, multiply = before.function("main").body.nodes
    told = {add.results[0]: "sum", multiply.results[0]: "product", zero.results[0]: "zero"}
    before = replace(before, tables={"notes": told})
    after = rewrite(before, fold_zero)
    main = after.function("main").body
    notes = after.tables["notes"]
    assert notes[main.args[0]] == "sum"  # what add has become
    assert notes[main.nodes[1].results[0]] == "product"
    assert before.tables["notes"] is told and len(notes) == 3


def test_what_does_not_change_is_shared():
    before = parse(TEXT)
    after = rewrite(before, fold_zero)
    assert after.function("other") is before.function("other")
    assert after.function("main").body.nodes[0] is before.function("main").body.nodes[0]
    assert after.function("main").body.args is before.function("main").body.args
    assert rewrite(before, lambda n: None) is before
    assert rewrite(after, fold_zero) is after
    assert without(before, set()) is before


def test_regions_are_rebuilt_and_shared():
    text = """
func.func @main(%p: tensor<i1>, %x: tensor<2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<2xf32>
  %0 = "stablehlo.if"(%p) ({
    %1 = stablehlo.add %x, %zero : tensor<2xf32>
    stablehlo.return %1 : tensor<2xf32>
  }, {
    %1 = stablehlo.multiply %x, %x : tensor<2xf32>
    stablehlo.return %1 : tensor<2xf32>
  }) : (tensor<i1>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""
    before = parse(text)
    after = verify(rewrite(before, fold_zero))
    old, new = (m.function("main").body.nodes[1] for m in (before, after))
    assert (
        new.regions[0].nodes == []
        and new.regions[0].results == after.function("main").body.args[1:]
    )
    assert new.regions[1] is old.regions[1] and new.loc == old.loc


def test_nodes_can_be_dropped():
    before = parse(TEXT)
    zero, add, multiply = before.function("main").body.nodes
    body = before.function("main").body
    main = replace(before.function("main"), body=Region(body.args, body.nodes, body.args))
    smaller = without(before.with_functions({"main": main}), {multiply, add, zero})
    assert names(verify(smaller)) == []


def test_a_rule_that_never_rests_is_our_mistake():
    def swap(n: Node) -> Rewritten:
        return apply(n.op, *reversed(n.operands)) if isinstance(n.op, Add) else None

    with pytest.raises(AssertionError, match="reach no fixed point"):
        rewrite(parse(TEXT), swap)


def test_a_rule_that_changes_a_type_is_our_mistake():
    def wrong(n: Node) -> Rewritten:
        return apply(Constant(Dense(np.ones(3, np.float32)))) if isinstance(n.op, Add) else None

    with pytest.raises(AssertionError, match="a rule changed"):
        rewrite(parse(TEXT), wrong)
