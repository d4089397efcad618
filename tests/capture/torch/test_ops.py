"""ATen's ops, many in one program, against eager; test_opinfo.py has the whole database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.capture.torch.models import torch
from tests.tolerance import difference
from weft.array.exchange import to_numpy
from weft.capture import capture
from weft.evaluate import evaluate

F = torch.nn.functional


def drawn(*shape: int) -> Any:
    """Floats of both signs, and no two of them the same."""
    count = torch.Size(shape).numel()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(7))
    return (order.reshape(shape) - count / 3) / 8


TALL, KERNEL, GROUPED = drawn(6, 2), drawn(2, 4, 3, 2), drawn(4, 1, 2, 3)


def views(x: Any) -> list[Any]:
    y = x.clone()
    y[1:3, ::2] = 0
    y[0] = x[2]
    return [
        y, x.flip(0, 2), x.permute(2, 0, 1), x.roll(2, 1), x[1:, -1], x[:, 1:5:3].squeeze(0),
        *x.split([1, 3], 0), *x.unbind(1), x[None].expand(2, -1, -1, -1), x.repeat(2, 1, 3),
        x.diagonal(), x.diagonal(1), x.diagonal(-2, 1, 2), torch.diag_embed(x[0], -1),
        x.unfold(2, 3, 2), torch.as_strided(x, (3, 2), (6, 4), 5), F.pad(x, (1, -2, 0, 3), value=7),
        torch.as_strided_scatter(x, y[0, :3, :2], (3, 2), (6, 4), 5),
        torch.cat([x, y[:1]], 0), torch.select_scatter(x, y[:, 0], 1, 3), x.tril(1), x.triu(-1),
    ]  # fmt: skip


def conversions(x: Any) -> list[Any]:
    pairs = x.reshape(-1, 2)
    numbers = torch.view_as_complex(pairs)
    return [
        numbers * numbers, torch.view_as_real(numbers), numbers.conj() * 1j, numbers.abs(),
        x.view(torch.int32), x.view(torch.float32), x.view(torch.int16), x.view(torch.int64),
        torch.polar(x.abs(), x), x.to(torch.int8), x.to(torch.bool), x.to(torch.bfloat16),
    ]  # fmt: skip


def indices(x: Any) -> list[Any]:
    rows, columns = torch.tensor([2, -1, 0, 2]), torch.tensor([4, 0, -2, 1])
    put, masked = x.clone(), x.clone()
    put[rows, columns] = 9.0
    masked[x > 0] = -1.0
    wide = torch.tensor([[0, 3, 1], [2, 2, 0]])
    low = x[:2, :3]
    return [
        x[rows], x[:, columns], x[rows, columns], put, masked, x[rows[:, None], columns],
        x.index_put((rows, columns), torch.arange(4.0), accumulate=True),
        x.index_select(1, columns.abs()), x.gather(1, wide), x.gather(0, wide),
        x.scatter(1, wide, low), x.scatter(0, wide, 5.0), x.scatter_add(1, wide, low),
        x.scatter_reduce(1, wide, low, "mean"),
        x.scatter_reduce(1, wide, low, "amax", include_self=False),
        x.index_add(0, rows.abs(), x[:4], alpha=2), x.index_copy(1, torch.tensor([3, 0]), x[:, :2]),
        torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.5])), F.embedding(wide, x, padding_idx=1),
        torch.bucketize(x, torch.tensor([-0.5, 0.125]), right=True), x.take(wide),
    ]  # fmt: skip


def reductions(x: Any) -> list[Any]:
    some = x.clone()
    some[0, 1] = float("nan")
    return [
        x.sum(), x.sum(1, keepdim=True), (x / 4).prod(0), (x > 2).any(1), (x > -9).all(0),
        x.amax(1), x.amin(0), x.mean(1), x.var(1), x.var((0, 1), correction=0), x.std(0),
        *torch.var_mean(x, 1, correction=2), *x.max(1), *x.min(0), x.argmax(), x.argmin(1),
        some.amax(1), some.argmax(1), some.nansum(), x.cumsum(1), (x / 4).cumprod(0),
        *x.cummax(1), *x.cummin(0), x.softmax(1), x.log_softmax(0),
        x.logsumexp(1), x.norm(dim=1), x.norm(3, dim=0), x.count_nonzero(1), x.aminmax().max,
        torch.histc(x, 4, -2.0, 2.0), x.long().sum(0), (x > 0).sum(), x.to(torch.bool).cumsum(0),
    ]  # fmt: skip


def orders(x: Any) -> list[Any]:
    return [
        *x.sort(1), *x.sort(0, descending=True), *x.topk(3, 1), *x.topk(2, 0, largest=False),
        *x.kthvalue(2, 1), *x.median(1), x.median(), x.argsort(1), x.quantile(0.3, 1),
        x.long().sort(stable=True).values,
    ]  # fmt: skip


def searches(x: Any) -> list[Any]:
    some, whole = x.clone(), (x * 4).long()
    some[0, 1] = some[2] = float("nan")
    edges, many = x.sort(1).values, torch.linspace(-3, 3, 101)
    places = torch.tensor([0, 2, 1, 2])
    return [
        torch.searchsorted(edges, x.flip(1)), torch.searchsorted(edges[1], some, side="right"),
        torch.searchsorted(many, some), torch.searchsorted(many, some, right=True),
        torch.searchsorted(x, x, sorter=x.argsort(1), out_int32=True),
        torch.searchsorted(edges[0], 0.25), torch.bucketize(some, many[::5].clone()),
        torch.bucketize(whole, torch.tensor([-5, 0, 3])), torch.bucketize(2, edges[0]),
        torch.isin(whole, whole[:2]), *whole.clamp(-2, 2).mode(1), *x.mode(0, keepdim=True),
        some.nanmedian(), some.nanmedian(1).values, *some[:2].nanmedian(1),
        *whole.nanmedian(0, keepdim=True),
        (30 * some).logcumsumexp(1), torch.full_like(x, -float("inf")).logcumsumexp(0),
        torch.histc(x, 5), torch.histc(x[:1, :1], 3), *torch.histogram(x, 5),
        *torch.histogram(x[:1, :1], 3),
        *torch.histogram(x, 4, range=(-1.0, 1.0), weight=x.abs(), density=True),
        *torch.histogram(x, many[::20].clone()), torch.nonzero_static(whole > 0, size=40),
        torch.nonzero_static(whole, size=9, fill_value=7), torch.nonzero_static(x < -9, size=2),
        x.repeat_interleave(torch.tensor([2, 0, 1, 1, 0, 3, 1]), 1, output_size=8),
        x.put(places, x[0, :4], accumulate=True), x.index_reduce(0, places, x, "amax"),
        x.index_reduce(1, places, x[:, :4], "mean", include_self=False),
        x.diagonal_scatter(x[0, :4], 2), F.embedding(places, x.clone(), max_norm=0.5),
    ]  # fmt: skip


def images(x: Any) -> list[Any]:
    small = (20 * x).abs().clamp(0, 255).to(torch.uint8)
    return [
        F.interpolate(small, (3, 4), mode="bilinear", antialias=True),
        F.interpolate(small, (9, 4), mode="bicubic", antialias=True),
        F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, (2, 3), 1, dilation=(2, 1), ceil_mode=True),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.avg_pool2d(x, 2, 3, ceil_mode=True),
        F.avg_pool1d((9 * x[:, 0]).long(), 3, 2, 1), F.avg_pool2d(x, 2, divisor_override=3),
        F.adaptive_avg_pool2d(x, (3, 2)),
        *F.adaptive_max_pool2d(x, (2, 3), return_indices=True), F.lp_pool2d(x.abs(), 2, 2),
        F.interpolate(x, (9, 4), mode="nearest"), F.interpolate(x, (9, 4), mode="nearest-exact"),
        F.interpolate(x, (9, 4), mode="bilinear"), F.interpolate(x, (5, 11), mode="bicubic"),
        F.interpolate(x, (9, 4), mode="bilinear", align_corners=True),
        F.interpolate(x, (4, 3), mode="bilinear", antialias=True),
        F.interpolate(x, (4, 3), mode="bicubic", antialias=True), F.pixel_shuffle(x, 2),
        F.pad(x, (2, 1, 1, 2), mode="reflect"), F.pad(x, (2, 1, 0, 3), mode="circular"),
        F.conv2d(x, KERNEL, padding=1, stride=2), F.unfold(x, 2, padding=1, stride=2),
        F.conv_transpose2d(x, GROUPED, stride=2, output_padding=1, groups=2),
    ]  # fmt: skip


def volumes(x: Any) -> list[Any]:
    grid = torch.linspace(-1.4, 1.4, 54).view(2, 1, 3, 3, 3)
    return [
        F.grid_sample(x, grid, mode, padding, align)
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border", "reflection")
        for align in (False, True)
    ]


def elements(x: Any) -> list[Any]:
    y, whole = x.flip(0), (x * 4).long()
    other = torch.where(whole.flip(1) == 0, -3, whole.flip(1))
    odd = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan")])
    return [
        x - 2 * y, torch.sub(x, y, alpha=3), torch.rsub(x, 2), x / y, torch.addcmul(x, x, y),
        torch.div(x, 0.75, rounding_mode="floor"), torch.div(x, 0.75, rounding_mode="trunc"),
        whole // other, whole % other, torch.fmod(whole, other), torch.fmod(x, 0.75), x % -0.75,
        torch.div(whole, other, rounding_mode="trunc"), x**3, x.abs() ** 0.5,
        whole**2, 2**x, x**-2, x.clamp(-1, 2), x.clamp(max=y), x.round(),
        x.trunc(), x.frac(), x.sign(), odd.sign(), odd.signbit(), odd.isinf(), odd.nan_to_num(),
        x.copysign(odd[1]), torch.hypot(x, y), torch.atan2(x, y), torch.logaddexp(x, y), x.exp2(),
        x.abs().log2(), x.abs().log10(), x.expm1(), x.sigmoid(), F.gelu(x), F.silu(x), F.relu6(x),
        F.softplus(x), F.hardswish(x), F.leaky_relu(x, 0.1), x.reciprocal(), x.abs().rsqrt(),
        torch.fmax(odd, odd.flip(0)), torch.maximum(odd, odd.flip(0)), x.lerp(y, 0.25),
        x.heaviside(y), whole << 2, whole >> 1, whole >> torch.tensor(2), ~whole,
        whole & other, whole ^ other, (x > 0) ^ (y > 0), x.logical_not(),
        torch.logical_xor(x, y), whole.bitwise_or(5), x.eq(y), x.ne(1), x.erf(), x.tanh(), x.sinc(),
        1 << whole.abs() % 9, 100 >> whole.abs() % 9, torch.bitwise_left_shift(whole, 3),
        torch.gcd(whole, other), torch.lcm(whole, other), torch.gcd(whole, torch.tensor(6)),
        x.round(decimals=1), (100 * x).round(decimals=-1), x.bfloat16().round(decimals=2),
        F.bilinear(x, y, x.reshape(2, 2, 6).repeat(1, 3, 1)),
        torch.where(x > 0, x, y), torch.arange(1, 9, 3) + whole[0, 0], torch.full_like(x, 2.5),
        torch.linspace(0, 1, 5) * x[0, 0], torch.addmm(x[:, :2], x, TALL, beta=0.5, alpha=2),
    ]  # fmt: skip


def spectra(x: Any) -> list[Any]:
    half = torch.fft.rfft(x)
    return [
        torch.fft.fft(x, dim=0), torch.fft.ifft(x, n=5), half, torch.fft.irfft(half, n=6),
        torch.fft.rfft2(x, norm="ortho"), torch.fft.fftn(x, norm="forward"), torch.fft.fftshift(x),
        torch.fft.hfft(half, norm="forward"), torch.fft.ihfft(x),
    ]  # fmt: skip


def factors(x: Any) -> list[Any]:
    square = x[:, :, :3].sin() + 2 * torch.eye(3)
    spread = square @ square.mT + torch.eye(3)
    lower, b = torch.linalg.cholesky(spread), x[:, :, 2:4]
    packed, pivots = torch.linalg.lu_factor(square.flip(1))
    return [
        lower, torch.linalg.cholesky(spread, upper=True), torch.linalg.inv(square.flip(1)),
        *torch.linalg.cholesky_ex(spread - 3 * torch.eye(3)),
        torch.linalg.solve_triangular(lower, b[:1], upper=False), torch.linalg.det(square.flip(1)),
        torch.linalg.solve_triangular(lower.mT, b.mT, upper=True, left=False, unitriangular=True),
        torch.linalg.solve(square.flip(1), b), torch.linalg.solve(square, x[:, :, 0]),
        torch.linalg.solve(square.flip(1), b.mT, left=False), *torch.linalg.slogdet(square.flip(2)),
        packed, pivots, *torch.linalg.lu(x), torch.linalg.lu_solve(packed, pivots, b),
        torch.linalg.lu_solve(packed, pivots, b, adjoint=True), torch.linalg.pinv(x),
        torch.linalg.lu_solve(packed, pivots, b.mT, left=False),
        torch.linalg.lu_solve(packed, pivots, b.mT, left=False, adjoint=True),
        *torch.linalg.qr(x), *torch.linalg.qr(x.mT, mode="complete"), torch.linalg.qr(x, "r")[1],
        torch.linalg.svdvals(x), torch.linalg.eigvalsh(spread), torch.cholesky_solve(b, lower),
        torch.cholesky_inverse(lower), torch.linalg.matrix_norm(x, "nuc"),
        torch.linalg.cond(square),
    ]  # fmt: skip


GROUPS: list[tuple[Callable[..., list[Any]], tuple[int, ...]]] = [
    (views, (4, 5, 6)),
    (conversions, (4, 6)),
    (indices, (4, 5)),
    (reductions, (4, 6)),
    (orders, (4, 7)),
    (searches, (4, 7)),
    (factors, (2, 3, 5)),
    (images, (1, 4, 7, 8)),
    (volumes, (2, 2, 3, 1, 4)),
    (elements, (4, 6)),
    (spectra, (4, 6)),
]  # fmt: skip


def assert_agrees(made: Callable[..., list[Any]], x: Any) -> None:
    """All results of a function, captured and evaluated, are eager's."""
    expected = made(x.clone())
    found = evaluate(capture(made, [x]).module, to_numpy(x))
    for n, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        told = difference(ours, to_numpy(theirs.resolve_conj()), length=64, least=1e-4)
        assert told is None, f"result {n}: {told}"


@pytest.mark.parametrize(("made", "shape"), GROUPS, ids=[made.__name__ for made, _ in GROUPS])
def test_ops_agree_with_eager(made: Callable[..., list[Any]], shape: tuple[int, ...]) -> None:
    assert_agrees(made, drawn(*shape))
