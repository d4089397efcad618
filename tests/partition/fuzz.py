"""Random programs that can be run, with meshes and shardings: partitioned, and held against one
device.

`python -m tests.partition.fuzz SEED` prints the program of a seed and what is wrong with it, made
small.
"""

from __future__ import annotations

import math
import random
import re
import sys
from dataclasses import replace

from tests.partition.one_op import told
from tests.partition.program import Program, shrunk
from tests.shard import fuzz, fuzz_flow, fuzz_ops
from tests.shard.fuzz import Scope, Shape, Sharder, Val, names, tensor, types
from tests.shard.fuzz_ops import Step, scalar
from weft.capture import parse
from weft.errors import WeftError
from weft.ir.module import Module
from weft.ops.distributed.sharding import ManualComputation
from weft.shard import drop_shardings

MESHES = (
    (("x", 4),),
    (("x", 2), ("y", 2)),
    (("x", 2), ("y", 4)),
    (("x", 2), ("y", 2), ("z", 2)),
    (("x", 2), ("y", 3)),
    (("x", 1), ("y", 4), ("z", 2)),
    (("x", 8),),
)
# Most programs compute in f64, where a wrong result cannot pass for a rounding.
DTYPES = (*("f64",) * 6, "f32", "bf16", "f16", "i32", "i64")
LENGTHS = {"f64": 1 << 22, "f32": 1 << 16, "bf16": 1 << 14, "f16": 1 << 14}


# Steps that run, in place of those that do not


def counted_while(f: fuzz.Fuzz, scope: Scope) -> None:
    """A loop that ends: it counts, and carries what it does not change, too."""
    if f.depth > 1:
        return
    carried = [f.some(scope, 0 if f.rng.random() < 0.2 else 1) for _ in range(f.rng.randint(1, 3))]
    count = Val(f.fresh(), (), "i32")
    args = [Val(f.fresh(), v.shape) for v in carried]
    inner = scope.inner(*args)
    start = len(inner.values) - len(args)
    f.depth += 1
    f.body(inner, f.rng.randint(1, 4))
    f.depth -= 1
    made = []
    for value in carried:
        fits = [v for v in inner.values[start:] if (v.shape, v.dtype) == (value.shape, value.dtype)]
        made.append(f.rng.choice(fits or [args[carried.index(value)]]))
    f.used.update(v.name for v in made)
    zero, one, following, limit, flag = (f.fresh() for _ in range(5))
    scope.lines.append(f"{zero} = stablehlo.constant dense<0> : tensor<i32>")
    pairs = [(count.name, zero), *((a.name, v.name) for a, v in zip(args, carried, strict=True))]
    shown = ", ".join(f"{a} = {v}" for a, v in pairs)
    listed = ", ".join(["tensor<i32>", *(v.type for v in carried)])
    text = f"stablehlo.while({shown}) : {listed}\n cond {{\n"
    text += f"  {limit} = stablehlo.constant dense<{f.rng.randint(0, 3)}> : tensor<i32>\n"
    text += f"  {flag} = stablehlo.compare LT, {count.name}, {limit} : "
    text += "(tensor<i32>, tensor<i32>) -> tensor<i1>\n"
    text += f"  stablehlo.return {flag} : tensor<i1>\n }} do {{\n"
    text += "\n".join(f"  {line}" for line in inner.lines)
    text += f"\n  {one} = stablehlo.constant dense<1> : tensor<i32>"
    text += f"\n  {following} = stablehlo.add {count.name}, {one} : tensor<i32>"
    text += (
        f"\n  stablehlo.return {', '.join([following, *(v.name for v in made)])} : {listed}\n }}"
    )
    f.ops(scope, text, [(), *(v.shape for v in carried)], ["i32", *(v.dtype for v in carried)])


def stored_small(f: fuzz.Fuzz, scope: Scope) -> None:
    """A value that is kept in 8 bits for a while."""
    value = f.some(scope)
    kind = f.rng.choice(["f8E4M3FN", "f8E5M2"])
    small = tensor(value.shape, kind)
    made = f.op(
        scope, f"stablehlo.convert {value.name} : ({value.type}) -> {small}", value.shape, kind
    )
    f.used.add(made.name)
    if value.shape and f.rng.random() < 0.5:
        order = f.rng.sample(range(len(value.shape)), len(value.shape))
        shape = tuple(value.shape[d] for d in order)
        text = f"stablehlo.transpose {made.name}, dims = {order} : ({small}) -> "
        made = f.op(scope, f"{text}{tensor(shape, kind)}", shape, kind)
        f.used.add(made.name)
    back = tensor(made.shape)
    f.op(scope, f"stablehlo.convert {made.name} : ({made.type}) -> {back}", made.shape)


