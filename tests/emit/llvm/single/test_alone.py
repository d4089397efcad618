"""Every op that stands alone gives, on stacks of any variation, what its reference gives."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.emit.llvm.single.lone_nodes import check_alone, lone_kernel
from tests.ops.catalogue import EXAMPLES
from tests.tolerance import assert_close
from weft.emit.llvm.single.emit import EMIT, emit_single_node, refuses_single_node
from weft.errors import Unsupported
from weft.ir.op import Op
from weft.ir.types import F32, TensorType
from weft.kernels.single_node import SingleNode
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.random import Rng

SIZES = ((), (2,), (2, 3))


# Factorizations are not unique in the last place: see test_factorize.py.
@pytest.mark.parametrize("op", [op for op in EMIT if op is not CustomCall], ids=lambda op: op.name)
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_it_gives_what_the_reference_gives(op: type[Op], data: st.DataObject):
    sample = data.draw(EXAMPLES[op])
    assume(refuses_single_node(lone_kernel(sample.node())) is None)
    sizes = data.draw(st.sampled_from(SIZES))
    most = (1 << len(sizes)) - 1
    masks = [data.draw(st.integers(0, most)) for _ in sample.arrays]
    types = [t for t in (*sample.types, *sample.node().types) if isinstance(t, TensorType)]
    length = max([1, *(t.size for t in types)])
    check_alone(
        sample.op,
        *[np.asarray(a) for a in sample.arrays],
        regions=sample.regions,
        sizes=sizes,
        masks=masks,
        compare=partial(assert_close, length=length),
    )


def test_what_is_not_emitted_is_refused():
    kernel = SingleNode("rng", Rng("UNIFORM", TensorType((2,), F32)), (), 0)
    with pytest.raises(Unsupported, match="rng has no kernel in the llvm target"):
        emit_single_node(kernel)
