"""PyTorch's database of ops: samples of every op equal eager; the holes are known by name."""

from __future__ import annotations

import itertools
import warnings

import pytest

from tests.capture.torch.opinfo import (
    DTYPES,
    Outcome,
    call_of,
    entries,
    is_lowered,
    op_names,
    samples,
    summary,
    sweep,
    together,
)

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's database of ops needs it")

# Entries whose samples take PyTorch long to make.
SLOW = set(
    """
    grid_sampler_3d linalg.pinv.singular linalg.solve_triangular logspace.tensor_overload
    max_pool2d_with_indices_backward nn.functional.max_pool1d nn.functional.max_pool2d
    nn.functional.max_pool3d nn.functional.max_unpool1d nn.functional.max_unpool1d.grad
    nn.functional.max_unpool2d nn.functional.max_unpool2d.grad nn.functional.max_unpool3d
    nn.functional.max_unpool3d.grad
""".split()
)
# Entries that are refused, all or in part: `make test-all` says which ops are missing.
REFUSED = set(
    """
    _segment_reduce.lengths _segment_reduce.offsets allclose argwhere chalf equal
    hash_tensor histogramdd igamma igammac item linalg.ldl_factor linalg.ldl_factor_ex
    linalg.ldl_solve linalg.lstsq linalg.lstsq.grad_oriented masked_select
    nn.functional.ctc_loss special.airy_ai special.bessel_j0
    special.bessel_j1 special.bessel_y0 special.bessel_y1 special.chebyshev_polynomial_t
    special.chebyshev_polynomial_u special.chebyshev_polynomial_v special.chebyshev_polynomial_w
    special.hermite_polynomial_h special.hermite_polynomial_he special.laguerre_polynomial_l
    special.legendre_polynomial_p special.modified_bessel_k0 special.modified_bessel_k1
    special.ndtri special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1
    special.shifted_chebyshev_polynomial_t special.shifted_chebyshev_polynomial_u
    special.shifted_chebyshev_polynomial_v special.shifted_chebyshev_polynomial_w
    special.spherical_bessel_j0 tensor_split unique unique_consecutive
""".split()
)
TOGETHER = 40  # samples that are captured as one program
HOLES = {"nonzero"}  # of core ATen: its size depends on the data
SAMPLED = 41  # every so many ops, in a quick run


def checked(chosen, dtypes, most) -> list[Outcome]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = sweep(chosen, dtypes, most, lambda outcome: None)
    print(summary(made))
    bad = [o for o in made if o.state in ("wrong", "failed")]
    assert not bad, "\n".join(f"{o.op} {o.dtype}: {o.what}" for o in bad)
    return made


@pytest.fixture(scope="module")
def quick():
    """Entries whose samples are made and captured quickly: with a lowering of ours, and others."""
    chosen = [e for e in entries() if op_names(e) not in SLOW | REFUSED | HOLES]
    return {True: [*filter(is_lowered, chosen)], False: [e for e in chosen if not is_lowered(e)]}


@pytest.mark.parametrize(
    ("lowered", "every", "dtype", "most"),
    [(True, 1, "float32", 2), (True, 1, "int64", 1), (False, 3, "float32", 1)],
)
def test_ops_equal_eager(quick, lowered, every, dtype, most):
    chosen = quick[lowered][::every]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = ((e, s) for e in chosen for s in itertools.islice(samples(e, dtype, most), most))
        calls = [call for e, s in drawn if (call := call_of(e, dtype, s))]
        assert len(calls) > len(chosen) / 2
        batches = [calls[n:][:TOGETHER] for n in range(0, len(calls), TOGETHER)]
        bad = [line for batch in batches for line in together(batch)]
    assert not bad, "\n".join(bad)


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
def test_core_ops_equal_eager(dtype):
    made = checked(entries(core=True), [dtype], 1)
    assert {o.op for o in made if o.state == "refused"} <= HOLES


@pytest.mark.long
def test_a_sample_of_all_ops_equals_eager():
    made = checked(entries()[::SAMPLED], DTYPES[:3], 1)
    assert sum(o.state == "passed" for o in made) > 15


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_ops_equal_eager(dtype):
    checked(entries(), [dtype], None)
