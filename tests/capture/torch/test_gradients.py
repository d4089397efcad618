"""Gradients of pooling, resampling and transposed convolutions against eager's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.capture.torch.models import F, nn, torch


class Weighted(nn.Module):
    """A function of a parameter, weighted by the argument and added up."""

    def __init__(self, function, shape, dtype):
        super().__init__()
        self.x, self.function = nn.Parameter(torch.randn(*shape).to(dtype)), function

    def forward(self, weights):
        return (self.function(self.x) * weights).float().sum()


def assert_gradient(function, shape, dtype=torch.float32):
    """What momentum holds after one step from zero is the gradient."""
    torch.manual_seed(0)
    module = Weighted(function, shape, dtype)
    made = function(module.x)
    weights = torch.randn(made.shape).to(dtype)
    (expected,) = torch.autograd.grad((made * weights).float().sum(), module.x)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0, momentum=0.9)
    weft.train_step(module, None, optimizer, target="numpy")(weights)
    found = optimizer.state[module.x]["momentum_buffer"]
    tolerance = {torch.bfloat16: 2e-2, torch.float64: 1e-9}.get(dtype, 1e-5)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def pooled(kernel, stride, pad, ceil, include, divisor):
    return lambda x: F.avg_pool2d(x, kernel, stride, min(pad, kernel // 2), ceil, include, divisor)


@settings(deadline=None, max_examples=6)
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.booleans(), st.booleans(),
    st.sampled_from([None, 3]),
)  # fmt: skip
def test_average_pools(kernel, stride, pad, ceil, include, divisor):
    assert_gradient(pooled(kernel, stride, pad, ceil, include, divisor), (2, 3, 7, 6))


def resized(mode, align, **sizes):
    return lambda x: F.interpolate(x, mode=mode, align_corners=align, **sizes)


@settings(deadline=None, max_examples=8)
@given(
    st.sampled_from(["nearest", "nearest-exact", "bilinear", "bicubic"]),
    st.booleans(),
    st.sampled_from([{"scale_factor": 2.0}, {"scale_factor": 0.6}, {"scale_factor": 1.7}])
    | st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda size: {"size": size}),
)
def test_resampling(mode, align, sizes):
    aligned = align if "nearest" not in mode else None
    assert_gradient(resized(mode, aligned, **sizes), (2, 2, 5, 4))


def joined(*parts):
    return torch.cat([part.reshape(-1) for part in parts])


def all_distances(x):
    """Of all norms; some rows, and some of their elements, are alike."""
    same = torch.cat([x[:2], x[2:] * torch.tensor([1.0, 0.0, -1.0])])
    for p in (0, 1, 2, 3, float("inf")):
        yield torch.cdist(x * 1.5, x.detach()[:3], p)
        yield F.pdist(same, p)
    yield torch.cdist(x.detach()[:2], x * 0.5, 0.5)


def bags(x):
    """Of all modes, with rows that come twice, are left out or end before the last index."""
    rows, starts = torch.tensor([0, 2, 2, 5, 1, 0, 4]), torch.tensor([0, 3, 3, 5])
    weights = torch.linspace(-1, 2, 7)
    for mode in ("sum", "mean", "max"):
        yield F.embedding_bag(rows, x, starts, mode=mode)
        yield F.embedding_bag(rows, x, starts, mode=mode, padding_idx=2)
        ends = torch.cat([starts, torch.tensor([7])])
        yield F.embedding_bag(rows, x, ends, mode=mode, include_last_offset=True)
    yield F.embedding_bag(rows, x, starts, mode="sum", per_sample_weights=weights)
    # All equally often: PyTorch's kernel divides by the count of another row (2.13).
    pairs = torch.tensor([0, 5, 1, 0, 5, 1])
    for mode in ("sum", "mean"):
        yield F.embedding_bag(pairs, x, starts, mode=mode, scale_grad_by_freq=True)


OTHERS = {
    "adaptive mean": (lambda x: F.adaptive_avg_pool2d(x, (3, 1)), (2, 3, 7, 5)),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), (2, 3, 7, 5)),
    "max": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 7, 5)),
    "mean of a line": (lambda x: F.avg_pool1d(x, 3, 2, 1), (2, 3, 9)),
    "mean of a volume": (lambda x: F.avg_pool3d(x, (2, 3, 1), 2, (1, 1, 0)), (2, 2, 5, 6, 4)),
    "max of a volume": (lambda x: F.max_pool3d(x, 2, 1, dilation=2), (2, 2, 5, 6, 4)),
    "line": (resized("linear", True, scale_factor=1.5), (2, 3, 6)),
    "volume": (resized("trilinear", False, size=(3, 4, 2)), (2, 2, 3, 2, 4)),
    "antialiased": (
        lambda x: F.interpolate(x, size=(3, 4), mode="bicubic", antialias=True),
        (2, 2, 8, 9),
    ),
    "convolution": (
        lambda x: F.conv2d(
            x, torch.arange(72.0).view(6, 2, 3, 2) / 36 - 1, stride=(2, 1), padding=(1, 2),
            dilation=(1, 3), groups=2,
        ),
        (2, 4, 8, 6),
    ),
    "convolution of a line": (
        lambda x: F.conv1d(x, torch.arange(12.0).view(2, 3, 2), stride=3), (2, 3, 10)
    ),
    "kernel": (
        lambda w: F.conv2d(
            torch.arange(336.0).view(2, 4, 7, 6) / 99, w, stride=(2, 3), padding=(0, 1), groups=2
        ),
        (6, 2, 3, 2),
    ),
    "transposed": (
        lambda x: F.conv_transpose2d(
            x, torch.ones(4, 3, 3, 2), stride=(2, 3), groups=2, output_padding=(1, 2),
            dilation=(3, 1),
        ),
        (2, 4, 3, 4),
    ),
    "transposed kernel": (
        lambda w: F.conv_transpose2d(
            torch.arange(48.0).view(1, 4, 3, 4) / 9, w, stride=2, padding=1, output_padding=1
        ),
        (4, 3, 3, 2),
    ),
    "prefix sums of exponentials": (lambda x: x.logcumsumexp(1), (3, 5)),
    "factors": (lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(3)), (2, 3, 4)),
    "systems": (lambda x: torch.linalg.solve(x.flip(1), torch.ones(3, 2)), (2, 3, 3)),
    "inverses": (lambda x: torch.linalg.inv(x + 3 * torch.eye(3)), (2, 3, 3)),
    "determinants": (lambda x: torch.linalg.slogdet(x)[1] + torch.linalg.det(x), (2, 3, 3)),
    "eigenvalues": (lambda x: torch.linalg.eigvalsh(x + x.mT), (3, 3)),
    "singular values": (lambda x: torch.linalg.svdvals(x), (3, 4)),
    "samples": (
        lambda x: F.grid_sample(
            x, torch.linspace(-1.2, 1.2, 24).view(1, 3, 4, 2), align_corners=False
        ),
        (1, 2, 5, 4),
    ),
    "exponentials": (torch.matrix_exp, (2, 3, 3)),
    "copies at edges, shrinks": (
        lambda x: F.pad(F.softshrink(x) + F.hardshrink(x), (2, 1, -1, 3), "replicate"),
        (1, 2, 4, 3),
    ),
    "places in order": (
        lambda x: torch.zeros(3, 4).masked_scatter(torch.arange(4) % 3 > 0, x), (4, 4)
    ),
    "frequent rows": (
        lambda x: F.embedding(torch.tensor([0, 2, 2, 1]), x, 1, scale_grad_by_freq=True), (4, 3)
    ),
    "margins of classes": (
        lambda x: F.multi_margin_loss(x, torch.tensor([2, 0]), p=2), (2, 4)
    ),
    "quantiles": (
        lambda x: x.quantile(torch.tensor([0.2, 0.5]), 1).T + x.nanquantile(0.7, 1, True), (3, 5)
    ),
    "covariances": (lambda x: torch.cov(x) + torch.corrcoef(x), (3, 5)),
    "distances": (lambda x: joined(*all_distances(x)), (5, 3)),
    "bags": (lambda x: joined(*bags(x)), (6, 3)),
    "weights of bags": (
        lambda w: F.embedding_bag(
            torch.tensor([0, 2, 2, 1]), torch.arange(12.0).view(4, 3), torch.tensor([0, 1]),
            mode="sum", per_sample_weights=w, padding_idx=1,
        ),
        (4,),
    ),
    "likelihoods": (
        lambda x: joined(
            F.gaussian_nll_loss(x, x.detach() + 1, x.detach() ** 2, full=True, reduction="none"),
            F.gaussian_nll_loss(x, x.detach() - 1, x[:, 0] ** 2, eps=0.3, reduction="sum"),
            F.gaussian_nll_loss(x, x.detach() * 2, 0.5),
        ),
        (4, 3),
    ),
    "weighted covariances": (
        lambda x: joined(
            torch.cov(x, fweights=torch.tensor([1, 0, 2, 3, 1])),
            torch.cov(x, aweights=torch.tensor([0.1, 2.0, 0.3, 1.0, 0.5]), correction=0),
            torch.cov(x, fweights=torch.arange(5), aweights=torch.arange(5) / 3),
            torch.corrcoef(x[0] * 2).reshape(1),
        ),
        (3, 5),
    ),
    "margins of labels": (
        lambda x: F.multilabel_margin_loss(x, torch.tensor([[2, 0, -1, 1], [3, -1, 0, 0]])),
        (2, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    assert_gradient(*OTHERS[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_types(dtype):
    assert_gradient(resized("bilinear", False, scale_factor=2), (2, 2, 4, 3), dtype)
    assert_gradient(lambda x: F.avg_pool2d(x, 2), (2, 2, 4, 6), dtype)
