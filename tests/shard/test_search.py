"""The hook for a search: proposals are sharded and scored, and the best is returned."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft import P, WeftError, parse
from weft.ir.types import TensorType
from weft.mesh.algebra import total_size
from weft.shard.search import search

MLP = Path(__file__).parents[2] / "examples" / "sharded_mlp.mlir"
PROPOSALS = ({1: P(), 2: P()}, {1: P(None, "model"), 2: P("model")}, {0: P(), 1: P("data")})


def elements_on_a_device(module):
    """How much a device holds, of all values together."""
    table = module.tables["sharding"]
    mesh = module.meshes["mesh"]
    total = 0
    for node in module.nodes():
        for value in node.results:
            if isinstance(value.type, TensorType):
                sharding = table.get(value)
                axes = [a for d in sharding.dims for a in d.axes] if sharding else []
                total += value.type.size // total_size(axes, mesh)
    return total


def test_the_best_proposal_is_found():
    seen = []

    def propose(module, history):
        seen.append([trial.score for trial in history])
        return PROPOSALS[len(history)] if len(history) < len(PROPOSALS) else None

    best = search(parse(MLP), propose, elements_on_a_device)
    assert best.arguments == PROPOSALS[1]
    assert best.score == min(seen[-1]) == elements_on_a_device(best.module)
    assert [len(scores) for scores in seen] == [0, 1, 2, 3]


def test_the_first_of_equals_is_best():
    def propose(module, history):
        return {0: P("data")} if len(history) < 3 else None

    best = search(parse(MLP), propose, lambda _: float(1))
    assert best.score == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (None, "the search made no proposal"),
        ({9: P()}, "@main has no argument 9"),
        ({0: P("pipe")}, "P(\"pipe\"): the mesh has no axis 'pipe'"),
        ({0: P(None, None, "data")}, 'P(None, None, "data") is for 3 dims, but the tensor has 2'),
    ],
)
def test_wrong_proposals_are_refused(arguments, message):
    with pytest.raises(WeftError) as caught:
        search(parse(MLP), lambda *_: arguments, lambda _: 0.0)
    assert caught.value.message == message
