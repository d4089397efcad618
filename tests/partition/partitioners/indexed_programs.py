"""Random programs of one op that is partitioned in a way of its own: indices, folds, reshapes."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from tests.partition.one_op import annotated, told
from tests.partition.program import Program
from weft.capture import parse
from weft.ir.types import DTYPES, Array

MESHES = ('"x"=8', '"x"=2, "y"=4', '"x"=2, "y"=2, "z"=2', '"x"=3', '"x"=3, "y"=2')
SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24)
Drawn = tuple[str, tuple[Array, ...]]  # the text of @main, and its arguments


def size(rng: random.Random, *, least: int = 1) -> int:
    return max(least, rng.choice(SIZES))


def tensor(shape: tuple[int, ...] | list[int], dtype: str) -> str:
    return f"tensor<{'x'.join(map(str, (*shape, dtype)))}>"


def elements(rng: random.Random, shape: tuple[int, ...] | list[int], dtype: str = "f32") -> Array:
    numbers = np.random.default_rng(rng.randrange(1 << 30)).integers(-4, 5, shape)
    return numbers.astype(DTYPES[dtype].numpy)


def places(rng: random.Random, shape: tuple[int, ...], room: int, dtype: str) -> Array:
    """Indices, some of them out of bounds."""
    drawn = np.random.default_rng(rng.randrange(1 << 30)).integers(-2, room + 3, shape)
    if dtype.startswith("ui"):
        return np.abs(drawn).astype(dtype.replace("ui", "uint"))
    return drawn.astype(dtype.replace("i", "int"))


def main(arguments: list[str], results: list[str], lines: str) -> str:
    given = ", ".join(f"%{n}: {t}" for n, t in zip("abcde", arguments, strict=False))
    names = [f"%r{n}" for n in range(len(results))] if len(results) > 1 else ["%r"]
    out = ", ".join(results)
    return (
        f"func.func @main({given}) -> ({out}) {{\n{lines}\nreturn {', '.join(names)} : {out}\n}}\n"
    )


INDEX_TYPES = ("i32", "i64", "ui32", "i8")
ELEMENTS = ("f32", "f32", "bf16", "i8", "i1", "complex<f32>", "f8E4M3FN", "f8E8M0FNU", "i4")


def gather(rng: random.Random) -> Drawn:
    """A lookup: batching dims, one or two indexed dims, windows of whole dims."""
    batch = [size(rng) for _ in range(rng.choice((0, 0, 1)))]
    indexed = [size(rng) for _ in range(rng.choice((1, 1, 2)))]
    window = [size(rng, least=0) for _ in range(rng.choice((0, 1, 2)))]
    rows = [size(rng, least=0) for _ in range(rng.choice((0, 1, 2)))]
    many, index, dtype = len(batch), rng.choice(INDEX_TYPES), rng.choice(ELEMENTS)
    is_flat = len(indexed) == 1 and rng.random() < 0.5
    vector = [] if is_flat else [len(indexed)]
    operand = (*batch, *indexed, *window)
    indices = (*batch, *rows, *vector)
    out = (*batch, *rows, *window)
    offset = list(range(len(out) - len(window), len(out)))
    at = list(range(many, many + len(indexed)))
    sizes = [*[1] * (many + len(indexed)), *window]
    types = [tensor(operand, dtype), tensor(indices, index)]
    text = f"""%r = "stablehlo.gather"(%a, %b) <{{dimension_numbers = #stablehlo.gather<
    offset_dims = {offset}, collapsed_slice_dims = {at}, start_index_map = {at},
    operand_batching_dims = {list(range(many))}, start_indices_batching_dims = {list(range(many))},
    index_vector_dim = {many + len(rows)}>, slice_sizes = array<i64: {str(sizes)[1:-1]}>}}>
    : ({", ".join(types)}) -> {tensor(out, dtype)}"""
    arrays = elements(rng, operand, dtype), places(rng, indices, max(indexed), index)
    return main(types, [tensor(out, dtype)], text), arrays


REGIONS = {
    "add": "%z = stablehlo.add %p, %q : {0}",
    "multiply": "%z = stablehlo.multiply %p, %q : {0}",
    "maximum": "%z = stablehlo.maximum %p, %q : {0}",
    "minimum": "%z = stablehlo.minimum %q, %p : {0}",
    "last": "%y = stablehlo.subtract %p, %p : {0}\n%z = stablehlo.add %y, %q : {0}",
}


def scatter(rng: random.Random) -> Drawn:
    """Updates of whole windows into places that indices name."""
    batch = [size(rng) for _ in range(rng.choice((0, 0, 1)))]
    indexed = [size(rng) for _ in range(rng.choice((1, 1, 2)))]
    window = [size(rng, least=0) for _ in range(rng.choice((0, 1)))]
    rows = [size(rng, least=0) for _ in range(rng.choice((0, 1, 2)))]
    many, index, dtype = len(batch), rng.choice(INDEX_TYPES), rng.choice(("f32", "i32"))
    vector = [] if len(indexed) == 1 and rng.random() < 0.5 else [len(indexed)]
    operand, indices = (*batch, *indexed, *window), (*batch, *rows, *vector)
    updates = (*batch, *rows, *window)
    at = list(range(many, many + len(indexed)))
    scalar, kind = tensor((), dtype), rng.choice(tuple(REGIONS))
    types = [tensor(operand, dtype), tensor(indices, index), tensor(updates, dtype)]
    inside = list(range(len(updates) - len(window), len(updates)))
    text = f"""%r = "stablehlo.scatter"(%a, %b, %c) <{{
    scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {inside},
    inserted_window_dims = {at}, scatter_dims_to_operand_dims = {at},
    input_batching_dims = {list(range(many))},
    scatter_indices_batching_dims = {list(range(many))},
    index_vector_dim = {many + len(rows)}>}}> ({{
    ^bb0(%p: {scalar}, %q: {scalar}):
      {REGIONS[kind].format(scalar)}
      stablehlo.return %z : {scalar}
    }}) : ({", ".join(types)}) -> {types[0]}"""
    arrays = (
        elements(rng, operand, dtype),
        places(rng, indices, max(indexed), index),
        elements(rng, updates, dtype),
    )
    return main(types, types[:1], text), arrays


def argmax(rng: random.Random) -> Drawn:
    """The largest and where it is: a fold that no collective knows."""
    shape = [size(rng) for _ in range(rng.choice((1, 2, 3)))]
    dim = rng.randrange(len(shape))
    out = shape[:dim] + shape[dim + 1 :]
    types = [tensor(shape, "f32")]
    results = [tensor(out, "f32"), tensor(out, "i32")]
    places = tensor(shape, "i32")
    text = f"""%i = stablehlo.iota dim = {dim} : {places}
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %r0, %r1 = "stablehlo.reduce"(%a, %i, %low, %zero) <{{dimensions = array<i64: {dim}>}}> ({{
    ^bb0(%p: tensor<f32>, %m: tensor<i32>, %q: tensor<f32>, %n: tensor<i32>):
      %gt = stablehlo.compare GT, %p, %q, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %eq = stablehlo.compare EQ, %p, %q, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %lt = stablehlo.compare LT, %m, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %and = stablehlo.and %eq, %lt : tensor<i1>
      %or = stablehlo.or %gt, %and : tensor<i1>
      %value = stablehlo.select %or, %p, %q : tensor<i1>, tensor<f32>
      %place = stablehlo.select %or, %m, %n : tensor<i1>, tensor<i32>
      stablehlo.return %value, %place : tensor<f32>, tensor<i32>
    }}) : ({types[0]}, {places}, tensor<f32>, tensor<i32>) -> ({", ".join(results)})"""
    return main(types, results, text), (elements(rng, shape),)


def sum_and_max(rng: random.Random) -> Drawn:
    """Two folds at once, of which the sum starts from a number that counts."""
    shape = [size(rng, least=0) for _ in range(2)]
    dims = rng.choice(((0,), (1,), (0, 1)))
    out = [s for d, s in enumerate(shape) if d not in dims]
    types = [tensor(shape, "f32"), tensor(shape, "i32")]
    results = [tensor(out, "f32"), tensor(out, "i32")]
    text = f"""%one = stablehlo.constant dense<1.0> : tensor<f32>
    %low = stablehlo.constant dense<-2> : tensor<i32>
    %r0, %r1 = "stablehlo.reduce"(%a, %b, %one, %low) <{{
    dimensions = array<i64: {str(list(dims))[1:-1]}>}}> ({{
    ^bb0(%p: tensor<f32>, %m: tensor<i32>, %q: tensor<f32>, %n: tensor<i32>):
      %sum = stablehlo.add %p, %q : tensor<f32>
      %most = stablehlo.maximum %m, %n : tensor<i32>
      stablehlo.return %sum, %most : tensor<f32>, tensor<i32>
    }}) : ({", ".join(types)}, tensor<f32>, tensor<i32>) -> ({", ".join(results)})"""
    return main(types, results, text), (elements(rng, shape), elements(rng, shape, "i32"))


def top_k(rng: random.Random) -> Drawn:
    shape = [size(rng) for _ in range(rng.choice((1, 2)))]
    k = rng.randint(0, shape[-1])
    dtype = rng.choice(("f32", "i32"))
    out = [*shape[:-1], k]
    types, results = [tensor(shape, dtype)], [tensor(out, dtype), tensor(out, "i32")]
    text = f"%r0, %r1 = chlo.top_k(%a, k = {k}) : {types[0]} -> ({', '.join(results)})"
    numbers = elements(rng, shape, dtype)
    if dtype == "f32":
        numbers[numbers == 4] = -np.inf
    return main(types, results, text), (numbers,)


def sort(rng: random.Random) -> Drawn:
    shape = [size(rng) for _ in range(rng.choice((1, 2, 3)))]
    dim, type = rng.randrange(len(shape)), tensor(shape, "f32")
    text = f"""%r = "stablehlo.sort"(%a) <{{dimension = {dim} : i64, is_stable = true}}> ({{
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %lt = stablehlo.compare LT, %p, %q, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %lt : tensor<i1>
    }}) : ({type}) -> {type}"""
    return main([type], [type], text), (elements(rng, shape),)


def reshape(rng: random.Random) -> Drawn:
    factors = [rng.choice((1, 2, 2, 3, 4, 5, 6)) for _ in range(rng.randint(1, 4))]

    def grouped() -> list[int]:
        cuts = sorted(rng.randint(0, len(factors)) for _ in range(rng.randint(0, 3)))
        ends = [*cuts, len(factors)]
        begins = [0, *cuts]
        return [int(np.prod(factors[a:b])) for a, b in zip(begins, ends, strict=True)]

    before = grouped()
    if rng.random() < 0.5:
        rng.shuffle(factors)
    after = grouped()
    types = [tensor(before, "f32"), tensor(after, "f32")]
    text = f"%r = stablehlo.reshape %a : ({types[0]}) -> {types[1]}"
    return main(types[:1], types[1:], text), (elements(rng, before),)


def ragged_dot(rng: random.Random) -> Drawn:
    m, k, n, g = (size(rng) for _ in range(4))
    lengths = np.diff(sorted([0, *(rng.randint(0, m) for _ in range(g))])).astype(np.int32)
    is_summed = rng.random() < 0.4
    rhs = (m, n) if is_summed else (g, k, n)
    lhs = (k, m) if is_summed else (m, k)
    out = (g, k, n) if is_summed else (m, n)
    dims = (
        "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0], "
        "lhs_ragged_dimensions = [1]"
        if is_summed
        else "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], "
        "lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]"
    )
    types = [tensor(lhs, "f32"), tensor(rhs, "f32"), tensor((g,), "i32")]
    text = f"""%r = "chlo.ragged_dot"(%a, %b, %c) <{{
    ragged_dot_dimension_numbers = #chlo.ragged_dot<{dims}>}}>
    : ({", ".join(types)}) -> {tensor(out, "f32")}"""
    given = elements(rng, lhs), elements(rng, rhs), lengths
    return main(types, [tensor(out, "f32")], text), given


def batch_norm(rng: random.Random) -> Drawn:
    shape = [size(rng, least=2) for _ in range(rng.choice((2, 3)))]
    feature = rng.randrange(len(shape))
    full, flat = tensor(shape, "f32"), tensor(shape[feature : feature + 1], "f32")
    values = elements(rng, shape), *(elements(rng, shape[feature : feature + 1]) for _ in range(2))
    given = f"<{{epsilon = 0.5 : f32, feature_index = {feature} : i64}}>"
    if rng.random() < 0.5:
        text = f"""%r0, %r1, %r2 = "stablehlo.batch_norm_training"(%a, %b, %c) {given}
        : ({full}, {flat}, {flat}) -> ({full}, {flat}, {flat})"""
        return main([full, flat, flat], [full, flat, flat], text), values
    text = f"""%r0, %r1, %r2 = "stablehlo.batch_norm_grad"(%a, %b, %c, %d, %e) {given}
    : ({full}, {flat}, {flat}, {flat}, {full}) -> ({full}, {flat}, {flat})"""
    more = (*values, np.abs(elements(rng, shape[feature : feature + 1])), elements(rng, shape))
    return main([full, flat, flat, flat, full], [full, flat, flat], text), more


def triangular_solve(rng: random.Random) -> Drawn:
    batch, n, columns = size(rng), rng.choice((1, 2, 3, 4)), size(rng)
    left = rng.random() < 0.5
    matrix, given = (batch, n, n), (batch, n, columns) if left else (batch, columns, n)
    types = [tensor(matrix, "f32"), tensor(given, "f32")]
    text = f"""%r = "stablehlo.triangular_solve"(%a, %b) <{{left_side = {str(left).lower()},
    lower = true, unit_diagonal = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>}}>
    : ({", ".join(types)}) -> {types[1]}"""
    return main(types, types[1:], text), (elements(rng, matrix), elements(rng, given))


FAMILIES: dict[str, Callable[[random.Random], Drawn]] = {
    make.__name__: make
    for make in (
        *(gather, scatter, argmax, sum_and_max, top_k, sort),
        *(reshape, ragged_dot, batch_norm, triangular_solve),
    )
}


def program(family: str, seed: int) -> Program:
    """A program of a family, with random shardings on a random mesh."""
    rng = random.Random(f"{family} {seed}")
    text, arrays = FAMILIES[family](rng)
    module = parse(f"sdy.mesh @mesh = <[{rng.choice(MESHES)}]>\n{text}")
    is_told = rng.random() < 0.5
    shared = (told if is_told else annotated)(module, rng)
    return Program(shared.text(), is_told, arrays, seed)
