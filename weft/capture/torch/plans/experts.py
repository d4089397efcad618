"""Expert parallelism: tokens travel to the devices of their experts, and back.

Outside of the experts every device has its own part of the batch. A token is sent once to each
device that has an expert of it, whatever their number there; the weighted sum of their results
comes back. Buffers have room for all tokens of a group of devices: none is dropped, unless the user
chooses a capacity. Then a device computes the first choices of its experts, in the order of tokens,
up to that many times its even share, and the others count as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from weft.capture.captured import Leaf
from weft.capture.torch.constrain import define_constraint, sharding_text
from weft.capture.torch.exchange import define_exchange
from weft.capture.torch.plans.ready import MeshRoles, batch_axes, mesh_roles, plan_parts
from weft.errors import WeftError, warn
from weft.mesh import Mesh, P
from weft.records import dataclass

_MARKS = ("num_experts", "has_gate", "has_bias", "is_transposed", "_apply_gate")


@dataclass(frozen=True, slots=True)
class ExpertMesh:
    """The devices of experts, and of groups that exchange tokens among themselves."""

    axes: MeshRoles
    capacity: float | None = None  # times a device's even share of choices

    def room(self, choices: int) -> int | None:
        """The most choices that a device computes, of those of its group; None for all."""
        if self.capacity is None:
            return None
        return max(1, math.ceil(self.capacity * choices / self.devices))

    @property
    def devices(self) -> int:
        """The devices that the experts of one group are on."""
        return math.prod([self.axes.sizes[axis] for axis in self.axes.expert])

    @property
    def groups(self) -> int:
        """The parts of the batch whose tokens never meet."""
        return math.prod([self.axes.sizes[axis] for axis in self.axes.data])

    def sharding(self, rank: int) -> str:
        """The sharding of values whose leading dims are devices and groups."""
        dims = (self.axes.expert, self.axes.data or None, *[None] * (rank - 2))
        return sharding_text(P(*dims), rank)

    def whole(self, rank: int, group_dim: int) -> str:
        """The sharding of values of groups, each on all devices of its group."""
        dims = [self.axes.data if dim == group_dim else None for dim in range(rank)]
        return sharding_text(P(*[axes or None for axes in dims]), rank)

    def sends_less(self, chosen: int) -> bool:
        """Whether tokens go to fewer devices than there are."""
        return 1 < self.devices > chosen


@contextmanager
def dispatch_experts(
    plan: object,
    module: Any,
    inputs: Sequence[Leaf],
    mesh: Mesh | None,
    capacity: float | None = None,
) -> Iterator[None]:
    """Trace a module with the tokens of its experts dispatched, if the plan splits both."""
    expert_mesh = _expert_mesh(plan, inputs, mesh, capacity)
    experts = [] if module is None else [*filter(_is_stack, module.modules())]
    if capacity is not None and (expert_mesh is None or not experts):
        raise WeftError(
            "capacity= is given, but no experts take tokens of other devices",
            help='split experts and the batch with plan="ep" on an axis ep, or leave capacity out',
        )
    if expert_mesh is None:
        yield
        return
    for each in experts:
        each.forward = partial(_forward, expert_mesh, each, each.forward)
    try:
        yield
    finally:
        for each in experts:
            del each.forward


def _expert_mesh(
    plan: object, inputs: Sequence[Leaf], mesh: Mesh | None, capacity: float | None
) -> ExpertMesh | None:
    """The mesh of a plan whose batch is split along the axes of experts."""
    if mesh is None or not (plan is None or isinstance(plan, str)):
        return None
    axes = mesh_roles(mesh)
    parts = plan_parts(plan or "auto", axes)
    if not axes.expert or "ep" not in parts or axes.context:
        return None
    split = any(batch_axes(leaf, axes) == axes.data + axes.expert for leaf in inputs)
    return ExpertMesh(axes, capacity) if split else None


def _is_stack(module: Any) -> bool:
    """Whether a module is a stack of experts of Hugging Face's."""
    return all(hasattr(module, mark) for mark in _MARKS)


