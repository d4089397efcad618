"""Measured overheads of calls and of the interpreter's steps between kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from weft.cli.least_seconds import launch_seconds, least
from weft.compiled import Compiled
from weft.compiled import compile as compile_program
from weft.ir.types import TensorType
from weft.run.bind import loaded_kernels
from weft.run.execute import place_as_results

_FEW, _MANY = 1, 33  # arguments or results of two programs that differ in them
_GATHERS = (2, 32)  # operands of a collective; one of a single operand is a kernel
_GATHER = ('"y"', "")  # the axes of a dim before and after it
_ROWS = "tensor<8x4xf32>"
_SPLIT, _COLUMNS_SPLIT, _WHOLE = (
    f"{{sdy.sharding = #sdy.sharding<@mesh, [{{{rows}}}, {{{columns}}}]>}}"
    for rows, columns in (('"x"', ""), ("", '"x"'), ("", ""))
)
_SUMMED = (8, 1024)  # columns of eight rows that two devices add up
_SUM_BYTES = 8 * 4 * 3  # of a column: two of partial sums, and of their total


def call_overheads(seconds: float) -> Iterator[tuple[str, float]]:
    """A call, its arguments and results, and a step of the interpreter between native calls."""
    base, wide, both = (
        call_seconds(compile_program(many_program(*sizes)), seconds)
        for sizes in ((_FEW, _FEW), (_MANY, _FEW), (_MANY, _MANY))
    )
    more = _MANY - _FEW
    argument, result = max(wide - base, 0.0) / more, max(both - wide, 0.0) / more
    yield "argument", argument
    yield "result", result
    call = max(base - argument - result, 0.0)
    yield "call", call
    # One more native call takes the same way through the interpreter; no program of text alone has
    # two of them, as their collectives are fused.
    yield "segment", call
    few, many = _GATHERS
    least, wide, both, most = (
        call_seconds(compile_program(gathers_program(*sizes)), seconds)
        for sizes in ((few, 0, 0), (few, more, 0), (few, more, more), (many, 0, 0))
    )
    argument, result = max(wide - least, 0.0) / more, max(both - wide, 0.0) / more
    yield "queued_argument", argument
    yield "queued_result", result
    # Every operand of the collective is also one more argument and result of the program.
    operand = max((most - least) / (many - few) - argument - result, 0.0)
    yield "operand", operand
    yield "view", max(_growth(views_program, seconds) - argument - result, 0.0)
    small, large = (_growth(partial(sums_program, columns=n), seconds) for n in _SUMMED)
    yield "summand", max(small - 2 * argument - result, 0.0)
    yield "summed", max(large - small, 0.0) / (_SUMMED[1] - _SUMMED[0]) / _SUM_BYTES
    yield "queue", max(least - call - few * (argument + result + operand), 0.0)


def _growth(program: Callable[[int], str], seconds: float) -> float:
    """The seconds of one more operand of a program's collective, without its kernel."""
    few, many = (_outside_kernels(compile_program(program(n)), seconds) for n in _GATHERS)
    return (many - few) / (_GATHERS[1] - _GATHERS[0])


def _outside_kernels(compiled: Compiled, seconds: float) -> float:
    """The least seconds of a call, less those of its kernels alone."""
    local = compiled.program.local
    assert local.target is not None and local.calls is not None, "compiled to kernels"
    inside = [
        launch_seconds(local.target.commands(), launch.kernel, loaded, seconds / 10)
        for launch, loaded in loaded_kernels(local.calls)
    ]
    return call_seconds(compiled, seconds) - sum(inside)


def views_program(count: int) -> str:
    """Arguments whose first dim is split among devices: gathered, they are views."""
    args, made = [f"%a{n}: {_ROWS} {_SPLIT}" for n in range(count)], [f"{_ROWS} {_WHOLE}"] * count
    names, types = [f"%a{n}" for n in range(count)], [_ROWS] * count
    return _module(args, made, [], names, types)


def sums_program(count: int, columns: int = 8) -> str:
    """Products whose contracted dims are split, as are their sums: each reduces and scatters."""
    left, right, out = (
        f"tensor<{sizes}xf32>" for sizes in ("8x16", f"16x{columns}", f"8x{columns}")
    )
    args, body = [], []
    for n in range(count):
        args += [f"%a{n}: {left} {_COLUMNS_SPLIT}", f"%b{n}: {right} {_SPLIT}"]
        body.append(
            f"%r{n} = stablehlo.dot_general %a{n}, %b{n}, contracting_dims = [1] x [0] : "
            f"({left}, {right}) -> {out}"
        )
    names = [f"%r{n}" for n in range(count)]
    return _module(args, [f"{out} {_SPLIT}"] * count, body, names, [out] * count)


def many_program(arguments: int, results: int) -> str:
    """A program of small arguments and as many or fewer results."""
    type = "tensor<4xf32>"
    args = ", ".join(f"%a{n}: {type}" for n in range(arguments))
    kept = [f"%r{n} = stablehlo.negate %a{n} : {type}" for n in range(results)]
    names, types = ", ".join(f"%r{n}" for n in range(results)), ", ".join([type] * results)
    body = "\n  ".join(kept)
    return f"func.func @main({args}) -> ({types}) {{\n  {body}\n  return {names} : {types}\n}}"


def gathers_program(count: int, arguments: int, results: int) -> str:
    """Values that are split among devices and gathered, all by one collective.

    Beside them are small arguments, and as many or fewer results.
    """
    type, small = "tensor<32x64xf32>", "tensor<4xf32>"
    split, whole = (
        f'{{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{{axis}}}]>}}' for axis in _GATHER
    )
    args = [f"%a{n}: {type} {split}" for n in range(count)]
    args += [f"%b{n}: {small}" for n in range(arguments)]
    body = [f"%r{n} = stablehlo.negate %a{n} : {type}" for n in range(count)]
    body += [f"%s{n} = stablehlo.negate %b{n} : {small}" for n in range(results)]
    made = [f"{type} {whole}"] * count + [small] * results
    names = [f"%r{n}" for n in range(count)] + [f"%s{n}" for n in range(results)]
    types = [type] * count + [small] * results
    return _module(args, made, body, names, types)


def _module(
    args: list[str], made: list[str], body: list[str], names: list[str], types: list[str]
) -> str:
    """A function of these arguments, results and lines on eight devices."""
    mesh, lines = 'sdy.mesh @mesh = <["x"=2, "y"=4]>', "\n  ".join(body)
    head = f"func.func @main({', '.join(args)}) -> ({', '.join(made)})"
    return f"{mesh}\n{head} {{\n  {lines}\n  return {', '.join(names)} : {', '.join(types)}\n}}"


def call_seconds(compiled: Compiled, seconds: float) -> float:
    """The least seconds of a call on arrays that are in place."""
    main = compiled.program.stage("captured").function("main")
    ones = [np.ones(t.sizes, np.float32) for t in main.arg_types if isinstance(t, TensorType)]
    arrays = place_as_results(compiled.program.local, ones)

    def call() -> None:
        for result in compiled.flat(arrays):
            result.wait()

    return least(call, seconds)
