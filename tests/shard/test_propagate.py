"""Propagation: every feature beside Shardy's own answer, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shard.compare import compared, differences, listed
from tests.shard.oracle import LEVELS, as_listed, propagated
from weft.capture import parse
from weft.errors import WeftError
from weft.shard import PropagationLevel, propagate, shard

CASES = sorted((Path(__file__).parent / "cases").glob("*.mlir"))
MESH = 'sdy.mesh @mesh = <["x"=2, "y"=4]>\n'
TYPE = "tensor<8x8xf32>"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_the_same_answer_as_shardy(case: Path, level: PropagationLevel):
    assert differences(case.read_text(), level) == []


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_the_same_answer_in_the_end(case: Path):
    theirs = propagated(case.read_text()).final
    assert not list(compared(theirs, as_listed(shard(parse(case.read_text())).text())))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_the_program_itself_is_left_alone(case: Path):
    module = parse(case.read_text())
    before = module.text()
    first, second = propagate(module), propagate(module)
    assert module.text() == before
    assert listed(first) == listed(second)


def test_a_sharding_spreads_forward_and_backward():
    """One case spelled out, so that it can be read without Shardy at hand."""
    text = MESH + (
        f'func.func @main(%a: {TYPE} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{?}}]>}}, '
        f"%b: {TYPE}) -> {TYPE} {{\n"
        f"  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] "
        f": ({TYPE}, {TYPE}) -> {TYPE}\n  %1 = stablehlo.sine %0 {{sdy.sharding = "
        f'#sdy.sharding_per_value<[<@mesh, [{{?}}, {{"y"}}]>]>}} : {TYPE}\n'
        f"  return %1 : {TYPE}\n}}\n"
    )
    (main,) = listed(propagate(parse(text)))
    assert main.args == ('<@mesh, [{"x"}, {?}]>', '<@mesh, [{?}, {"y", ?}]>')
    assert main.results == ('<@mesh, [{"x", ?}, {"y", ?}]>',)
    assert main.ops == (
        ("stablehlo.dot_general", ('<@mesh, [{"x", ?}, {"y", ?}]>',)),
        ("stablehlo.sine", ('<@mesh, [{"x", ?}, {"y"}]>',)),
    )


# What Shardy does not do, or not well: Weft's answers stand alone


def test_a_named_computation_is_as_a_call():
    """Shardy's pipeline refuses named computations in its input, and makes them of calls."""
    inside = f"%2 = stablehlo.sine %b : {TYPE}"
    given = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}'
    head = f"func.func @main(%a: {TYPE} {given}) -> {TYPE} {{\n"
    named = (
        f'{MESH}{head}  %0 = sdy.named_computation<"f">(%a) (%b: {TYPE}) {{\n    {inside}\n'
        f"    sdy.return %2 : {TYPE}\n  }} : ({TYPE}) -> {TYPE}\n  return %0 : {TYPE}\n}}\n"
    )
    call = (
        f"{MESH}func.func private @f(%b: {TYPE}) -> {TYPE} {{\n  {inside}\n"
        f"  return %2 : {TYPE}\n}}\n"
        f"{head}  %0 = func.call @f(%a) : ({TYPE}) -> {TYPE}\n  return %0 : {TYPE}\n}}\n"
    )
    assert "sdy.named_computation" in (propagated(named).error or "")
    assert listed(propagate(parse(named))) == listed(propagate(parse(call)))


def test_parts_of_an_axis_meet_when_one_of_size_one_between_them_goes():
    """Shardy leaves them apart and then refuses what it made."""
    text = (
        'sdy.mesh @mesh = <["x"=1, "y"=4]>\nfunc.func @main(%a: tensor<8xf32> {sdy.sharding = '
        '#sdy.sharding<@mesh, [{"y":(1)2, "x", "y":(2)2}]>}) -> tensor<8xf32> {\n'
        "  return %a : tensor<8xf32>\n}\n"
    )
    assert "can be merged" in (propagated(text).error or "")
    (main,) = listed(propagate(parse(text)))
    assert main.args == ('<@mesh, [{"y"}]>',)


def test_a_priority_on_a_dead_value_does_no_harm():
    """Shardy remembers the erased value and reads it again when its priority comes."""
    given = 'sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}p1, {?}]>]>'
    text = (
        f"{MESH}func.func @main(%a: {TYPE}) -> {TYPE} {{\n"
        f"  %0 = stablehlo.sine %a {{{given}}} : {TYPE}\n  return %a : {TYPE}\n}}\n"
    )
    (main,) = listed(propagate(parse(text)))
    assert main.args == (None,)


# What is refused


def refused(text: str) -> str:
    with pytest.raises(WeftError) as error:
        propagate(parse(MESH + text))
    return f"{error.value.message} / {error.value.help}"


def test_a_function_that_calls_itself():
    text = (
        f"func.func private @f(%a: {TYPE}) -> {TYPE} {{\n  %0 = func.call @g(%a) : ({TYPE}) -> "
        f"{TYPE}\n  return %0 : {TYPE}\n}}\nfunc.func private @g(%a: {TYPE}) -> {TYPE} {{\n"
        f"  %0 = func.call @f(%a) : ({TYPE}) -> {TYPE}\n  return %0 : {TYPE}\n}}\n"
        f"func.func @main(%a: {TYPE}) -> {TYPE} {{\n  %0 = func.call @f(%a) : ({TYPE}) -> {TYPE}\n"
        f"  return %0 : {TYPE}\n}}\n"
    )
    assert refused(text) == (
        "function 'f' calls itself / shardings cannot be propagated through recursion; use a loop"
    )


def test_a_group_of_different_shapes():
    text = (
        f"func.func @main(%a: {TYPE}, %b: tensor<8xf32>) {{\n"
        f"  sdy.sharding_group %a group_id = 3 : {TYPE}\n"
        "  sdy.sharding_group %b group_id = 3 : tensor<8xf32>\n  return\n}\n"
    )
    assert refused(text) == (
        "sharding group 3: a value of shape [8] among values of shape [8, 8] / "
        "group values of one shape only"
    )


def test_a_group_that_reaches_into_a_manual_computation():
    text = (
        f"func.func @main(%a: {TYPE}) -> {TYPE} {{\n  sdy.sharding_group %a group_id = 3 : {TYPE}\n"
        f"  %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{{}}, {{}}]>] "
        f'out_shardings=[<@mesh, [{{}}, {{}}]>] manual_axes={{"x"}} (%b: {TYPE}) {{\n'
        f"    sdy.sharding_group %b group_id = 3 : {TYPE}\n    sdy.return %b : {TYPE}\n"
        f"  }} : ({TYPE}) -> {TYPE}\n  return %0 : {TYPE}\n}}\n"
    )
    assert refused(text) == (
        "sharding group 3: one value is inside a manual computation and another is not / "
        "use a group of its own on each side"
    )


def test_groups_in_conflict_are_told():
    text = (Path(__file__).parent / "cases" / "group_in_conflict.mlir").read_text()
    from weft.shard.preparation.prepare import prepare

    (conflict,) = prepare(parse(text)).conflicts
    assert conflict.ids == [3]
    assert len(conflict.members) == 3
