"""Ready-made plans: shardings by names, shapes, a model's own tp_plan, and the axes of a mesh."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

import weft
from tests.capture.torch.models import torch
from weft import Mesh, P
from weft.capture.captured import Leaf
from weft.capture.torch.plans.ready import ready_plan
from weft.errors import WeftError
from weft.ops.control import OptimizationBarrier
from weft.ops.distributed.collective import AllGather
from weft.ops.elementwise.convert import Convert
from weft.ops.shape import Reshape, Transpose

nn = torch.nn


class Block(nn.Module):
    """Attention's and an MLP's layers, by the names that people give them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.q_proj, self.o_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.o_proj(torch.tanh(self.q_proj(x)))
        return self.norm(x + self.down(torch.relu(self.up(x))))


class Planned(Block):
    """A model that says itself how it is split, as Hugging Face's do."""

    tp_plan = {"embed": "embedding_rowwise", "up": "colwise", "down": "rowwise"}


def planned(name: str, mesh: Mesh, model: nn.Module | None = None) -> dict[str, object]:
    model = model or Block()
    state = [Leaf(n, tuple(p.shape), None) for n, p in model.named_parameters()]
    given = [Leaf("tokens", (8, 5), None), Leaf("scale", (), None), Leaf("odd", (3,), None)]
    shardings = ready_plan(name, model, state, given, mesh).arguments
    return dict(zip([leaf.name for leaf in (*state, *given)], shardings, strict=True))


def test_tensor_parallelism_by_names_and_shapes() -> None:
    made = planned("auto", Mesh(data=2, model=4))
    assert made["q_proj.weight"] == made["up.weight"] == P(("model",), None, priorities=[0, 0])
    assert made["o_proj.weight"] == made["down.weight"] == P(None, ("model",), priorities=[0, 0])
    assert made["up.bias"] == P(("model",), priorities=[0])
    assert made["down.bias"] == made["norm.weight"] == P(None, priorities=[0])
    assert made["embed.weight"] == P(("model",), None, priorities=[0, 0])
    assert made["tokens"] == P(("data",)) and made["scale"] is None and made["odd"] is None


def test_biases_follow_their_weights_and_tables_their_class() -> None:
    layers = {"into": nn.Linear(8, 32), "back": nn.Linear(32, 8), "places": nn.Embedding(4, 8)}
    made = planned("tp", Mesh(tp=4), nn.ModuleDict(layers))
    assert made["into.bias"] == P(("tp",), priorities=[0])
    assert made["back.bias"] == P(None, priorities=[0])
    assert made["places.weight"] == P(None, None, priorities=[0, 0])


