"""Ops that are partitioned in a way of their own: lookups, folds, reshapes, calls, refusals."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.partition.differential import check
from tests.partition.partitioners.indexed_programs import FAMILIES, program
from weft.capture import parse
from weft.errors import Unsupported
from weft.evaluate import evaluate
from weft.ir.module import Module
from weft.ir.types import DTYPES
from weft.mesh import parse_sharding
from weft.partition import Note, partition
from weft.shard import Rules, shard

KINDS = re.compile(
    r'"stablehlo\.(all_\w+|reduce_scatter|collective_permute)"|name = "weft\.(collective_permute)"'
)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6))
def test_random_programs(family: str, seed: int) -> None:
    program(family, seed).check()


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_many_random_programs(family: str) -> None:
    numbers = random.Random(family)
    for _ in range(1500):
        program(family, numbers.randrange(10**9)).check()


# What is sent


def collectives(text: str, *shardings: str, mesh: str = '"d"=2, "m"=4') -> list[str]:
    """The collectives of a program whose arguments, and results, are split so; it is checked."""
    places = iter(shardings)

    def mark(found: re.Match[str]) -> str:
        sharding = next(places, None)
        told = f" {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}" if sharding else ""
        return f"{found[0]}{told}"

    marked = re.sub(r"tensor<[^>]*>", mark, text.strip().split("\n")[0])
    marked = re.sub(r"-> (tensor<.*) \{$", r"-> (\1) {", marked)
    rest = text.strip().split("\n")[1:]
    module = parse(f"sdy.mesh @mesh = <[{mesh}]>\n" + "\n".join([marked, *rest]))
    assert next(places, None) is None, "a sharding is left over"
    local = check(module).local
    main = local.text().split("func.func private")[0]
    return [m[1] or m[2] for m in KINDS.finditer(main)]


LOOKUP = """func.func @main(%w: tensor<{0}x8xf32>, %i: tensor<4x{1}xi32>) -> tensor<4x{1}x8xf32> {{
  %0 = "stablehlo.gather"(%w, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [2],
    collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>,
    slice_sizes = array<i64: 1, 8>}}>
    : (tensor<{0}x8xf32>, tensor<4x{1}xi32>) -> tensor<4x{1}x8xf32>
  return %0 : tensor<4x{1}x8xf32>
}}"""


def test_a_large_table_is_not_gathered() -> None:
    found = collectives(LOOKUP.format(1000, 6), '[{"m"}, {}]', '[{"d"}, {}]')
    assert found == ["all_reduce"]


def test_a_small_table_is_gathered() -> None:
    found = collectives(LOOKUP.format(8, 600), '[{"m"}, {}]', '[{"d"}, {}]')
    assert found == ["all_gather"]


@pytest.mark.parametrize(("dtype", "least", "most"), [("i8", -128, 127), ("ui8", 0, 255)])
def test_indices_of_few_bits_reach_all_rows_that_they_can(dtype, least, most) -> None:
    text = LOOKUP.format(400, 6).replace("i32", dtype)
    rows, whole = (f"sdy.sharding = #sdy.sharding<@mesh, [{d}, {{}}]>" for d in ('{"m"}', "{}, {}"))
    text = text.replace("400x8xf32>,", f"400x8xf32> {{{rows}}},", 1)
    text = text.replace("-> tensor<4x6x8xf32> {", f"-> (tensor<4x6x8xf32> {{{whole}}}) {{", 1)
    module = parse(f'sdy.mesh @mesh = <["m"=4]>\n{text}')
    table = np.arange(3200, dtype=np.float32).reshape(4, 100, 8)
    at = np.linspace(least, most, 24).astype(DTYPES[dtype].numpy).reshape(4, 6)
    (made,) = evaluate(partition(shard(module)), table, np.stack([at] * 4), devices=4)
    expected = table.reshape(400, 8)[np.clip(at.astype(int), 0, 399)]
    np.testing.assert_array_equal(made, np.stack([expected] * 4))


def test_an_axis_of_the_indices_is_not_used_for_the_table_too() -> None:
    found = collectives(LOOKUP.format(1000, 2), '[{"d"}, {"m"}]', '[{"d"}, {}]')
    assert "all_reduce" in found or "reduce_scatter" in found


UPDATE = """func.func @main(%w: tensor<1000x8xf32>, %i: tensor<64xi32>, %u: tensor<64x8xf32>) -> tensor<1000x8xf32> {
  %0 = "stablehlo.scatter"(%w, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<
    update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
    index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<1000x8xf32>, tensor<64xi32>, tensor<64x8xf32>) -> tensor<1000x8xf32>
  return %0 : tensor<1000x8xf32>
}"""  # noqa: E501  # the first line is marked with shardings


def test_pieces_take_the_updates_that_fall_on_them() -> None:
    assert collectives(UPDATE, '[{"m"}, {}]', "[{}]", "[{}, {}]") == []


def test_few_updates_are_gathered_rather_than_large_results_added() -> None:
    assert set(collectives(UPDATE, "[{}, {}]", '[{"m"}]', '[{"m"}, {}]')) == {"all_gather"}


def test_many_updates_are_added_up() -> None:
    text = UPDATE.replace("1000", "16")
    assert collectives(text, "[{}, {}]", '[{"m"}]', '[{"m"}, {}]') == ["all_reduce"]


SORT = """func.func @main(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = "stablehlo.sort"(%a) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %1 = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}"""


def test_another_dim_takes_the_axes_of_a_sorted_one() -> None:
    assert set(collectives(SORT, '[{"d"}, {"m"}]')) == {"all_to_all"}


TOP = """func.func @main(%a: tensor<4x512xf32>) -> (tensor<4x3xf32>, tensor<4x3xi32>) {
  %0, %1 = chlo.top_k(%a, k = 3) : tensor<4x512xf32> -> (tensor<4x3xf32>, tensor<4x3xi32>)
  return %0, %1 : tensor<4x3xf32>, tensor<4x3xi32>
}"""


def test_only_the_largest_of_each_piece_are_sent() -> None:
    assert collectives(TOP, '[{}, {"m"}]') == ["all_gather"] * 2


SIZE = """func.func @main(%a: tensor<6x512xf32>) -> tensor<i32> {
  %0 = stablehlo.get_dimension_size %a, dim = 0 : (tensor<6x512xf32>) -> tensor<i32>
  return %0 : tensor<i32>
}"""


def test_a_static_size_needs_no_tensor() -> None:
    assert collectives(SIZE, '[{"d"}, {"m"}]') == []


NORM = """func.func @main(%a: tensor<64x3xf32>, %s: tensor<3xf32>, %o: tensor<3xf32>) -> tensor<64x3xf32> {
  %0, %1, %2 = "stablehlo.batch_norm_training"(%a, %s, %o) <{epsilon = 0.1 : f32,
    feature_index = 1 : i64}> : (tensor<64x3xf32>, tensor<3xf32>, tensor<3xf32>)
    -> (tensor<64x3xf32>, tensor<3xf32>, tensor<3xf32>)
  return %0 : tensor<64x3xf32>
}"""  # noqa: E501  # the first line is marked with shardings


def test_a_batch_is_normalized_over_all_devices() -> None:
    found = collectives(NORM, '[{"d"}, {}]', "[{}]", "[{}]", '[{"d"}, {}]')
    assert found == ["all_reduce"] * 2


RAGGED = """func.func @main(%a: tensor<32x8xf32>, %b: tensor<4x8x16xf32>, %g: tensor<4xi32>) -> tensor<32x16xf32> {
  %0 = "chlo.ragged_dot"(%a, %b, %g) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<
    lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1],
    lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}>
    : (tensor<32x8xf32>, tensor<4x8x16xf32>, tensor<4xi32>) -> tensor<32x16xf32>
  return %0 : tensor<32x16xf32>
}"""  # noqa: E501  # the first line is marked with shardings


def test_rows_of_a_ragged_dot_stay_where_they_are() -> None:
    assert collectives(RAGGED, '[{"d"}, {}]', "[{}, {}, {}]", "[{}]", '[{"d"}, {}]') == []


def test_groups_of_a_ragged_dot_stay_where_they_are() -> None:
    text = RAGGED.replace("4x8x16", "4x64x16").replace("32x8x", "32x64x")
    assert collectives(text, "[{}, {}]", '[{"m"}, {}, {}]', "[{}]") == ["all_reduce"]


def test_a_minor_part_of_a_merged_dim_moves_to_the_major_one() -> None:
    text = """func.func @main(%a: tensor<8x16x5xf32>) -> tensor<128x5xf32> {
      %0 = stablehlo.reshape %a : (tensor<8x16x5xf32>) -> tensor<128x5xf32>
      return %0 : tensor<128x5xf32>
    }"""
    assert collectives(text, '[{}, {"m"}, {}]', '[{"m"}, {}]') == ["all_to_all"]


# What is said of it


def test_nothing_is_gathered_silently() -> None:
    text = SORT.replace("%a: tensor<64x64xf32>", "%a: tensor<1x64xf32> SHARDING").replace(
        "64x64", "1x64"
    )
    sharding = '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}'
    module = parse('sdy.mesh @mesh = <["x"=4]>\n' + text.replace("SHARDING", sharding))
    notes: list[Note] = []
    partition(shard(module), notes=notes)
    (note,) = notes
    found = note.node.op.name, note.what, note.number, note.dim, note.bytes
    assert found == ("stablehlo.sort", "operand", 0, 1, 192)
    assert "needs all of this dim" in str(note)


def test_what_every_device_computes_is_noted() -> None:
    module = parse("""sdy.mesh @mesh = <["x"=4]>
    func.func @main(%a: tensor<2xui64>)
        -> (tensor<8x4xui32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
      %0, %1 = stablehlo.rng_bit_generator %a, algorithm = THREE_FRY
        : (tensor<2xui64>) -> (tensor<2xui64>, tensor<8x4xui32>)
      return %1 : tensor<8x4xui32>
    }""")
    notes: list[Note] = []
    partition(shard(module), notes=notes)
    assert "result 1 is computed on every device along dim 0" in str(notes[0])


# Calls


CALL = """sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>})
    -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  %0 = stablehlo.custom_call @mine(%a) : (tensor<8x16xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}"""


def test_a_custom_call_is_split_by_the_rule_of_its_user() -> None:
    module = parse(CALL)
    rules = Rules().add("mine", "([i, j])->([i]) reduction={j}")
    text = partition(shard(module, rules=rules), rules).text()
    assert "(tensor<4x4xf32>) -> tensor<4xf32>" in text
    assert "stablehlo.all_reduce" in text


def test_a_custom_call_of_which_nothing_is_known_stays_whole() -> None:
    notes: list[Note] = []
    text = partition(shard(parse(CALL)), notes=notes).text()
    assert "(tensor<8x16xf32>) -> tensor<8xf32>" in text
    found = [(n.what, n.number, n.dim) for n in notes]
    assert found == [("operand", 0, 0), ("operand", 0, 1), ("result", 0, 0)]


COMPOSITE = """sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, SPLIT>})
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, SPLIT>}) {
  %0 = stablehlo.composite "my.norm" %a {decomposition = @norm} : (tensor<8x16xf32>)
    -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
func.func private @norm(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1]
    : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<8xf32>) -> tensor<8x16xf32>
  %2 = stablehlo.add %a, %1 : tensor<8x16xf32>
  return %2 : tensor<8x16xf32>
}"""


def composite(split: str, rules: Rules | None = None) -> Module:
    module = parse(COMPOSITE.replace("SPLIT", split))
    local = partition(shard(module, rules=rules), rules)
    return check(module, local=local).local


def test_a_composite_of_whole_values_stays() -> None:
    assert "my.norm" in composite("[{}, {}]").text()


def test_a_composite_is_one_of_pieces_where_a_rule_says_so() -> None:
    text = composite('[{"x"}, {}]', Rules().add("my.norm", "i j -> i j")).text()
    assert '"my.norm"' in text and "func.func private @norm_0(%arg0: tensor<4x16xf32>" in text


def test_a_composite_whose_rule_its_decomposition_does_not_bear_out_is_replaced() -> None:
    text = composite('[{"x"}, {"y"}]', Rules().add("my.norm", "i j -> i j")).text()
    assert "my.norm" not in text and "all_reduce" in text


def test_any_other_composite_is_replaced_by_what_it_stands_for() -> None:
    text = composite('[{"x"}, {"y"}]').text()
    assert "my.norm" not in text and "all_gather" not in text and "all_reduce" in text


# What hangs on the device


def test_random_numbers_are_the_same_on_every_device() -> None:
    module = parse("""sdy.mesh @mesh = <["x"=2, "y"=2]>
    func.func @main() -> (tensor<5x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
      %a = stablehlo.constant dense<0.0> : tensor<f32>
      %b = stablehlo.constant dense<1.0> : tensor<f32>
      %s = stablehlo.constant dense<[5, 4]> : tensor<2xi64>
      %0 = stablehlo.rng %a, %b, %s, distribution = UNIFORM
        : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<5x4xf32>
      return %0 : tensor<5x4xf32>
    }""")
    local = partition(shard(module))
    sharding = parse_sharding(dict(local.function("main").res_attrs[0])["weft.sharding"])
    (made,) = evaluate(local, devices=4)
    assert not sharding.unreduced
    np.testing.assert_array_equal(made[0], made[1])  # copies along y
    assert made.std() > 0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("%0 = stablehlo.partition_id : tensor<ui32>", "one number for each device"),
        (
            '%0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, '
            "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<2xui32>) "
            "-> tensor<4xui32>",
            "a collective in a global program",
        ),
        (
            "%t = stablehlo.create_token : !stablehlo.token\n"
            '%0:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> (tensor<ui32>, '
            "!stablehlo.token)",
            "host transfers belong to one device",
        ),
        (
            "%t = stablehlo.create_token : !stablehlo.token\n"
            '%0 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 1,'
            " type = 1>}> : (tensor<2xui32>, !stablehlo.token) -> !stablehlo.token",
            "point-to-point transfers",
        ),
    ],
)
def test_what_only_one_device_can_mean_is_refused(line: str, why: str) -> None:
    module = parse(
        'sdy.mesh @mesh = <["x"=2]>\n'
        f"func.func @main(%a: tensor<2xui32>) -> tensor<2xui32> {{\n{line}\n"
        "return %a : tensor<2xui32>\n}"
    )
    # Propagation drops what has no use and no effect; the refusal is that of the partitioner.
    with pytest.raises(Unsupported, match=why):
        partition(module)


def test_a_rule_may_stand_in_the_file() -> None:
    rule = "{sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i]) {i=8, j=16} reduction={j}>}"
    module = parse(CALL.replace("@mine(%a)", f"@mine(%a) {rule}"))
    text = partition(shard(module), Rules()).text()
    assert "(tensor<4x4xf32>) -> tensor<4xf32>" in text
