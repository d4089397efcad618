"""The steps of random programs that are not plain ops: control flow, and Shardy's own ops."""

from __future__ import annotations

from tests.shard.fuzz import Fuzz, Scope, Shape, Val, names, size, tensor, types
from tests.shard.fuzz_ops import Step, scalar, unary


def _block(f: Fuzz, scope: Scope, steps: int) -> None:
    f.depth += 1
    f.body(scope, steps)
    f.depth -= 1


def while_(f: Fuzz, scope: Scope) -> None:
    if f.depth > 1:
        return
    carried = [f.some(scope, 0 if f.rng.random() < 0.2 else 1) for _ in range(f.rng.randint(1, 3))]
    args = [Val(f.fresh(), v.shape) for v in carried]
    inner = scope.inner(*args)
    start = len(inner.values) - len(args)
    _block(f, inner, f.rng.randint(1, 4))
    made = []
    for value in carried:
        fits = [v for v in inner.values[start:] if (v.shape, v.dtype) == (value.shape, value.dtype)]
        made.append(f.rng.choice(fits or [args[carried.index(value)]]))
    f.used.update(v.name for v in made)
    flag = f.fresh()
    shown = ", ".join(f"{a.name} = {v.name}" for a, v in zip(args, carried, strict=True))
    attributes = f.attribute(scope, *[v.shape for v in carried], chance=f.annotations * 0.5)
    if attributes:
        attributes = f" attributes{attributes}"
    text = f"stablehlo.while({shown}) : {types(*carried)}{attributes}\n cond {{\n"
    text += f"  {flag} = stablehlo.constant dense<true> : tensor<i1>\n"
    text += f"  stablehlo.return {flag} : tensor<i1>\n }} do {{\n"
    text += "\n".join(f"  {line}" for line in inner.lines)
    text += f"\n  stablehlo.return {names(*made)} : {types(*made)}\n }}"
    f.ops(scope, text, [v.shape for v in carried])


def case(f: Fuzz, scope: Scope) -> None:
    if f.depth > 1:
        return
    index = scalar(f, scope, "i32")
    shapes = [f.some(scope).shape for _ in range(f.rng.randint(1, 2))]
    kind = f.rng.choice(["case", "case", "if"])
    if kind == "if":
        index = f.op(scope, "stablehlo.constant dense<true> : tensor<i1>", (), "i1")
    regions = []
    for _ in range(2):
        inner = scope.inner()
        _block(f, inner, f.rng.randint(0, 3))
        f.depth += 1
        made = [f.like(inner, shape) for shape in shapes]
        f.depth -= 1
        lines = "\n".join(f"  {line}" for line in inner.lines)
        regions.append(f"{{\n{lines}\n  stablehlo.return {names(*made)} : {types(*made)}\n }}")
    attributes = f.attribute(scope, *shapes, chance=f.annotations * 0.5)
    text = f'"stablehlo.{kind}"({index.name}) ({", ".join(regions)}){attributes} : ({index.type})'
    f.ops(scope, f"{text} -> ({', '.join(tensor(s) for s in shapes)})", shapes)


def optimization_barrier(f: Fuzz, scope: Scope) -> None:
    values = [f.some(scope) for _ in range(f.rng.randint(1, 2))]
    attributes = f.attribute(scope, *[v.shape for v in values], chance=f.annotations * 0.5)
    text = f"stablehlo.optimization_barrier{attributes} {names(*values)} : {types(*values)}"
    f.ops(scope, text, [v.shape for v in values])


def call(f: Fuzz, scope: Scope) -> None:
    if not f.functions or f.functions[-1][0].startswith("main") or scope.manual:
        return unary(f, scope)
    name, args, results = f.rng.choice(f.functions)
    given = [f.like(scope, a.shape, a.dtype) for a in args]
    attributes = f.attribute(scope, *[v.shape for v in results], chance=f.annotations)
    text = f"func.call @{name}({names(*given)}){attributes} : "
    text += f"({types(*given)}) -> ({types(*results)})"
    f.ops(scope, text, [v.shape for v in results], [v.dtype for v in results])
    return None


# What Shardy's dialect says


