"""Every op gives in lockstep, on stacks of any variation, what its reference gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ops.catalogue import CHECKED, EXAMPLES
from tests.ops.example import Example
from tests.ops.program import OnDevices, Program
from tests.run.stacks import along, assert_same, vary
from weft.array.stacked import one_for_all
from weft.emit.numpy.table import kinds
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.ops import OPS
from weft.pipeline import local_program

REFUSED = {name for name, kind in kinds().items() if kind == "refused"}
# Every call draws other numbers.
RANDOM = {"stablehlo.rng"}
AXES = ((), ("a",), ("b",), ("a", "b"))


def test_every_op_has_an_answer():
    found = kinds()
    assert set(found) == {op.name for op in OPS}
    slow = {name for name, kind in found.items() if kind == "one by one"}
    assert "stablehlo.dot_general" not in slow and "stablehlo.custom_call" in slow


def check_alone(sample: Example) -> None:
    """A whole program on one device."""
    module = sample.module()
    expected = evaluate(module, *sample.arrays)
    program = local_program(module, devices=1)
    made = program(*[one_for_all(np.asarray(a), program.sub_axes) for a in sample.arrays])
    for ours, theirs in zip(made, expected, strict=True):
        if theirs is not None:
            assert np.array_equal(ours.pieces()[0], theirs, equal_nan=theirs.dtype.kind == "f")


def check(sample: Example, data: st.DataObject) -> None:
    """The op on six devices, its operands varying along drawn axes; or as its example says."""
    if isinstance(sample, Program):
        check_alone(sample)
        return
    types = [t for t in (*sample.types, *sample.node().types) if isinstance(t, TensorType)]
    length = max([1, *(t.size for t in types)])
    if isinstance(sample, OnDevices):
        assert_same(sample.module(), *sample.arrays, length=length, devices=sample.devices)
        return
    axes = [data.draw(st.sampled_from(AXES)) for _ in sample.arrays]
    stacks = [vary(np.asarray(a), names) for a, names in zip(sample.arrays, axes, strict=True)]
    assert_same(along(sample.module(), axes), *stacks, length=length)


every_op = pytest.mark.parametrize("op", CHECKED, ids=lambda op: op.name)


def check_op(op: type[Op], data: st.DataObject) -> None:
    """An op on an example of its own, or the refusal of one that is not for lockstep."""
    if op.name in RANDOM:
        pytest.skip("draws other numbers in every call")
    sample = data.draw(EXAMPLES[op])
    if any(node.op.name in REFUSED for node in sample.module().nodes()):
        with pytest.raises(WeftError, match="lockstep|partition"):
            local_program(sample.module(), devices=1)
        return
    check(sample, data)


@every_op
@settings(max_examples=6)
@given(st.data())
def test_op(op: type[Op], data: st.DataObject):
    check_op(op, data)


@pytest.mark.long
@every_op
@settings(max_examples=100, derandomize=False, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_op_long(op: type[Op], data: st.DataObject):
    check_op(op, data)
