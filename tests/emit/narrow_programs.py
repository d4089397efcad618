"""Random programs whose steps become one kernel, in every element type that kernels compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import weft
from weft.compiled import Compiled
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.op import Op
from weft.ir.types import DTYPES, DType, Types

SCALES = "f8E8M0FNU"  # powers of two, with which nothing computes
FLOATS = tuple(n for n, d in DTYPES.items() if d.is_float and n != SCALES)
# Without NaN: what becomes of one is a zero of its sign, which no two ways of computing agree on.
NO_NAN = tuple(n for n in FLOATS if DTYPES[n].bits < 8)
INTEGERS = ("i4", "ui4", "i8", "ui8", "i16", "i32")

# Each rounded once, so that kernels and the reference agree in every bit.
ONE = ("negate", "abs", "sign", "floor", "ceil", "sqrt", "round_nearest_even", "round_nearest_afz")
TWO = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
# Polynomials of f32: the same in every kernel, but not what numpy's are to the last bit.
FUNCTIONS = (
    *("exponential", "exponential_minus_one", "log", "log_plus_one", "logistic", "tanh", "rsqrt"),
    *("cbrt", "sine", "cosine", "tan"),
)
MORE = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "erf", "erf_inv", "erfc"),
    *("lgamma", "digamma", "bessel_i1e", "square"),
)
OF_TWO = ("power", "remainder", "atan2")
OF_INTEGERS = ("add", "subtract", "multiply", "maximum", "minimum", "and", "xor")
ROWS, COLUMNS = 5, 19


@dataclass
class Writer:
    """The text of a program that is being made up."""

    rng: np.random.Generator
    functions: bool
    lines: list[str] = field(default_factory=list)
    values: list[tuple[str, str]] = field(default_factory=list)  # names and element types

    def let(self, text: str) -> str:
        """A line; the name of what it gives."""
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def pick(self, wanted: str | None = None) -> tuple[str, str]:
        """One of the last values, of a type if that is said."""
        near = [v for v in self.values if wanted is None or v[1] == wanted]
        return near[-1 - int(self.rng.integers(min(3, len(near))))]

    def step(self) -> None:
        """One more op of what there is."""
        x, dtype = self.pick()
        is_float = dtype in FLOATS
        way = self.rng.integers(12)
        if way == 10:
            self.values.append((self.moved(x, dtype), dtype))
        elif way == 11 and is_float:
            self.values.append((self.summed(x, dtype), dtype))
        elif way == 0:
            self.convert(x, dtype)
        elif way == 1 and is_float:
            self.values.append((self.chosen(x, dtype), dtype))
        elif way == 2:
            self.values.append((self.reduced(x, dtype), dtype))
        elif way == 3:
            self.values.append((self.constant(x, dtype), dtype))
        elif not is_float:
            self.binary(str(self.rng.choice(OF_INTEGERS)), x, dtype)
        elif way == 4 and self.functions and dtype not in NO_NAN:
            self.function(x, dtype)
        elif way == 5:
            ops = [op for op in ONE if op != "sqrt" or dtype not in NO_NAN]
            self.unary(str(self.rng.choice(ops)), x, dtype)
        else:
            ops = [op for op in TWO if op != "divide" or dtype not in NO_NAN]
            self.binary(str(self.rng.choice(ops)), x, dtype)

    def function(self, x: str, dtype: str) -> None:
        """One of those that are approximated."""
        op = str(self.rng.choice((*FUNCTIONS, *MORE, *OF_TWO)))
        if op in MORE:
            self.values.append((self.let(f"chlo.{op} {x} : {of(dtype)} -> {of(dtype)}"), dtype))
        elif op in OF_TWO:
            self.binary(op, x, dtype)
        else:
            self.unary(op, x, dtype)

    def unary(self, op: str, x: str, dtype: str) -> None:
        self.values.append((self.let(f"stablehlo.{op} {x} : {of(dtype)}"), dtype))

    def binary(self, op: str, x: str, dtype: str) -> None:
        y, _ = self.pick(dtype)
        self.values.append((self.let(f"stablehlo.{op} {x}, {y} : {of(dtype)}"), dtype))

    def convert(self, x: str, dtype: str) -> None:
        """To another type; the way back is what a compiler may be tempted to leave out."""
        floats = [n for n in FLOATS if n not in NO_NAN or dtype in (*NO_NAN, *INTEGERS)]
        made = str(self.rng.choice((*floats, *INTEGERS)))
        y = self.let(f"stablehlo.convert {x} : ({of(dtype)}) -> {of(made)}")
        self.values.append((y, made))
        if self.rng.integers(2):
            text = f"stablehlo.convert {y} : ({of(made)}) -> {of(dtype)}"
            self.values.append((self.let(text), dtype))

    def chosen(self, x: str, dtype: str) -> str:
        y, _ = self.pick(dtype)
        kind = str(self.rng.choice(["LT", "EQ", "GE"]))
        types = f"({of(dtype)}, {of(dtype)}) -> {of('i1')}"
        where = self.let(f"stablehlo.compare {kind}, {x}, {y}, FLOAT : {types}")
        if self.rng.integers(3) == 0:
            return self.limited(x, y, dtype)
        finite = self.let(f"stablehlo.is_finite {x} : ({of(dtype)}) -> {of('i1')}")
        both = self.let(f"stablehlo.and {where}, {finite} : {of('i1')}")
        return self.let(f"stablehlo.select {both}, {x}, {y} : {of('i1')}, {of(dtype)}")

    def limited(self, x: str, y: str, dtype: str) -> str:
        """Kept between two others, or with fewer bits."""
        if self.rng.integers(2) or DTYPES[dtype].bits < 16:
            return self.let(f"stablehlo.clamp {y}, {x}, {x} : {of(dtype)}")
        return self.let(f"stablehlo.reduce_precision {x}, format = e4m3 : {of(dtype)}")

    def reduced(self, x: str, dtype: str) -> str:
        """The largest or smallest of every row, in each of its places."""
        how = str(self.rng.choice(["maximum", "minimum"]))
        low, high = DTYPES[dtype].limits
        start = literal(low if how == "maximum" else high, DTYPES[dtype])
        scalar, row = of(dtype, ""), of(dtype, f"{ROWS}x")
        init = self.let(f"stablehlo.constant dense<{start}> : {scalar}")
        text = f"stablehlo.reduce({x} init: {init}) applies stablehlo.{how} across dimensions = [1]"
        best = self.let(f"{text} : ({of(dtype)}, {scalar}) -> {row}")
        text = f"stablehlo.broadcast_in_dim {best}, dims = [0] : ({row}) -> {of(dtype)}"
        return self.let(text)

    def moved(self, x: str, dtype: str) -> str:
        """Reversed, rows taken by number, a column pushed out, or places added."""
        match self.rng.integers(4):
            case 0:
                return self.let(f"stablehlo.reverse {x}, dims = [1] : {of(dtype)}")
            case 1:
                rows = ", ".join(str(n) for n in self.rng.integers(0, ROWS, ROWS))
                at = self.let(f"stablehlo.constant dense<[{rows}]> : tensor<{ROWS}xi32>")
                types = f"({of(dtype)}, tensor<{ROWS}xi32>) -> {of(dtype)}"
                return self.let(
                    f'"stablehlo.gather"({x}, {at}) {{dimension_numbers = #stablehlo.gather<'
                    "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], "
                    f"index_vector_dim = 1>, slice_sizes = array<i64: 1, {COLUMNS}>}} : {types}"
                )
            case 2:
                zero = self.let(
                    f"stablehlo.constant dense<{literal(1, DTYPES[dtype])}> : tensor<{dtype}>"
                )
                text = f"stablehlo.pad {x}, {zero}, low = [0, 1], high = [0, -1], interior = [0, 0]"
                return self.let(f"{text} : ({of(dtype)}, tensor<{dtype}>) -> {of(dtype)}")
        y = self.let(f"stablehlo.iota dim = 1 : {of(dtype)}")
        return self.let(f"stablehlo.add {x}, {y} : {of(dtype)}")

    def summed(self, x: str, dtype: str) -> str:
        """A sum of ones and zeros, or a product with a permutation: exact in any order."""
        one = self.let(f"stablehlo.sign {x} : {of(dtype)}")
        if self.rng.integers(2):
            scalar, row = of(dtype, ""), of(dtype, f"{ROWS}x")
            init = self.let(f"stablehlo.constant dense<0.0> : {scalar}")
            text = f"stablehlo.reduce({one} init: {init}) applies stablehlo.add"
            total = f"{text} across dimensions = [1] : ({of(dtype)}, {scalar}) -> {row}"
            best = self.let(total)
            text = f"stablehlo.broadcast_in_dim {best}, dims = [0] : ({row}) -> {of(dtype)}"
            return self.let(text)
        order = self.rng.permutation(COLUMNS)
        square = of(dtype, f"{COLUMNS}x{COLUMNS}x")
        rows = [
            "[" + ", ".join("1.0" if n == m else "0.0" for m in range(COLUMNS)) + "]" for n in order
        ]
        by = self.let(f"stablehlo.constant dense<[{', '.join(rows)}]> : {square}")
        text = f"stablehlo.dot_general {x}, {by}, contracting_dims = [1] x [0]"
        return self.let(f"{text} : ({of(dtype)}, {square}) -> {of(dtype)}")

    def constant(self, x: str, dtype: str) -> str:
        number = self.rng.choice([1, 2, 3]) if dtype not in FLOATS else self.rng.choice([1, 0.3, 3])
        number = literal(float(number), DTYPES[dtype])
        y = self.let(f"stablehlo.constant dense<{number}> : {of(dtype)}")
        op = str(self.rng.choice(["add", "multiply"]))
        return self.let(f"stablehlo.{op} {x}, {y} : {of(dtype)}")


def of(dtype: str, shape: str = f"{ROWS}x{COLUMNS}x") -> str:
    """A type as text."""
    return f"tensor<{shape}{dtype}>"


def literal(number: float, dtype: DType) -> str:
    """A number as its type has it: by its bits, where they are not those of a plain number."""
    if not dtype.is_float:
        return str(int(number))
    held = np.asarray(number).astype(dtype.numpy)
    if np.isfinite(held.astype(np.float64)):
        return repr(float(held))
    return f"0x{int(held.view(f'u{held.itemsize}')):0{2 * held.itemsize}X}"


def program(seed: int, dtype: str, *, functions: bool) -> str:
    """The text of a program of a number, of two arguments of a type."""
    writer = Writer(np.random.default_rng(seed), functions)
    writer.values = [("%a", dtype), ("%b", dtype)]
    for _ in range(int(writer.rng.integers(2, 9))):
        writer.step()
    made = writer.values[2:][-3:]
    types = ", ".join(of(d) for _, d in made)
    lines = "\n  ".join(writer.lines)
    returned = f"return {', '.join(n for n, _ in made)} : {types}"
    args = f"%a: {of(dtype)}, %b: {of(dtype)}"
    return f"func.func @main({args}) -> ({types}) {{\n  {lines}\n  {returned}\n}}\n"


def arguments(seed: int, dtype: str) -> list[np.ndarray[Any, Any]]:
    """Numbers of every size, those at the ends of the type among them."""
    rng, held = np.random.default_rng(seed), DTYPES[dtype]
    if not held.is_float:
        return [rng.integers(-9, 99, (ROWS, COLUMNS)).astype(held.numpy) for _ in range(2)]
    with np.errstate(all="ignore"):
        plain = (rng.standard_normal((2, ROWS, COLUMNS)) * 8).astype(held.numpy)
    bits = rng.integers(0, 2**64 - 1, plain.shape, np.uint64) >> np.uint64(64 - held.bits)
    wild = bits.astype(f"u{held.numpy.itemsize}").view(held.numpy)
    return [np.where(rng.random(p.shape) < 0.3, w, p) for p, w in zip(plain, wild, strict=True)]


@cache
def _alone(op: Op, given: Types, made: Types, region: str) -> Compiled:
    """A node as a program of its own, whose kernel computes nothing else."""
    args = tuple([Value(t) for t in given])
    node = Node(op, args, made, _REGIONS[region])
    function = Function("main", Region(args, [node], node.results))
    return weft.compile(Module({"main": function}), excess_precision=False)


_REGIONS: dict[str, tuple[Region, ...]] = {}  # by their text: nodes are made once for all alike


def one_by_one(module: Module, *arrays: Any) -> list[np.ndarray[Any, Any]]:
    """The results of a program whose nodes run one after another, each as a kernel."""
    body = module.function("main").body
    known: dict[Value, Any] = dict(zip(body.args, arrays, strict=True))
    for node in body.nodes:
        region = " ".join(repr(n) for r in node.regions for n in r.nodes)
        _REGIONS.setdefault(region, node.regions)
        types = tuple(v.type for v in node.operands)
        results = _alone(node.op, types, node.types, region)(*[known[v] for v in node.operands])
        results = results if isinstance(results, tuple | list) else (results,)
        known.update(zip(node.results, map(np.asarray, results), strict=True))
    return [known[v] for v in body.results]


def same_bits(a: Any, b: Any) -> np.ndarray[Any, Any]:
    """Where two arrays have the same bits, or are both NaN."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    with np.errstate(all="ignore"):
        wide = a.astype(np.float64), b.astype(np.float64)
    equal = a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")
    return np.asarray(equal | (np.isnan(wide[0]) & np.isnan(wide[1])))
