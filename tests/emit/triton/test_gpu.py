"""Everything for real, on a GPU: `pytest -m gpu tests/emit/triton`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import weft
from tests.emit.triton.channels import compare_networks, convolve_all
from tests.emit.triton.corpus import CASES, ON_GPU
from tests.emit.triton.launching import check, kernels_of, launched, values
from tests.emit.triton.scatters import SCATTERS, experts
from tests.kernels.attention_cases import inputs
from tests.kernels.attention_cases import kernels as attention_kernels
from tests.kernels.interpret_attention import interpret_attention
from tests.tolerance import assert_close
from weft.emit.triton.emit import emitted
from weft.kernels.kernel import Kernel

pytestmark = pytest.mark.gpu
ALL = CASES | ON_GPU


@pytest.mark.parametrize("name", ALL)
def test_kernels_match_the_reference(name):
    function, arguments, _ = ALL[name]
    program = weft.compile(function, *arguments, target="triton").program.local
    for kernel in kernels_of(program):
        if isinstance(kernel, Kernel):
            check(kernel, "cuda:0")


@pytest.mark.parametrize("name", ALL)
def test_programs_match_numpy_again_and_again(name):
    function, arguments, _ = ALL[name]
    compiled = weft.compile(function, *arguments, target="triton")
    expected = weft.compile(function, *arguments, target="numpy")(*arguments)
    for _ in range(3):  # launched, captured, replayed
        made = compiled(*arguments)
        for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
            narrow = any(str(getattr(a, "dtype", "")) == "bfloat16" for a in arguments)
            limit = 2e-2 if narrow else 2e-3 if "tf32" in name else 2e-5
            found, wide = np.asarray(one, "d"), np.asarray(other, "d")
            np.testing.assert_array_equal(np.isnan(found), np.isnan(wide))
            scale = np.abs(np.nan_to_num(wide)).max(initial=1e-6)
            assert np.abs(np.nan_to_num(found - wide)).max(initial=0) <= limit * scale


def test_results_that_others_hold_are_not_reused():
    import torch

    x = weft.put(torch.arange(64.0, device="cuda"), device="cuda")
    compiled = weft.compile(lambda a, b: a * b, x, 2.0, target="triton")
    held = [compiled(x, float(n)).to_torch() for n in range(20)]  # the arrays are gone
    views = [torch.from_dlpack(compiled(x, float(n))) for n in range(20)]
    for n in range(20):
        torch.testing.assert_close(held[n], x.to_torch() * n)
        torch.testing.assert_close(views[n], x.to_torch() * n)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_training_updates_parameters_in_place(optimizer):
    import copy

    import torch

    torch.manual_seed(0)
    layers = torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.GELU()
    ours = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1)).cuda()
    theirs = copy.deepcopy(ours)
    x, y = torch.randn(16, 32, device="cuda"), torch.randn(16, 1, device="cuda")
    loss = torch.nn.functional.mse_loss
    made, eager = (getattr(torch.optim, optimizer)(m.parameters(), lr=1e-2) for m in (ours, theirs))
    step, places = weft.train_step(ours, loss, made), [p.data_ptr() for p in ours.parameters()]
    for _ in range(3):
        found = step(x, y)
        eager.zero_grad()
        expected = loss(theirs(x), y)
        expected.backward()
        eager.step()
        torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-4, atol=1e-5)
    assert places == [p.data_ptr() for p in ours.parameters()]
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_buffers_are_updated_in_place():
    import torch

    class Cache(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("held", torch.zeros(2, 8, 4, device="cuda"))

        def forward(self, x, at):
            self.held.index_copy_(1, at, x)
            return self.held.sum(1)

    module = Cache()
    x = torch.randn(2, 1, 4, device="cuda")
    compiled, place = weft.compile(module), module.held.data_ptr()
    for n in range(4):
        made = compiled(x * n, torch.tensor([n], device="cuda"))
    assert module.held.data_ptr() == place
    torch.testing.assert_close(module.held[:, 3], x[:, 0] * 3)
    torch.testing.assert_close(made, module.held.sum(1))


def test_products_are_of_tf32_only_where_the_program_says_so():
    """By error: operands of 11 bits, or of 24."""
    import torch

    torch.manual_seed(0)
    x, w = (weft.put(torch.randn(256, 256, device="cuda"), device="cuda") for _ in range(2))
    wide = x.to_torch().double() @ w.to_torch().double()

    def error(made):
        return float((made.double() - wide).norm() / wide.norm())

    def product(precision):
        function = lambda a, b: jnp.matmul(a, b, precision=precision)  # noqa: E731
        made = weft.compile(function, x, w, target="triton")
        return error(made(x, w).to_torch())

    before = torch.get_float32_matmul_precision()
    try:
        for setting in ("highest", "high"):
            torch.set_float32_matmul_precision(setting)
            assert product("highest") < 2e-6 and product(None) < 2e-6
            assert 5e-5 < product("high") < 1e-3
            layer = torch.nn.Linear(256, 256, bias=False).cuda()
            layer.weight.data = w.to_torch().T.contiguous()
            with torch.no_grad():
                found = error(weft.compile(layer)(x.to_torch()))
            assert found < 2e-6 if setting == "highest" else 5e-5 < found < 1e-3
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("depth", [64, 96, 128])
def test_attention_and_its_gradients(causal, depth):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(0)
    given = [torch.randn(2, 3, 80, depth, device="cuda", dtype=torch.bfloat16) for _ in range(4)]

    def attend(q, k, v):
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32)
        scores = scores * depth**-0.5
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool)) if causal else True
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)).astype(q.dtype)
        return jnp.einsum("bhqk,bhkd->bhqd", weights, v)

    def both(q, k, v, g):
        out, pull = jax.vjp(attend, q, k, v)
        return out, *pull(g)

    arrays = [weft.put(t, device="cuda") for t in given]
    compiled = weft.compile(both, *arrays, target="triton")
    made = [x.to_torch() for x in compiled(*arrays)]
    wide = [t.double().requires_grad_() for t in given[:3]]
    out = scaled_dot_product_attention(*wide, is_causal=causal)
    expected = [out, *torch.autograd.grad(out, wide, given[3].double())]
    for one, other in zip(made, expected, strict=True):
        error = (one.double() - other).norm() / other.norm()
        assert error < 1e-2, float(error)


@settings(max_examples=30, deadline=None)
@given(attention_kernels())
def test_attention_of_every_form(kernel):
    arrays = inputs(kernel)
    made = launched(kernel, arrays, "cuda:0", poison=0)
    length = 16 * max(kernel.keys, kernel.queries, kernel.depth, kernel.value_depth)
    for one, other in zip(made, interpret_attention(kernel, arrays), strict=True):
        assert_close(one, other, length, str(kernel), least=1.0)


@pytest.mark.parametrize("name", SCATTERS)
def test_scatters(name):
    function, arguments = SCATTERS[name]
    compiled = weft.compile(function, *arguments, target="triton")
    limit = 1e-2 if name == "narrow" else 1e-5
    for _ in range(3):
        one, other = (np.asarray(f(*arguments), "d") for f in (compiled, jax.jit(function)))
        np.testing.assert_allclose(one, other, rtol=limit, atol=limit)


def test_pytorch_shares_memory_and_chooses_the_target():
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.GELU()).cuda()
    x = torch.randn(8, 64, device="cuda")
    made = weft.compile(model, x)(x)
    assert made.device == x.device
    torch.testing.assert_close(made, model(x), rtol=1e-4, atol=1e-5)
    held = weft.put(x, device="cuda")
    assert held.to_torch().data_ptr() == x.data_ptr()


@pytest.mark.parametrize("name", ["bias and gelu", "both turned", "batched", "heads"])
def test_every_candidate_of_products_matches_the_reference(name):
    from tests.emit.triton.test_tuned import PRODUCTS, kernel_of, with_options
    from weft.emit.triton.tuning.candidates import GpuCandidates
    from weft.kernels.interpret import interpret

    kernel = kernel_of(PRODUCTS[name][0], *PRODUCTS[name][1])
    arrays = values(kernel)
    (expected,) = interpret(kernel, arrays)
    wide = np.asarray(expected, "d")
    ways = GpuCandidates(kernel).ways()
    assert len(ways) > (1 if name == "heads" else 3), ways
    for options in ways.values():
        (made,) = launched(with_options(kernel, **options), arrays, "cuda:0")
        error = np.abs(np.asarray(made, "d") - wide).max() / np.abs(wide).max()
        assert error <= 2**-7, (name, options)


def test_candidates_are_measured_in_another_process(tmp_path, monkeypatch):
    from weft.tune import TuneProgress, listening

    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    tried = []
    x, w = (jnp.ones((1024, 1024), jnp.bfloat16) for _ in range(2))
    with listening(TuneProgress(lambda kernel, count: None, tried.append)):
        compiled = weft.compile(lambda x, w: x @ w, x, w, target="triton", tune="measure")
    (one,) = tried
    assert len(one.seconds) > 4 and not one.failed and one.best in one.seconds
    np.testing.assert_array_equal(np.asarray(compiled(x, w), "f"), np.full((1024, 1024), 1024.0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_convolutions_with_channels_last(dtype, monkeypatch):
    import torch

    convolve_all(monkeypatch)
    compare_networks("cuda", getattr(torch, dtype))
    emitted.cache_clear()


def test_relu_keeps_nan():
    import torch

    x, w, c = torch.randn(64, 64), torch.randn(64, 64), torch.randn(64)
    x[3] = float("nan")
    arrays = [weft.put(t.bfloat16().cuda(), device="cuda") for t in (x, w, c)]
    made = weft.compile(lambda x, w, c: jax.nn.relu(x @ w + c), *arrays, target="triton")(*arrays)
    assert bool(made.to_torch().isnan().any(1).eq(x.isnan().any(1).cuda()).all())


ODD, EVEN = ([130, 0, 6, 9], 150, 70, 37), ([100, 0, 300, 50], 512, 128, 256)


@pytest.mark.parametrize("sizes", [ODD, EVEN])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_ragged_dots_and_their_gradients(dtype, sizes):
    groups, rows, depth, columns = sizes
    rng = np.random.default_rng(0)
    shapes = (rows, depth), (len(groups), depth, columns), (rows, columns)
    x, w, g = (jnp.asarray(rng.integers(-3, 4, shape), dtype) for shape in shapes)
    given = (x, w, np.array(groups, "i"), g)
    compiled = weft.compile(experts, *given, target="triton")
    with jax.default_device(jax.devices("cpu")[0]):
        expected = jax.jit(experts)(*given)
    for _ in range(3):
        for one, other in zip(compiled(*given), expected, strict=True):
            assert_close(np.asarray(one), np.asarray(other), max(shapes[0]))
