"""The steps that random programs are made of, one for each family of ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.shard.fuzz import Fuzz, Scope, Val, names, tensor, types

UNARY = ("sine", "negate", "exponential", "tanh", "abs")
BINARY = ("add", "multiply", "subtract", "maximum")


def unary(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    f.op(scope, f"stablehlo.{f.rng.choice(UNARY)} {value.name} : {value.type}", value.shape)


def binary(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    other = f.like(scope, value.shape)
    pair = names(*f.rng.sample([value, other], 2))
    f.op(scope, f"stablehlo.{f.rng.choice(BINARY)} {pair} : {value.type}", value.shape)


def select(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    other = f.like(scope, value.shape)
    flags = tensor(value.shape, "i1")
    text = f"stablehlo.compare GT, {names(value, other)} : ({types(value, other)}) -> {flags}"
    flag = f.op(scope, text, value.shape, "i1")
    text = f"stablehlo.select {names(flag, value, other)} : {flags}, {value.type}"
    f.op(scope, text, value.shape)


def broadcast(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope, 0, 2)
    rank = f.rng.randint(len(value.shape), 3)
    dims = sorted(f.rng.sample(range(rank), len(value.shape)))
    shape = list(f.shape(rank))
    for dim, given in zip(dims, value.shape, strict=True):
        shape[dim] = given if given != 1 or f.rng.random() < 0.3 else shape[dim]
    text = f"stablehlo.broadcast_in_dim {value.name}, dims = {dims} : "
    f.op(scope, f"{text}({value.type}) -> {tensor(tuple(shape))}", tuple(shape))


def reshape(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    shape = list(value.shape)
    for _ in range(f.rng.randint(1, 3)):
        dim = f.rng.randrange(len(shape))
        cuts = [c for c in (2, 3, 4, 8) if shape[dim] % c == 0]
        if cuts and len(shape) < 4 and f.rng.random() < 0.5:
            cut = f.rng.choice(cuts)
            shape[dim : dim + 1] = f.rng.choice(
                [[cut, shape[dim] // cut], [shape[dim] // cut, cut]]
            )
        elif len(shape) > 1 and dim + 1 < len(shape):
            shape[dim : dim + 2] = [shape[dim] * shape[dim + 1]]
        elif f.rng.random() < 0.3 and len(shape) < 4:
            shape.insert(dim, 1)
    text = f"stablehlo.reshape {value.name} : ({value.type}) -> {tensor(tuple(shape))}"
    f.op(scope, text, tuple(shape))


def transpose(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope, 2)
    order = f.rng.sample(range(len(value.shape)), len(value.shape))
    shape = tuple(value.shape[d] for d in order)
    text = f"stablehlo.transpose {value.name}, dims = {order} : ({value.type}) -> {tensor(shape)}"
    f.op(scope, text, shape)


def dot(f: Fuzz, scope: Scope) -> None:
    lhs = f.some(scope)
    rank = len(lhs.shape)
    dims = f.rng.sample(range(rank), rank)
    batch = dims[: f.rng.choice([0, 0, 1])] if rank > 1 else []
    contract = dims[len(batch) : len(batch) + f.rng.choice([0, 1, 1, 1])]
    free = list(f.shape(f.rng.choice([0, 1, 1])))
    wanted = [("b", d, lhs.shape[d]) for d in batch] + [("k", d, lhs.shape[d]) for d in contract]
    wanted += [("j", 0, s) for s in free]
    f.rng.shuffle(wanted)
    rhs = f.like(scope, tuple(s for _, _, s in wanted))
    where = {(k, d): n for n, (k, d, _) in enumerate(wanted) if k != "j"}
    right = [where["b", d] for d in batch], [where["k", d] for d in contract]
    shape = tuple(lhs.shape[d] for d in batch)
    shape += tuple(lhs.shape[d] for d in range(rank) if d not in batch + contract)
    shape += tuple(s for k, _, s in wanted if k == "j")
    dims_text = ""
    if batch:
        dims_text += f", batching_dims = {batch} x {right[0]}"
    dims_text += f", contracting_dims = {contract} x {right[1]}"
    text = f"stablehlo.dot_general {names(lhs, rhs)}{dims_text} : "
    f.op(scope, f"{text}({types(lhs, rhs)}) -> {tensor(shape)}", shape)


def reduce(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    rank = len(value.shape)
    dims = sorted(f.rng.sample(range(rank), f.rng.randint(1, rank)))
    shape = tuple(s for d, s in enumerate(value.shape) if d not in dims)
    start = scalar(f, scope)
    kind = f.rng.choice(["add", "maximum"])
    text = f"stablehlo.reduce({value.name} init: {start.name}) applies stablehlo.{kind} across "
    text += f"dimensions = {dims} : ({value.type}, tensor<f32>) -> {tensor(shape)}"
    f.op(scope, text, shape)


def reduce_pair(f: Fuzz, scope: Scope) -> None:
    """Two values reduced together."""
    value = f.some(scope)
    other = f.like(scope, value.shape)
    rank = len(value.shape)
    dims = sorted(f.rng.sample(range(rank), f.rng.randint(1, rank)))
    shape = tuple(s for d, s in enumerate(value.shape) if d not in dims)
    start = scalar(f, scope)
    a, b, c, d, e, g = (f.fresh() for _ in range(6))
    one = "tensor<f32>"
    text = f'"stablehlo.reduce"({names(value, other, start, start)}) <{{dimensions = array<i64: '
    text += f"{', '.join(map(str, dims))}>}}> ({{ ^bb0({a}: {one}, {b}: {one}, {c}: {one}, {d}: "
    text += (
        f"{one}): {e} = stablehlo.add {a}, {c} : {one} {g} = stablehlo.maximum {b}, {d} : {one} "
    )
    text += f"stablehlo.return {e}, {g} : {one}, {one} }}) : "
    text += f"({types(value, other, start, start)}) -> ({tensor(shape)}, {tensor(shape)})"
    f.ops(scope, text, [shape, shape])


def convert(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    half = tensor(value.shape, "bf16")
    made = f.op(
        scope, f"stablehlo.convert {value.name} : ({value.type}) -> {half}", value.shape, "bf16"
    )
    f.used.add(made.name)
    f.op(scope, f"stablehlo.convert {made.name} : ({half}) -> {value.type}", value.shape)


def token(f: Fuzz, scope: Scope) -> None:
    """A value that passes with a token through something unknown."""
    if scope.manual:
        return
    value = f.some(scope)
    first, base = f.fresh(), f.fresh()
    scope.lines.append(f"{first} = stablehlo.create_token : !stablehlo.token")
    effect = f.rng.choice(["true", "false"])
    called = f"stablehlo.custom_call @bar({value.name}, {first})"
    text = f"{base}:2 = {called} {{has_side_effect = {effect}}}"
    text += f" : ({value.type}, !stablehlo.token) -> ({value.type}, !stablehlo.token)"
    scope.lines.append(text)
    scope.values.append(Val(f"{base}#0", value.shape))


def concatenate(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    dim = f.rng.randrange(len(value.shape))
    parts = [value]
    for _ in range(f.rng.randint(1, 2)):
        shape = list(value.shape)
        if f.rng.random() < 0.5:
            shape[dim] = f.shape(1)[0]
        parts.append(f.like(scope, tuple(shape)))
    f.rng.shuffle(parts)
    shape = list(value.shape)
    shape[dim] = sum(p.shape[dim] for p in parts)
    text = f"stablehlo.concatenate {names(*parts)}, dim = {dim} : "
    f.op(scope, f"{text}({types(*parts)}) -> {tensor(tuple(shape))}", tuple(shape))


def slice_(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    parts, shape = [], []
    for given in value.shape:
        low, high, step = 0, given, 1
        if f.rng.random() < 0.4:
            low = f.rng.randrange(given)
            high = f.rng.randint(low + 1, given)
            step = f.rng.choice([1, 1, 2])
        parts.append(f"{low}:{high}:{step}")
        shape.append(-(-(high - low) // step))
    text = f"stablehlo.slice {value.name} [{', '.join(parts)}] : "
    f.op(scope, f"{text}({value.type}) -> {tensor(tuple(shape))}", tuple(shape))


def pad(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    low = [f.rng.choice([0, 0, 1, 2]) for _ in value.shape]
    high = [f.rng.choice([0, 0, 1, 2]) for _ in value.shape]
    inner = [f.rng.choice([0, 0, 0, 1]) for _ in value.shape]
    shape = tuple(
        s + a + b + c * max(s - 1, 0)
        for s, a, b, c in zip(value.shape, low, high, inner, strict=True)
    )
    with_ = scalar(f, scope)
    text = f"stablehlo.pad {names(value, with_)}, low = {low}, high = {high}, interior = {inner} : "
    f.op(scope, f"{text}({types(value, with_)}) -> {tensor(shape)}", shape)


def scalar(f: Fuzz, scope: Scope, dtype: str = "f32") -> Val:
    """A scalar that there is, or a new constant."""
    found = f.pick(scope, lambda v: v.shape == () and v.dtype == dtype)
    one = "0.0" if dtype == "f32" else "0"
    if found is not None:
        return found
    return f.op(scope, f"stablehlo.constant dense<{one}> : {tensor((), dtype)}", (), dtype)


def dynamic_slice(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    sizes = tuple(s if f.rng.random() < 0.6 else f.rng.randint(1, s) for s in value.shape)
    starts = [scalar(f, scope, "i32") for _ in sizes]
    text = f"stablehlo.dynamic_slice {names(value, *starts)}, sizes = {list(sizes)} : "
    f.op(scope, f"{text}({types(value, *starts)}) -> {tensor(sizes)}", sizes)


def dynamic_update_slice(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    sizes = tuple(s if f.rng.random() < 0.6 else f.rng.randint(1, s) for s in value.shape)
    update = f.like(scope, sizes)
    starts = [scalar(f, scope, "i32") for _ in sizes]
    text = f"stablehlo.dynamic_update_slice {names(value, update, *starts)} : "
    f.op(scope, f"{text}({types(value, update, *starts)}) -> {value.type}", value.shape)


def reverse(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    dims = sorted(f.rng.sample(range(len(value.shape)), f.rng.randint(1, len(value.shape))))
    f.op(scope, f"stablehlo.reverse {value.name}, dims = {dims} : {value.type}", value.shape)


def sort(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    values = [value] if f.rng.random() < 0.5 else [value, f.like(scope, value.shape)]
    dim = f.rng.randrange(len(value.shape))
    args = [f.fresh() for _ in range(2 * len(values))]
    flag = f.fresh()
    block = ", ".join(f"{a}: tensor<f32>" for a in args)
    text = f'"stablehlo.sort"({names(*values)}) <{{dimension = {dim} : i64}}> ({{ ^bb0({block}): '
    text += f"{flag} = stablehlo.compare GT, {args[0]}, {args[1]} : (tensor<f32>, tensor<f32>) -> "
    text += f"tensor<i1> stablehlo.return {flag} : tensor<i1> }}) : "
    text += f"({types(*values)}) -> ({types(*values)})"
    f.ops(scope, text, [v.shape for v in values])


def gather(f: Fuzz, scope: Scope) -> None:
    """Rows of a table, perhaps batched, perhaps only a part of each."""
    table = f.some(scope, 2)
    rank = len(table.shape)
    where = f.rng.randrange(rank)
    batched = rank > 2 and f.rng.random() < 0.3
    batch = f.rng.choice([d for d in range(rank) if d != where]) if batched else None
    many = f.shape(f.rng.randint(1, 2))
    shape = ((table.shape[batch],) if batch is not None else ()) + many
    indices = f.like(scope, (*shape, 1), "i32")
    sizes = [
        1 if d in (where, batch) else s if f.rng.random() < 0.8 else max(1, s // 2)
        for d, s in enumerate(table.shape)
    ]
    kept = [d for d in range(rank) if d not in (where, batch)]
    made = (*shape, *[sizes[d] for d in kept])
    offsets = list(range(len(shape), len(made)))
    extra = ""
    if batch is not None:
        extra = f"operand_batching_dims = [{batch}], start_indices_batching_dims = [0], "
    collapsed = [where]
    text = f'"stablehlo.gather"({names(table, indices)}) <{{dimension_numbers = #stablehlo.gather<'
    text += f"offset_dims = {offsets}, collapsed_slice_dims = {collapsed}, {extra}"
    text += f"start_index_map = [{where}], index_vector_dim = {len(shape)}>, slice_sizes = "
    text += f"array<i64: {', '.join(map(str, sizes))}>, indices_are_sorted = false}}> : "
    f.op(scope, f"{text}({types(table, indices)}) -> {tensor(made)}", made)


def scatter(f: Fuzz, scope: Scope) -> None:
    """Rows added to a table."""
    table = f.some(scope, 2)
    rank = len(table.shape)
    where = f.rng.randrange(rank)
    many = f.shape(f.rng.randint(1, 2))
    indices = f.like(scope, (*many, 1), "i32")
    kept = [d for d in range(rank) if d != where]
    updates = f.like(scope, (*many, *[table.shape[d] for d in kept]))
    window = list(range(len(many), len(many) + len(kept)))
    a, b, c = f.fresh(), f.fresh(), f.fresh()
    text = f'"stablehlo.scatter"({names(table, indices, updates)}) <{{scatter_dimension_numbers = '
    text += f"#stablehlo.scatter<update_window_dims = {window}, inserted_window_dims = [{where}], "
    text += f"scatter_dims_to_operand_dims = [{where}], index_vector_dim = {len(many)}>}}> ({{ "
    text += f"^bb0({a}: tensor<f32>, {b}: tensor<f32>): {c} = stablehlo.add {a}, {b} : tensor<f32> "
    text += f"stablehlo.return {c} : tensor<f32> }}) : "
    f.op(scope, f"{text}({types(table, indices, updates)}) -> {table.type}", table.shape)


def convolution(f: Fuzz, scope: Scope) -> None:
    n, h, w, i = f.rng.choice([(4, 8, 8, 4), (8, 6, 8, 8), (2, 16, 4, 16)])
    o, kh, kw = f.rng.choice([4, 8]), f.rng.choice([1, 3]), f.rng.choice([1, 3])
    groups = f.rng.choice([1, 1, 2])
    image = f.like(scope, (n, h, w, i))
    kernel = f.like(scope, (kh, kw, i // groups, o))
    pads = [[kh // 2, kh // 2], [kw // 2, kw // 2]] if f.rng.random() < 0.6 else [[0, 0], [0, 0]]
    shape = (n, h + 2 * pads[0][0] - kh + 1, w + 2 * pads[1][0] - kw + 1, o)
    text = (
        f"stablehlo.convolution({names(image, kernel)}) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->"
    )
    text += f"[b, 0, 1, f], window = {{pad = {pads}}} {{batch_group_count = 1 : i64, "
    text += f"feature_group_count = {groups} : i64}} : "
    f.op(scope, f"{text}({types(image, kernel)}) -> {tensor(shape)}", shape)


def reduce_window(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    window = tuple(f.rng.choice([1, 1, min(2, s)]) for s in value.shape)
    shape = tuple(s - w + 1 for s, w in zip(value.shape, window, strict=True))
    start = scalar(f, scope)
    a, b, c = f.fresh(), f.fresh(), f.fresh()
    text = f'"stablehlo.reduce_window"({names(value, start)}) <{{window_dimensions = '
    text += f"array<i64: {', '.join(map(str, window))}>}}> ({{ ^bb0({a}: tensor<f32>, {b}: "
    text += f"tensor<f32>): {c} = stablehlo.add {a}, {b} : tensor<f32> "
    text += f"stablehlo.return {c} : tensor<f32> }}) : "
    f.op(scope, f"{text}({types(value, start)}) -> {tensor(shape)}", shape)


def custom_call(f: Fuzz, scope: Scope) -> None:
    """A call that Shardy knows nothing of, or one with a rule of its own."""
    value = f.some(scope)
    other = f.like(scope, value.shape)
    letters = "ijklmn"[: len(value.shape)]
    dims = f"[{', '.join(letters)}]"
    sizes = ", ".join(f"{n}={s}" for n, s in zip(letters, value.shape, strict=True))
    extra = ""
    if f.rng.random() < 0.7:
        role = f.rng.choice(
            ["", f" need_replication={{{letters[0]}}}", f" permutation={{{letters[-1]}}}"]
        )
        if f.rng.random() < 0.2:
            role += f" blocked_propagation={{{letters[0]}}}"
        rule = f"#sdy.op_sharding_rule<({dims}, {dims})->({dims}) {{{sizes}}}{role}, custom>"
        extra = f" {{sdy.sharding_rule = {rule}}}"
    if not extra and f.rng.random() < 0.4:
        text = f"stablehlo.custom_call @foo({names(value, other)}) : ({types(value, other)}) -> "
        f.ops(scope, f"{text}({types(value, other)})", [value.shape] * 2)
        return
    text = f"stablehlo.custom_call @foo({names(value, other)}){extra} : "
    f.op(scope, f"{text}({types(value, other)}) -> {value.type}", value.shape)


def merging_call(f: Fuzz, scope: Scope) -> None:
    """A call whose rule merges two dims into one, and sums over a third."""
    value = f.some(scope, 3)
    a, b, c = value.shape
    if 1 in (a, b):
        return
    rule = "#sdy.op_sharding_rule<([i, j, k])->([ij]) "
    rule += f"{{i={a}, j={b}, k={c}}} reduction={{k}}, custom>"
    text = f"stablehlo.custom_call @merge({value.name}) {{sdy.sharding_rule = {rule}}} : "
    f.op(scope, f"{text}({value.type}) -> {tensor((a * b,))}", (a * b,))


Step = Callable[[Fuzz, Scope], Any]
OPS: tuple[tuple[Step, float], ...] = (
    (unary, 3),
    (binary, 5),
    (select, 1),
    (broadcast, 2),
    (reshape, 4),
    (transpose, 2),
    (dot, 5),
    (reduce, 2),
    (concatenate, 2),
    (slice_, 1.5),
    (pad, 1),
    (dynamic_slice, 1),
    (dynamic_update_slice, 1),
    (reverse, 0.7),
    (sort, 1),
    (gather, 1.2),
    (scatter, 1.2),
    (convolution, 0.8),
    (reduce_window, 0.7),
    (custom_call, 1),
    (merging_call, 0.5),
    (reduce_pair, 0.5),
    (convert, 0.7),
    (token, 0.3),
)
