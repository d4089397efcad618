"""The parts of a run: kernels and numpy's nodes, how often each runs and how long."""

from __future__ import annotations

import numpy as np
import pytest

from weft.array.stacked import one_for_all
from weft.capture import parse
from weft.emit.numpy.target import NUMPY
from weft.pipeline import local_program
from weft.run import LocalProgram
from weft.run.parts import measured_parts, parts_of
from weft.targets import target_named

LOOP = """
func.func @main(%x: tensor<65536xf32>) -> (tensor<65536xf32>, tensor<131071xf32>) {
  %c = stablehlo.complex %x, %x : tensor<65536xcomplex<f32>>
  %f = stablehlo.fft %c, type = IRFFT, length = [131071]
     : (tensor<65536xcomplex<f32>>) -> tensor<131071xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %i, %y = stablehlo.while(%a = %zero, %b = %x) : tensor<i32>, tensor<65536xf32>
   cond {
    %five = stablehlo.constant dense<5> : tensor<i32>
    %t = stablehlo.compare LT, %a, %five : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %t : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.add %a, %one : tensor<i32>
    %s = stablehlo.tanh %b : tensor<65536xf32>
    %z = stablehlo.add %s, %b : tensor<65536xf32>
    stablehlo.return %n, %z : tensor<i32>, tensor<65536xf32>
  }
  return %y, %f : tensor<65536xf32>, tensor<131071xf32>
}
"""
GIVEN = [np.linspace(-1, 1, 65536, dtype="f")]

WANTS_NODES = True  # which only a program has that was compiled here


def names(part) -> list[str]:
    return [n.op.name.rpartition(".")[2] for n in (part.group.nodes if part.group else [part.node])]


@pytest.fixture
def program() -> LocalProgram:
    return local_program(parse(LOOP), target=target_named("llvm"))


def test_kernels_and_nodes_of_numpy_are_parts(program):
    found = [(part.group is not None, names(part)) for part in parts_of(program)]
    assert (True, ["tanh", "add"]) in found
    assert (False, ["fft"]) in found
    assert all(part.seconds is None and part.runs == 1 for part in parts_of(program))


def test_every_part_is_timed_and_counted(program):
    parts, whole = measured_parts(program, GIVEN)
    assert [names(p) for p in parts] == [names(p) for p in parts_of(program)]
    runs = {tuple(names(p)): p.runs for p in parts}
    assert runs["tanh", "add"] == 5
    assert runs["fft",] == 1
    assert all(p.seconds > 0 for p in parts)
    assert sum(p.seconds for p in parts) < whole


def test_measuring_changes_no_result(program):
    before = [s.data for s in program(*_stacks(program))]
    measured_parts(program, GIVEN)
    after = [s.data for s in program(*_stacks(program))]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_a_target_all_is_numpy():
    program = local_program(parse(LOOP), target=NUMPY)
    parts, _ = measured_parts(program, GIVEN)
    assert all(part.group is None for part in parts)
    assert {("tanh",), ("fft",)} <= {tuple(names(part)) for part in parts}


def _stacks(program: LocalProgram):
    return [one_for_all(array, program.sub_axes) for array in GIVEN]
