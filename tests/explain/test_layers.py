"""The table by layer: what is put together, and what is noted."""

from __future__ import annotations

import pytest

from weft.capture import parse
from weft.explain import layers, reasons
from weft.explain.layers import scope
from weft.ir.location import Location
from weft.shard import propagate


def shown(text: str, **options: bool) -> list[tuple[str, int, list[tuple[tuple[str, ...], str]]]]:
    found = layers(reasons(propagate(parse(text))), **options)
    return [(f.name, len(f.alike), [(row.names, row.note) for row in f.rows]) for f in found]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("jit(step)/layer0/mlp/dot_general", ["layer0", "mlp"]),
        ("jit(step)/add", []),
        ("jit(step)/jvp(layer0)/mlp/add", ["layer0", "mlp"]),
        ("jit(step)/transpose(jvp(layer0))/mlp/mul", ["layer0", "mlp", "backward"]),
        ("jit(step)/layer0/jit(gelu)/mul", ["layer0", "gelu"]),
        ("jit(step)/layer0/ab,bc->ac/dot_general", ["layer0"]),
        ("sort", []),
    ],
)
def test_scopes(name, parts):
    assert scope(Location(f'"{name}"("m.py":1:1)')) == parts


LAYERS = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(
    %a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>} loc("a"),
    %b: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>},
    %s: tensor<f32>) -> tensor<8xf32> {
  %0 = stablehlo.negate %a : tensor<8xf32> loc(#one)
  %1 = stablehlo.abs %0 : tensor<8xf32> loc(#one)
  %2 = stablehlo.negate %1 : tensor<8xf32> loc(#two)
  %3 = stablehlo.abs %2 : tensor<8xf32> loc(#two)
  %4 = stablehlo.add %3, %b : tensor<8xf32> loc(#line)
  return %4 : tensor<8xf32>
}
#line = loc("jit(f)/add"("lost.py":7:3))
#one = loc("jit(f)/layer0/neg"("lost.py":3:3))
#two = loc("jit(f)/layer1/neg"("lost.py":3:3))
"""


def test_what_is_no_tensor_is_left_out():
    found = shown("""
        func.func @main(%x: tensor<8xf32>, %t: !stablehlo.token) -> tensor<8xf32> {
          %0 = stablehlo.after_all %t, %t : !stablehlo.token
          %1 = stablehlo.negate %x : tensor<8xf32>
          return %1 : tensor<8xf32>
        }""")
    assert [names for _, _, rows in found for names, _ in rows] == [
        ("%arg0",),
        ("%1",),
        ("result 0",),
    ]


def test_rows_and_layers_that_are_alike_are_put_together():
    assert shown(LAYERS) == [
        ("arguments", 0, [(("%arg0 (a)",), ""), (("%arg1",), "replicated, conflict")]),
        ("layer0", 1, [(("%0", "%1"), "")]),
        ("lost.py:7", 0, [(("%4",), "")]),
        ("results", 0, [(("result 0",), "")]),
    ]


def test_everything_is_shown_if_it_is_wanted():
    found = shown(LAYERS, everything=True)
    assert [name for name, _, _ in found] == [
        "arguments",
        "layer0",
        "layer1",
        "lost.py:7",
        "results",
    ]
    assert found[0][2][-1] == (("%arg2",), "")


def test_notes():
    text = """
    sdy.mesh @mesh = <["x"=4]>
    func.func @main(%a: tensor<10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>},
        %b: tensor<10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %c: tensor<3xf32>)
        -> (tensor<10xf32>, tensor<10xf32>, tensor<3xf32>) {
      %0 = stablehlo.abs %a : tensor<10xf32>
      return %0, %b, %c : tensor<10xf32>, tensor<10xf32>, tensor<3xf32>
    }"""
    notes = {names[0]: note for _, _, rows in shown(text) for names, note in rows}
    assert notes["%arg0"] == ""  # split by half of the axis
    assert notes["%arg1"] == "replicated, as annotated"
    assert notes["%arg2"] == "replicated"
    assert notes["%0"] == "dim 0 padded"


def test_the_bytes_of_a_device():
    arguments, *_ = layers(reasons(propagate(parse(LAYERS))))
    assert arguments.bytes == 8 // 2 * 4 + 8 * 4
