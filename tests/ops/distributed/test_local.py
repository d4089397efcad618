"""Ops of local programs: each means what its decomposition into StableHLO computes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.examples.local import EXAMPLES
from tests.ops.program import run
from tests.tolerance import assert_close
from weft.capture.normalize.absorb_composites import absorb_composites
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.module import Module, Value, apply
from weft.ir.op import Op
from weft.ir.types import tensor
from weft.mesh import Axis, Mesh, MeshAxes
from weft.ops.distributed.local import PermuteAlongAxes

every_op = pytest.mark.parametrize("op", EXAMPLES, ids=lambda op: op.name)


@every_op
@settings(max_examples=20)
@given(st.data())
def test_the_decomposition_computes_the_same(op: type[Op], data: st.DataObject):
    sample = data.draw(EXAMPLES[op])
    function = sample.op.decomposition("main", sample.types, {})
    module = absorb_composites(Module({"main": function}))  # reads custom calls of JAX's
    plain = evaluate(module, *sample.arrays, devices=sample.devices)
    for ours, theirs in zip(run(sample), plain, strict=True):
        assert_close(ours, theirs)


@every_op
@settings(max_examples=20)
@given(st.data())
def test_the_decomposition_is_plain_stablehlo(op: type[Op], data: st.DataObject):
    sample = data.draw(EXAMPLES[op])
    function = sample.op.decomposition("main", sample.types, {})
    assert function.result_types == sample.node().types
    assert all(node.op.name.startswith("stablehlo.") for node in function.body.nodes)


def test_a_source_for_each_device_along_the_axes_is_needed():
    mesh = Mesh(x=4)
    op = PermuteAlongAxes(MeshAxes(mesh, (Axis("x"),)), (1, 0))
    apply(op, Value(tensor(2)))
    with pytest.raises(WeftError, match="2 sources for 4 devices"):
        op.groups(1, 4, {})