def clamp(f: fuzz.Fuzz, scope: Scope) -> None:
    value = f.some(scope)
    low, high = scalar(f, scope), f.like(scope, value.shape)
    text = f"stablehlo.clamp {names(low, value, high)} : ({types(low, value, high)}) -> "
    f.op(scope, f"{text}{value.type}", value.shape)


def cumulative(f: fuzz.Fuzz, scope: Scope) -> None:
    """A running sum along a dim, as JAX writes it on a CPU."""
    value = f.some(scope)
    dim = f.rng.randrange(len(value.shape))
    if value.shape[dim] == 0:
        return
    window = [s if d == dim else 1 for d, s in enumerate(value.shape)]
    low = [s - 1 for s in window]
    start = f.op(scope, "stablehlo.constant dense<0.0> : tensor<f32>", ())
    a, b, c = f.fresh(), f.fresh(), f.fresh()
    pads = ", ".join(f"[{s}, 0]" for s in low)
    text = f'"stablehlo.reduce_window"({names(value, start)}) <{{window_dimensions = '
    text += f"array<i64: {', '.join(map(str, window))}>, padding = dense<[{pads}]> : "
    text += f"tensor<{len(window)}x2xi64>}}> ({{ ^bb0({a}: tensor<f32>, {b}: tensor<f32>): "
    text += f"{c} = stablehlo.add {a}, {b} : tensor<f32> stablehlo.return {c} : tensor<f32> }}) : "
    f.op(scope, f"{text}({types(value, start)}) -> {value.type}", value.shape)


def argmax(f: fuzz.Fuzz, scope: Scope) -> None:
    """The largest of a dim and where it stands: two values reduced together."""
    value = f.some(scope)
    dim = f.rng.randrange(len(value.shape))
    places = tensor(value.shape, "i32")
    where = f.op(scope, f"stablehlo.iota dim = {dim} : {places}", value.shape, "i32")
    f.used.add(where.name)
    least = f.op(scope, "stablehlo.constant dense<-1.0e4> : tensor<f32>", ())
    zero = f.op(scope, "stablehlo.constant dense<0> : tensor<i32>", (), "i32")
    shape = tuple(s for d, s in enumerate(value.shape) if d != dim)
    a, b, c, d, e, g, h, i, j, k, m = (f.fresh() for _ in range(11))
    one, two = "tensor<f32>", "tensor<i32>"
    text = f'"stablehlo.reduce"({names(value, where, least, zero)}) <{{dimensions = array<i64: '
    text += f"{dim}>}}> ({{ ^bb0({a}: {one}, {b}: {two}, {c}: {one}, {d}: {two}): "
    text += f"{e} = stablehlo.compare GT, {a}, {c} : ({one}, {one}) -> tensor<i1> "
    text += f"{g} = stablehlo.compare EQ, {a}, {c} : ({one}, {one}) -> tensor<i1> "
    text += f"{h} = stablehlo.compare LT, {b}, {d} : ({two}, {two}) -> tensor<i1> "
    text += f"{i} = stablehlo.and {g}, {h} : tensor<i1> {j} = stablehlo.or {e}, {i} : tensor<i1> "
    text += f"{k} = stablehlo.select {e}, {a}, {c} : tensor<i1>, {one} "
    text += f"{m} = stablehlo.select {j}, {b}, {d} : tensor<i1>, {two} "
    text += f"stablehlo.return {k}, {m} : {one}, {two} }}) : "
    text += f"({types(value, where, least, zero)}) -> ({tensor(shape)}, {tensor(shape, 'i32')})"
    f.ops(scope, text, [shape, shape], ["f32", "i32"])


