"""Planted lies: the check of rules against references must catch every one of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.ops.example import Example, binary_region
from tests.ops.honesty import lies
from tests.ops.program import region
from weft.ir.op import Op, rule
from weft.ir.rule import Rule, RuleFactor
from weft.ir.types import F32, Array, TensorType, tensor
from weft.ops.contract import DotDims, DotGeneral
from weft.ops.elementwise.pointwise import Add, Compare, Maximum, Subtract
from weft.ops.reduce import Reduce
from weft.ops.shape import Reshape, Reverse, Transpose
from weft.ops.slicing import Concatenate
from weft.ops.sort import Sort

LOW = np.array(-np.inf, np.float32)
ZERO = np.array(0, np.float32)


def numbers(*shape: int) -> Array:
    """Distinct small whole numbers in no order."""
    count = int(np.prod(shape))
    return np.random.default_rng(7).permutation(count).astype(np.float32).reshape(shape)


def _sort() -> Example:
    scalar = TensorType((), F32)
    less = region((scalar, scalar), (Compare("LT", "FLOAT"), (0, 1)), results=(2,))
    return Example(Sort(1, True), (numbers(4, 6),), (less,))


def _reduce(op: Op, start: Array) -> Example:
    body = binary_region(op, "f32")
    return Example(Reduce((1,), (tensor(4),)), (numbers(4, 6), start), (body,))


EXAMPLES = {
    "sort": _sort(),
    "sum": _reduce(Add(), ZERO),
    "max": _reduce(Maximum(), LOW),
    "dot": Example(
        DotGeneral(DotDims((), (), (1,), (0,)), tensor(4, 4)),
        (numbers(4, 4), numbers(4, 4)),
    ),
    "transpose": Example(Transpose((1, 0)), (numbers(4, 4),)),
    "reshape": Example(Reshape(tensor(24)), (numbers(4, 6),)),
    "reverse": Example(Reverse((0,)), (numbers(4, 6),)),
    "concatenate": Example(Concatenate(0), (numbers(4, 2), numbers(4, 2))),
    "subtract": Example(Subtract(), (numbers(4, 4), numbers(4, 4))),
}


def true_rule(name: str) -> Rule:
    """What the op itself says."""
    node = EXAMPLES[name].node()
    return rule(node.op, node.operand_types, node.bodies)


def with_factor(old: Rule, index: int, **changes: object) -> Rule:
    """The rule with another idea of one factor."""
    factors = list(old.factors)
    factors[index] = replace(factors[index], **changes)  # type: ignore[arg-type]
    return replace(old, factors=tuple(factors))


def _called_pass(name: str, index: int) -> Rule:
    return with_factor(true_rule(name), index, role="pass")


LIES = {
    "a sorted dim may be split": ("sort", lambda: _called_pass("sort", 1)),
    "a sum is a max": ("sum", lambda: with_factor(true_rule("sum"), 1, combine="max")),
    "a max is a sum": ("max", lambda: with_factor(true_rule("max"), 1, combine="add")),
    "a reduced dim needs no reduction": ("sum", lambda: _called_pass("sum", 1)),
    "a contracted dim needs no reduction": ("dot", lambda: _called_pass("dot", 2)),
    "a product over a dim": ("dot", lambda: with_factor(true_rule("dot"), 2, combine="mul")),
    "a transpose changes nothing": (
        "transpose",
        lambda: replace(true_rule("transpose"), results=(((1,), (0,)),)),
    ),
    "rows of the right factor are columns": (
        "dot",
        lambda: replace(true_rule("dot"), operands=(((0,), (2,)), ((1,), (2,)))),
    ),
    "an operand is split the other way": (
        "subtract",
        lambda: replace(true_rule("subtract"), operands=(((0,), (1,)), ((1,), (0,)))),
    ),
    "minor before major": (
        "reshape",
        lambda: replace(true_rule("reshape"), results=(((1, 0),),)),
    ),
    "a reversed dim may be split": ("reverse", lambda: _called_pass("reverse", 0)),
    "a joined dim may be split": (
        "concatenate",
        lambda: Rule((RuleFactor(4), RuleFactor(2)), (((0,), (1,)), ((0,), (1,))), (((0,), (1,)),)),
    ),
    "a factor is longer than its dim": (
        "subtract",
        lambda: with_factor(true_rule("subtract"), 0, size=8),
    ),
    "a dim has no factor": (
        "subtract",
        lambda: replace(true_rule("subtract"), results=(((0,),),)),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_truth_is_accepted(name: str):
    assert lies(EXAMPLES[name], true_rule(name)) == []


@pytest.mark.parametrize("lie", LIES)
def test_lie_is_caught(lie: str):
    name, told = LIES[lie]
    assert lies(EXAMPLES[name], told()), f"not caught: {lie}"
