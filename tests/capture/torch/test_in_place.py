"""In-place ops of a traced graph as ops that return new values, against the graph as it was."""

from __future__ import annotations

import pytest

from tests.capture.torch.models import torch
from weft.capture.torch.in_place import without_updates
from weft.capture.torch.overlaps import MemoryOverlaps


def chain(x, y):
    before = x.clone()
    x.mul_(0.5).add_(y, alpha=2)
    alias = x.detach()
    alias.lerp_(y, 0.25)
    y.addcdiv_(x, before.exp(), value=-0.1)
    return x + before, alias, y * 2


def copied(x, y):
    x.copy_(x + y)
    return x.sum() + x.exp().sum()


def view_before(x, y):
    made = x.t() @ y
    x.add_(y)
    return made


def view_after(x, y):
    rows = x.view(-1)
    x.add_(y)
    return rows + 1


def of_a_view(x, y):
    x[0].add_(y[0])
    return x * 2


def without_a_lowering(x, y):
    return torch.frac_(x) + y


CASES = {chain: True, copied: True, view_before: True, view_after: False, of_a_view: False,
         without_a_lowering: False}  # fmt: skip


@pytest.mark.parametrize("function", CASES, ids=lambda each: each.__name__)
def test_updates_are_at_the_end(function):
    from torch.fx.experimental.proxy_tensor import make_fx

    torch.manual_seed(0)
    given = [torch.randn(3, 3), torch.randn(3, 3)]
    module = make_fx(function)(*[each.clone() for each in given])
    before = str(module.graph)
    assert without_updates(module.graph) is CASES[function]
    if not CASES[function]:
        assert str(module.graph) == before
        return
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    changing = [n for n, node in enumerate(nodes) if node.target._schema.is_mutable]
    assert changing == [*range(len(nodes) - len(changing), len(nodes))]
    ours, theirs = ([each.clone() for each in given] for _ in range(2))
    made, expected = torch.fx.Interpreter(module).run(*ours), function(*theirs)
    torch.testing.assert_close((made, ours), (expected, theirs))


def test_overlaps_are_those_of_each_call():
    memory, base = MemoryOverlaps(), torch.zeros(40)
    weights = [torch.zeros(8), torch.zeros(0), torch.zeros(2, 4)]
    views = [
        (base[0:4], base[4:8]), (base[4:8], base[0:4]), (base[0:4], base[2:6]),
        (base[0:8], base[4:12]), (base[0:4], base[4:8]), (base[0:8:2], base[4:8]),
        (torch.zeros(4), torch.zeros(4)), (weights[0][4:], base[4:8]), (base[8:12], weights[2][0]),
        (base[8:12], torch.zeros(4)), (base[8:9].expand(4), base[9:13]),
    ]  # fmt: skip
    expected = [(), (), (3, 4), (3, 4), (), (3, 4), (), (0, 3), (2, 4), (), ()]
    known = None
    for pair, numbers in zip(views, expected, strict=True):
        tensors = [*weights, *pair]
        assert memory.overlaps(tensors) == {*numbers}, pair
        # Of the same shapes and strides as in the call before.
        if memory.views == known:
            assert memory.overlaps(tensors, known) == {*numbers}
        known = memory.views
    # One layout, in other memory each time, apart from parameters in between.
    room = torch.zeros(64)
    kept = [room[start : start + 4] for start in range(0, 64, 8)]
    for start in range(61):
        touched = {n for n in range(8) if abs(8 * n - start) < 4}
        found = memory.overlaps([*kept, room[start : start + 4]])
        assert found == (touched | {8} if touched else set()), start
