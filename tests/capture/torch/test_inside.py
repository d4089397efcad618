"""What programs do inside: derivatives, branches, indices, masks, changes in place."""

from __future__ import annotations

import copy

import pytest

import weft
from tests.capture.torch.models import torch
from tests.capture.torch.test_ops import drawn
from weft import Mesh
from weft.errors import Unsupported, WeftError

nn, functional = torch.nn, torch.nn.functional


def assert_equal(function, *args, mesh=None, **kwargs):
    """A program gives eager mode's results, and changes its arguments in the same way."""
    own, theirs = (copy.deepcopy((args, kwargs)) for _ in range(2))
    made = weft.compile(function, mesh=mesh)(*own[0], **own[1])
    expected = function(*theirs[0], **theirs[1])
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(own[0][0], theirs[0][0])


def transforms(x, w):
    func = torch.func

    def loss(p):
        return torch.tanh(x @ p).square().sum()

    x.add_(1)  # changes in place stay
    return [
        func.grad(loss)(w), func.vmap(lambda row: torch.outer(row, row).sum(0))(x),
        func.jvp(loss, (w,), (w,))[1], func.hessian(lambda v: (v**3).sum())(x[0]),
        func.vmap(func.grad(lambda row, p: (row @ p).sum() ** 2), (0, None))(x, w),
    ]  # fmt: skip


def slopes(x, w):
    x = x.clone().requires_grad_()
    first = torch.autograd.grad((x @ w).tanh().sum(), x, create_graph=True)[0]
    return [first.detach(), torch.autograd.grad(first.square().sum(), x)[0]]


@pytest.mark.parametrize("program", [transforms, slopes])
def test_derivatives_inside_of_a_program(program):
    assert_equal(program, drawn(4, 3) / 4, drawn(3, 2) / 4, mesh=Mesh(data=2))


def test_a_failed_transform_is_left():
    def broken(x):
        return torch.func.vmap(lambda row: row @ torch.ones(7))(x)

    with pytest.raises(RuntimeError):
        weft.compile(broken)(drawn(4, 3))
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0


class Slopes(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x):
        return torch.vmap(torch.func.grad(lambda row: self.inner(row)[0]))(x)


