"""Examples of control flow, calls, tuples and tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import COMMON, array, dtypes, seeds, shapes
from tests.ops.example import Example
from tests.ops.program import Program, region, scalar
from weft.ir.dense import Dense
from weft.ir.module import Region
from weft.ir.op import Op
from weft.ir.types import I32, Array, type_of
from weft.ops.control import (
    AfterAll,
    AsyncDone,
    AsyncStart,
    Call,
    Case,
    Composite,
    CreateToken,
    GetTupleElement,
    If,
    OptimizationBarrier,
    RunParallel,
    Tuple,
    While,
)
from weft.ops.elementwise.pointwise import Add, Compare
from weft.ops.shape import Constant

values = st.builds(array, shapes(0, 2), dtypes(COMMON), seeds)


@composite
def a_while(draw: DrawFn) -> Example:
    """Count up to a limit, adding the carried array to itself each time."""
    start, carried = np.array(draw(st.integers(0, 4)), np.int32), draw(values)
    types = (scalar(I32), type_of(carried))
    limit = Constant(Dense(np.array(3, np.int32)))
    one = Constant(Dense(np.array(1, np.int32)))
    condition = region(types, (limit, ()), (Compare("LT", "SIGNED"), (0, 2)), results=(3,))
    body = region(types, (one, ()), (Add(), (0, 2)), (Add(), (1, 1)), results=(3, 4))
    return Example(While(), (start, carried), (condition, body))


def _branch(result: Array) -> Region:
    return region((), (Constant(Dense(result)), ()), results=(0,))


@composite
def an_if(draw: DrawFn) -> Example:
    shape, dtype = draw(shapes(0, 2)), draw(dtypes(COMMON))
    branches = tuple(_branch(array(shape, dtype, draw(seeds))) for _ in range(2))
    return Example(If(), (np.array(draw(st.booleans())),), branches)


@composite
def a_case(draw: DrawFn) -> Example:
    shape, dtype = draw(shapes(0, 2)), draw(dtypes(COMMON))
    count = draw(st.integers(1, 3))
    branches = tuple(_branch(array(shape, dtype, draw(seeds))) for _ in range(count))
    index = np.array(draw(st.sampled_from((0, 1, 2, -1, 9))), np.int32)
    return Example(Case(), (index,), branches)


@composite
def a_program(draw: DrawFn, op: type[Op], text: str) -> Example:
    """A program whose text has T for the type of its one argument."""
    operand = draw(values)
    return Program.holding(op, text.replace("T", str(type_of(operand))), operand)


CALL = """
func.func @main(%0: T) -> T {
  %1 = func.call @twice(%0) : (T) -> T
  return %1 : T
}
func.func private @twice(%0: T) -> T {
  %1 = stablehlo.add %0, %0 : T
  return %1 : T
}
"""
COMPOSITE = CALL.replace(
    "func.call @twice(%0) :",
    'stablehlo.composite "my.twice" %0 '
    "{composite_attributes = {n = 2 : i64}, decomposition = @twice, version = 1 : i32} :",
)
TUPLE = """
func.func @main(%0: T) -> T {
  %1 = stablehlo.add %0, %0 : T
  %2 = stablehlo.tuple %0, %1 : tuple<T, T>
  %3 = stablehlo.get_tuple_element %2[1] : (tuple<T, T>) -> T
  return %3 : T
}
"""
TOKENS = """
func.func @main(%0: T) -> T {
  %1 = stablehlo.after_all : !stablehlo.token
  %2 = stablehlo.after_all %1, %1 : !stablehlo.token
  return %0 : T
}
"""
TOKEN = TOKENS.replace("after_all :", "create_token :")
ASYNC = """
func.func @main(%0: T) -> T {
  %1 = "stablehlo.async_start"(%0) ({
  ^bb0(%3: T):
    %4 = "stablehlo.collective_permute"(%3) {
      source_target_pairs = dense<[[0, 0]]> : tensor<1x2xi64>} : (T) -> T
    stablehlo.return %4 : T
  }) : (T) -> !stablehlo.future<T>
  %2 = "stablehlo.async_done"(%1) : (!stablehlo.future<T>) -> T
  return %2 : T
}
"""
PARALLEL = """
func.func @main(%0: T) -> (T, T) {
  %1:2 = "interpreter.run_parallel"(%0, %0) {programs = [[@twice], [@same]]} : (T, T) -> (T, T)
  return %1#0, %1#1 : T, T
}
func.func @twice(%0: T) -> T {
  %1 = stablehlo.add %0, %0 : T
  return %1 : T
}
func.func @same(%0: T) -> T {
  return %0 : T
}
"""

EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    While: a_while(),
    If: an_if(),
    Case: a_case(),
    Call: a_program(Call, CALL),
    Composite: a_program(Composite, COMPOSITE),
    OptimizationBarrier: st.lists(values, max_size=3).map(
        lambda arrays: Example(OptimizationBarrier(), tuple(arrays))
    ),
    Tuple: a_program(Tuple, TUPLE),
    GetTupleElement: a_program(GetTupleElement, TUPLE),
    AfterAll: a_program(AfterAll, TOKENS),
    CreateToken: a_program(CreateToken, TOKEN),
    AsyncStart: a_program(AsyncStart, ASYNC),
    AsyncDone: a_program(AsyncDone, ASYNC),
    RunParallel: a_program(RunParallel, PARALLEL),
}
