"""Every reason is true: paths lead from annotations to values, and names are those of the file."""

from __future__ import annotations

import pytest

from tests.shard.fuzz import program
from weft.capture import parse
from weft.errors import WeftError
from weft.explain import Reasons, lookup, reasons
from weft.explain.history import History
from weft.ir.module import Module
from weft.ir.write import SHARDINGS, value_names
from weft.mesh.algebra import overlaps
from weft.ops.distributed.annotations import sharding_attribute
from weft.shard import propagate, shard

SEEDS = range(60)


def explained(text: str) -> tuple[Module, Reasons]:
    module = parse(text)
    return module, reasons(propagate(module))


def assert_leads_here(history: History, cell: int, dim: int, axis: object) -> None:
    """The path of an axis begins at an annotation with it, and each step where the last ended."""
    path = history.path(cell, dim, axis)
    if path.by is None:
        given = history.graph.initial[path.origin]
        assert given is not None
        assert any(overlaps(path.axis, held) for held in given.dims[path.dim].axes)
    here = (path.origin, path.dim)
    for step in path.steps:
        assert (step.source, step.source_dim) == here
        assert step.visit is None or {step.source, step.target} <= {*step.visit.cells}
        here = (step.target, step.target_dim)
    assert here == (cell, dim)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_axis_comes_from_an_annotation(seed):
    _, found = explained(program(seed))
    assert found.history.final == found.propagated.shardings
    for cell, sharding in enumerate(found.history.final):
        if sharding is None or found.owners[cell] is None:
            continue
        for dim, split in enumerate(sharding.dims):
            for axis in split.axes:
                assert_leads_here(found.history, cell, dim, axis)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_value_has_a_story(seed):
    module, found = explained(program(seed))
    for function in module.functions.values():
        for value in value_names(function):
            for story in found.of(value):
                assert story.type == value.type
                assert all(dim.sentences for dim in story.dims)
                assert story.text()
    for note in found.notes():
        assert note.text()


@pytest.mark.parametrize("seed", SEEDS)
def test_values_keep_their_names(seed):
    module, found = explained(program(seed))
    came_from = found.names.counterparts.came_from
    for made, given in came_from.items():
        assert made.type == given.type
        if made.node is not None and given.node is not None:
            assert made.node.loc == given.node.loc
            assert made.node.op.name.split(".")[1] == given.node.op.name.split(".")[1]
    text = module.text()
    for value, name in found.names.names.items():
        assert name.partition("#")[0] in text, value


@pytest.mark.parametrize("seed", SEEDS)
def test_arguments_and_results_are_as_the_module_is_written(seed):
    module, found = explained(program(seed))
    try:
        written = shard(module)
    except WeftError:
        return
    before, after = module.functions["main"], written.functions["main"]
    table = written.tables[SHARDINGS]
    for given, made in zip(before.body.args, after.body.args, strict=True):
        assert found.of(given)[0].sharding == table.get(made)
    for n, attrs in enumerate(after.res_attrs):
        assert found.of_result(n).sharding == sharding_attribute(attrs)


PROGRAM = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>} loc("a"),
    %b: tensor<8xf32> loc("b")) -> tensor<8xf32> {
  %0 = call @f(%a, %b) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> loc(#call)
  %1:2 = stablehlo.optimization_barrier %0, %b : tensor<8xf32>, tensor<8xf32> loc(#wall)
  return %1#0 : tensor<8xf32>
}
func.func private @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.add %x, %y : tensor<8xf32> loc(#add)
  return %0 : tensor<8xf32>
}
#line = loc("/home/me/model.py":3:5)
#outer = loc("/home/me/model.py":9:5)
#call = loc("jit(step)/f"(#outer))
#wall = loc("jit(step)/layer0/wall"(#outer))
#add = loc("jit(step)/layer0/add"(callsite(#line at #outer)))
"""


@pytest.mark.parametrize(
    ("what", "function", "names"),
    [
        ("%arg1", None, ["%arg1"]),
        ("%0", None, ["%0"]),
        ("%0", "f", ["%0"]),
        ("%1", None, ["%1#0", "%1#1"]),
        ("%1#1", None, ["%1#1"]),
        ("model.py:3", None, ["%0"]),
        ("me/model.py:9", None, ["%0", "%1#0", "%1#1"]),
        ("/home/me/model.py:3", None, ["%0"]),
        ("jit(step)/layer0/add", None, ["%0"]),
        ("layer0/wall", None, ["%1#0", "%1#1"]),
        ("add", None, ["%0"]),
        ("layer", None, ["%1#0", "%1#1", "%0"]),
        ("b", None, ["%arg1"]),
    ],
)
def test_values_are_found(what, function, names):
    module = parse(PROGRAM)
    known = {v: name for f in module.functions.values() for v, name in value_names(f).items()}
    assert [known[v] for v in lookup(module, what, function)] == names


@pytest.mark.parametrize(
    ("what", "function", "message"),
    [
        (
            "%7",
            None,
            "error: @main has no value %7\n"
            "help: known: %arg0 to %arg1, %0 to %1#1, as `weft.parse(FILE).text()` numbers them",
        ),
        (
            "layer1/ad",
            None,
            "error: unknown value 'layer1/ad'\nhelp: did you mean jit(step)/layer0/add or "
            "jit(step)/layer0/wall? give %12 or %arg0, a line such as model.py:41, or a name of "
            "the tracer",
        ),
        ("%0", "g", "error: the module has no function 'g'\nhelp: known: main, f"),
    ],
)
def test_what_is_not_found_is_said(what, function, message):
    with pytest.raises(WeftError) as caught:
        lookup(parse(PROGRAM), what, function)
    assert str(caught.value) == message


def test_a_result_that_is_not_there():
    _, found = explained(PROGRAM)
    with pytest.raises(WeftError, match="@main has no result 3"):
        found.of_result(3)


def test_reasons_know_both_modules():
    module, found = explained(PROGRAM)
    (argument, _) = module.functions["main"].body.args
    (given,) = found.of(argument)
    made = found.names.counterparts.became[argument][0]
    assert found.of(made) == (given,)


def test_the_simpler_levels_have_reasons_too():
    for level in ("basic", "aggressive", "op"):
        found = reasons(propagate(parse(PROGRAM), level))
        assert "carries it" in found.of_result(0).text()


INSIDE = """module {
  sdy.mesh @mesh = <["a"=2, "b"=2]>
  func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a"}, {?}]>]
        out_shardings=[<@mesh, [{"a"}, {?}]>] manual_axes={"a"} (%y: tensor<4x8xf32>) {
      %1 = sdy.sharding_constraint %y <@mesh, [{}, {"b"}]> : tensor<4x8xf32>
      %2 = stablehlo.add %1, %1 : tensor<4x8xf32>
      sdy.return %2 : tensor<4x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}"""


def test_a_constraint_inside_is_named_not_the_argument_that_it_reads():
    module, found = explained(INSIDE)
    (argument,) = [v for v, name in value_names(module.function("main")).items() if name == "%arg1"]
    (story,) = found.of(argument)
    whole, split = (dim.sentences[0] for dim in story.dims)
    assert whole == "the sharding constraint (-:6) keeps it whole"
    assert split.startswith('the sharding constraint (-:6) puts "b" on dim 1')
