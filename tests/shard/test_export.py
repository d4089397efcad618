"""A module after propagation: the same as Shardy's in every line, and true to itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.shard.export_cases import (
    CASES,
    chain_of_calls,
    concatenation,
    given,
    made,
    module,
    product,
)
from tests.shard.whole import Refused, differences
from weft import Mesh, WeftError, evaluate, parse
from weft.ir.types import TensorType
from weft.ir.verify import verify
from weft.shard import drop_shardings, shard

ROOT = Path(__file__).parents[2]
MLP = ROOT / "examples" / "sharded_mlp.mlir"
LEVELS = ("basic", "aggressive", "op", "user")
LONG = pytest.mark.long


@pytest.mark.parametrize("name", CASES)
def test_every_line_is_shardys(name):
    assert not differences(parse(module(CASES[name])))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", list(CASES)[:6])
def test_every_level_is_shardys(name, level):
    assert not differences(parse(module(CASES[name])), level)


@pytest.mark.parametrize("make", [concatenation, product, chain_of_calls])
@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 600), marks=LONG)], ids=len)
def test_random_shardings_end_as_shardys(make, seeds):
    compared = 0
    for seed in seeds:
        try:
            found = differences(parse(make(seed)))
        except Refused:
            continue
        compared += 1
        assert not found, f"{make.__name__}({seed})"
    assert compared > len(seeds) // 2


# The module itself


@pytest.mark.parametrize("name", CASES)
def test_the_text_can_be_read_and_written_again(name):
    text = shard(parse(module(CASES[name]))).text()
    again = verify(parse(text))
    assert again.text() == text


def test_the_given_module_stays_as_it_is():
    given_module = parse(MLP)
    before = given_module.text()
    shard(given_module)
    assert given_module.text() == before


def test_every_value_is_in_the_table_and_no_sharding_in_attributes():
    sharded = verify(shard(parse(MLP)))
    table = sharded.tables["sharding"]
    values = [v for node in sharded.nodes() for v in node.results]
    values += [v for f in sharded.functions.values() for v in f.body.args]
    assert all(v in table for v in values if isinstance(v.type, TensorType) and v.type.shape)
    main = sharded.function("main")
    assert not any(node.attrs for node in sharded.nodes())
    assert not any(main.arg_attrs)
    assert main.res_attrs == ((("sdy.sharding", '#sdy.sharding<@mesh, [{"data"}, {}]>'),),)


def test_what_a_program_computes_does_not_change():
    program = parse(MLP)
    arrays = [
        np.random.default_rng(n).standard_normal(t.sizes).astype(np.float32)
        for n, t in enumerate(program.function("main").arg_types)
        if isinstance(t, TensorType)
    ]
    expected = evaluate(program, *arrays)
    for other in (shard(program), drop_shardings(shard(program))):
        for a, b in zip(evaluate(other, *arrays), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_same_text_every_time():
    program = parse(module(CASES["calls that agree share a function"]))
    assert shard(program).text() == shard(program).text()


@pytest.mark.parametrize("name", CASES)
def test_a_sharded_module_can_be_sharded_as_its_text_can(name):
    sharded = shard(parse(module(CASES[name])))
    assert shard(sharded).text() == shard(parse(sharded.text())).text()


# Meshes


def test_a_mesh_is_added():
    sharded = shard(parse("func.func @main(%a: tensor<4xf32>) { return }"), Mesh(data=2, model=4))
    assert sharded.meshes == {"mesh": Mesh(data=2, model=4)}


def test_sizes_are_replaced_by_name():
    sharded = shard(parse(MLP), "model=2,data=8")
    assert sharded.meshes == {"mesh": Mesh(data=8, model=2)}
    assert '{"model"}' in sharded.text()


def test_a_mesh_with_other_axes_is_refused():
    with pytest.raises(WeftError) as caught:
        shard(parse(MLP), Mesh(data=2, pipe=4))
    assert str(caught.value) == (
        "error: the mesh 'mesh' of the module has the axes data, model, not data, pipe\n"
        "help: give a size for each of data, model"
    )


def test_of_debts_that_cross_the_first_is_paid():
    program = module(f"""
        func.func @main(%a: $T {given('[{"x"}, {}], unreduced={"y"}')}) -> $T {{
          %0 = stablehlo.negate %a {made('[{"x"}, {}], unreduced={"z"}')} : $T
          return %0 : $T
        }}""")
    assert not differences(parse(program))


# Dropping


def test_everything_of_shardys_is_dropped():
    program = parse(
        module(f"""
        func.func @main(%a: $T {given('[{"x"}, {}]')}) -> ($T {given('[{"x"}, {}]')}) {{
          %0 = sdy.sharding_constraint %a <@mesh, [{{"y"}}, {{}}]> : $T
          sdy.sharding_group %0 group_id=1 : $T
          %1 = sdy.propagation_barrier %0 allowed_direction=NONE : $T
          %2 = sdy.named_computation<"twice">(%1) (%b: $T) {{
            %c = sdy.constant dense<1.0> : $T
            %5 = stablehlo.add %b, %c : $T
            sdy.return %5 : $T
          }} : ($T) -> $T
          %3 = sdy.reshard %2 <@mesh, [{{}}, {{"x"}}]> : $T
          return %3 : $T
        }}""")
    )
    assert drop_shardings(program).text() == (
        "module {\n"
        "  func.func @main(%arg0: tensor<8x16xf32>) -> tensor<8x16xf32> {\n"
        "    %0 = stablehlo.constant dense<1.000000e+00> : tensor<8x16xf32>\n"
        "    %1 = stablehlo.add %arg0, %0 : tensor<8x16xf32>\n"
        "    return %1 : tensor<8x16xf32>\n"
        "  }\n"
        "}\n"
    )


def test_manual_computations_are_not_dropped():
    program = parse(module(CASES["manual axes are seen from outside only"]))
    with pytest.raises(WeftError) as caught:
        drop_shardings(program)
    assert caught.value.message == (
        "sdy.manual_computation cannot be dropped: its body works on local shards along x, z"
    )
    assert caught.value.help == "partition the program, or lower it without shard_map"