class SharedKeys(nn.Module):
    """Attention of two queries to each key, with a configuration as Hugging Face's."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_key_value_heads=2)
        self.q_proj, self.o_proj = nn.Linear(16, 16), nn.Linear(16, 16)
        self.k_proj, self.v_proj = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x):
        layers = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in layers)
        made = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.o_proj(made.transpose(1, 2).flatten(2))


def test_devices_beyond_the_heads_have_copies() -> None:
    """No head of keys and values is split, which would have to be exchanged."""
    torch.manual_seed(0)
    model, x = SharedKeys().eval(), torch.randn(2, 6, 16)
    outer = nn.ModuleDict({"attention": model})
    made = planned("tp", Mesh(tp=4), outer)
    assert made["attention.k_proj.weight"] == P(("tp:(1)2",), None, priorities=[0, 0])
    assert made["attention.v_proj.bias"] == P(("tp:(1)2",), priorities=[0])
    assert made["attention.q_proj.weight"] == P(("tp",), None, priorities=[0, 0])
    model.config.num_key_value_heads = 1
    assert planned("tp", Mesh(tp=4), outer)["attention.k_proj.bias"] == P(None, priorities=[0])
    model.config.num_key_value_heads = 2
    compiled = weft.compile(model, x, mesh=Mesh(tp=4), target="numpy")
    torch.testing.assert_close(compiled(x), model(x).detach())
    assert [(row.name, row.count) for row in compiled.collectives()] == [
        ("stablehlo.all_reduce", 1)
    ]


def test_a_models_own_plan_is_followed() -> None:
    made = planned("tp", Mesh(tp=4), Planned())
    assert made["up.weight"] == P(("tp",), None, priorities=[0, 0])
    assert made["down.weight"] == P(None, ("tp",), priorities=[0, 0])
    assert made["q_proj.weight"] == P(None, None, priorities=[0, 0])
    assert made["tokens"] is None


def test_fsdp_shards_the_first_dim_that_divides() -> None:
    made = planned("fsdp", Mesh(data=4))
    assert made["up.weight"] == P(("data",), None, priorities=[1, 0])
    assert made["down.weight"] == P(("data",), None, priorities=[1, 0])
    assert made["norm.bias"] == P(("data",), priorities=[1])
    both = planned("fsdp+tp", Mesh(fsdp=2, tp=4))
    assert both["up.weight"] == P(("tp",), ("fsdp",), priorities=[0, 1])
    wide = planned("fsdp", Mesh(data=16))
    assert wide["down.weight"] == P(None, ("data",), priorities=[0, 1])  # 8 rows
    odd = planned("fsdp", Mesh(data=3))
    assert all(sharding == P(*[None] * len(sharding.dims), priorities=[0] * len(sharding.dims))
               for name, sharding in odd.items() if "." in name)  # fmt: skip


def test_a_mesh_alone_shards_a_model() -> None:
    """Partial sums of the two pairs of layers and of the vocabulary are sent, and no weights."""
    torch.manual_seed(0)
    model, tokens = Block().eval(), torch.randint(0, 32, (4, 6))
    compiled = weft.compile(model, tokens, mesh=Mesh(data=2, tp=4))
    torch.testing.assert_close(compiled(tokens), model(tokens).detach())
    sent = [(row.name, row.over) for row in compiled.collectives() for _ in range(row.count)]
    assert 0 < len(sent) <= 4 and {over for _, over in sent} == {"tp"}
    quarter = {a.name: a.local.sizes for a in compiled.signature.arguments}
    assert quarter["up.weight"] == (8, 8) and quarter["tokens"] == (2, 6)


def test_training_with_fsdp_is_eagers() -> None:
    torch.manual_seed(0)
    model, tokens = Block(), torch.randint(0, 32, (4, 6))
    eager = copy.deepcopy(model)
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, eager))
    target = torch.randn(4, 6, 8)
    loss = nn.functional.mse_loss
    step = weft.train_step(model, loss, ours, mesh=Mesh(fsdp=2, tp=2), plan="fsdp+tp")
    for _ in range(2):
        made = step(tokens, target)
        theirs.zero_grad()
        expected = loss(eager(tokens), target)
        expected.backward()
        theirs.step()
        torch.testing.assert_close(made, expected.detach(), rtol=1e-4, atol=1e-5)
    local = {a.name: a.local.sizes for a in step.signature.arguments}
    assert local["up.weight"] == local["up.weight.exp_avg"] == (16, 4)


class Layers(nn.Module):
    """Blocks between an embedding and logits, without biases."""

    def __init__(self, count: int, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.layers = nn.ModuleList(Mlp(width) for _ in range(count))
        self.head = nn.Linear(width, 32, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Mlp(nn.Module):
    """A residual block with a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def cross_entropy(logits, tokens):
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("precision", [None, "bf16"])
def test_fsdp_sends_weights_and_gradients_alone(precision) -> None:
    """One all_gather a parameter and use, one reduce_scatter a gradient, nothing of activations."""
    model, tokens = Layers(4), torch.randint(0, 32, (8, 16))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = weft.train_step(
        model, cross_entropy, sgd, mesh=Mesh(fsdp=4), plan="fsdp", precision=precision
    )
    step.prepare(tokens, tokens)
    nodes = step.program.module.function("main").body.nodes
    gathers = [n for n in nodes if isinstance(n.op, AllGather)]
    gathered = [v for n in gathers for v in n.results if v.type.dtype.is_float]
    # Forward and backward each; the head's backward follows its forward, the embedding has none.
    assert len(gathered) == 2 * 12 + 2
    scattered = [n for n in nodes if "ReduceScatter" in type(n.op).__name__]
    assert sum(len(n.operands) for n in scattered) == 14
    reduced = [n for n in nodes if type(n.op).__name__ == "AllReduce"]
    assert all(v.type.size == 1 for n in reduced for v in n.operands)  # the loss
    layer = sum(p.numel() for p in model.layers[0].parameters())
    assert most_gathered(nodes, {*gathered}) <= 2 * layer + model.head.weight.numel()
    local = {a.name: a.local.sizes for a in step.signature.arguments}
    assert local["layers.0.up.weight"] == (16, 16)


