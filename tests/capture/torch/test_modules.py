"""Modules and functions of PyTorch through `weft.compile`, against eager."""

from __future__ import annotations

import copy
import re
from collections import namedtuple

import numpy as np
import pytest

import weft
from tests.capture.torch.models import Cnn, Counter, Mlp, Transformer, torch
from tests.tolerance import assert_close
from weft.array.exchange import to_numpy
from weft.errors import Unsupported, WeftError


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def equal(made, expected, length: int = 64) -> None:
    """Tensors, or dicts of them, are close, of one type."""
    if isinstance(expected, dict):
        assert made.keys() == expected.keys()
        for key in expected:
            equal(made[key], expected[key], length)
        return
    assert isinstance(made, torch.Tensor) and made.dtype == expected.dtype
    assert_close(to_numpy(made), to_numpy(expected), length, least=1e-2)


MODELS = {
    "mlp": (Mlp, lambda: torch.randn(8, 8)),
    "cnn": (Cnn, lambda: torch.randn(8, 3, 16, 16)),
    "transformer": (Transformer, lambda: torch.randint(0, 32, (8, 6))),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("devices", [1, 8])
def test_models_equal_eager(name, devices):
    make, given = MODELS[name]
    model, x = make().eval(), given()
    split = {"mesh": weft.Mesh(data=devices), "in_shardings": weft.P("data")}
    compiled = weft.compile(model, x, **(split if devices > 1 else {}))
    with torch.no_grad():
        equal(compiled(x), model(x))
    if devices > 1:
        assert not compiled.collectives()


def test_batch_norm_in_training_updates_its_statistics():
    model = Cnn().train()
    eager, x = copy.deepcopy(model), torch.randn(8, 3, 16, 16)
    compiled = weft.compile(model, mesh=weft.Mesh(data=4), in_shardings=weft.P("data"))
    for _ in range(2):
        equal(compiled(x), eager(x).detach(), 4096)
    for made, expected in zip(model.buffers(), eager.buffers(), strict=True):
        equal(made, expected, 4096)
    equal(compiled(x), eager(x).detach(), 4096)
    model.eval(), eager.eval()
    equal(compiled(x), eager(x).detach(), 4096)


def test_a_batch_norm_that_trains_twice_in_a_call():
    norm = torch.nn.BatchNorm1d(4)
    eager, x = copy.deepcopy(norm), torch.randn(8, 4)
    equal(weft.compile(lambda x: norm(norm(x) + 1))(x), eager(eager(x) + 1).detach())
    equal({**norm.state_dict()}, {**eager.state_dict()})


def test_arguments_that_change_places():
    def swap(x, y):
        old = x.clone()
        x.copy_(y)
        y.copy_(old)
        return x + 0

    x, y = torch.zeros(2), torch.ones(2)
    assert weft.compile(swap)(x, y).tolist() == [1, 1]
    assert (x.tolist(), y.tolist()) == ([1, 1], [0, 0])


def test_parameters_are_shared_and_seen_when_they_change():
    model, x = Mlp().eval(), torch.randn(2, 8)
    compiled = weft.compile(model, x)
    with torch.no_grad():
        model.second.weight.mul_(2)  # in place
        model.first.bias = torch.nn.Parameter(torch.ones(16))  # replaced
        model.norm = torch.nn.LayerNorm(16, eps=1e-5)
        equal(compiled(x), model(x))


def test_parameters_of_earlier_calls_are_read_anew_from_their_memory():
    """Calls by keyword of one type, between which parameters change in every way there is."""
    for options in ({}, {"mesh": weft.Mesh(data=2), "plan": {"first.weight": weft.P("data")}}):
        model = Mlp()
        compiled, x = weft.compile(model, **options), torch.randn(8, 8)
        first = compiled(x=x)
        with torch.no_grad():
            for change in (
                lambda p: p.mul_(-1),
                lambda p: setattr(p, "data", torch.randn(p.shape)),
                lambda p: p.set_(torch.randn(p.shape[::-1]).t()),  # in another order
                lambda p: p.mul_(2),
            ):
                change(model.first.weight)
                equal(compiled(x=x), model(x))
            model.first.weight = torch.nn.Parameter(torch.randn(model.first.weight.shape))
        kept = first.clone()
        equal(compiled(x=x), model(x))
        assert torch.equal(first, kept)  # a result's memory is its own


def test_the_modules_that_a_function_reads_are_its_state():
    model, x = Mlp().eval(), torch.randn(2, 8)

    def inner(x):
        return model(x) + 1

    compiled = weft.compile(lambda x: inner(x) * 2, x)
    with torch.no_grad():
        model.second.bias.add_(1)
        equal(compiled(x), (model(x) + 1) * 2)


def test_tied_weights_are_one_argument():
    model, ids = Transformer(layers=1).eval(), torch.randint(0, 32, (2, 4))
    compiled = weft.compile(model, ids)
    shapes = [str(a.type) for a in compiled.signature.arguments]
    assert shapes.count("tensor<32x16xf32>") == 1


def test_a_buffer_and_an_argument_are_changed_in_place():
    model = Counter()
    eager, x = copy.deepcopy(model), torch.randn(3, 4)
    compiled = weft.compile(model)
    for _ in range(2):
        equal(compiled(x), eager(x).detach())
    equal(model.seen, eager.seen)

    def fill(x, y):
        x[1:] += y
        return x.clone()

    given, other = torch.zeros(3), torch.ones(2)
    made = weft.compile(fill)(given, other)
    assert given.tolist() == made.tolist() == [0, 1, 1]
    made += 1  # memory of its own
    assert given.tolist() == [0, 1, 1]


Pair = namedtuple("Pair", "first rest")


def test_a_function_takes_and_gives_trees_and_constants():
    def f(batch, scale=2, *, flip=False):
        x = batch["x"] * scale
        return Pair(-x if flip else x, [batch["y"][0].to(torch.bfloat16), None, scale])

    batch = {"x": torch.arange(3), "y": (torch.ones(2),)}
    compiled = weft.compile(f)
    for call in ((), (3,)):
        for flip in (False, True):
            made, expected = compiled(batch, *call, flip=flip), f(batch, *call, flip=flip)
            assert type(made) is Pair and made.first.tolist() == expected.first.tolist()
            assert made.rest[1:] == expected.rest[1:]
            assert made.rest[0].dtype == torch.bfloat16
    assert len(compiled._programs) == 4


def test_memory_is_shared_both_ways_where_it_can_be():
    x = torch.ones(4, dtype=torch.bfloat16)
    compiled = weft.compile(lambda x: x * 2, x)
    source = compiled._source
    leaf = compiled._latest.captured.arguments[0]
    assert np.shares_memory(source.to_program(x, leaf), to_numpy(x))
    assert compiled(x).tolist() == [2, 2, 2, 2]


def test_a_method_of_a_module_and_a_plan_by_names():
    model = Mlp(width=16).eval()
    x = torch.randn(4, 8)
    plan = {"first.weight": weft.P("model"), "first.bias": weft.P("model"), "x": weft.P("data")}
    mesh = weft.Mesh(data=2, model=4)
    compiled = weft.compile(model, x, mesh=mesh, plan=plan)
    with torch.no_grad():
        equal(compiled(x), model(x))
    split = {a.name: str(a.sharding) for a in compiled.signature.arguments if a.sharding}
    assert '"model"' in split["first.weight"] and '"data"' in split["x"]
    method = weft.compile(model.forward, x)
    with torch.no_grad():
        equal(method(x), model(x))


def test_nodes_know_their_module_and_line():
    model = Transformer(layers=1).eval()
    compiled = weft.compile(model, torch.randint(0, 32, (2, 4)))
    text = compiled.text("captured", locations=True)
    assert re.search(r'loc\("layers\.0\.qkv/aten\.addmm\.default"\(".*models\.py":\d+:0\)', text)


def data_dependent(x):
    if x.sum() > 0:
        return x
    return -x


def test_branches_on_elements_are_refused():
    with pytest.raises(Unsupported, match="cannot export data_dependent") as caught:
        weft.compile(data_dependent, torch.ones(3))
    assert "torch.where" in caught.value.help
    assert caught.value.loc.line[0] == __file__


def test_ops_that_branch_on_elements_name_the_line():
    def packed(x):
        return torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2, 2]), True).data

    def split(x):
        return torch.tensor_split(x, torch.tensor([1, 2]))

    for function in (packed, split, lambda x: x * torch.equal(x, x + 1)):
        with pytest.raises(Unsupported, match="cannot export|depends on elements") as caught:
            weft.compile(function, torch.randn(3, 4, 2))
        assert "test_modules.py" in str(caught.value)


