"""The zoo: models against eager, forward and gradients, on one device and on meshes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from weft.errors import WeftError
from weft.zoo import ZOO, select_models

torch = pytest.importorskip("torch")

from weft.zoo.check import DTYPES, PASSES, ZooResult, check, relative_error  # noqa: E402

GOLDEN = Path(__file__).parents[1] / "golden" / "zoo"
# Models of the default run, with the meshes that they run on.
SAMPLE = {"mlp": ["1", "8"], "vgg": ["4"], "graph_convolution": ["8"]}
NAMED = (
    "mlp resnet vit unet llama qwen3 gemma2 gemma3 phi gpt2 bert albert t5 whisper mamba2 mixtral "
    "qwen3_moe deepseek_v3 gpt_oss glm4_moe clip dit lstm convnext swin sam graph_convolution"
)


def text(result: ZooResult) -> str:
    what = f"{result.model} {result.what} {result.dtype} on {result.mesh}"
    return f"{what}: {result.verdict}, {result.error:.2g} > {result.allowed:.2g} {result.detail}"


def assert_equal(results) -> None:
    made = [*results]
    assert made
    wrong = [text(result) for result in made if result.verdict != "equal"]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_equals_eager(name):
    assert_equal(check(ZOO[name], "f32", SAMPLE[name]))


OWN = [m.name for m in ZOO.values() if m.library == "torch"]


@pytest.mark.parametrize("name", [*OWN, "llama"])
def test_every_parameter_matters(name):
    """A model that ignored a layer would test less than it seems to."""
    if ZOO[name].library == "transformers":
        pytest.importorskip("transformers")
    module, inputs = ZOO[name].make()
    made = [x for x in torch.utils._pytree.tree_leaves(module(**inputs)) if torch.is_tensor(x)]
    sum(one.square().sum() for one in made).backward()
    assert all(one.isfinite().all() for one in made)
    unused = [n for n, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    assert not unused


def test_bf16_equals_eager():
    assert_equal(check(ZOO["mlp"], "bf16", ["8"]))


@pytest.mark.long
@pytest.mark.parametrize("what", PASSES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ZOO)
def test_every_model_equals_eager(name, dtype, what):
    model = ZOO[name]
    if model.library == "transformers" and importlib.util.find_spec("transformers") is None:
        pytest.skip("pip install 'weft[zoo]'")
    assert_equal(check(model, dtype, passes=[what]))


def test_the_zoo_has_what_its_page_names():
    assert len(ZOO) >= 30
    assert set(NAMED.split()) <= ZOO.keys()


def test_models_are_chosen_by_name_and_family():
    assert [m.name for m in select_models(ZOO, ["mlp"])] == ["mlp"]
    assert {m.family for m in select_models(ZOO, ["graphs"])} == {"graphs"}
    with pytest.raises(WeftError, match="no model or family 'lama'"):
        select_models(ZOO, ["mlp", "lama"])


def test_an_error_is_seen():
    """A wrong element, a NaN, another shape and a missing tensor."""
    right = {"y": torch.arange(8.0)}
    assert relative_error({"y": torch.arange(8.0)}, right)[0] == 0
    assert relative_error({"y": torch.arange(8.0) + 0.7}, right)[0] == pytest.approx(0.1)
    for wrong in ({"y": torch.full((8,), torch.nan)}, {"y": torch.ones(4)}, {}):
        assert relative_error(wrong, right)[0] == float("inf")


@torch.no_grad()
def described(name: str) -> str:
    """A model's inputs, number of parameters and results: of weights that are set, not drawn."""
    module, inputs = ZOO[name].make()
    for n, weight in enumerate(module.parameters()):
        waves = torch.sin(torch.arange(weight.numel()) * 0.7 + n).reshape(weight.shape)
        weight.copy_(waves / max(1, weight[0].numel()) ** 0.5 if weight.dim() > 1 else waves)
    made = [
        x for x in torch.utils._pytree.tree_leaves(module.eval()(**inputs)) if torch.is_tensor(x)
    ]
    results = [f"{list(x.shape)} of {float(x.double().abs().mean()):.3g}" for x in made]
    given = [
        f"{k} {list(v.shape)}" if torch.is_tensor(v) else f"{k} {v}" for k, v in inputs.items()
    ]
    count = sum(weight.numel() for weight in module.parameters())
    return f"{name}: {', '.join(given)}; {count} parameters; {', '.join(results)}"


def test_what_the_models_are(golden):
    golden(GOLDEN / "models.txt", "".join(f"{described(name)}\n" for name in OWN))
