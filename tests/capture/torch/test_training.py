"""Training steps: against eager mode, for every optimizer, on one device and on a mesh."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn, optim  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import weft  # noqa: E402
from weft import Mesh, P  # noqa: E402
from weft.ir.module import walk  # noqa: E402
from weft.native.cpython import address_of  # noqa: E402
from weft.ops.control import While  # noqa: E402
from weft.run import run  # noqa: E402

MESH = Mesh(data=2, model=4)
MOMENTS = ("exp_avg", "exp_avg_sq")
PLAN = {
    "up.*": P("model"),
    "norm.*": P("model"),
    "down.weight": P(None, "model"),
    "x": P("data"),
    "target": P("data"),
}


class Net(nn.Module):
    """Two products with statistics in between."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8)
        self.down = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Up, normalized, down."""
        return self.down(torch.relu(self.norm(self.up(x))))


def eager_step(
    net: Any, optimizer: Any, x: Any, y: Any, *, parts: int = 1, clip: float | None = None
) -> Any:
    """A step as a user writes it."""
    optimizer.zero_grad()
    whole = torch.zeros(())
    for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
        loss = F.mse_loss(net(a), b) / parts
        loss.backward()
        whole += loss.detach()
    if clip is not None:
        nn.utils.clip_grad_norm_(net.parameters(), clip)
    optimizer.step()
    return whole


def trained(
    make: Callable[[Any], Any],
    *,
    steps: int = 3,
    rtol: float = 1e-4,
    parts: int = 1,
    clip: float | None = None,
    **options: Any,
) -> Any:
    """Train a net with Weft and its twin eagerly, under a schedule; everything stays equal."""
    torch.manual_seed(0)
    net = Net()
    twin = copy.deepcopy(net)
    ours, theirs = make(net), make(twin)
    schedules = [optim.lr_scheduler.LambdaLR(o, lambda n: n / 2) for o in (ours, theirs)]
    step = weft.train_step(net, F.mse_loss, ours, accumulate=parts, clip=clip, **options)
    for _ in range(steps):
        x, y = torch.randn(8, 6), torch.randn(8, 3)
        made, expected = step(x, y), eager_step(twin, theirs, x, y, parts=parts, clip=clip)
        torch.testing.assert_close(made, expected, rtol=rtol, atol=1e-5)
        for schedule in schedules:
            schedule.step()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value, rtol=rtol, atol=1e-5, msg=name)
    assert len(step._programs) == 1  # a schedule of rates needs no second program
    return step


def weights(net: Any) -> list[Any]:
    return [p for p in net.parameters() if p.dim() == 2]


OPTIMIZERS = {
    "sgd": lambda net: optim.SGD(net.parameters(), lr=0.1),
    "momentum": lambda net: optim.SGD(
        net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "adam": lambda net: optim.Adam(net.parameters(), lr=1e-2, amsgrad=True),
    "adamw, two groups": lambda net: optim.AdamW(
        [
            {"params": weights(net)},
            {"params": [p for p in net.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=1e-2,
    ),
    "adafactor": lambda net: optim.Adafactor(net.parameters(), lr=1e-2),
    "muon": lambda net: optim.Muon(weights(net), lr=1e-2),
    "rmsprop": lambda net: optim.RMSprop(net.parameters(), lr=1e-3, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_eagers(name: str) -> None:
    """The first rate is 0, as where a schedule warms up; Muon computes in bf16."""
    trained(OPTIMIZERS[name], rtol=2e-2 if name == "muon" else 1e-4, target="numpy")


def test_on_a_mesh_with_parts_and_clipping() -> None:
    """State of a parameter's shape is sharded as the parameter is."""
    make = OPTIMIZERS["adam"]
    step = trained(make, parts=2, clip=0.05, mesh=MESH, plan=PLAN)
    taken = {p.name: p for p in step.signature.arguments}
    assert taken["up.weight.exp_avg"].sharding == taken["up.weight"].sharding
    assert "model" in str(taken["up.weight.exp_avg"].sharding)


def test_forward_in_bf16_keeps_f32_weights() -> None:
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    twin = copy.deepcopy(net)
    ours = optim.SGD(net.parameters(), lr=0.1)
    step = weft.train_step(net, F.mse_loss, ours, precision="bf16", target="numpy")
    x, y = torch.randn(8, 6), torch.randn(8, 3)
    loss = step(x, y)
    half = nn.functional.linear(x.bfloat16(), twin.weight.bfloat16(), twin.bias.bfloat16())
    F.mse_loss(half, y.bfloat16()).backward()
    assert loss.dtype == torch.bfloat16 and net.weight.dtype == torch.float32
    torch.testing.assert_close(
        net.weight, twin.weight - 0.1 * twin.weight.grad, rtol=2e-2, atol=1e-3
    )


