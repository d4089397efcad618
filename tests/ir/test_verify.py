"""The verifier refuses every kind of broken module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from weft.capture import parse
from weft.errors import WeftError
from weft.ir.location import Location
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.types import tensor
from weft.ir.verify import verify
from weft.ops.control import Call, If
from weft.ops.elementwise.pointwise import Add, Multiply

X = tensor(2)
PLACE = Location('"model.py":7:3')


def module(*nodes: Node, args: tuple[Value, ...] = (), results: tuple[Value, ...] = ()) -> Module:
    return Module({"main": Function("main", Region(args, list(nodes), results))})


def undefined_operand() -> Module:
    return module(apply(Add(), Value(X), Value(X), loc=PLACE))


def used_before_its_definition() -> Module:
    x = Value(X)
    first = apply(Add(), x, x)
    second = apply(Add(), *first.results, x, loc=PLACE)
    return module(second, first, args=(x,))


def wrong_result_type() -> Module:
    x = Value(X)
    return module(Node(Add(), (x, x), (tensor(3),), loc=PLACE), args=(x,))


def operands_that_do_not_fit() -> Module:
    x, y = Value(X), Value(tensor(3))
    return module(Node(Add(), (x, y), (X,), loc=PLACE), args=(x, y))


def too_few_operands() -> Module:
    x = Value(X)
    return module(Node(Multiply(), (x,), (X,), loc=PLACE), args=(x,))


def undefined_result() -> Module:
    return module(results=(Value(X),))


def value_of_an_inner_region() -> Module:
    x, predicate = Value(X), Value(tensor(dtype="i1"))
    inner = apply(Add(), x, x)
    branch = Region((), [inner], inner.results)
    node = apply(If(), predicate, regions=(branch, Region((), [], (x,))))
    leak = apply(Add(), *inner.results, x, loc=PLACE)
    return module(node, leak, args=(x, predicate))


def unknown_function() -> Module:
    return module(Node(Call("nobody", ()), (), (), loc=PLACE))


def call_with_other_types() -> Module:
    x = Value(X)
    callee = Function("f", Region((), [], ()))
    call = Node(Call("f", (X,)), (x,), (X,), loc=PLACE)
    broken = module(call, args=(x,))
    return broken.with_functions({**broken.functions, "f": callee})


def attributes_for_other_arguments() -> Module:
    good = module(args=(Value(X),))
    main = replace(good.function("main"), arg_attrs=((), ()))
    return good.with_functions({"main": main})


BROKEN: dict[Callable[[], Module], str] = {
    undefined_operand: "not defined before it",
    used_before_its_definition: "not defined before it",
    wrong_result_type: "result types are wrong",
    operands_that_do_not_fit: "operand 0 is tensor<2xf32>, but operand 1 is tensor<3xf32>",
    too_few_operands: "takes 2 operands",
    undefined_result: "returns a value that it cannot see",
    value_of_an_inner_region: "not defined before it",
    unknown_function: "unknown function 'nobody'",
    call_with_other_types: "does not match its signature",
    attributes_for_other_arguments: "1 arguments, but attributes for 2",
}


@pytest.mark.parametrize("make", BROKEN, ids=lambda make: make.__name__)
def test_broken_modules_are_refused(make: Callable[[], Module]):
    with pytest.raises(WeftError, match=BROKEN[make]) as caught:
        verify(make())
    if make not in (undefined_result, attributes_for_other_arguments):
        assert caught.value.loc is PLACE and caught.value.node


def test_good_modules_are_handed_back():
    text = """
func.func @main(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {
  %0 = "stablehlo.if"(%p) ({
    %1 = stablehlo.add %x, %x : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }, {
    stablehlo.return %x : tensor<f32>
  }) : (tensor<i1>) -> tensor<f32>
  %2 = func.call @f(%0) : (tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}
func.func private @f(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
"""
    good = parse(text)
    assert verify(good) is good
