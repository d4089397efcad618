"""`torch.compile(backend="weft")`: forward, backward, breaks and sizes, against eager mode."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path

import pytest

import weft
from tests.capture.torch.models import Transformer, torch
from weft import Mesh, P
from weft.dynamo import backend, recompilations


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return {"y": x + self.down(torch.nn.functional.gelu(self.up(x)))}


def test_gradients_and_sizes_are_eagers() -> None:
    """The second size makes Dynamo's graph symbolic; Weft compiles it for each."""
    model = Layer()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=backend)
    for rows in (4, 6, 3, 1):
        x = torch.randn(rows, 8)
        made, expected = compiled(x)["y"], eager(x)["y"]
        torch.testing.assert_close(made, expected)
        made.square().sum().backward()
        expected.square().sum().backward()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)


def test_constants_effects_and_other_gradients() -> None:
    """A tensor made in the graph, an op that raises, and gradients without a lowering."""
    functional = torch.nn.functional

    def loss(x):
        grid = torch.tensor([[[-0.5, 0.2], [0.9, 0.1]]]).expand(2, 2, 2, 2)
        sampled = functional.grid_sample(x, grid, padding_mode="border", align_corners=True)
        factors = torch.linalg.cholesky(x[:, 0] @ x[:, 0].mT + torch.eye(4))
        labels = torch.tensor([[1, -1, 0, 2], [3, 0, -1, 1]])
        margins = functional.multilabel_margin_loss(x[:, 0, 0], labels, reduction="sum")
        return sampled.square().sum() + factors.sum() + margins

    x = torch.randn(2, 3, 4, 4)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.compile(loss, backend=backend)(ours).backward()
    loss(theirs).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)


def test_attention_on_a_mesh() -> None:
    """A plan names parameters as the module does."""
    model, tokens = Transformer(), torch.randint(0, 32, (4, 6))
    names = [name for name, p in model.named_parameters() if p.dim() == 2 and not p.shape[0] % 4]
    options = {"mesh": Mesh(data=2, model=4), "plan": {names[-1]: P("model")}}
    compiled = torch.compile(model, backend=backend, options=options)
    made = compiled(tokens)
    torch.testing.assert_close(made, model(tokens), rtol=1e-4, atol=1e-4)
    sum(each.sum() for each in made.values()).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_graph_breaks_and_changes_in_place(capsys) -> None:
    def broken(x, held):
        y = x * 2
        print("here")
        held.add_(y)
        return y + held, x

    x, held = torch.ones(3), torch.zeros(3)
    compiled = torch.compile(broken, backend=backend)
    made, same = compiled(x, held)
    assert made.tolist() == [4, 4, 4] and held.tolist() == [2, 2, 2] and same is x
    assert capsys.readouterr().out == "here\n"


def test_unknown_options_and_ops_are_refused() -> None:
    def run(fn, **options):
        return torch.compile(fn, backend=backend, options=options)(torch.eye(3))

    with pytest.raises(Exception, match="no option 'meshes'"):
        run(lambda x: x + 1, meshes=2)
    with pytest.raises(Exception, match="has no lowering in Weft"):
        run(lambda x: torch.special.airy_ai(x))


def test_the_backend_has_a_name() -> None:
    project = tomllib.loads((Path(weft.__file__).parents[1] / "pyproject.toml").read_text())
    named = project["project"]["entry-points"]["torch_dynamo_backends"]
    assert named == {"weft": f"{backend.__module__}:{backend.__name__}"}


# Strictness and recompilations


def test_strict_refuses_a_graph_break() -> None:
    def broken(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    def begins(x):
        torch._dynamo.graph_break()
        return x + 1

    for function in (broken, begins):
        strict = torch.compile(function, backend=backend, options={"strict": True})
        with pytest.raises(Exception, match="graph break") as caught:
            strict(torch.ones(3))
        assert "strict: " in str(caught.value)
        torch._dynamo.reset()
        loose = torch.compile(function, backend=backend)
        torch.testing.assert_close(loose(torch.ones(3)), function(torch.ones(3)))


def test_strict_refuses_what_numpy_would_run() -> None:
    def spectrum(x):
        return torch.linalg.eigvals(x).abs() + 1

    strict = torch.compile(spectrum, backend=backend, options={"strict": True})
    with pytest.raises(Exception, match="strict: no kernel computes custom_call"):
        strict(torch.ones(1024, 1024))  # LAPACK's own threads are faster there


def test_strict_runs_what_has_kernels() -> None:
    model, x = Layer(), torch.randn(4, 8)
    strict = torch.compile(model, backend=backend, options={"strict": True})
    made = strict(x)["y"]
    torch.testing.assert_close(made, model(x)["y"])
    made.sum().backward()


def test_recompilations_are_counted_and_explained() -> None:
    def scaled(x, factor):
        return x * factor

    before = len(recompilations())
    compiled = torch.compile(scaled, backend=backend, dynamic=False)
    for factor in (2, 2, 3, 4):
        compiled(torch.ones(3), factor)
    found = recompilations()[before:]
    assert [(r.function, r.count) for r in found] == [("scaled", 2), ("scaled", 3)]
    assert all("factor" in r.reason and __file__ in r.place for r in found)


def test_results_have_eagers_strides() -> None:
    def transposed(x):
        y = x.t() * 2
        return y.t(), y, torch.stack([y, y]).permute(2, 0, 1)

    for x in (torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)):
        torch._dynamo.reset()
        made, expected = torch.compile(transposed, backend=backend)(x), transposed(x)
        torch.testing.assert_close(made, expected, check_stride=True)


def test_layers_of_one_op_and_checks() -> None:
    """The fast path of an encoder layer, statistics that are views, and complex numbers."""

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.norm = torch.nn.InstanceNorm1d(5, track_running_stats=True)

        def forward(self, x, mask, numbers):
            hot = torch.nn.functional.one_hot(numbers, 3)
            return self.layer(self.norm(x), src_key_padding_mask=mask), hot

    model, x = Layers().eval(), torch.randn(2, 5, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend)
        args = (x, mask, torch.tensor([2, 0]))
        torch.testing.assert_close(compiled(*args), model(*args), rtol=1e-4, atol=1e-5)

    def turned(z):
        return (2j * z - z**2).abs().sum()

    ours, theirs = (torch.tensor([1 + 2j, 0.5j], requires_grad=True) for _ in range(2))
    torch.compile(turned, backend=backend)(ours).backward()
    turned(theirs).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_grouped_products_and_branches() -> None:
    def experts(x, weights, ends):
        made = torch._grouped_mm(x, weights, offs=ends)
        return torch.cond(made.sum() > 0, lambda y: y * 2, lambda y: y - 1, (made,))

    x, weights = torch.randn(8, 16).bfloat16(), torch.randn(2, 16, 16).bfloat16()
    ends = torch.tensor([3, 8], dtype=torch.int32)
    made = torch.compile(experts, backend=backend)(x, weights, ends)
    torch.testing.assert_close(made, experts(x, weights, ends), rtol=2e-2, atol=2e-2)


def test_modes_of_inductor_are_refused() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no mode 'max-autotune'"):
        torch.compile(torch.sin, backend="weft", mode="max-autotune")(torch.ones(2))