class Shuffle(torch.nn.Module):
    def forward(self, x):
        return torch.poisson(x)


class Random(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shuffle = Shuffle()

    def forward(self, x):
        return self.shuffle(x)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (Random(), ["draws random numbers, in module shuffle", "as arguments"]),
        (lambda x: torch.special.airy_ai(x), ["aten.", "has no lowering in Weft"]),
        (lambda x: x[x > 0], ["depends on elements", "torch.where"]),
    ],
)
def test_ops_without_a_lowering_are_refused_by_name(program, words):
    with pytest.raises(Unsupported) as caught:
        weft.compile(program, torch.ones(3, 3))
    for word in words:
        assert word in str(caught.value)
    assert f"--> {__file__}:" in str(caught.value)


def test_wrong_plans_and_options_are_refused():
    model, x = Mlp(), torch.randn(4, 8)
    mesh = weft.Mesh(data=2)
    with pytest.raises(WeftError, match=r"'frist\.\*' matches no parameter") as caught:
        weft.compile(model, x, mesh=mesh, plan={"frist.*": weft.P("data")})
    assert "first." in caught.value.help
    with pytest.raises(WeftError, match="is not a plan"):
        weft.compile(model, x, mesh=mesh, plan="zero")
    with pytest.raises(WeftError, match="entries for 1 arguments"):
        weft.compile(model, x, mesh=mesh, in_shardings=(None, None))
    with pytest.raises(WeftError, match="is a ndarray, neither"):
        weft.compile(model)(x.numpy())
    with pytest.raises(WeftError, match="JAX functions"):
        weft.compile(model, x, donate_argnums=0)
    weight = model.first.weight
    with pytest.raises(WeftError, match="reads the parameter weight"):
        weft.compile(lambda x: x @ weight.T, x)
    with pytest.raises(WeftError, match="patterns of names are a plan"):
        weft.compile(lambda x: x, np.ones(3), mesh=mesh, plan={"x": weft.P("data")})


