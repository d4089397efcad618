"""Calls of programs on a device by addresses alone: the interpreted target with a stream."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from weft.emit.triton.target import Triton

pytest.importorskip("triton")
torch = pytest.importorskip("torch")


class DoneEvent:
    is_ready = True

    def wait(self):
        pass


class ImmediateStream:
    """The stream of kernels that run when they are enqueued."""

    def record(self):
        return DoneEvent()

    def wait(self, event):
        pass

    def synchronize(self):
        pass


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(Triton, "stream", ImmediateStream())


class Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((4,), 2.0))
        self.register_buffer("held", torch.zeros(2, 8, 4))

    def forward(self, x, at):
        self.held.index_copy_(1, at, x * self.scale)
        return self.held.sum(1)


def test_a_module_is_called_on_its_tensors_as_they_are():
    module, reference = Cache(), Cache()
    compiled, place = weft.compile(module, target="triton"), module.held.data_ptr()

    def check(x, at):
        with torch.no_grad():
            made = compiled(x, at)
            torch.testing.assert_close(made, reference(x, at))
        torch.testing.assert_close(module.held, reference.held)
        assert module.held.data_ptr() == place

    for n in range(3):
        check(torch.randn(2, 1, 4), torch.tensor([n]))
    known = next(iter(compiled._known.values()))
    assert known.enqueued is not None
    check(torch.randn(2, 4, 1).transpose(1, 2), torch.tensor([3]))  # copied: it is not dense
    check(torch.randn(2, 2, 4)[:, 1:], torch.tensor([4]))
    version = module.held._version
    check(torch.randn(2, 1, 4), torch.tensor([5]))
    assert module.held._version > version
    for each in (module, reference):  # other memory, then another parameter
        each.scale.data = torch.full((4,), 3.0)
    check(torch.randn(2, 1, 4), torch.tensor([6]))
    for each in (module, reference):
        each.scale = torch.nn.Parameter(torch.full((1,), 5.0))
    check(torch.randn(2, 1, 4), torch.tensor([7]))
    results = [compiled(torch.ones(2, 1, 4), torch.tensor([n])) for n in range(3)]
    assert len({r.data_ptr() for r in results}) == 3


def test_arguments_that_share_memory_are_not_overwritten():
    class Swap(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("held", torch.zeros(4))

        def forward(self, x):
            self.held.add_(1)
            return x * 2 + self.held

    module = Swap()
    compiled = weft.compile(module, target="triton")
    for n in range(3):
        torch.testing.assert_close(compiled(torch.ones(4)), torch.full((4,), 3.0 + n))
    torch.testing.assert_close(compiled(module.held), torch.full((4,), 12.0))  # as eager


def test_arrays_are_results_of_their_own():
    x = np.arange(6, dtype="f")
    compiled = weft.compile(lambda a, b: (a + b, a * b), x, x, target="triton")
    one, other = compiled(x, x)
    for _ in range(3):
        total, product = compiled(one, other)
        np.testing.assert_allclose(np.asarray(total), 2 * x + x * x)
        np.testing.assert_allclose(np.asarray(product), 2 * x**3)
    assert next(iter(compiled._known.values())).on_arrays is None  # of numpy arrays
    assert [k.on_arrays is not None for k in compiled._known.values()][-1]
    one.delete()
    with pytest.raises(weft.WeftError, match="deleted"):
        compiled(one, other)


def test_step_counts_on_the_host_are_not_read_back():
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    step = weft.train_step(layer, torch.nn.functional.mse_loss, optimizer, target="triton")
    for n in range(1, 4):
        step(torch.ones(5, 3), torch.zeros(5, 2))
        assert [float(s["step"]) for s in optimizer.state.values()] == [n, n]
    assert [number for _, number in step._last.captured.counted] == [1.0, 1.0]


def test_the_precision_of_pytorch_is_part_of_the_program():
    layer, x = torch.nn.Linear(70, 40, bias=False), torch.randn(33, 70)
    compiled = weft.compile(layer, target="triton")
    before = torch.get_float32_matmul_precision()
    try:
        for setting, shown in (("highest", False), ("high", True), ("highest", False)):
            torch.set_float32_matmul_precision(setting)
            torch.testing.assert_close(compiled(x), layer(x).detach())
            assert ("tf32" in compiled.text("emitted")) == shown
    finally:
        torch.set_float32_matmul_precision(before)


def test_jax_says_where_tf32_is_allowed():
    import jax

    a = np.ones((16, 16), "f")

    def text(**options):
        made = weft.compile(lambda x, y: jnp.matmul(x, y, **options), a, a, target="triton")
        return made.text("emitted")

    assert "tf32" not in text() and "tf32" not in text(precision="highest")
    assert "of tf32" in text(precision="high")
    assert "of tf32" in text(precision=jax.lax.DotAlgorithmPreset.TF32_TF32_F32)
    with jax.default_matmul_precision("tensorfloat32"):
        assert "of tf32" in text()


def test_complex_numbers_and_pooling_stay_on_the_device(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    rng = np.random.default_rng(0)

    def filtered(x, w):
        """A spectral layer."""
        made = jnp.fft.fft(x, axis=1) * w
        turned = jnp.concatenate([made[:, ::-1], made], 1).T.conj()
        energy = jnp.einsum("ab,cb->ac", turned, turned)
        rest = jnp.abs(energy).sum() + jnp.exp(made * 0.1).imag.sum()
        return jnp.fft.ifft(made, axis=1).real, rest, jnp.where(made == 0, 1, made).sum(0)

    def pooled(x):
        window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "SAME")

    x, w = rng.standard_normal((3, 8)).astype("f"), rng.standard_normal((3, 8)).astype("F")
    image = rng.integers(0, 5, (2, 7, 9, 3)).astype("f")
    gradient = jax.grad(lambda x: (pooled(x) ** 2).sum())
    for function, given in ((filtered, (x, w)), (gradient, (image,))):
        compiled = weft.compile(function, *given, target="triton")
        assert "host " not in compiled.text("tiled")
        expected = jax.tree.leaves(jax.jit(function)(*given))
        for one, other in zip(jax.tree.leaves(compiled(*given)), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
