"""Views that no index reads through leave their readers' loops as they were."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import weft
from tests.shard.corpus import annotated
from weft import Mesh, P
from weft.kernels.kernel import Contract, Kernel, Pick, Reduce
from weft.run.parts import parts_of

IMAGE, FEATURES = P("data", "model"), P(None, None, None, "model")


def convolved(x, w):
    dims = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)


def slope(x, w):
    return jax.grad(lambda w: (convolved(x, w) ** 2).sum())(w)


def slope_of_features_first(x, w):
    def loss(w):
        dims = ("NCHW", "OIHW", "NCHW")
        return (lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims) ** 2).sum()

    return jax.grad(loss)(w)


def differences(x, w):
    """Rows of neighbours: no product, the same reads."""
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    return (padded[:, 2:] - padded[:, :-2]).sum(0) + w[0, 0].sum()


PROGRAMS = {
    "forward": (convolved, (4, 16, 16, 4), (3, 3, 4, 8)),
    "gradient, odd sizes": (slope, (2, 12, 7, 3), (5, 2, 3, 4)),
    "gradient, one channel": (slope, (2, 8, 5, 1), (3, 1, 1, 4)),
    "differences": (differences, (4, 16, 3, 2), (1, 1, 2, 4)),
}


def idle_loops(made: weft.Compiled) -> list[tuple[str, list[str]]]:
    """The kernels with idle factors."""
    groups = [part.group for part in parts_of(made.program.local)]
    found = [g.kernel for g in groups if g is not None and isinstance(g.kernel, Kernel)]
    assert found
    return [(kernel.name, idle) for kernel in found if (idle := idle_factors(kernel))]


def idle_factors(kernel: Kernel) -> list[str]:
    """The factors that no step depends on: loops that repeat the work."""
    used = set[int]()
    for step, span in zip(kernel.steps, kernel.spans, strict=True):
        used |= span
        if isinstance(step, Reduce | Pick | Contract):
            used |= {*step.over}
    return [f.name for n, f in enumerate(kernel.factors) if f.size > 1 and n not in used]


def check(function, shapes, shardings, reference=None):
    draw = np.random.default_rng(0)
    given = [draw.standard_normal(shape).astype(np.float32) for shape in shapes]
    made = weft.compile(function, *given, mesh=Mesh(data=2, model=4), in_shardings=shardings)
    wanted = np.asarray(jax.jit(reference or function)(*given))
    np.testing.assert_allclose(np.asarray(made(*given)), wanted, rtol=1e-4, atol=1e-3)
    assert idle_loops(made) == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_loop_repeats_the_work(name):
    function, *shapes = PROGRAMS[name]
    check(function, shapes, (IMAGE, FEATURES))


def test_no_loop_repeats_the_work_of_other_layouts():
    shapes = [(4, 4, 16, 16), (8, 4, 3, 3)]
    check(slope_of_features_first, shapes, (P("data", None, "model"), P("model")))


@pytest.mark.parametrize(
    ("name", "annotation"), [("convolutional", "priorities"), ("windowed", "sequence")]
)
def test_no_loop_repeats_the_work_of_the_corpus(name, annotation):
    assert idle_loops(weft.compile(annotated(name, "2x4", annotation))) == []


def test_a_sum_of_equal_products_has_no_loop_over_devices():
    mesh = jax.sharding.AbstractMesh((2, 4), ("data", "model"))

    def total(x, w):
        return lax.psum(x @ w, "model")

    rows = jax.P("data")
    mapped = jax.shard_map(
        total, mesh=mesh, in_specs=(rows, jax.P()), out_specs=rows, check_vma=False
    )
    check(mapped, [(6, 5), (5, 3)], None, lambda x, w: 4 * (x @ w))