_DROPPED = (fuzz_ops.custom_call, fuzz_ops.merging_call, fuzz_ops.token, fuzz_flow.while_)
STEPS: tuple[tuple[Step, float], ...] = (
    *((step, w) for step, w in (*fuzz_ops.OPS, *fuzz_flow.FLOW) if step not in _DROPPED),
    (counted_while, 1.5),
    (stored_small, 0.5),
    (clamp, 0.5),
    (cumulative, 0.5),
    (argmax, 0.5),
)


class Running(fuzz.Fuzz):
    """Writes programs that can be run, on one mesh."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.meshes = [Sharder(self.rng, "mesh", self.rng.choice(MESHES))]
        if self.rng.random() < 0.08:  # the devices stand in another order
            (mesh,) = self.meshes
            count = math.prod(size for _, size in mesh.axes)
            ids = self.rng.sample(range(count), count)
            if ids != sorted(ids):
                mesh.text = mesh.text.replace("]>", f"], device_ids={ids}>")
        self.single = False
        self.uneven = self.rng.random() < 0.3
        self.empty = self.rng.random() < 0.04

    def shape(self, rank: int | None = None) -> Shape:
        """Sizes that are small, and in some programs do not divide, or are 0."""
        rank = self.rng.choice([1, 2, 2, 3]) if rank is None else rank
        if self.empty and self.rng.random() < 0.3:
            return tuple(self.rng.choice([0, 2, 3]) for _ in range(rank))
        sizes = (1, 2, 3, 5, 6, 7) if self.uneven else (1, 2, 3, 4, 4, 8, 8, 8, 16)
        return tuple(self.rng.choice(sizes) for _ in range(rank))

    def body(self, scope: Scope, steps: int) -> None:
        """Write so many steps; one that cannot be written on what there is is left out."""
        makers, weights = zip(*STEPS, strict=True)
        for _ in range(steps):
            before, values = list(scope.lines), list(scope.values)
            try:
                self.rng.choices(makers, weights)[0](self, scope)
            except ValueError:  # nothing can be drawn from a size of 0
                scope.lines[:], scope.values[:] = before, values


def triple(seed: int, steps: int = 8) -> Program:
    """The program, mesh and shardings of a seed."""
    rng = random.Random(seed ^ 0x5EED)
    text = Running(seed).module(rng.choice([3, steps, steps]))
    text = text.replace("func.func @main1", "func.func private @main1")
    dtype = rng.choice(DTYPES)
    text, length = retyped(text, dtype), LENGTHS.get(dtype, 1)
    try:
        module = parse(text)
    except WeftError:  # a size of 0 where there must be an element
        return triple(seed + 1_000_000, steps)
    if not says_the_truth(module):
        return triple(seed + 1_000_000, steps)
    if rng.random() < 0.5 and not re.search(r"while|case|\.if|call|sdy\.\w+ %|manual", text):
        plain = replace(drop_shardings(module), meshes=module.meshes)
        return Program(told(plain, rng).text(), True, seed=seed, length=length)
    return Program(text, seed=seed, length=length)


def says_the_truth(module: Module) -> bool:
    """Whether what leaves a manual computation as copies can be equal on all devices."""
    for node in module.nodes():
        if isinstance(node.op, ManualComputation):
            manual = {axis.name for axis in node.op.manual_axes}
            split = {a.name for s in node.op.in_shardings for d in s.dims for a in d.axes} & manual
            for sharding in node.op.out_shardings:
                if not split <= {a.name for d in sharding.dims for a in d.axes}:
                    return False
    return True


def retyped(text: str, dtype: str) -> str:
    """The program in another element type; some functions do not take integers."""
    if dtype.startswith("i"):
        if re.search(r"f8E|bf16", text):
            return retyped(text, "f64")
        text = re.sub(r"stablehlo\.(sine|exponential|tanh)", "stablehlo.negate", text)
        text = re.sub(r"dense<(-?)(\d)\.\d+(?:e\d+)?>", r"dense<\1\2>", text)
    return text.replace("xf32", f"x{dtype}").replace("<f32", f"<{dtype}")


def main() -> None:
    """Show a seed."""
    made = triple(int(sys.argv[1]))
    print(made.file())
    found = made.wrong()
    print(found or "right")
    if found is not None:
        made = shrunk(made, found)
        print(made.file(), made.wrong(), sep="\n")


if __name__ == "__main__":
    main()