def test_forms_of_a_loss() -> None:
    """A criterion, a function of the module, and a module's own loss."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner_layer = nn.Linear(4, 2)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            made = self.inner_layer(x)
            return {"loss": F.cross_entropy(made, labels), "logits": made}

    def of_module(module: Any, x: Any, labels: Any) -> tuple[Any, Any]:
        found = module(x, labels)
        return found["loss"], found["logits"]

    net = Own()
    before = copy.deepcopy(net.state_dict())
    x, labels = torch.randn(6, 4), torch.tensor([0, 1, 1, 0, 1, 0])
    given = {"lr": 0.5}
    loss, logits = weft.train_step(
        net, of_module, optim.SGD(net.parameters(), **given), target="numpy"
    )(x, labels)
    after = copy.deepcopy(net.state_dict())
    net.load_state_dict(before)
    torch.testing.assert_close(logits, net(x, labels)["logits"].detach())
    again = weft.train_step(net, None, optim.SGD(net.parameters(), **given), target="numpy")(
        x=x, labels=labels
    )
    torch.testing.assert_close(loss, again)
    torch.testing.assert_close(net.state_dict(), after)
    plain = nn.Linear(4, 2)
    plain.load_state_dict(dict(zip(("weight", "bias"), before.values(), strict=True)))
    criterion = nn.CrossEntropyLoss(weight=torch.ones(2))
    step = weft.train_step(plain, criterion, optim.SGD(plain.parameters(), **given), target="numpy")
    torch.testing.assert_close(step(x, labels), loss)


def refusal(match: str, loss: Any, make: Any = None, x: Any = None, **options: Any) -> None:
    net = Net()
    make = make or OPTIMIZERS["sgd"]
    with pytest.raises(weft.WeftError, match=match):
        weft.train_step(net, loss, make(net), target="numpy", **options)(
            torch.randn(8, 6) if x is None else x, torch.randn(8, 3)
        )


def test_refusals() -> None:
    refusal("is no optimizer|the optimizer is a", F.mse_loss, lambda net: net)
    refusal("not a parameter of the module", F.mse_loss, lambda _: OPTIMIZERS["sgd"](Net()))
    refusal("the loss is not a scalar", lambda out, y: out - y)
    refusal("does not depend on any parameter", lambda out, y: (y * 2).mean())
    refusal("takes 1 arguments, but a batch has 2", lambda out: out.mean())
    refusal("does not divide", F.mse_loss, accumulate=3)
    refusal("accumulate=0 is not a positive integer", F.mse_loss, accumulate=0)
    refusal("clip=-1 is not a gradient norm", F.mse_loss, clip=-1)
    refusal("precision='int8'", F.mse_loss, precision="int8")
    refusal("LBFGS", F.mse_loss, lambda net: optim.LBFGS(net.parameters()))
    refusal("RAdam decides in Python", F.mse_loss, lambda net: optim.RAdam(net.parameters()))
    damped = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}
    refusal("dampening", F.mse_loss, lambda net: optim.SGD(net.parameters(), **damped))


def test_unused_and_frozen_parameters_stay() -> None:
    """Eager gives them no gradient, and an optimizer leaves them alone."""
    net = Net()
    net.spare = nn.Parameter(torch.ones(3))
    net.up.weight.requires_grad_(False)
    before = copy.deepcopy(net.state_dict())
    step = weft.train_step(
        net, F.mse_loss, optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1), target="numpy"
    )
    step(torch.randn(8, 6), torch.randn(8, 3))
    for name in ("spare", "up.weight"):
        assert torch.equal(net.state_dict()[name], before[name]), name
    assert not torch.equal(net.down.weight, before["down.weight"])


class _Frozen(torch.nn.Module):
    """A module with blocks that record no gradients, and one inside that does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = self.a(x)
            with torch.enable_grad():
                z = self.c(x)
        return self.b(x) * y + z


def test_blocks_without_gradients() -> None:
    torch.manual_seed(0)
    module = _Frozen()
    eager = copy.deepcopy(module)
    x, wanted = torch.randn(3, 4), torch.randn(3, 4)
    step = weft.train_step(module, F.mse_loss, torch.optim.SGD(module.parameters(), lr=0.1))
    step(x, wanted)
    F.mse_loss(eager(x), wanted).backward()
    torch.optim.SGD(eager.parameters(), lr=0.1).step()
    for name, value in eager.named_parameters():
        torch.testing.assert_close(module.get_parameter(name), value, msg=name)


def test_backward_ops_have_lines() -> None:
    """Ops of the backward pass are at the line of their forward op."""
    net = Net()
    step = weft.train_step(net, F.mse_loss, OPTIMIZERS["sgd"](net), target="numpy")
    step(torch.randn(8, 6), torch.randn(8, 3))
    text = step.text("captured", locations=True)
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) >= 5
    assert all("test_training.py" in line for line in products), products


