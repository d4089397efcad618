"""Programs as people write them in JAX, each annotated in several ways on several meshes.

A spec says how one array is split, dim by dim: `b` and `m` stand for the mesh's axes for batches
and for models, `.` for none, `?` leaves a dim open, `p1` gives it a priority: `"b m? ?p2"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from tests.programs import adam_step, attention, layer_norm, transformer_loss, transformer_weights
from weft.capture import parse
from weft.ir.module import Module
from weft.mesh import Mesh

MESHES: dict[str, tuple[Mesh, dict[str, tuple[str, ...]]]] = {
    "8": (Mesh((("x", 8),)), {"b": ("x",), "m": ("x",)}),
    "2x4": (Mesh((("data", 2), ("model", 4))), {"b": ("data",), "m": ("model",)}),
    "2x2x2": (Mesh((("x", 2), ("y", 2), ("z", 2))), {"b": ("x",), "m": ("y", "z")}),
    "4x8": (Mesh((("data", 4), ("model", 8))), {"b": ("data",), "m": ("model",)}),
}

Specs = dict[str, str]  # by a part of an argument's name; `->0` is the first result
Lowered = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Program:
    """A program, and the ways in which its arguments are annotated."""

    make: Callable[[str], Lowered]  # on a mesh of that name
    annotations: dict[str, Specs]
    on_mesh: bool = False  # whether the program itself speaks of the mesh
    meshes: tuple[str, ...] = tuple(MESHES)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """An array that is only described."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


# Networks


