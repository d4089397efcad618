"""Batch sizes that vary: padded to powers of two, where rows do not depend on others."""

from __future__ import annotations

import warnings

import pytest

import weft
from tests.capture.torch.models import F, nn, torch
from weft import Mesh, WeftError
from weft.errors import WeftWarning


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


def test_a_few_programs_serve_all_sizes():
    torch.manual_seed(0)
    model = Block().eval()
    compiled = weft.compile(model, dynamic=True, mesh=Mesh(data=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for count in (1, 5, 6, 7, 8):
            ids = torch.randint(0, 11, (count, 3))
            made = compiled(ids)
            torch.testing.assert_close(made["y"], model(ids)["y"].detach())
            assert made["length"] == 3
    assert len(compiled._programs) == 2  # of 1 and 8 rows


DEPENDENT = {
    "mean": (lambda x: x - x.mean(0), "combines rows|depends on the batch"),
    "count": (lambda x: x / x.shape[0], "depends on the batch size"),
    "sort": (lambda x: x.sort(0).values, "combines rows"),
    "pairs": (lambda x: x @ x.mT, "pairs rows|combines rows"),
    "length": (lambda x: (x + 1, x.shape[0]), "no tensor depends"),
    "order": (lambda x: x.flip(0), "combines rows|depends"),
    "merged": (lambda x: x.mT.reshape(-1), "takes|merges|combines|depends|several|multiple"),
    "branch": (lambda x: x + 1 if x.shape[0] > 3 else (x - 1).exp(), "other ops|another op"),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_dependent_rows_are_compiled_for_each_size(name):
    function, why = DEPENDENT[name]
    compiled = weft.compile(function, dynamic=True)
    x = torch.randn(3, 4)
    with pytest.warns(WeftWarning, match=f"compiled for each batch size.*({why})"):
        made = compiled(x)
    torch.testing.assert_close(made, function(x))
    torch.testing.assert_close(compiled(x), function(x))


def test_other_programs_are_refused():
    with pytest.raises(WeftError, match="not a boolean"):
        weft.compile(lambda x: x, dynamic="batch")
    with pytest.raises(WeftError, match="PyTorch"):
        weft.compile(lambda x: x, dynamic=True)(1.0)