def test_state_is_donated_not_copied() -> None:
    """New weights and moments are written into PyTorch's own memory, on a mesh, too."""
    torch.manual_seed(0)
    for mesh in (None, Mesh(data=4)):
        net = nn.Linear(64, 64, bias=False)
        adam = optim.Adam(net.parameters(), lr=0.1)
        step = weft.train_step(net, F.mse_loss, adam, mesh=mesh, plan=mesh and "fsdp")
        x = torch.randn(8, 64)
        seen = net.weight.detach()  # another view of the memory, as an exponential average holds
        before, version = seen.clone(), net.weight._version
        step(x, x)
        assert not torch.equal(seen, before) and net.weight._version > version
        donated = {a.name for a in step.signature.arguments if a.donated}
        assert {"weight", "weight.exp_avg", "weight.exp_avg_sq"} <= donated
        state = 3 * 64 * 64 * 4 // (mesh.size if mesh else 1)
        assert step.memory().aliased >= state
        ready = next(iter(step._programs.values()))
        values = step._source.flatten((x, x), {})[1].values
        made = run(ready.program.local, *ready.arguments(values))
        own = [t.data_ptr() for t in (net.weight, *[adam.state[net.weight][w] for w in MOMENTS])]
        assert {address_of(a.stacked.data) for a in made} >= {*own}


def test_tensors_that_share_memory_are_not_donated() -> None:
    """One would be overwritten while the other is still read."""
    both = torch.randn(6, 4)

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("one", both[:4])
            self.register_buffer("other", both[2:])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.one += x
            return self.one * 2

    def eager(one: Any, x: Any) -> Any:
        return (one + x) * 2

    expected = eager(both[:4].clone(), torch.ones(4, 4))
    compiled = weft.compile(Views(), target="numpy")
    made = compiled(torch.ones(4, 4))
    torch.testing.assert_close(made, expected)
    torch.testing.assert_close(both[:4] * 2, expected)
    assert not any(a.donated for a in compiled.signature.arguments)


class Noisy(Net):
    """A net that draws random numbers, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Up, normalized, dropped out, down."""
        return self.down(F.dropout(self.norm(self.up(x)), 0.5, self.training))


def accumulated(parts: int, rows: int = 4, **options: Any) -> tuple[Any, Any, Any]:
    """A step on parts of as many rows: the step, the loss, and the net."""
    torch.manual_seed(0)
    net = Noisy()
    step = weft.train_step(net, F.mse_loss, OPTIMIZERS["sgd"](net), accumulate=parts, **options)
    loss = step(torch.randn(parts * rows, 6), torch.randn(parts * rows, 3))
    return step, loss, net


def test_parts_are_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to parts one after another, also in what they draw, and no larger for more parts."""
    looped, loss, net = accumulated(4)
    more, *_ = accumulated(8)
    assert "stablehlo.while" in looped.text("captured")
    assert more.text("captured").count("\n") == looped.text("captured").count("\n")
    batch = 4 * 4 * (6 + 3) * 4  # the bytes of four parts
    assert more.memory().peak - looped.memory().peak <= batch + 1024
    monkeypatch.setattr("weft.capture.torch.training.step._UNROLLED", 4)
    unrolled, expected, twin = accumulated(4)
    assert "stablehlo.while" not in unrolled.text("captured")
    torch.testing.assert_close(loss, expected)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value, msg=name)


def test_parts_of_a_batch_that_is_updated() -> None:
    """Each part is updated in its place."""

    class Scaling(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.mul_(2))

    net = Scaling(4, 3)
    step = weft.train_step(net, F.mse_loss, OPTIMIZERS["sgd"](net), accumulate=4, target="numpy")
    x = torch.randn(8, 4)
    expected = x * 2
    step(x, torch.randn(8, 3))
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("plan", ["fsdp", {"x": P("data"), "target": P("data")}])
def test_a_loop_over_parts_on_a_mesh(plan: Any) -> None:
    """Replicated weights have their gradients reduced once; FSDP's stay split during the loop."""
    step = trained(OPTIMIZERS["adam"], parts=4, clip=0.05, mesh=Mesh(data=2), plan=plan)
    ready = next(iter(step._programs.values()))
    loop = next(node for node in walk(ready.program.local.module.function("main").body)
                if isinstance(node.op, While))  # fmt: skip
    reduced = [each.type.size for node in walk(loop.regions[1]) for each in node.operands
               if node.op.collective]  # fmt: skip
    sums = [value.type.size for value in loop.results]
    if plan == "fsdp":
        assert max(sums) == 8 * 6 // 2
    else:
        assert max(reduced) <= 2 * 8 and max(sums) == 8 * 6  # statistics, and the loss
