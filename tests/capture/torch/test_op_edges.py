"""ATen's ops at the edges of their options: ranks of 0, empty sizes, ties, NaN, defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.capture.torch.models import torch
from tests.capture.torch.test_ops import assert_agrees, drawn

F = torch.nn.functional
NAN, INF = float("nan"), float("inf")


def waves(*shape: int) -> Any:
    """Numbers of both signs, made in the program."""
    return torch.arange(torch.Size(shape).numel()).sin().reshape(shape)


def empty_views(x: Any) -> list[Any]:
    stepped, none, late = x.clone(), x.clone(), x.clone()
    stepped[:, :5:2] = x[:, :3] * 2
    none[:, 4:2:2] = 9
    late[3::5] = x[:1]
    late[:, -1::3, :2] = 5
    vector, nothing = x[0, 0], x[0, 0, :0]
    return [
        x[:, 3:3], x[-100:2], x[5:2], x[-2:], x[:, :, -1], stepped, none, late, x.select(-1, -6),
        x.select(1, 0), torch.cat([nothing, vector, nothing]), torch.cat([nothing, nothing]),
        x.flip(()), x.diagonal(6), x.diagonal(-4), x.diagonal(5), x.diagonal(1, -1, 0),
        x.diagonal(0, 2, 1), torch.as_strided(x, (0, 2), (1, 1)),
        torch.as_strided(x, (2, 3), (0, 1)), torch.as_strided(x, (2, 2), (7, 3), 1),
        torch.as_strided_scatter(x, x[:0, :2, 0], (0, 2), (1, 1)), x.repeat(2, 0, 1, 1),
        x.repeat(3, 1, 2, 1), *x.split([0, 5], 1), *x.unbind(-1), x.unfold(0, 4, 1),
        x.unfold(-1, 1, 5), x.unfold(1, 2, 4), F.pad(x, (0, 1)),
        F.pad(x, (2, 0, -1, 1, 0, 2), value=-3.5), torch.select_scatter(x, x[:, :, 0], -1, -2),
        torch.slice_scatter(x, x[:, :, :2], 2, 1, 3), torch.slice_scatter(x, x, 0),
        torch.slice_scatter(x, x[:, :2], 1, 0, 4, 2), x.permute(-1, 0, -2), x.tril(-1), x.triu(2),
        x.to(torch.int8).tril(9), x.new_zeros(()).expand(2, 3),
    ]  # fmt: skip


def scalars(x: Any) -> list[Any]:
    return [
        x.unfold(0, 1, 1), x.cumsum(0), x.cumprod(-1), *x.cummax(0), *x.cummin(0), *x.max(0),
        *x.min(-1), x.argmax(), x.argmin(0), x.softmax(0), x.log_softmax(0), *x.sort(), *x.topk(1),
        *x.kthvalue(1), *x.median(0), x.median(), *x.mode(), *x.nanmedian(0), x.nanmedian(),
        x.logcumsumexp(0), x.sum(0), x.mean(()), x.var(correction=0), x.prod(),
        x.gather(0, torch.tensor([0, 0])), x.index_select(0, torch.tensor([0])),
        x.scatter(0, torch.tensor(0), 4.0), x.index_add(0, torch.tensor([0]), x),
        x.index_reduce(0, torch.tensor([0]), x, "amax"), x.flip(()), x.repeat(3),
        x.index_copy(0, torch.tensor(0), x + 1), torch.nonzero_static(x, size=2),
    ]  # fmt: skip


def narrow_reductions(x: Any) -> list[Any]:
    """Counts, ties, corrections, and lengths of powers of two and one more."""
    ties, whole = x.round() % 3, (x * 4).long()
    odd = ties.clone()
    odd[1, 2] = odd[1, 4] = odd[2, 0] = NAN
    flat = x.reshape(-1)
    parts = torch.complex(x, x.flip(1))
    small = x.to(torch.bfloat16)
    return [
        *ties.max(1), *ties.min(0), *ties.cummax(1), *ties.cummin(1), ties.argmax(0),
        ties.argmin(1, keepdim=True), ties.argmax(keepdim=True), *odd.max(1), *odd.min(0),
        *odd.cummax(1), *odd.cummin(1), odd.argmin(), odd.amin(0), odd.nansum(1), odd.nanmean(),
        *whole.max(0), *whole.min(1, keepdim=True), *whole.cummax(0), whole.amax((0, 1), True),
        whole.amin(), whole.prod(1), whole.to(torch.int8).sum(), whole.to(torch.uint8).all(1),
        whole.to(torch.uint8).any(0), whole.sum(1, dtype=torch.float32), whole.cumprod(1),
        x[:, :1].var(1), x[:, :2].var(1, correction=2), x[:, :2].var(1, correction=3),
        x.var(unbiased=False), x.std((0, 1), keepdim=True), parts.var(1), *torch.var_mean(parts, 0),
        *torch.std_mean(x, (0,), correction=0, keepdim=True), parts.mean(0), parts.prod(1),
        x[:0].sum(0), x[:0].mean(0), x[:0].prod(), x[:0].all(0), x[:0].any(), x[:0].var(0),
        x[:, :0].logsumexp(1), flat[:4].cumsum(0), flat[:5].cumsum(0), flat[:1].cumprod(0),
        flat[:4].logcumsumexp(0), flat[:5].logcumsumexp(0), flat[:3].cummax(0)[1],
        flat[:9].cumsum(0), small.mean(1), small.var(0), small.softmax(-1), small.cumsum(1),
        small.log_softmax(0), small.softmax(1, dtype=torch.float32), small.sum(),
        small.double().std(), torch.histc(ties, 3), torch.histc(x, 4, -1.0, 3.0),
        torch.histc(x, 6, 2.0, 2.0), torch.histc(odd[:1, :3] * 0 + 2, 4), x.norm(0, dim=1),
        x.norm(1, dim=0), x.norm(INF, dim=1), x.norm(-INF, dim=0), x.norm(dim=(0, 1)),
        x.renorm(2, 0, 1.5), x.aminmax(dim=1).min,
    ]  # fmt: skip


def index_edges(x: Any) -> list[Any]:
    rows, columns = torch.tensor([[2, -1], [0, 0]]), torch.tensor([4, -5])
    some = torch.tensor([True, False, True, False])
    added, masked, put = x.clone(), x.clone(), x.clone()
    added[:, rows, 1] = 3
    masked[some] = 2.5
    put[rows, :, columns] = x[:2, :, 0] + 1
    flat, whole = x[:, :, 0], (x[:, :, 0] * 4).long()
    along = torch.tensor([[0, 1, 0], [2, 2, 0]])
    update = flat[:2, :3] + 1
    none = torch.zeros((0,), dtype=torch.int64)
    modes = ("sum", "prod", "mean", "amax", "amin")
    return [
        x[rows], x[:, rows], x[rows, :, columns], x[:, columns, rows], x[..., rows], x[none],
        x[:, none, :2], x[rows.to(torch.int32)], added, masked, put, x[None, rows, :, 1],
        x.index_put((some,), torch.tensor(2.0), accumulate=True), x.index_put((none,), x[:0]),
        x.index_put((rows, columns), x[0, 0, :6].view(1, 1, -1)),
        x.index_put((rows,), x[:1, :1, :1], accumulate=True), x.index_select(-1, none),
        x.index_select(1, torch.tensor([4, 4, 0])), flat.gather(-1, along),
        flat.gather(0, none[:, None]), flat.scatter(0, along, update), flat.scatter(1, along, -2.0),
        flat.scatter(0, none[:, None], 1.0), flat.scatter(1, along, update, reduce="add"),
        flat.scatter(1, along, 3.0, reduce="multiply"), flat.scatter_add(-1, along, flat[:3, :4]),
        *[flat.scatter_reduce(1, along, update, m) for m in modes],
        *[flat.scatter_reduce(0, along, update, m, include_self=False) for m in modes],
        *[whole.scatter_reduce(1, along, whole[:2, :3], m) for m in modes],
        *[whole.scatter_reduce(1, along, whole[:2, :3], m, include_self=False) for m in modes],
        x.index_add(1, columns.abs() % 5, x[:, :2], alpha=-1), x.index_add(-1, none, x[..., :0]),
        x.index_copy(-1, torch.tensor([5, 0]), x[..., :2]), x.index_fill(1, columns.abs() % 5, 1.0),
        *[flat.index_reduce(1, torch.tensor([1, 3, 1]), flat[:, :3], m, include_self=s)
          for m in ("prod", "amin", "mean") for s in (True, False)],
        flat.masked_scatter(flat > 0, flat.flip(0)), flat.masked_scatter(some[:, None], flat * 2),
        flat.masked_fill(flat > 1, -4.0), flat.put(torch.tensor([3, 0, -1]), flat[0, :3]),
        flat.put(torch.tensor([3, 3]), flat[0, :2], accumulate=True),
        flat.take(torch.tensor([-1, 19])), flat.diagonal_scatter(flat[0, :3], -1),
        flat.diagonal_scatter(flat[:, 0], 1), torch.nonzero_static(flat > 0, size=3),
        torch.nonzero_static(x[:, :2, :2] > 1, size=17), F.one_hot(along, 4),
        F.embedding(along, flat), torch.isin(whole, torch.tensor([1, -2])),
        x.repeat_interleave(2, 1), torch.take_along_dim(flat, flat.argsort(1), 1),
    ]  # fmt: skip


def orders_and_searches(x: Any) -> list[Any]:
    ties, whole = x.round() % 4, (x * 2).long()
    odd = ties.clone()
    odd[0, 3], odd[2] = NAN, NAN
    zeros = torch.tensor([0.0, -0.0, 1.0, -0.0, 0.0])
    edges, many = x[1].sort().values, torch.arange(66.0) / 4 - 6
    exact, last = many[[0, 5, 31, 64, 65]], torch.tensor([-7.0, 10.25, 10.5, NAN])
    batch = x.sort(1).values
    return [
        *ties.sort(stable=True, dim=1), *ties.sort(stable=True, dim=1, descending=True),
        *zeros.sort(stable=True), odd.sort(1).values, odd.sort(0, descending=True).values,
        *whole.sort(stable=True, dim=-1), odd.median(1).values, odd.median(),
        odd.nanmedian(1).values, odd.nanmedian(), *x[:, :6].median(1), *x.median(0, keepdim=True),
        *whole.median(1), *x.kthvalue(7, 1), *x.kthvalue(1, 0, True), *x.topk(7),
        *x.topk(1, 0, largest=False), *x.nanmedian(1, keepdim=True), *ties.long().mode(1),
        *ties.mode(0), *whole.mode(-1, keepdim=True), *x[:, :1].mode(1),
        torch.searchsorted(edges, edges), torch.searchsorted(edges, edges, right=True),
        torch.searchsorted(many, exact), torch.searchsorted(many, exact, right=True),
        torch.searchsorted(many, last), torch.searchsorted(many, last, side="right"),
        torch.searchsorted(many[:64].clone(), exact), torch.searchsorted(many[:65].clone(), exact),
        torch.searchsorted(many[:1].clone(), last), torch.searchsorted(batch, x, out_int32=True),
        torch.searchsorted(batch.repeat(1, 10).sort(1).values, x, side="right"),
        torch.searchsorted(edges, 0.5, right=True), torch.bucketize(x, edges, out_int32=True),
        torch.bucketize(0.5, edges, right=True),
        torch.bucketize(ties, torch.tensor([0.0, 2.0, 3.0])),
        torch.bucketize(1.5, torch.tensor([1, 2])), torch.searchsorted(torch.tensor([1, 2]), 2),
        *torch.histogram(ties, torch.tensor([0.0, 1.0, 1.5, 3.0])),
        *torch.histogram(x, 3, range=(0.0, 2.0)), *torch.histogram(ties, 2, density=True),
        *torch.histogram(x[:0], 3),
        *torch.histogram(ties, torch.tensor([0.0, 1.0, 3.0]), weight=x), x.logcumsumexp(0),
        x.quantile(torch.tensor([0.0, 0.5, 1.0]), 0), x.nanquantile(0.4),
        *(x.quantile(torch.tensor([0.4]), 1, True, interpolation=how)
          for how in ("lower", "higher", "midpoint", "nearest")),
        torch.tensor([12, -18, 0, 0, 7]).lcm(torch.tensor([-8, 12, 5, 0, 7])),
        torch.tensor([12, -18, 0, 0, 7]).gcd(torch.tensor([-8, 12, 5, 0, 7])),
        (x * 100).round(decimals=-2), x.round(decimals=0), x.round(decimals=3), x.msort(), x.diff(),
        torch.trapezoid(x, dim=1),
    ]  # fmt: skip


def pooling(x: Any) -> list[Any]:
    odd, low, ties = x.clone(), torch.full_like(x, -INF), x.round() % 3
    odd[0, 1, 2, 3] = odd[0, 0, 0, 0] = NAN
    volume = x.reshape(1, 2, 2, 8, 7)
    line = x[0].reshape(4, 56)
    return [
        *F.max_pool2d(ties, 3, 2, 1, return_indices=True),
        *F.max_pool2d(odd, 2, 2, 1, return_indices=True),
        *F.max_pool2d(low, 3, 2, 1, return_indices=True),
        *F.max_pool1d(line, 5, 3, 2, return_indices=True),
        *F.max_pool2d(x, (3, 2), (2, 3), (1, 0), (1, 2), True, True), F.max_pool2d(x[0], 2),
        *F.max_pool3d(volume, 2, 1, 1, return_indices=True),
        F.max_pool3d(volume, (1, 2, 3), ceil_mode=True), F.avg_pool2d(x, 3, 2, 1, True),
        F.avg_pool2d(x, (3, 2), (2, 3), (1, 0), True, False), F.avg_pool2d(x, 2, 5, 1, True),
        F.avg_pool2d(x, 3, 1, 1, divisor_override=5), F.avg_pool1d(line, 4, ceil_mode=True),
        F.avg_pool3d(volume, (2, 3, 2), (1, 2, 3), (1, 0, 1)), F.avg_pool2d(x[0], (1, 3)),
        F.avg_pool2d(x.to(torch.bfloat16), 3, 2), F.avg_pool2d(x.double(), 2),
        F.adaptive_avg_pool2d(x, (8, 7)), F.adaptive_avg_pool2d(x, (1, 1)),
        F.adaptive_avg_pool2d(x, (1, 4)), F.adaptive_avg_pool2d(x, (3, None)),
        F.adaptive_avg_pool2d(x, (11, 2)), F.adaptive_avg_pool1d(line, 9),
        F.adaptive_avg_pool3d(volume, (1, 3, 4)),
        F.adaptive_avg_pool2d(x.to(torch.bfloat16), (3, 5)),
        *F.adaptive_max_pool2d(ties, (3, 5), return_indices=True),
        F.adaptive_max_pool2d(odd, (8, 1)), *F.adaptive_max_pool2d(x, (9, 7), return_indices=True),
        F.adaptive_max_pool2d(x, (0, 3)),
        *F.adaptive_max_pool3d(volume, (1, 3, 2), return_indices=True),
        F.adaptive_max_pool1d(line, 6),
        F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(8, 7)),
    ]  # fmt: skip


def resampling(x: Any) -> list[Any]:
    line, volume = x[:, 0], x[:, :, None]
    points = torch.linspace(-1.3, 1.3, 24).view(1, 4, 3, 2)
    return [
        F.interpolate(x, scale_factor=1.7, mode="bilinear"),
        F.interpolate(x, scale_factor=(0.6, 2)),
        F.interpolate(x, scale_factor=(2, 1), mode="nearest"), F.interpolate(x, scale_factor=2.3),
        F.interpolate(x, scale_factor=1.4, mode="nearest-exact"),
        F.interpolate(x, (1, 3), mode="bilinear"),
        F.interpolate(x, (1, 3), mode="bilinear", align_corners=True),
        F.interpolate(x, (7, 6), mode="bilinear"), F.interpolate(x, (9, 1), mode="bicubic"),
        F.interpolate(x, (3, 9), mode="bicubic", align_corners=True),
        F.interpolate(x, scale_factor=0.4, mode="bicubic"),
        F.interpolate(x[..., :1], (4, 5), mode="bilinear"),
        F.interpolate(x[..., :1, :], (4, 5), mode="bicubic"), F.interpolate(line, 9, mode="linear"),
        F.interpolate(line, 9, mode="linear", align_corners=True),
        F.interpolate(volume, (3, 4, 5), mode="trilinear"),
        F.interpolate(x.double(), (9, 5), mode="bilinear"),
        F.interpolate(x.bfloat16(), (9, 5), mode="bilinear"),
        F.interpolate(x, (3, 8), mode="bilinear", antialias=True),
        F.interpolate(x, (2, 2), mode="bicubic", antialias=True),
        F.interpolate(x, (9, 3), mode="bicubic", antialias=True, align_corners=True),
        F.interpolate(x, scale_factor=0.37, mode="bilinear", antialias=True),
        F.pixel_unshuffle(x[..., :6, :], 2), F.pad(x, (1, 0, 2, 3), mode="replicate"),
        F.pad(line, (3, 2), mode="reflect"), F.pad(x, (0, 2, 1, 0), mode="circular"),
        F.fold(F.unfold(x, (2, 3), (2, 1), 1, 2), (7, 6), (2, 3), (2, 1), 1, 2),
        F.grid_sample(x, points, "bicubic", "reflection", True),
        F.affine_grid(torch.tensor([[[1.0, 0.2, 0.1], [0.3, -1.0, 0.5]]]), (1, 2, 3, 4), False),
    ]  # fmt: skip


def convolutions(x: Any) -> list[Any]:
    line, volume = x[:, :, 0], x.reshape(1, 2, 2, 7, 6)
    kernel, narrow = waves(4, 2, 3, 2), waves(4, 2, 3)
    bias = torch.tensor([1.0, -2.0, 0.5, 3.0])
    return [
        F.conv2d(x, kernel, bias, (2, 1), (0, 2), (2, 1), 2), F.conv2d(x[0], waves(3, 4, 1, 1)),
        F.conv2d(x, waves(4, 4, 3, 2), padding="same"), F.conv1d(line, narrow, bias, 2, 1, 2, 2),
        F.conv3d(volume, waves(2, 2, 2, 3, 1), None, (1, 2, 3), (1, 0, 1), (1, 2, 1)),
        F.conv_transpose2d(x, waves(4, 3, 3, 2), bias[:3], (2, 3), (1, 0), (1, 2), 1, (1, 2)),
        F.conv_transpose2d(x, waves(4, 2, 3, 2), bias, 2, 1, 0, 2),
        F.conv_transpose1d(line, waves(4, 2, 3), stride=3, dilation=2),
        F.conv_transpose3d(volume, waves(2, 2, 2, 3, 1), stride=2, padding=(0, 1, 0)),
        F.conv2d(x, waves(4, 1, 2, 2), groups=4),
        F.conv2d(x.double(), x.double().expand(4, -1, -1, -1)[:, :2, :3, :2], groups=2),
    ]  # fmt: skip


def products(x: Any) -> list[Any]:
    square, many = x[0] @ x[0].mT, x @ x.mT
    vector, parts = x[0, :, 0], torch.complex(x, x.flip(0))
    lost = torch.full_like(square, NAN)
    return [
        torch.addmm(lost, square, square, beta=0),
        torch.addmm(square, x[0], x[1].mT, beta=1, alpha=-1),
        torch.addmm(vector, square, square, beta=-2, alpha=0.5),
        torch.baddbmm(many, many, many, beta=0.5), torch.baddbmm(many[:1], x, x.mT, alpha=3),
        torch.addbmm(square, x, x.mT, beta=2, alpha=-1),
        torch.addmv(vector, square, vector, beta=0.5, alpha=2),
        torch.addr(square, vector, vector, alpha=2), torch.bmm(many, x), parts @ parts.mH,
        torch.tensordot(x, x, dims=([0, 2], [0, 2])), torch.einsum("bij,bkj->ik", x, x),
        torch.linalg.multi_dot([square, square, vector]), x @ x[0, 0], torch.outer(vector, vector),
        torch.linalg.vecdot(x, x), torch.chain_matmul(square, square),
        square.bfloat16() @ square.bfloat16(),
        torch.addmm(square.bfloat16(), square.bfloat16(), square.bfloat16(), alpha=2),
        (10 * x[0]).long() @ (10 * x[0]).long().mT, torch.kron(x[0, :2, :2], square[:2]),
        torch.cross(x[:, :3], x[:, 1:4], 1), x[:, :0] @ x.mT, x[..., :0] @ x.mT[:, :0],
        torch.linalg.matrix_power(square / 9, 3), torch.trace(square),
    ]  # fmt: skip


def distances(x: Any) -> list[Any]:
    other = x[:3].flip(1)
    other[1] = x[1]
    labels = torch.tensor([[1, 0, -1, 3, 4, 5, 6], [6, 2, 2, -1, 0, 0, 0]])
    sums = []
    for p in (0.0, 1.0, 1.5, 2.0, 3.0, INF):
        sums += [torch.cdist(x, other, p, "donot_use_mm_for_euclid_dist"), F.pdist(x, p)]
    return [
        *sums, F.pairwise_distance(x[:3], other), F.cosine_similarity(x[:3], other, 0),
        F.bilinear(x[:3], other, waves(2, 7, 7)), F.pdist(x[:1]), torch.cdist(x[:, :0], x[:2, :0]),
        F.huber_loss(x[:3], other, delta=0.5), F.smooth_l1_loss(x[:3], other, reduction="none"),
        F.multilabel_margin_loss(x[:2], labels),
        F.multilabel_margin_loss(x[0], torch.tensor([3, -1, 0, 0, 0, 0, 0]), reduction="sum"),
        F.multilabel_margin_loss(x[:1], torch.tensor([[1, 0, -1, 3, 4, 5, 6]]), reduction="none"),
        F.nll_loss(x, torch.tensor([0, 6, 3, 2]), torch.arange(7.0), ignore_index=3),
        F.cross_entropy(x, torch.tensor([0, 6, 3, 2]), label_smoothing=0.2), F.rrelu(x),
        F.rrelu(x, 0.1, 0.3), F.kl_div(x, other.abs()[:1], reduction="batchmean"), F.celu(x, 0.5),
        F.elu(x, 1.5), F.softshrink(x, 0.3), F.hardshrink(x), F.threshold(x, 0.5, -2.0),
        F.softplus(x, 2, 1.0), F.hardtanh(x, -0.5, 0.25), F.hardsigmoid(x), F.logsigmoid(x),
        F.mish(x), F.selu(x), F.glu(x[:, :6], 1), F.gelu(x, approximate="tanh"),
        F.normalize(x, dim=0), F.tanhshrink(x), F.layer_norm(x, (7,), x[0], x[1], 0.1),
        F.local_response_norm(x[None], 3), F.group_norm(x[None, :, :6], 2),
        torch._weight_norm(x, x[:, :1], 0), F.rms_norm(x, (7,), x[0], 0.5),
        F.instance_norm(x[None]),
    ]  # fmt: skip


def bags(x: Any) -> list[Any]:
    words = torch.tensor([1, 3, 3, 0, 2, 1, 0])
    ends = torch.tensor([0, 2, 2, 7])
    weights = torch.arange(7.0) - 2
    return [
        *[F.embedding_bag(words, x, ends, mode=mode) for mode in ("sum", "mean", "max")],
        *[F.embedding_bag(words, x, ends, mode=m, padding_idx=3) for m in ("sum", "mean", "max")],
        *[F.embedding_bag(words, x, ends, mode=m, include_last_offset=True)
          for m in ("sum", "mean", "max")],
        F.embedding_bag(words, x, ends, mode="sum", per_sample_weights=weights),
        F.embedding_bag(words.view(1, 7), x),
        F.embedding_bag(words[:6].view(2, 3), x, mode="max", padding_idx=1),
        F.embedding(words, x.clone(), max_norm=1.0, norm_type=1.0),
        F.embedding(words[:3], x.clone(), max_norm=2.5),
    ]  # fmt: skip


def products_of_three(x: Any) -> list[Any]:
    """Dims that one or two operands lack, summed or not."""
    y, z = x.flip(0) - 1, x * 2
    trilinear = torch.ops.aten._trilinear
    return [
        trilinear(x, y, z, [], [], [], [0]),
        trilinear(x, y, z, [2], [0], [1], [1]),
        trilinear(x, y, z, [0], [0], [2], [2]),
        trilinear(x, y, z, [2], [2], [0], [0, 1]),
        trilinear(x, y, z, [0], [1], [1], [2]),
        trilinear(x, y, z, [1], [0], [1], [2]),
    ]


def systems(x: Any) -> list[Any]:
    square = x[:, :, :3].sin() + torch.diag(torch.tensor([2.0, -3.0, 1.5]))
    singular = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]])
    spread = square @ square.mT + torch.eye(3)
    upper, b = torch.linalg.cholesky(spread, upper=True), x[:, :, 2:5]
    parts = torch.complex(square, square.flip(1))
    tall, thin = x[0, :, :2], 1e-9 * torch.eye(3)
    both = torch.linalg.lu_factor_ex(singular)
    return [
        torch.cholesky_solve(b, upper, upper=True), torch.cholesky_inverse(upper, upper=True),
        *torch.linalg.cholesky_ex(x[:, :0, :0]), both.info, *torch.linalg.lu(square.mT[..., :2]),
        *torch.linalg.lu(x[:, :2]), torch.linalg.det(parts), *torch.linalg.slogdet(-square),
        torch.linalg.det(square[:, [1, 0, 2]]), torch.linalg.det(square[:, [1, 2, 0]]),
        torch.linalg.solve(square, b[0]), torch.linalg.solve(square[0], b[0, :, 0]),
        torch.linalg.solve(parts, b.to(parts.dtype)), torch.linalg.inv(parts),
        torch.linalg.pinv(tall), torch.linalg.pinv(square + thin, rtol=torch.tensor(0.5)),
        torch.linalg.pinv(x, atol=torch.tensor([0.5, 0.0])),
        torch.linalg.pinv(square, rtol=torch.tensor([0.9, 0.01])), torch.linalg.pinv(x[:, :0]),
        torch.linalg.pinv(square, atol=torch.tensor([1.0, 2.0]), rtol=torch.tensor([0.1, 0.2])),
        torch.linalg.qr(tall, "complete")[1], torch.linalg.qr(tall, "complete")[0].abs(),
        torch.linalg.qr(tall.mT)[1].abs(), torch.linalg.solve_triangular(upper, b, upper=True),
        torch.linalg.eigvalsh(spread, UPLO="U"),
        torch.linalg.solve_triangular(upper[0], b.mT, upper=True, left=False),
        torch.linalg.svd(x, full_matrices=True)[1], torch.linalg.matrix_rank(singular),
        torch.linalg.cond(square, 1), torch.linalg.matrix_norm(x, 1),
        torch.linalg.matrix_norm(x, -INF), torch.linalg.matrix_norm(x, 2),
        torch.linalg.lu_solve(*torch.linalg.lu_factor(parts), parts, adjoint=True),
        torch.logdet(spread), torch.linalg.tensorinv(square[0].reshape(3, 3), 1),
        torch.linalg.vander(x[0, 0]),
    ]  # fmt: skip


def transforms(x: Any) -> list[Any]:
    parts = torch.complex(x, x.flip(0))
    modes = ("backward", "ortho", "forward")
    return [
        *[torch.fft.fft(parts, norm=m) for m in modes],
        *[torch.fft.ifft(x, 5, 0, m) for m in modes], *[torch.fft.rfftn(x, norm=m) for m in modes],
        *[torch.fft.irfft(parts, 7, norm=m) for m in modes],
        *[torch.fft.irfftn(parts, (3, 8), norm=m) for m in modes],
        *[torch.fft.ifft2(parts, norm=m) for m in modes],
        *[torch.fft.hfft(parts, 9, norm=m) for m in modes],
        *[torch.fft.ihfft(x, 5, 0, m) for m in modes], torch.fft.rfft(x, 1),
        torch.fft.fft(x.double(), dim=-2), torch.fft.ifftshift(x, 1),
        torch.stft(x.reshape(-1), 8, 4, window=torch.ones(8), return_complex=True),
    ]  # fmt: skip


def element_edges(x: Any) -> list[Any]:
    whole = torch.tensor([-7, -4, -1, 0, 1, 3, 8])
    divisor = torch.tensor([3, -2, 5, 4, -1, -3, 3])
    bytes_, narrow = whole.to(torch.uint8), x.bfloat16()
    odd = torch.tensor([0.0, -0.0, INF, -INF, NAN, 2.5, -2.5, 1e30])
    turned = odd.roll(3)
    parts = torch.complex(odd, turned)
    return [
        whole // divisor, whole % divisor, torch.fmod(whole, divisor), bytes_ // 3, bytes_ % 100,
        bytes_ - 250, torch.div(whole, divisor, rounding_mode="trunc"),
        torch.div(whole, divisor, rounding_mode="floor"),
        torch.div(odd, turned, rounding_mode="floor"), torch.div(odd, 0.3, rounding_mode="trunc"),
        odd % 0.7, odd % -0.7, torch.remainder(5, divisor), whole / divisor, bytes_ / 2,
        bytes_ >> 1, bytes_ << 1, whole >> 1, whole.sign(), bytes_.sign(), odd.sign(), odd.sgn(),
        (whole > 0).sign(), whole.relu(), whole.abs(),
        whole ** torch.tensor([0, 1, 2, 3, -1, -2, -3]),
        torch.tensor([1, -1, -1, 2, 0, 1, -1]) ** torch.tensor([-3, -3, -2, -1, 3, 5, 4]), whole**3,
        whole**2, whole**1, x**-1, x.abs() ** -0.5, x**1, x.abs() ** 1.5, 2**whole.abs(), x**0,
        odd**2, odd**0.5, x.clamp(min=0.5), x.clamp(max=-0.25), x.clamp(2.0, -2.0),
        whole.clamp(-1.5, 2), whole.clamp(torch.tensor(-2), torch.tensor(5)), odd.clamp(-1, 1),
        torch.fmin(odd, turned), torch.fmax(odd, turned), torch.minimum(odd, turned),
        torch.hypot(odd, turned), odd.isinf(), odd.isnan(), odd.isfinite(), whole.isinf(),
        parts.isinf(), parts.isnan(), odd.signbit(), whole.signbit(), bytes_.signbit(),
        torch.copysign(odd, turned), torch.copysign(whole, -1.0),
        torch.copysign(odd.bfloat16(), -turned.nan_to_num().bfloat16()), odd.trunc(), odd.ceil(),
        odd.floor(), odd.round(), whole.floor(), whole.trunc(), (x * 4).round(), odd.frac(),
        torch.sub(narrow, narrow.flip(0), alpha=0.3), torch.add(whole, divisor, alpha=-2),
        torch.rsub(whole, divisor, alpha=3), narrow + 0.1, narrow * torch.tensor(0.3),
        narrow + x[0], torch.logical_and(whole, divisor > 0), torch.logical_or(whole, odd[0]),
        torch.logical_xor(x, x[0]), whole.logical_not(), torch.where(whole > 0, 2.5, whole),
        torch.where(whole > 0, whole, divisor.double()), torch.arange(2, 9, 2) + whole[0],
        torch.arange(5, -3, -2) + whole[0], torch.arange(0.5, 3, 0.4) + x[0, 0],
        torch.arange(3.0) + x[0, 0], torch.full((2, 3), 4) + whole[0],
        torch.full((2,), True) & (whole[0] > 0), torch.eye(3, 5) + x[0, 0],
        x.new_full((2,), 7) + x[0, 0], torch.logspace(0, 2, 4) + x[0, 0],
        torch.linspace(3, -1, 6) + x[0, 0], torch.linspace(2, 2, 1) + x[0, 0], x.log2(),
        x.abs().log10(), x.exp2(), x.logit(0.1), x.digamma(), (x.abs() + 0.2).lgamma(),
        torch.special.zeta(x.abs() + 2, x.abs() + 1), torch.special.i1e(x),
        torch.nextafter(odd, turned), x.erfinv(), x.abs().reciprocal(), whole.reciprocal(),
        odd.reciprocal(), x.atanh(), x.sinh(), x.asin(), torch.atan2(odd, turned),
        whole.bitwise_and(6), whole ^ divisor, ~bytes_, (whole > 0) | (divisor > 0),
        x.float_power(2), x.nan_to_num(), odd.nan_to_num(1.0, 2.0, 3.0), x.lerp(x.flip(0), x),
        torch.addcdiv(x, x, x.abs() + 1, value=-2), x.trunc(), x.view(torch.int32) ^ 1,
        whole.view(torch.int32), whole.to(torch.int16).view(torch.int8), narrow.view(torch.uint8),
        torch.polar(odd, x[0, 0]), parts.real, torch.view_as_real(parts), x.conj(), parts.abs(),
        whole.byte(),
    ]  # fmt: skip


def matrix_functions(x: Any) -> list[Any]:
    """Exponentials of small and large norms, factors and what is made of them."""
    turned = torch.complex(x, x.mT)
    symmetric, upper = x + x.mT, x.triu() + 3 * torch.eye(4)
    sizes = torch.tensor([0.0, 1e-3, 1.0, 8.0])[:, None, None]
    rotation = (x - x.mT)[:1] * sizes
    packed, factors = torch.geqrf(x)
    lu, pivots = torch.linalg.lu_factor(x)
    wide = torch.lu_unpack(*torch.linalg.lu_factor(torch.cat([x, x + 1], 2)))
    tall = torch.lu_unpack(*torch.linalg.lu_factor(torch.cat([x, x + 1], 1)))
    values, vectors = torch.linalg.eig(x)
    restored = vectors @ torch.diag_embed(values) @ torch.linalg.inv(vectors)
    inner = [torch.ormqr(packed[0, :, :2], factors[0, :2], x[0], left, transpose)
             for left in (True, False) for transpose in (True, False)]  # fmt: skip
    return [
        torch.matrix_exp(x), torch.matrix_exp(turned), torch.matrix_exp(rotation),
        torch.matrix_exp(x[0, :1, :1]), torch.matrix_exp(x[:0]), torch.matrix_exp(x / 0.0),
        packed, factors, torch.linalg.householder_product(packed, factors), *inner,
        *torch.lu_unpack(lu, pivots), *wide, *tall,
        *torch.lu_unpack(lu, pivots, unpack_data=False), restored.real,
        torch.linalg.eigvals(symmetric).real.sort().values,
        torch.ops.aten.cholesky(symmetric @ symmetric + torch.eye(4)),
        torch.linalg.pinv(symmetric, hermitian=True), *torch.ops.aten.triangular_solve(x, upper),
        *torch.ops.aten.triangular_solve(x[0], upper, transpose=True),
    ]  # fmt: skip


def special_functions(x: Any) -> list[Any]:
    odd = torch.tensor([0.0, -0.0, NAN, INF, -INF, 1e-40, -1.5, 3e38, 0.5, -7.0])
    wide, turned = 9 * x, torch.complex(x, x.flip(0))
    all_types = (torch.angle, torch.special.i0, torch.special.i1)
    functions = (*all_types, torch.special.i0e, torch.special.erfcx, torch.special.log_ndtr)
    return [
        *[f(each) + x[0, 0] * 0 for f in functions for each in (odd, wide)],
        *[f(each) for f in all_types for each in (x.half(), x.double(), wide > 0, wide.long())],
        *[part for each in (odd, x.double() * 1e-310, x.half()) for part in torch.frexp(each)],
        turned.angle(), turned.conj().imag.clone(), turned.imag.neg().clone(),
        *[torch.polygamma(n, x.abs() + 0.3) for n in range(4)],
        torch.special.modified_bessel_i0(x), torch.special.modified_bessel_i1(x),
        torch.fft.fftfreq(7, 0.5) + x[0, 0], torch.fft.rfftfreq(8) + x[0, 0],
        torch._is_all_true(x > 9), torch._is_any_true(x > 0),
    ]  # fmt: skip


GROUPS: list[tuple[Callable[..., list[Any]], tuple[int, ...]]] = [
    (empty_views, (4, 5, 6)),
    (scalars, ()),
    (narrow_reductions, (4, 6)),
    (index_edges, (4, 5, 6)),
    (orders_and_searches, (4, 7)),
    (pooling, (1, 4, 8, 7)),
    (resampling, (1, 4, 7, 6)),
    (convolutions, (1, 4, 7, 6)),
    (products, (3, 4, 6)),
    (distances, (4, 7)),
    (bags, (4, 5)),
    (products_of_three, (3, 3)),
    (systems, (2, 3, 5)),
    (matrix_functions, (2, 4, 4)),
    (special_functions, (4, 7)),
    (transforms, (4, 6)),
    (element_edges, (4, 7)),
]


@pytest.mark.parametrize(("made", "shape"), GROUPS, ids=[made.__name__ for made, _ in GROUPS])
def test_edges_agree_with_eager(made: Callable[..., list[Any]], shape: tuple[int, ...]) -> None:
    assert_agrees(made, drawn(*shape))
