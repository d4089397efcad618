"""Programs of several layers and loops, for simulated machines."""

from __future__ import annotations

from weft.capture import parse
from weft.executable.executable import Executable
from weft.ir.module import Module
from weft.machine import Machine, machine
from weft.predict import program_for


def layers(count: int, rows: int = 4096, width: int = 4096, mesh: str = "x=8") -> Module:
    """Products whose contracted dims are split: each ends in an all_reduce of a partial sum."""
    axis, size = mesh.split("=")
    wide = f"tensor<{rows}x{width}xbf16>"
    weight = f"tensor<{width}x{width}xbf16>"
    split = f'{{sdy.sharding = #sdy.sharding<@mesh, [{{"{axis}"}}, {{}}]>}}'
    arguments = ", ".join(f"%w{n}: {weight} {split}" for n in range(count))
    lines, last = [], "%x"
    for n in range(count):
        lines += [
            f"%d{n} = stablehlo.dot_general {last}, %w{n}, contracting_dims = [1] x [0] "
            f": ({wide}, {weight}) -> {wide}",
            f"%t{n} = stablehlo.tanh %d{n} : {wide}",
        ]
        last = f"%t{n}"
    body = "\n".join(lines)
    return parse(
        f"""module {{
        sdy.mesh @mesh = <["{axis}"={size}]>
        func.func @main(%x: {wide}, {arguments}) -> {wide} {{ {body}
        return {last} : {wide} }} }}"""
    )


def loop(rounds: int) -> Module:
    """A loop whose body has a product and the sum of its partial results."""
    return parse(
        f"""module {{
        sdy.mesh @mesh = <["x"=8]>
        func.func @main(%x: tensor<512x512xf32>,
            %w: tensor<512x512xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
            -> tensor<512x512xf32> {{
          %zero = stablehlo.constant dense<0> : tensor<i32>
          %0:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i32>, tensor<512x512xf32>
          cond {{
            %n = stablehlo.constant dense<{rounds}> : tensor<i32>
            %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %c : tensor<i1>
          }} do {{
            %one = stablehlo.constant dense<1> : tensor<i32>
            %j = stablehlo.add %i, %one : tensor<i32>
            %b = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
              : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
            %t = stablehlo.tanh %b : tensor<512x512xf32>
            stablehlo.return %j, %t : tensor<i32>, tensor<512x512xf32>
          }}
          return %0#1 : tensor<512x512xf32>
        }} }}"""
    )


def tiled(module: Module, name: str = "8xh100", level: int = 2) -> tuple[Executable, Machine]:
    """A program tiled for a machine, and the machine."""
    found = machine(name)
    made = program_for(module, found, level=level).executable  # type: ignore[arg-type]
    assert made is not None
    return made, found