def constraint(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    for _ in range(f.rng.choice([1, 1, 1, 2, 3])):
        sharding = f.sharding(scope, value.shape, closed=0.8)
        word = "sharding_constraint" if f.rng.random() < 0.9 else "reshard"
        text = f"sdy.{word} {value.name} {sharding} : {value.type}"
        made = Val(f.fresh(), value.shape)
        scope.lines.append(f"{made.name} = {text}")
        scope.values.append(made)
        if f.rng.random() < 0.7:
            value = made
            f.used.add(made.name)


def barrier(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    way = f.rng.choice(["NONE", "FORWARD", "BACKWARD"])
    made = Val(f.fresh(), value.shape)
    text = f"sdy.propagation_barrier {value.name} allowed_direction={way} : {value.type}"
    scope.lines.append(f"{made.name} = {text}")
    scope.values.append(made)


def group(f: Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    number = f.rng.randrange(f.groups) * 1000 + size(value.shape) * 7 + len(value.shape)
    number = hash_of(number, value.shape) + 1000000 * scope.inside
    scope.lines.append(f"sdy.sharding_group {value.name} group_id={number} : {value.type}")


def hash_of(number: int, shape: Shape) -> int:
    """Groups are of one shape."""
    for extent in shape:
        number = number * 37 + extent
    return number % 100003


def manual(f: Fuzz, scope: Scope) -> None:
    if f.depth > 1:
        return
    mesh = f.meshes[0]
    free = [(n, s) for n, s in mesh.axes if n not in scope.manual]
    if not free:
        return
    chosen = f.rng.sample(free, f.rng.randint(1, len(free)))
    axes = frozenset(n for n, _ in chosen)
    operands = [f.some(scope) for _ in range(f.rng.randint(1, 2))]
    banned = scope.manual | axes
    shown, args = [], []
    for value in operands:
        text, local = _manual_sharding(f, value.shape, chosen, banned)
        shown.append(text)
        args.append(Val(f.fresh(), local))
    f.count += 1
    inner = Scope([*args], [], banned, f.count)
    _block(f, inner, f.rng.randint(1, 3))
    made = [f.rng.choice([v for v in inner.values if v.dtype == "f32"]) for _ in range(1)]
    f.used.update(v.name for v in made)
    outs, shapes = [], []
    for value in made:
        text, whole = _manual_sharding(f, value.shape, chosen, banned, grow=True)
        outs.append(text)
        shapes.append(whole)
    block = ", ".join(f"{a.name}: {a.type}" for a in args)
    listed = ", ".join(f'"{n}"' for n, _ in chosen)
    text = f"sdy.manual_computation({names(*operands)}) in_shardings=[{', '.join(shown)}] "
    text += f"out_shardings=[{', '.join(outs)}] manual_axes={{{listed}}} ({block}) {{\n"
    text += "\n".join(f"  {line}" for line in inner.lines)
    text += f"\n  sdy.return {names(*made)} : {types(*made)}\n }} : ({types(*operands)}) -> "
    f.ops(scope, f"{text}({', '.join(tensor(s) for s in shapes)})", shapes)


def _manual_sharding(
    f: Fuzz,
    shape: Shape,
    chosen: list[tuple[str, int]],
    banned: frozenset[str],
    grow: bool = False,
) -> tuple[str, Shape]:
    """A sharding whose manual axes come first, and the other side's shape."""
    mesh = f.meshes[0]
    local = list(shape)
    dims: list[list[str]] = [[] for _ in shape]
    for name, extent in f.rng.sample(chosen, len(chosen)):
        fits = [d for d, s in enumerate(local) if grow or s % extent == 0]
        if fits and f.rng.random() < 0.7:
            dim = f.rng.choice(fits)
            dims[dim].append(f'"{name}"')
            local[dim] = local[dim] * extent if grow else local[dim] // extent
    for name, _ in mesh.axes:
        if name not in banned and dims and f.rng.random() < 0.3:
            f.rng.choice(dims).append(f'"{name}"')
    closed = f.rng.random() < 0.5
    text = ", ".join(
        "{" + ", ".join([*dim, *(["?"] if not closed and f.rng.random() < 0.5 else [])]) + "}"
        for dim in dims
    )
    return f"<@{mesh.name}, [{text}]>", tuple(local)


FLOW: tuple[tuple[Step, float], ...] = (
    (while_, 1.5),
    (case, 1.2),
    (optimization_barrier, 0.7),
    (call, 2),
    (constraint, 2.5),
    (barrier, 0.8),
    (group, 0.8),
    (manual, 1),
)