def test_a_loss_of_derivatives_is_trained():
    torch.manual_seed(0)
    model, x = Slopes(), drawn(6, 2) / 4
    eager = copy.deepcopy(model)
    step = weft.train_step(
        model, lambda m, x: m(x).square().mean(), torch.optim.SGD(model.parameters(), 0.1)
    )
    optimizer = torch.optim.SGD(eager.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        expected = eager(x).square().mean()
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(step(x), expected.detach())


def test_losses_that_lose_gradients_are_refused():
    def without(model, x):
        with torch.no_grad():
            target = model.inner(x)
        return (model(x)[:, :1] - target).square().mean()

    def by_autograd(model, x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(model.inner(x).sum(), x, create_graph=True)[0].square().mean()

    model = Slopes()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for loss, words in ((without, "block without gradients"), (by_autograd, "autograd.grad")):
        with pytest.raises(Unsupported, match=words):
            weft.train_step(model, loss, optimizer)(drawn(6, 2))


def indexed(x, i, j):
    """By tensors of rank 0: reads are views, and writes change one slice."""
    x = x.clone()
    view = x[i]
    view.mul_(2)
    x[i, ..., j] = 7
    x[:, j] = x[0, :, :1].T.clone()
    x[1:, i, [0, 2]] += 1
    x[None, i] *= 2
    x[i > 9] = 5
    x.select(0, i)[1] = 0
    return x, view, x[i, torch.tensor([0, 1])], x[..., j], x[i.item()], x.take(i)


def test_indices_of_rank_0():
    assert_equal(indexed, drawn(4, 4, 4), torch.tensor(2), torch.tensor(-1), mesh=Mesh(data=2))


def masked(x, mask, values):
    y, z = x.clone(), x.clone()
    y[mask] = values[:8]
    z[:, mask[0]] = values[:12].reshape(4, 3)
    rows = x.index_put((mask[:, 0],), values[:12].reshape(2, 6), accumulate=True)
    return y, z, rows, x.to(torch.bfloat16).index_put((mask,), values[0].to(torch.bfloat16))


def test_masks_take_values_in_order():
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[0, [1, 3, 4]] = mask[1, 0] = True
    mask[3, [0, 1, 2, 5]] = True
    assert_equal(masked, drawn(4, 6), mask, drawn(16), mesh=Mesh(data=2))


def branches(x, to, act, *, like=torch.float64):
    both = torch.cond(x.sum() > 0, lambda y: (y + 1, y.sin()), lambda y: (y - 1, y * 2), (x,))
    hot = functional.one_hot(torch.zeros(2, dtype=torch.long), 3)
    return [*both, act(x).to(to), x.to(like), hot]


def test_branches_and_arguments_that_are_no_tensors():
    assert_equal(branches, drawn(3, 4), torch.bfloat16, torch.sin, like=torch.float16)


def test_functions_that_read_modules_are_no_arguments():
    inner = nn.Linear(4, 4)
    with pytest.raises(WeftError, match="reads modules"):
        weft.compile(lambda x, act: act(x))(drawn(3, 4), lambda x: inner(x))


def test_integers_of_random_():
    def draws(x):
        return x.clone().random_(2, 7), torch.empty(64, dtype=torch.uint8).random_(3), x.random_()

    made = weft.compile(draws)(torch.zeros(64))
    assert {int(n) for n in made[0]} <= {2, 3, 4, 5, 6}
    assert made[1].max() == 2
    assert made[2].max() > 2**20


def test_static_numbers_by_their_bits():
    compiled = weft.compile(lambda x, divisor: x / divisor)
    x = torch.ones(1)
    assert [compiled(x, n).item() for n in (0.0, -0.0, 1, True)] == [
        float("inf"),
        -float("inf"),
        1,
        1,
    ]


def test_hooks_are_a_part_of_the_program():
    model, x = nn.Linear(4, 4), drawn(3, 4)
    compiled = weft.compile(model)
    compiled(x)
    handle = model.register_forward_hook(lambda module, args, output: output + 5)
    torch.testing.assert_close(compiled(x), model(x))
    handle.remove()
    torch.testing.assert_close(compiled(x), model(x))


def test_arguments_that_share_memory():
    def changed(x, y):
        x.add_(1)
        return x + y

    memory = torch.arange(8.0)
    with pytest.raises(WeftError, match="x and y share memory, and y is used after x"):
        weft.compile(changed)(memory[:5], memory[3:])
    assert_equal(changed, memory[:4], memory[4:])
    numbers = torch.zeros(2, dtype=torch.complex64)
    weft.compile(lambda x: x.add_(1j))(numbers.conj())
    assert numbers.tolist() == [-1j, -1j]


@pytest.mark.parametrize(
    ("program", "x", "words"),
    [
        (lambda x: x @ x, torch.eye(3).to_sparse(), "sparse_coo tensor"),
        (lambda x: x + 1, torch.empty(3, device="meta"), "meta device has no elements"),
        (lambda x: x.sum().backward(), torch.ones(3), "calls backward"),
        (lambda x: x * torch.from_numpy(x.numpy()), torch.ones(3), "array of numpy"),
        (lambda x: object.__new__(Slopes), torch.ones(3), "returns a .*Slopes"),
        (lambda x: torch.while_loop(lambda i: i.sum() < 9, lambda i: (i + 1,), (x,)),
         torch.ones(3), "while_loop has no lowering"),
        (lambda x: x + torch.rand(3, generator=torch.Generator()), torch.ones(3), "generator"),
    ],
)  # fmt: skip
def test_refusals_say_why(program, x, words):
    with pytest.raises(WeftError, match=words):
        weft.compile(program)(x)


def test_compiled_programs_are_not_copied():
    with pytest.raises(WeftError, match="cannot be copied"):
        copy.deepcopy(weft.compile(nn.Linear(2, 2)))