def test_it_is_saved_as_a_program_of_arrays(tmp_path):
    model, x = Mlp().eval(), torch.randn(2, 8)
    compiled = weft.compile(model, x)
    compiled.save(tmp_path / "mlp.weft")
    loaded = weft.load(tmp_path / "mlp.weft")
    state = [p.detach().numpy() for p in model.parameters()]
    made = loaded(*state, x.numpy())
    with torch.no_grad():
        assert_close(np.asarray(made[0]), model(x).numpy(), 64, least=1e-2)


def test_assertions_on_elements_are_left_out():
    """And the Python numbers that nothing else reads."""

    def checked(x, mask):
        torch._check_tensor_all(mask.sum() == 2)
        torch._check(mask.sum().item() > 0)
        return x.masked_scatter(mask, x[1:])

    x, mask = torch.arange(6.0).reshape(3, 2), torch.tensor([[True], [False], [False]])
    made = weft.compile(checked, x, mask, target="numpy")(x, mask)
    assert made.equal(x.masked_scatter(mask, x[1:]))


def test_a_branch_on_elements_names_its_line(capfd):
    """Without PyTorch's print of all that was traced before."""

    def branching(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(Unsupported, match="it branches on elements of a tensor") as caught:
        weft.compile(branching, torch.ones(3))
    assert "x.sum() > 0" in str(caught.value)
    assert capfd.readouterr().err == ""
    with pytest.raises(Unsupported, match="gives a Python number") as caught:
        weft.compile(lambda x: x * x.max().item(), torch.ones(3))
    assert "keep it a tensor" in str(caught.value)