def mlp(_: str) -> Lowered:
    def step(w: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            hidden = jax.nn.gelu(x @ w["up"] + w["bias"])
            return jnp.mean((hidden @ w["down"] - y) ** 2)

        value, slope = jax.value_and_grad(loss)(w)
        return value, jax.tree.map(lambda a, g: a - 0.1 * g, w, slope)

    weights = {"up": f32(32, 64), "bias": f32(64), "down": f32(64, 8)}
    return step, (weights, f32(16, 32), f32(16, 8))


def forward(layers: int) -> Callable[[str], Lowered]:
    def make(_: str) -> Lowered:
        weights = transformer_weights(layers, 32, 48, f32)
        return transformer_loss, (weights, i32(8, 16), i32(8, 16))

    return make


def training(layers: int) -> Callable[[str], Lowered]:
    def make(_: str) -> Lowered:
        weights = transformer_weights(layers, 32, 48, f32)
        return adam_step, (weights, weights, weights, f32(), i32(8, 16), i32(8, 16))

    return make


def scanned(_: str) -> Lowered:
    """A transformer whose layers are one loop, and its gradient."""

    def loss(w: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            x = x + attention(layer_norm(x, w["g1"]), w, 4)
            x = x + jax.nn.gelu(layer_norm(x, w["g2"]) @ w["up"]) @ w["down"]
            return x, x.mean()

        last, means = lax.scan(jax.checkpoint(layer), x, w)
        return (last**2).sum() + means.sum()

    (layer,) = transformer_weights(1, 32, 8, f32)["layers"]
    stacked = jax.tree.map(lambda a: f32(6, *a.shape), layer)
    return jax.value_and_grad(loss), (stacked, f32(8, 16, 32))


def experts(_: str) -> Lowered:
    """A mixture of experts: tokens are scattered to them and gathered again."""

    def loss(w: Any, x: Any) -> Any:
        count, room = w["experts"].shape[0], 8
        weights, chosen = lax.top_k(jax.nn.softmax(x @ w["router"]), 2)
        hot = jax.nn.one_hot(chosen.reshape(-1), count, dtype=jnp.int32)
        place = (jnp.cumsum(hot, 0) * hot).sum(-1) - 1
        slot = jnp.where(place < room, chosen.reshape(-1) * room + place, count * room)
        source = jnp.repeat(jnp.arange(x.shape[0]), 2)
        filled = jnp.zeros((count * room + 1, x.shape[1])).at[slot].set(x[source])
        inner = filled[:-1].reshape(count, room, -1)
        done = jnp.einsum("erd,edf->erf", inner, w["experts"]).reshape(count * room, -1)
        back = jnp.where((slot < count * room)[:, None], done[slot % (count * room)], 0)
        made = jnp.zeros_like(x).at[source].add(back * weights.reshape(-1)[:, None])
        return (made**2).sum()

    weights = {"router": f32(32, 8), "experts": f32(8, 32, 32)}
    return jax.value_and_grad(loss), (weights, f32(32, 32))


def convolutional(_: str) -> Lowered:
    def loss(w: Any, x: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, w["first"], (1, 1), "SAME", dimension_numbers=dims)
        x = jax.nn.relu((x - x.mean((0, 1, 2))) * w["gain"])
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = lax.conv_general_dilated(
            x, w["second"], (2, 2), "SAME", dimension_numbers=dims, feature_group_count=2
        )
        return jax.nn.log_softmax(x.reshape(x.shape[0], -1) @ w["out"]).sum()

    weights = {"first": f32(3, 3, 4, 16), "gain": f32(16), "second": f32(3, 3, 8, 32)}
    weights["out"] = f32(512, 16)
    return jax.value_and_grad(loss), (weights, f32(8, 16, 16, 4))


def windowed(_: str) -> Lowered:
    """Attention to the own and the previous block only."""

    def run(q: Any, k: Any, v: Any) -> Any:
        batch, length, heads, width = q.shape
        blocks = lambda a: a.reshape(batch, length // 8, 8, heads, width)  # noqa: E731
        q, k, v = blocks(q), blocks(k), blocks(v)
        before = lambda a: jnp.pad(a[:, :-1], ((0, 0), (1, 0)) + ((0, 0),) * 3)  # noqa: E731
        k, v = (jnp.concatenate([before(a), a], 2) for a in (k, v))
        scores = jnp.einsum("bnqhd,bnkhd->bnhqk", q, k)
        mask = jnp.arange(8)[:, None] + 8 >= jnp.arange(16)[None]
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        made = jnp.einsum("bnhqk,bnkhd->bnqhd", weights, v)
        return made.reshape(batch, length, heads * width)

    return run, (f32(8, 32, 8, 16),) * 3


def embedding(_: str) -> Lowered:
    """An embedding, a loss over the vocabulary, and the gradient, which is a scatter."""

    def loss(table: Any, head: Any, tokens: Any, targets: Any) -> Any:
        logits = table[tokens] @ head
        shifted = logits - lax.stop_gradient(logits.max(-1, keepdims=True))
        total = jnp.log(jnp.exp(shifted).sum(-1))
        picked = jnp.take_along_axis(shifted, targets[..., None], -1)[..., 0]
        return (total - picked).mean()

    arguments = (f32(64, 32), f32(32, 64), i32(8, 16), i32(8, 16))
    return jax.value_and_grad(loss, (0, 1)), arguments


# Single features


def sorts(_: str) -> Lowered:
    def run(x: Any, y: Any) -> Any:
        return (
            jnp.sort(x, 0),
            jnp.argsort(x, 1, descending=True),
            lax.top_k(x, 4),
            lax.sort((y, x), dimension=1, num_keys=2),
            jnp.cumsum(x, 1),
            lax.cummax(x, 0),
            jnp.argmax(x, 1),
            jnp.median(x, 0),
        )

    return run, (f32(16, 32), i32(16, 32))


def reshapes(_: str) -> Lowered:
    def run(x: Any, w: Any) -> Any:
        a = x.reshape(4, 2, 16, 32).transpose(1, 0, 2, 3).reshape(8, 512)
        b = (a @ w.reshape(512, 64)).reshape(2, 4, 8, 8)
        c = x.reshape(-1, 128).sum(0)
        d = jnp.swapaxes(x.reshape(8, 4, 4, 32), 1, 2).reshape(128, 32)
        return b, c.reshape(16, 8), d, x.reshape(2, 2, 2, 16, 4, 8).reshape(8, 16, 32)

    return run, (f32(8, 16, 32), f32(32, 16, 64))


def loops(_: str) -> Lowered:
    def run(x: Any, w: Any, limit: Any) -> Any:
        def grow(state: Any) -> Any:
            n, a, b = state
            row = lax.dynamic_slice(a, (n % 8, 0), (1, 32)) * 1.5
            return n + 1, lax.dynamic_update_slice(a, row, ((n + 1) % 8, 0)), jnp.tanh(b @ w)

        count, grown, mixed = lax.while_loop(lambda s: s[0] < limit, grow, (jnp.int32(0), x, x))
        summed = lax.fori_loop(0, 3, lambda i, a: lax.fori_loop(0, i, lambda j, b: b @ w, a), x)
        kinds = (jnp.sin, lambda v: v @ w, lambda v: -v)
        return count, grown, mixed, summed, lax.switch(limit, kinds, x)

    return run, (f32(16, 32), f32(32, 32), i32())


def calls(_: str) -> Lowered:
    """One function called on arrays that are split in different ways."""
    inner = jax.jit(lambda a, b: jax.nn.silu(a) @ b)
    block = jax.jit(lambda a, b: inner(inner(a, b), b) + 1)

    def run(x: Any, y: Any, w: Any) -> Any:
        return block(x, w), block(y, w), inner(block(x, w), w), block(x.T, w)

    return run, (f32(32, 32), f32(32, 32), f32(32, 32))


def slices(_: str) -> Lowered:
    """Slices, pads, concatenations and gathers."""

    def run(x: Any, rows: Any) -> Any:
        return (
            jnp.concatenate([x, x[:8] * 2], 0),
            jnp.concatenate([x[:, ::2], x], 1),
            x[::-1],
            jnp.pad(x, ((1, 2), (0, 1))),
            x[rows],
            jnp.roll(x, 3, 1),
            x.at[rows].add(1.0),
            jnp.stack([x, x + 1], 1),
            jnp.tile(x, (2, 1)),
        )

    return run, (f32(16, 32), i32(8))


# Programs that speak of the mesh


def _spec(mesh: str, *dims: str | None) -> NamedSharding:
    """`b` and `m` as axes of an abstract mesh."""
    given, roles = MESHES[mesh]
    seen: set[str] = set()
    parts: list[tuple[str, ...] | None] = []
    for dim in dims:
        names = tuple(a for a in roles.get(dim or "", ()) if a not in seen)
        seen.update(names)
        parts.append(names or None)
    return NamedSharding(abstract(given), PartitionSpec(*parts))


def abstract(mesh: Mesh) -> AbstractMesh:
    """A mesh for JAX that needs no devices."""
    sizes, names = tuple(s for _, s in mesh.axes), tuple(n for n, _ in mesh.axes)
    return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))


def constrained(mesh: str) -> Lowered:
    constrain = lax.with_sharding_constraint

    def run(x: Any, w: Any) -> Any:
        y = constrain(jnp.tanh(x @ w), _spec(mesh, "b", "m"))
        z = constrain(y @ w.T, _spec(mesh, None, "m"))
        return constrain(y.T, _spec(mesh, "b")) @ z, z.sum(0)

    return run, (f32(16, 32), f32(32, 64))


def mapped(mesh: str) -> Lowered:
    """A shard_map over all axes, and one over the axes for models only."""
    given, roles = MESHES[mesh]
    model = roles["m"]

    def product(a: Any, b: Any) -> Any:
        return lax.psum(a @ b, model)

    def inside(a: Any) -> Any:
        size = lax.axis_size(model[0])
        ring = [(n, (n + 1) % size) for n in range(size)]
        return jnp.tanh(lax.ppermute(a, model[0], ring) + a)

    def run(x: Any, w: Any) -> Any:
        outer = abstract(given)
        specs = (_spec(mesh, None, "m").spec, _spec(mesh, "m", None).spec)
        y = jax.shard_map(product, mesh=outer, in_specs=specs, out_specs=PartitionSpec())(x, w)
        rows = _spec(mesh, None, "m").spec
        z = jax.shard_map(inside, mesh=outer, in_specs=rows, out_specs=rows, axis_names=set(model))(
            y * 2
        )
        return jnp.sin(z) @ w.T

    return run, (f32(16, 64), f32(64, 64))


_TENSOR = {"'up'": ". m", "'down'": "m .", "'q'": ". m", "'k'": ". m", "'v'": ". m", "'o'": "m ."}
_TRANSFORMER: dict[str, Specs] = {
    "batch": {"tokens": "b .", "targets": "b ."},
    "tensor": _TENSOR | {"tokens": "b .", "targets": "b ."},
    "open": {"'up'": "? m?", "'q'": "? m?", "embed": "m? ?", "tokens": "b? ?"},
    "priorities": {
        "'up'": "m?p2 ?p1", "'down'": "? m?p1", "'q'": "b?p2 m?p1", "embed": "m?p3 ?",
        "tokens": "b? ?p1", "->": "?",
    },
    "zero": {"weights": "b+m?", "first": "b+m?", "second": "b+m?", "tokens": "b ."},
}  # fmt: skip
_XW: dict[str, Specs] = {
    "rows": {"[0]": "b ."},
    "both": {"[0]": "b .", "[1]": ". m"},
    "reduced": {"[0]": ". m", "[1]": "m ."},
    "open": {"[0]": "b? ?", "[1]": "? m?"},
    "priorities": {"[0]": "b?p1 m?p2", "[1]": "m? b?p1"},
}

PROGRAMS: dict[str, Program] = {
    "mlp": Program(
        mlp,
        {
            "batch": {"[1]": "b .", "[2]": "b ."},
            "tensor": {"'up'": ". m", "'bias'": "m", "'down'": "m .", "[1]": "b ."},
            "open": {"'up'": "? m?", "[1]": "b? ?"},
            "priorities": {"'up'": "b?p1 m?", "'down'": "m?p2 ?", "[1]": "b?p1 ?"},
            "results": {"[1]": "b .", "->0": "", "->2": "m? ?", "->3": "? b?"},
        },
    ),
    "forward 1": Program(forward(1), _TRANSFORMER),
    "forward 4": Program(forward(4), _TRANSFORMER, meshes=("2x4", "2x2x2")),
    "training 1": Program(training(1), _TRANSFORMER),
    "training 4": Program(training(4), _TRANSFORMER, meshes=("2x4",)),
    "scan": Program(
        scanned,
        {
            "batch": {"[1]": "b . ."},
            "tensor": {"'up'": ". . m", "'down'": ". m .", "'q'": ". . m", "[1]": "b . ."},
            "open": {"'up'": "? ? m?", "'q'": "? b? m?", "[1]": "b? ? ?"},
            "layers": {"'": "b? ?", "[1]": "? ? m?"},
            "priorities": {"'up'": "?p1 b?p2 m?", "[1]": "b?p1 ? m?p2"},
        },
    ),
    "experts": Program(
        experts,
        {
            "batch": {"[1]": "b ."},
            "experts": {"'experts'": "m . .", "[1]": "b ."},
            "tensor": {"'experts'": ". . m", "[1]": "b? ?"},
            "priorities": {"'experts'": "m?p1 ? b?p2", "'router'": "? m?", "[1]": "b?p1 ?"},
        },
    ),
    "convolutional": Program(
        convolutional,
        {
            "batch": {"[1]": "b . . ."},
            "channels": {"'first'": ". . . m", "'second'": ". . . m", "'out'": ". m"},
            "space": {"[1]": "b? m? ? ?"},
            "priorities": {"'first'": "? ? ? m?p1", "[1]": "b? m?p2 ? ?"},
        },
    ),
    "windowed": Program(
        windowed,
        {
            "batch": {"[0]": "b . . ."},
            "heads": {"[0]": "b . m .", "[1]": "b . m ."},
            "sequence": {"[0]": "? m? ? ?", "[1]": "? m? ? ?", "[2]": "b? ? ? ?"},
            "priorities": {"[0]": "b?p1 ? m? ?", "[1]": "? m?p1 ? ?"},
        },
    ),
    "embedding": Program(
        embedding,
        {
            "batch": {"[2]": "b .", "[3]": "b ."},
            "vocabulary": {"[0]": "m .", "[1]": ". m", "[2]": "b ."},
            "width": {"[0]": ". m", "[1]": "m .", "[2]": "b? ?"},
            "priorities": {"[0]": "m?p1 ?", "[1]": "b?p2 m?p1", "[2]": "b? ?"},
        },
    ),
    "sorts": Program(sorts, _XW),
    "reshapes": Program(
        reshapes,
        {
            "outer": {"[0]": "b . ."},
            "inner": {"[0]": ". . m", "[1]": "m . ."},
            "both": {"[0]": "b? m? ?", "[1]": "? ? m?"},
            "all": {"[0]": "b+m? ? ?"},
            "priorities": {"[0]": "b? ? m?p1", "[1]": "?p1 b?p2 m?"},
        },
    ),
    "loops": Program(loops, _XW),
    "calls": Program(calls, _XW | {"three": {"[0]": "b .", "[1]": ". m", "[2]": "m ."}}),
    "slices": Program(slices, _XW | {"both": {"[0]": "b m"}, "columns": {"[0]": ". m?"}}),
    "constrained": Program(constrained, _XW, on_mesh=True),
    "mapped": Program(mapped, _XW, on_mesh=True),
}

LONG: dict[str, Program] = {
    "forward 32": Program(forward(32), {"tensor": _TRANSFORMER["tensor"]}, meshes=("2x4", "4x8")),
    "training 32": Program(training(32), _TRANSFORMER, meshes=("2x4",)),
    "training 4": Program(training(4), _TRANSFORMER, meshes=("8", "2x2x2", "4x8")),
}


# Annotating


@cache
def lowered(name: str, mesh: str) -> tuple[Module, tuple[str, ...]]:
    """A program as a module, and the names of its arguments."""
    program = PROGRAMS.get(name) or LONG[name]
    function, arguments = program.make(mesh)
    traced = jax.jit(function, keep_unused=True).trace(*arguments)
    module = parse(traced.lower(lowering_platforms=("cpu",)).as_text())
    paths = jax.tree_util.tree_flatten_with_path(arguments)[0]
    return module, tuple(_argument(function, path) for path, _ in paths)


def _argument(function: Callable[..., Any], path: Any) -> str:
    """`weights[0]['up']`: the name in the signature, the position, and the path inside."""
    names = function.__code__.co_varnames if hasattr(function, "__code__") else ()
    position = path[0].idx
    name = names[position] if position < len(names) else ""
    return f"{name}{jax.tree_util.keystr(path)}"


def annotated(name: str, mesh: str, annotation: str) -> Module:
    """A program on a mesh, with shardings on its arguments and results."""
    program = PROGRAMS.get(name) or LONG[name]
    module, names = lowered(name, mesh if program.on_mesh else "8")
    given, roles = MESHES[mesh]
    specs = program.annotations[annotation]
    main = module.function("main")
    results = [f"->{n}" for n in range(len(main.body.results))]

    def attrs(names: tuple[str, ...] | list[str], held: Any, types: Any) -> Any:
        held = held or ((),) * len(names)
        return tuple(
            (*old, *_sharding(n, t.rank, specs, roles))
            for n, old, t in zip(names, held, types, strict=True)
        )

    made = replace(
        main,
        arg_attrs=attrs(names, main.arg_attrs, main.arg_types),
        res_attrs=attrs(results, main.res_attrs, main.result_types),
    )
    functions = {**module.functions, "main": made}
    meshes = {**module.meshes, "mesh": given}
    return replace(module, functions=functions, meshes=meshes)


def _sharding(
    name: str, rank: int, specs: Specs, roles: dict[str, tuple[str, ...]]
) -> Iterator[tuple[str, str]]:
    spec = next((s for part, s in specs.items() if part in name), None)
    if spec is None:
        return
    words = spec.split()[:rank]
    words += ["." if "." in words else "?"] * (rank - len(words))
    seen: set[str] = set()
    dims = []
    for word in words:
        match = re.fullmatch(r"([bm+]*)([?.]?)(p\d)?", word)
        assert match, f"{word!r} in the spec {spec!r}"
        named = dict.fromkeys(a for role in match[1].split("+") for a in roles.get(role, ()))
        axes = [a for a in named if a not in seen]
        seen.update(axes)
        inside = [f'"{a}"' for a in axes] + (["?"] if match[2] == "?" else [])
        dims.append(f"{{{', '.join(inside)}}}{(match[3] or '') if inside else ''}")
    yield "sdy.sharding", f"#sdy.sharding<@mesh, [{', '.join(dims)}]>"


def cases(programs: dict[str, Program]) -> Iterator[tuple[str, str, str]]:
    """Every program on every mesh with every annotation."""
    for name, program in programs.items():
        for mesh in program.meshes:
            for annotation in program.annotations:
                yield name, mesh, annotation
