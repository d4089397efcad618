"""Bytes of distinct values: what is computed twice alike counts once, in calls as well."""

from __future__ import annotations

from tests.cost.test_sent import gather, module, reduce
from weft.cost.distinct import distinct_sent
from weft.cost.sent import bytes_sent, full_gathers, total_sent


def test_equal_collectives_count_once():
    given = module(f"%1 = {gather('%0', 8, 'x')}\n%2 = {gather('%0', 8, 'x')}")
    assert total_sent(bytes_sent(given)) == 2 * 96
    assert distinct_sent(given) == 96


def test_what_equal_values_lead_to_counts_once():
    lines = [f"%{n + 1} = stablehlo.negate %0 : tensor<8xf32>" for n in range(2)]
    lines += [f"%{n + 3} = {reduce(f'%{n + 1}', 8, 'x')}" for n in range(2)]
    assert distinct_sent(module("\n".join(lines))) == 2 * 24
    lines[1] = lines[1].replace("negate", "abs")
    assert distinct_sent(module("\n".join(lines))) == 2 * 2 * 24


def test_calls_with_equal_operands_count_once():
    inner = (
        "func.func private @inner(%0: tensor<8xf32>) -> tensor<32xf32> {\n"
        f"%1 = {gather('%0', 8, 'x')}\nreturn %1 : tensor<32xf32>\n}}\n"
    )
    call = "func.call @inner({}) : (tensor<8xf32>) -> tensor<32xf32>"
    twice = f"%1 = {call.format('%0')}\n%2 = {call.format('%0')}"
    other = f"%3 = stablehlo.negate %0 : tensor<8xf32>\n%4 = {call.format('%3')}"
    beside = f"%5 = {gather('%0', 8, 'x')}"
    assert distinct_sent(module(twice, inner)) == 96
    assert distinct_sent(module(f"{twice}\n{other}", inner)) == 2 * 96
    assert distinct_sent(module(f"{twice}\n{beside}", inner)) == 96


def test_what_differs_in_anything_counts_by_itself():
    """Other axes, another reduction, or other types than those of an equal op."""
    one, two = reduce("%0", 8, "x"), reduce("%0", 8, "y")
    assert distinct_sent(module(f"%1 = {one}\n%2 = {two}")) == total_sent(
        bytes_sent(module(f"%1 = {one}\n%2 = {two}"))
    )
    most = one.replace("stablehlo.add", "stablehlo.maximum")
    assert most != one
    assert distinct_sent(module(f"%1 = {one}\n%2 = {most}")) == 2 * distinct_sent(
        module(f"%1 = {one}")
    )


def test_a_function_that_calls_itself_counts_once():
    inner = (
        "func.func private @inner(%0: tensor<8xf32>) -> tensor<8xf32> {\n"
        f"%1 = {reduce('%0', 8, 'x')}\n"
        "%2 = func.call @inner(%1) : (tensor<8xf32>) -> tensor<8xf32>\n"
        "return %2 : tensor<8xf32>\n}\n"
    )
    call = "%{} = func.call @inner({}) : (tensor<8xf32>) -> tensor<8xf32>"
    once = distinct_sent(module(f"%1 = {reduce('%0', 8, 'x')}"))
    assert distinct_sent(module(call.format(1, "%0"), inner)) == once
    # Its results are values like others: what they lead to is counted, and called anew.
    twice = "\n".join([call.format(1, "%0"), call.format(2, "%1")])
    assert distinct_sent(module(twice, inner)) == 2 * once


def test_full_gathers_may_take_several_steps():
    assert full_gathers(module(f"%1 = {gather('%0', 8, 'x')}")) == 0
    assert full_gathers(module(f"%1 = {gather('%0', 8, 'x', 'y')}")) == 1
    steps = f"%1 = {gather('%0', 8, 'x')}\n%2 = {gather('%1', 32, 'y')}"
    assert full_gathers(module(steps)) == 1
