"""Sizes that vary: padded to a few, where what is computed of the padding can be masked."""

from __future__ import annotations

import warnings

import pytest

import weft
from tests.capture.torch.models import F, nn, torch
from weft import Mesh, WeftError
from weft.dynamo import backend
from weft.errors import WeftWarning
from weft.zoo import ZOO

Dim = torch.export.Dim


class Block(nn.Module):
    """Attention with a mask that is made for the batch, and a merged batch."""

    def __init__(self):
        super().__init__()
        self.embed, self.project = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.first = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, ids):
        count, length = ids.shape
        x = torch.cat([self.first.expand(count, 1, 8), self.embed(ids)], 1)
        x = self.project(x.reshape(-1, 8)).reshape(count, length + 1, 2, 4).transpose(1, 2)
        mask = torch.ones(count, 1, length + 1, length + 1, dtype=torch.bool).tril()
        return {"y": F.scaled_dot_product_attention(x, x, x, mask).sum(-1), "length": length}


def same(made, expected):
    """Whether tensors are equal to tolerances, and the rest is."""
    torch.testing.assert_close(made, expected, equal_nan=True)


@pytest.mark.filterwarnings("error")
def test_a_few_programs_serve_all_sizes():
    torch.manual_seed(0)
    model = Block().eval()
    shapes = {"ids": {0: Dim("batch"), 1: Dim("length", min=2, max=12)}}
    compiled = weft.compile(model, dynamic_shapes=shapes, mesh=Mesh(data=2))
    for count, length in ((1, 3), (5, 3), (6, 4), (8, 3), (3, 12), (4, 9), (2, 2)):
        ids = torch.randint(0, 11, (count, length))
        with torch.no_grad():
            same(compiled(ids), model(ids))
    assert len(compiled._programs) == 4  # (1, 3..4), (5..8, 3..4), (3..4, 9..12), (2, 2)


PADDED = {
    "mean": lambda x: x - x.mean(0),
    "count": lambda x: x / x.shape[0],
    "pairs": lambda x: x @ x.mT,
    "length": lambda x: (x + 1, 2 * x.shape[0]),
    "merged": lambda x: x.mT.reshape(-1),
    "last": lambda x: x[-1] + x[1:].amax(0),
    "softmax": lambda x: x.softmax(0),
    "cumsum": lambda x: x.cumsum(0),
    "norm": lambda x: F.layer_norm(x.mT, (x.shape[0],)),
    "argmax": lambda x: x.argmax(0),
    "window": lambda x: F.conv1d(x.mT[None], torch.ones(1, 4, 3), padding=1),
    "pad": lambda x: F.pad(x, (0, 0, 1, 2), value=3.0).sum(0),
    "reversed": lambda x: (x.shape[0] - 1 - torch.arange(x.shape[0]))[:, None] * x,
    "pool": lambda x: F.max_pool1d(x[:, None], 2, stride=2),
    "gather": lambda x: x[torch.tensor([-1, 0, -2])],
}


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.filterwarnings("error")
def test_padding_is_masked(name):
    function = PADDED[name]
    compiled = weft.compile(function, dynamic=True)
    for count in (5, 8, 7):
        x = torch.randn(count, 4)
        same(compiled(x), function(x))
    assert len(compiled._programs) == 1