@pytest.mark.long
def test_fifty_steps_track_eagers_losses() -> None:
    torch.manual_seed(0)
    model = Layers(2)
    eager = copy.deepcopy(model)
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=3e-3) for m in (model, eager))
    step = weft.train_step(model, cross_entropy, ours, mesh=Mesh(fsdp=2, tp=4), plan="fsdp+tp")
    losses = []
    for _ in range(50):
        tokens = torch.randint(0, 32, (4, 8))
        theirs.zero_grad()
        loss = cross_entropy(eager(tokens), tokens)
        loss.backward()
        theirs.step()
        losses.append((float(step(tokens, tokens)), float(loss.detach())))
    made, expected = torch.tensor(losses).T
    torch.testing.assert_close(made, expected, rtol=2e-3, atol=1e-3)
    assert expected[-1] < 0.7 * expected[0]


def most_gathered(nodes, gathered) -> int:
    """The most elements of gathered values that are alive at once; views keep them."""
    views = (OptimizationBarrier, Transpose, Reshape, Convert)
    owner = {value: value for value in gathered}
    last: dict = {}
    for place, node in enumerate(nodes):
        for value in node.operands:
            if value in owner:
                last[owner[value]] = place
                if isinstance(node.op, views):
                    owner |= dict.fromkeys(node.results, owner[value])
    alive, most = 0, 0
    for place, node in enumerate(nodes):
        alive += sum(v.type.size for v in node.results if v in gathered)
        most = max(most, alive)
        alive -= sum(v.type.size for v, end in last.items() if end == place)
    return most


def test_a_function_is_a_plan() -> None:
    model, tokens = Block().eval(), torch.randint(0, 32, (4, 6))
    compiled = weft.compile(
        model,
        tokens,
        mesh=Mesh(x=2),
        plan=lambda name, shape: P("x") if shape and shape[0] % 2 == 0 else None,
    )
    torch.testing.assert_close(compiled(tokens), model(tokens).detach())


@pytest.mark.parametrize(
    ("plan", "mesh", "match"),
    [
        ("zero", Mesh(data=2), "plan='zero' is not a plan"),
        ("tp", Mesh(data=2), "no axis for tp in the mesh, which has data"),
        ("fsdp", Mesh(model=2), "no axis for fsdp"),
        ("auto", None, "needs a mesh"),
        (3, Mesh(data=2), "plan=3 is not a plan"),
    ],
)
def test_refusals(plan: object, mesh: Mesh | None, match: str) -> None:
    with pytest.raises(WeftError, match=match):
        weft.compile(Block(), torch.zeros(2, 2, dtype=torch.int64), mesh=mesh, plan=plan)


class Attending(nn.Module):
    """Causal attention of three heads, which four devices cannot divide."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(16, 12), nn.Linear(12, 36), nn.Linear(12, 16)

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = self.qkv(x).view(*tokens.shape, 3, 3, 4).permute(2, 0, 3, 1, 4)
        made = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x + made.transpose(1, 2).reshape(x.shape))


def test_context_parallelism_passes_keys_along_a_ring():
    torch.manual_seed(0)
    model, tokens = Attending().eval(), torch.randint(0, 16, (2, 8))
    for plan, mesh in (("cp", Mesh(cp=4)), ("auto", Mesh(data=2, context=4))):
        compiled = weft.compile(model, tokens, mesh=mesh, plan=plan)
        torch.testing.assert_close(compiled(tokens), model(tokens).detach(), rtol=1e-5, atol=1e-5)
        assert {row.name for row in compiled.collectives()} == {"weft.collective_permute"}
    with pytest.raises(WeftError, match="no axis for cp"):
        weft.compile(model, tokens, mesh=Mesh(tp=2), plan="cp")


def test_training_with_context_parallelism():
    torch.manual_seed(0)
    model, tokens = Attending(), torch.randint(0, 16, (2, 8))
    twin, targets = copy.deepcopy(model), tokens.roll(-1, 1)

    def loss(made, targets):
        return nn.functional.cross_entropy(made.flatten(0, 1), targets.flatten())

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = weft.train_step(model, loss, optimizer, mesh=Mesh(cp=4), plan="cp")
    eager = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(2):
        expected = loss(twin(tokens), targets)
        eager.zero_grad()
        expected.backward()
        eager.step()
        assert float(step(tokens, targets)) == pytest.approx(float(expected), rel=1e-5)