def _forward(
    expert_mesh: ExpertMesh,
    experts: Any,
    plain: Callable[..., Any],
    x: Any,
    top_k_index: Any,
    weights: Any,
) -> Any:
    """The experts' forward pass, with dispatched tokens where that sends less."""
    tokens, count = top_k_index.shape
    fits = tokens % (expert_mesh.devices * expert_mesh.groups) == 0
    fits &= experts.num_experts % expert_mesh.devices == 0
    if not fits or not expert_mesh.sends_less(count):
        if expert_mesh.capacity is not None:
            warn(
                f"capacity: {type(experts).__name__} keeps all {tokens} tokens: they do not divide "
                f"over its devices, or each of them goes to {count} of {expert_mesh.devices} "
                "devices"
            )
        return plain(x, top_k_index, weights)
    return _Dispatch(expert_mesh, experts, x, top_k_index, weights).run()


class _Dispatch:
    """The tokens of one call. Dims: d devices, b groups, t tokens of a device, n of a group."""

    def __init__(
        self, expert_mesh: ExpertMesh, experts: Any, x: Any, top_k_index: Any, weights: Any
    ) -> None:
        import torch

        define_constraint(), define_exchange()
        self.ops: Any = torch.ops.weft
        self.expert_mesh, self.experts = expert_mesh, experts
        self.x, self.weights = x, weights
        self.d, self.b = expert_mesh.devices, expert_mesh.groups
        tokens, self.k = top_k_index.shape
        self.n = tokens // self.b
        self.t = self.n // self.d
        self.e = experts.num_experts // self.d
        device = top_k_index.device
        self.own = torch.arange(self.d, dtype=torch.int32, device=device)
        self.own_expert_index = self.grouped(top_k_index.to(torch.int32))
        self.expert_index = self.gathered(self.own_expert_index)
        self.tokens = self.n  # that a device has room for, and choices of them
        # A token's k choices are k different experts, of which a device has e.
        self.choices = self.n * min(self.k, self.e)
        room = expert_mesh.room(self.n * self.k)
        if room is not None and room < self.choices:
            self.drop(room)
        self.local_experts = torch.arange(self.e, dtype=torch.int32, device=device)

    def run(self) -> Any:
        """The sum of the experts' weighted results for each token."""
        d, b, n, t = self.d, self.b, self.tokens, self.t
        x = self.on_devices(self.x.reshape(b, d, t, -1).transpose(0, 1))
        source, there, back = self.routes()
        places, order, kinds, sizes = self.arrivals()
        sharding = self.expert_mesh.sharding(4)
        sent = self.ops.rows_at(x, source)
        got = self.ops.exchange_rows(sent, there, back, n, sharding)
        rows = self.on_devices(self.ops.rows_at(got, places))
        outputs = self.product(self.product(rows, "up", kinds, sizes), "down", kinds, sizes)
        outputs = self.weighted(outputs, order)
        sums = self.on_devices(self.ops.sums_at(outputs, places, n))
        home = self.ops.exchange_rows(sums, back, there, source.shape[-1], sharding)
        outputs = self.on_devices(self.ops.sums_at(home, source, t))
        return outputs.transpose(0, 1).reshape(self.x.shape).to(self.x.dtype)

    def drop(self, room: int) -> None:
        """Leave out the choices of a device's experts beyond its room, in the order of tokens."""
        import torch

        self.choices, self.tokens = room, min(room, self.n)
        owner = self.expert_index // self.e
        by_device = (owner[..., None] == self.own).to(torch.int32)  # b, n * k, d
        place = (by_device.cumsum(1) * by_device).sum(-1)  # from 1 on, among those of its device
        # The number of an expert that no device has.
        nowhere = torch.full_like(self.expert_index, self.d * self.e)
        self.expert_index = self.whole(torch.where(place <= room, self.expert_index, nowhere), 0)
        own = self.expert_index.reshape(self.b, self.d, self.t * self.k)
        self.own_expert_index = self.on_devices(own.transpose(0, 1))

    def grouped(self, routing: Any) -> Any:
        """The choices of a device's own tokens."""
        return self.on_devices(routing.reshape(self.b, self.d, self.t * self.k).transpose(0, 1))

    def gathered(self, own: Any) -> Any:
        """The choices of all tokens of a group, a few numbers each, on all of its devices."""
        whole = self.ops.gather_routing(own, self.expert_mesh.sharding(3))
        return self.whole(whole.transpose(0, 1).reshape(self.b, self.n * self.k), 0)

    def whole(self, value: Any, group_dim: int) -> Any:
        """A value of all devices of a group, which no reader's sharding shall split."""
        return self.ops.constrain(value, self.expert_mesh.whole(value.dim(), group_dim))

    def on_devices(self, value: Any) -> Any:
        """A value with its leading dims on their devices."""
        return self.ops.constrain(value, self.expert_mesh.sharding(value.dim()))

    def routes(self) -> tuple[Any, Any, Any]:
        """The token of each row that a device sends, and the slices of the exchange both ways."""
        import torch

        d, b, t, k = self.d, self.b, self.t, self.k
        owner = (self.expert_index // self.e).view(b, d, t, k)
        meets = (owner[:, :, None] == self.own[:, None, None]).any(-1)  # b, from, to, t
        sends = self.whole(meets.sum(-1, dtype=torch.int32), 0)
        starts = (sends.cumsum(2) - sends).to(torch.int32)  # in the rows of a sender
        places = (sends.cumsum(1) - sends).to(torch.int32)  # in those of a receiver
        by_sender = [v.transpose(0, 1) for v in (starts, sends, places)]
        by_receiver = [v.permute(2, 0, 1) for v in (starts, sends, places)]
        # Operands of ragged_all_to_all: offsets of the slices, their sizes, their offsets at the
        # receiver, and the sizes that come in. Way back the same slices, from receiver to sender.
        there = self.whole(torch.stack((*by_sender, by_receiver[1])), 2)
        back = self.whole(torch.stack((*by_receiver[::-1], by_sender[1])), 2)
        owner = (self.own_expert_index // self.e).view(d, b, 1, t, k)
        mine = (owner == self.own[:, None, None]).any(-1).view(d, b, d * t)
        # Rows in use first: by receiver, then by token, as `starts` counts them. The sort is
        # stable.
        order = torch.sort((~mine).to(torch.int32), dim=-1, stable=True).indices.to(torch.int32)
        # A token is sent once to a device, however many of its experts are there.
        order = order[..., : t * min(k, d)]
        rows = torch.arange(order.shape[-1], dtype=torch.int32, device=order.device)
        used = rows < mine.sum(-1, keepdim=True, dtype=torch.int32)
        # Token t is out of range: `rows_at` reads zeros there, and `sums_at` adds nothing.
        return torch.where(used, order % t, t), there, back

    def arrivals(self) -> tuple[Any, Any, Any, Any]:
        """By expert: the row of each choice, the choice, its expert, and the choices of experts."""
        import torch

        d, b, n, k, e = self.d, self.b, self.n, self.k, self.e
        first = (self.own * e)[:, None, None]
        kind = self.expert_index - first  # d, b, n * k
        kind = self.on_devices(torch.where((kind >= 0) & (kind < e), kind, e))
        here = (kind < e).view(d, b, n, k).any(-1)
        row = here.cumsum(-1, dtype=torch.int32) - 1
        # Experts of other devices are kind e, the last: their rows are behind all groups.
        kinds, order = torch.sort(kind, dim=-1, stable=True)
        kinds, order = kinds[..., : self.choices], order[..., : self.choices]
        places = torch.where(kinds < e, row.gather(-1, order // k), self.tokens)
        sizes = (kind[..., None] == self.local_experts).sum(2, dtype=torch.int32)
        return places.to(torch.int32), order, kinds, sizes

    def product(self, rows: Any, which: str, kinds: Any, sizes: Any) -> Any:
        """Rows times their experts' matrices, and the activation after the first one."""
        experts, opens = self.experts, which == "up"
        name = "gate_up_proj" if opens and experts.has_gate else f"{which}_proj"
        matrices = getattr(experts, name)
        matrices = matrices.view(self.d, self.e, *matrices.shape[1:])
        matrices = matrices if experts.is_transposed else matrices.transpose(-1, -2)
        products = self.ops.device_products(rows.to(matrices.dtype), matrices, sizes)
        if experts.has_bias:
            bias = getattr(experts, f"{name}_bias").view(self.d, self.e, -1)
            added = self.ops.rows_at(bias, kinds.reshape(self.d, -1))
            products = products + added.view(products.shape)
        if opens:
            return experts._apply_gate(products) if experts.has_gate else experts.act_fn(products)
        return experts.post_expert_norm(products) if self.has_norm else products

    @property
    def has_norm(self) -> bool:
        """Whether results of experts are normalized."""
        return bool(getattr(self.experts, "has_post_expert_norm", False))

    def weighted(self, made: Any, order: Any) -> Any:
        """The results, times the weights of their choices."""
        weights = self.on_devices(self.gathered(self.grouped(self.weights)).expand(self.d, -1, -1))
        return made * weights.gather(-1, order)[..., None]