LINE = "a dim whose size varies at .*test_dynamic.py:[0-9]+ .*"
OTHERS = "the program has other ops for other sizes"
DEPENDENT = {
    "sort": (lambda x: x.sort(0).values, f"stablehlo.sort combines elements along {LINE}"),
    "order": (lambda x: x.flip(0), f"stablehlo.reverse combines elements along {LINE}"),
    "between": (
        lambda x: torch.cat([x, x]),
        f"stablehlo.concatenate puts elements behind the end of {LINE}",
    ),
    "branch": (lambda x: x + 1 if x.shape[0] > 3 else (x - 1).exp(), OTHERS),
    "number": (
        lambda x: x * x.shape[0] ** 0.5,
        "stablehlo.constant is a number that depends on the size in an unknown way at .*",
    ),
    "limit": (lambda x: x[:, :4] + torch.ones(7, 4)[: x.shape[0]].mean(), OTHERS),
    "update": (
        lambda x: x.add_(1),
        "a tensor that is updated in place has a size that varies",
    ),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_other_programs_are_compiled_for_each_size(name):
    function, why = DEPENDENT[name]
    compiled = weft.compile(function, dynamic=True)
    x = torch.randn(3 if name == "branch" else 5, 4)
    expected = function(x.clone())
    with pytest.warns(WeftWarning, match=f"compiled for each size of batch, not padded: {why}$"):
        made = compiled(x.clone())
    same(made, expected)
    same(compiled(x.clone()), expected)


def test_errors_name_the_dim_and_its_range():
    shapes = {"x": {0: Dim("batch", min=2, max=6)}, "y": {0: 2 * Dim("batch", min=2, max=6)}}
    compiled = weft.compile(lambda x, y: x.sum() + y.sum(), dynamic_shapes=shapes)
    same(compiled(torch.ones(3, 2), torch.ones(6)), torch.tensor(12.0))
    for sizes, message in {
        (7, 14): r"dim 0 of x is 7: batch is 7, out of its range 2..6",
        (3, 8): r"batch is 3 by dim 0 of x, but 4 by dim 0 of y",
        (3, 7): r"dim 0 of y is 7, which is no value of 2\*batch",
    }.items():
        with pytest.raises(WeftError, match=message):
            compiled(torch.ones(sizes[0], 2), torch.ones(sizes[1]))
    for given, message in {
        "batch": "dynamic_shapes is a str",
        (None,): "1 entries for 2 arguments",
    }.items():
        with pytest.raises(WeftError, match=message):
            weft.compile(lambda x, y: x + y, torch.ones(2), torch.ones(2), dynamic_shapes=given)
    with pytest.raises(WeftError, match="no argument 'z'"):
        weft.compile(lambda x: x, torch.ones(2), dynamic_shapes={"z": None})
    with pytest.raises(WeftError, match="not a boolean"):
        weft.compile(lambda x: x, dynamic="batch")
    with pytest.raises(WeftError, match="PyTorch"):
        weft.compile(lambda x: x, dynamic=True)(1.0)


SEQUENCES = ((3, 12), (4, 9), (2, 3), (5, 16), (8, 13), (1, 7))
LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("name", "sizes", "count"),
    [("llama", {"data": 2, "tp": 2}, 2), *[pytest.param(name, sizes, len(SEQUENCES), marks=LONG)
     for name in ("llama", "bert", "gpt2") for sizes in ({}, {"data": 2, "tp": 2})]],
)  # fmt: skip
def test_batches_and_sequences_of_transformers(name, sizes, count):
    pytest.importorskip("transformers")
    model, _ = ZOO[name].make()
    shapes = {"input_ids": {0: Dim("batch", max=8), 1: Dim("length", max=16)}}
    mesh = Mesh(**sizes) if sizes else None
    compiled = weft.compile(model, dynamic_shapes=shapes, mesh=mesh)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "sizes that do not divide")
        for size in SEQUENCES[:count]:
            ids = torch.randint(3, 32, size)
            made, expected = compiled(input_ids=ids)[0], model(input_ids=ids)[0]
            torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)
    assert len(compiled._programs) == (1 if count == 2 else 4)


@pytest.mark.filterwarnings("error:dynamic")
def test_symbolic_sizes_of_dynamo_are_padded():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    eager = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    eager.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for rows in (5, 8, 7):
        x = torch.randn(rows, 4)
        for each in (compiled, eager):
            F.cross_entropy(each(x), torch.arange(rows) % 2).backward()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_calls_with_other_structures_and_numbers_share_no_program():
    def scaled(x, other=None, times=2):
        made = x * times if other is None else x * times + other.sum()
        return made, [made.sum(0), times], {"first": made[0]}

    compiled = weft.compile(scaled, dynamic=True)
    x, other = torch.arange(20.0).reshape(5, 4), torch.ones(5, 3)
    for args, kwargs in (((x,), {}), ((x, other), {}), ((x,), {"other": other}),
                         ((x,), {"times": 3}), ((x, None, 3), {}), ((x[:3],), {"times": 3}),
                         ((x, other, True), {}), ((x, other, 1), {}), ((x,), {})):  # fmt: skip
        torch.testing.assert_close(compiled(*args, **kwargs), scaled(*args, **kwargs))
