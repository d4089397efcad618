"""Linear ops of unreduced values: the sum is left to be made, and nothing is sent."""

from __future__ import annotations

import re

import pytest

from tests.partition.partitioners.test_indexed import collectives

WHOLE = "[{}, {}]"
SCALAR = "[]"
T = "tensor<8x4xf32>"


def unreduced(rank: int, last: str = "") -> str:
    """An unreduced sharding along d, its last dim split or not."""
    return f'[{", ".join(["{}"] * (rank - 1) + [f"{{{last}}}"])}], unreduced={{"d"}}'


SLICED = """
func.func @main(%0: tensor<8x4xf32>, %1: tensor<i32>) -> tensor<2x4xf32> {
  %2 = stablehlo.dynamic_slice %0, %1, %1, sizes = [2, 4]
    : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
"""
UPDATED = """
func.func @main(%0: tensor<8x4xf32>, %1: tensor<2x4xf32>, %2: tensor<i32>) -> tensor<8x4xf32> {
  %3 = stablehlo.dynamic_update_slice %0, %1, %2, %2
    : (tensor<8x4xf32>, tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
  return %3 : tensor<8x4xf32>
}
"""
CHOSEN = f"""
func.func @main(%0: tensor<8x4xi1>, %1: {T}, %2: {T}) -> {T} {{
  %3 = stablehlo.select %0, %1, %2 : tensor<8x4xi1>, {T}
  return %3 : {T}
}}
"""


def of_one(op: str, result: str = T) -> str:
    body = f"  %1 = stablehlo.{op}\n  return %1 : {result}"
    return f"func.func @main(%0: {T}) -> {result} {{\n{body}\n}}"


def of_two(op: str) -> str:
    text = f"  %2 = stablehlo.{op} %0, %1 : {T}\n  return %2 : {T}\n}}"
    return f"func.func @main(%0: {T}, %1: {T}) -> {T} {{\n{text}"


SPLIT = unreduced(2, '"m"')
CASES = {
    "negate": (of_one(f"negate %0 : {T}"), SPLIT, SPLIT),
    "reverse": (of_one(f"reverse %0, dims = [0] : {T}"), SPLIT, SPLIT),
    "transpose": (
        of_one(f"transpose %0, dims = [1, 0] : ({T}) -> tensor<4x8xf32>", "tensor<4x8xf32>"),
        SPLIT,
        '[{"m"}, {}], unreduced={"d"}',
    ),
    "reshape": (
        of_one(f"reshape %0 : ({T}) -> tensor<2x4x4xf32>", "tensor<2x4x4xf32>"),
        SPLIT,
        unreduced(3, '"m"'),
    ),
    "broadcast": (
        of_one(
            f"broadcast_in_dim %0, dims = [1, 2] : ({T}) -> tensor<3x8x4xf32>", "tensor<3x8x4xf32>"
        ),
        SPLIT,
        unreduced(3, '"m"'),
    ),
    "slice": (
        of_one(f"slice %0 [1:3, 0:4] : ({T}) -> tensor<2x4xf32>", "tensor<2x4xf32>"),
        SPLIT,
        SPLIT,
    ),
    "add": (of_two("add"), SPLIT, SPLIT, SPLIT),
    "add what is reduced": (of_two("add"), SPLIT, '[{}, {"m"}]', SPLIT),
    "subtract": (of_two("subtract"), SPLIT, SPLIT, SPLIT),
    "divide": (of_two("divide"), SPLIT, '[{}, {"m"}]', SPLIT),
    "multiply": (of_two("multiply"), '[{}, {"m"}]', SPLIT, SPLIT),
    "select": (CHOSEN, '[{}, {"m"}]', SPLIT, SPLIT, SPLIT),
    "dynamic slice": (SLICED, SPLIT, SCALAR, SPLIT),
    "dynamic update": (UPDATED, SPLIT, SPLIT, SCALAR, SPLIT),
}


def sent(text: str, *shardings: str) -> list[str]:
    """The collectives of a program whose result is constrained, as JAX constrains every value."""
    value = re.search(r"return (%\d) : (.*)", text)
    assert value is not None
    constraint = f"%c = sdy.sharding_constraint {value[1]} <@mesh, {shardings[-1]}> : {value[2]}"
    return collectives(
        text.replace(value[0], f"{constraint}\n  return %c : {value[2]}"), *shardings
    )


@pytest.mark.parametrize("name", CASES)
def test_a_sum_is_left_to_be_made(name: str) -> None:
    text, *shardings = CASES[name]
    assert sent(text, *shardings) == []


@pytest.mark.parametrize(
    ("name", "shardings"),
    [
        ("multiply", (SPLIT, SPLIT, SPLIT)),  # a product of sums is not a sum of products
        ("divide", ('[{}, {"m"}]', SPLIT, SPLIT)),
        ("select", (WHOLE, unreduced(2), unreduced(2), WHOLE)),
    ],
)
def test_it_is_made_where_an_op_is_not_linear(name: str, shardings: tuple[str, ...]) -> None:
    assert "all_reduce" in sent(CASES[name][0], *shardings)


# What is sent where a value is made unreduced along d: nothing if its shards are summands already.
MADE = {
    "whole": (WHOLE, unreduced(2), []),
    "its rows": ('[{"d"}, {}]', unreduced(2), []),
    "its columns": ('[{}, {"d"}]', unreduced(2), []),
    "shards of shards": ('[{}, {"m", "d"}]', SPLIT, []),
    "other shards of shards": ('[{}, {"d", "m"}]', SPLIT, ["collective_permute", "all_gather"]),
    "shards beside shards": ('[{"d"}, {"m"}]', SPLIT, []),
    "shards that are joined": ('[{"d"}, {"m"}]', unreduced(2), ["all_gather"]),
    "unreduced": (SPLIT, SPLIT, []),
}


@pytest.mark.parametrize("name", MADE)
def test_shards_are_summands(name: str) -> None:
    given, wanted, kinds = MADE[name]
    constraint = f"%1 = sdy.sharding_constraint %0 <@mesh, {wanted}> : tensor<8x8xf32>"
    text = f"func.func @main(%0: tensor<8x8xf32>) -> tensor<8x8xf32> {{\n{constraint}\n"
    assert collectives(f"{text}return %1 : tensor<8x8xf32>\n}}", given, wanted) == kinds
