"""Single nodes by PyTorch on the host: random examples of each op equal its reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.emit.llvm.single.lone_nodes import lone_kernel, module_of, node_of
from tests.ops.catalogue import EXAMPLES
from tests.tolerance import assert_close
from weft.emit.triton.library import elementwise
from weft.emit.triton.library.calls import library_call, refuses_library
from weft.emit.triton.library.nodes import CALLS, WRITES
from weft.evaluate import evaluate
from weft.ir.op import Op
from weft.ir.types import Array
from weft.ops.sort import Sort
from weft.ops.window import ReduceWindow

torch = pytest.importorskip("torch")

OPS = [op for op in (*CALLS, *WRITES) if op not in elementwise.CALLS]


def as_tensor(array: Array):
    """The array's memory as a tensor."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@settings(max_examples=300, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data())
def test_a_node_is_its_reference(op, data):
    check(op, data)


@pytest.mark.parametrize("op", elementwise.CALLS, ids=lambda op: op.name)
@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data())
def test_a_node_of_complex_numbers_is_its_reference(op, data):
    check(op, data)


def check(op: type[Op], data: st.DataObject) -> None:
    """An example of an op that PyTorch computes, against the reference."""
    example = data.draw(EXAMPLES[op])
    known = [1] if op is ReduceWindow and len(example.arrays) == 2 else ()
    node = node_of(example.op, *example.arrays, regions=example.regions, known=known)
    kernel = lone_kernel(node)
    assume(refuses_library(kernel) is None)
    assume(op is not Sort or example.op.is_stable)
    arrays = [np.array(a, order="C") for a in example.arrays]
    expected = evaluate(module_of(node_of(example.op, *arrays, regions=example.regions)), *arrays)
    made = [np.full(o.shape, 1, o.dtype.numpy) for o in kernel.outputs]
    library_call(kernel).run(*map(as_tensor, (*arrays, *made)))
    for ours, theirs in zip(made, expected, strict=True):
        assert_close(ours.reshape(theirs.shape), theirs, 64, least=1e-3)
