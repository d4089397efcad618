"""Programs that end in a special way: calls, reshards, borders, unreduced values."""

from __future__ import annotations

import random
from textwrap import dedent

MESH = '<["x"=2, "y"=4, "z"=2]>'
T = "tensor<8x16xf32>"


def module(body: str, mesh: str = MESH) -> str:
    """A program on a mesh; `$T` is a matrix, `!("x", ?)` a sharding of two dims."""
    return f"sdy.mesh @mesh = {mesh}\n{dedent(body).replace('$T', T)}"


def given(text: str) -> str:
    """An annotation of an argument or result."""
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {text}>}}" if text else ""


def made(text: str) -> str:
    """An annotation of the one result of an op."""
    return f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {text}>]>}}" if text else ""


_LOOP = """
  cond {
    %n = stablehlo.constant dense<4> : tensor<i32>
    %c = stablehlo.compare LT, %p, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
"""

CASES: dict[str, str] = {
    "constants are merged": f"""
        func.func @main(%a: $T {given('[{"x"}, {?}]')}, %b: $T) -> ($T, $T) {{
          %c = stablehlo.constant dense<1.0> : $T
          %s = stablehlo.constant dense<2.0> : tensor<f32>
          %d = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> $T
          %e = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> $T
          %0 = stablehlo.add %a, %c : $T
          %1 = stablehlo.multiply %0, %c : $T
          %2 = stablehlo.add %1, %d : $T
          %3 = stablehlo.add %2, %e : $T
          %4 = stablehlo.multiply %b, %c : $T
          %5 = stablehlo.add %4, %d : $T
          return %3, %5 : $T, $T
        }}""",
    "calls that agree share a function": f"""
        func.func @main(%a: $T {given('[{"x"}, {?}]')}, %b: $T) -> ($T, $T) {{
          %0 = call @f(%a) : ($T) -> $T
          %1 = call @f(%b) : ($T) -> $T
          %2 = call @f(%a) : ($T) -> $T
          %3 = stablehlo.add %0, %2 : $T
          return %3, %1 : $T, $T
        }}
        func.func private @g(%a: $T) -> $T {{
          %0 = stablehlo.negate %a : $T
          return %0 : $T
        }}
        func.func private @f(%a: $T) -> $T {{
          %0 = call @g(%a) : ($T) -> $T
          %1 = call @g(%0) : ($T) -> $T
          return %1 : $T
        }}""",
    "arguments and results of calls are resharded": f"""
        func.func public @main(%a: $T {given('[{"x"}, {}]')}, %b: $T) -> ($T, $T) {{
          %0 = call @f(%a) : ($T) -> $T
          %1 = call @f(%b) {made('[{"y"}, {}]')} : ($T) -> $T
          %2:2 = call @h(%a, %b) : ($T, $T) -> ($T, $T)
          %3 = stablehlo.add %0, %2#0 : $T
          return %3, %1 : $T, $T
        }}
        func.func private @h(%a: $T, %b: $T) -> ($T, $T) {{
          return %a, %b : $T, $T
        }}
        func.func private @f(%a: $T {given('[{}, {"y"}]')}) -> $T {{
          %0 = stablehlo.negate %a : $T
          return %0 : $T
        }}""",
    "several results of a call": f"""
        func.func @main(%a: $T {given('[{"x"}, {}]')}, %c: $T) -> ($T, $T) {{
          %0:3 = call @f(%a, %c) {{sdy.sharding = #sdy.sharding_per_value<[
            <@mesh, [{{}}, {{"y"}}]>, <@mesh, [{{}}, {{"x"}}]>, <@mesh, [{{"y"}}, {{"x"}}]>]>}}
            : ($T, $T) -> ($T, $T, $T)
          return %0#0, %0#1 : $T, $T
        }}
        func.func private @f(%a: $T, %b: $T {given('[{"y", "x"}, {}]')}) -> ($T, $T, $T) {{
          return %a, %b, %a : $T, $T, $T
        }}""",
    "calls in a loop": f"""
        func.func @main(%a: $T {given('[{"x"}, {}]')}, %i: tensor<i32>) -> $T {{
          %k = stablehlo.negate %a {made('[{"z"}, {}]')} : $T
          %0:2 = stablehlo.while(%p=%i, %q=%a) : tensor<i32>, $T {_LOOP}
            %n1 = func.call @f(%q) : ($T) -> $T
            %n2 = func.call @f(%k) : ($T) -> $T
            %r = stablehlo.add %n1, %n2 : $T
            stablehlo.return %p, %r : tensor<i32>, $T
          }}
          %1 = func.call @f(%k) : ($T) -> $T
          %2 = func.call @f(%k) : ($T) -> $T
          return %0#1 : $T
        }}
        func.func private @f(%a: $T {given('[{"y"}, {"x"}]')}) -> $T {{
          return %a : $T
        }}""",
    "several functions that nobody calls": f"""
        func.func public @zeta(%a: $T {given('[{"x"}, {"y"}]')})
            -> ($T, $T {given("[{?}, {?}]")}) {{
          %0 = call @f(%a) : ($T) -> $T
          return %0, %a : $T, $T
        }}
        func.func private @unused(%a: $T) -> $T {{
          return %a : $T
        }}
        func.func public @main(%a: $T) -> $T {{
          %0 = call @f(%a) : ($T) -> $T
          %1 = call @zeta2(%a) : ($T) -> $T
          return %0 : $T
        }}
        func.func public @alpha(%a: $T) -> $T {{
          return %a : $T
        }}
        func.func private @f(%a: $T) -> $T {{
          return %a : $T
        }}
        func.func public @zeta2(%a: $T) -> $T {{
          return %a : $T
        }}""",
    "shardings divide dims at the border": f"""
        func.func @main(%a: tensor<6x7xf32> {given('[{"y"}, {"x"}]')},
                        %b: $T {given('[{"x"}, {}], replicated={"y"}')}) -> tensor<6x7xf32> {{
          %0 = stablehlo.negate %a : tensor<6x7xf32>
          return %0 : tensor<6x7xf32>
        }}""",
    "sub-axes stay inside": f"""
        func.func @main(%a: tensor<2x4x16xf32> {given('[{?}, {?}, {"x"}]')},
                        %b: $T {given('[{"y", ?}, {?}]')}) -> (tensor<2x4x16xf32>, $T) {{
          %0 = stablehlo.reshape %b : ($T) -> tensor<2x4x16xf32>
          %1 = stablehlo.add %a, %0 : tensor<2x4x16xf32>
          return %1, %b : tensor<2x4x16xf32>, $T
        }}""",
    "constraints become reshards": f"""
        func.func @main(%a: $T {given('[{"x"}, {}]')}) -> ($T, $T) {{
          %0 = stablehlo.negate %a : $T
          %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{"y", ?}}]> : $T
          %2 = sdy.reshard %1 <@mesh, [{{"z"}}, {{?}}]> : $T
          return %1, %2 : $T, $T
        }}""",
    "groups and what only they read are gone": f"""
        func.func @main(%a: $T {given('[{}, {"x"}]')}, %b: $T) -> $T {{
          %0 = stablehlo.negate %b : $T
          sdy.sharding_group %0 group_id=3 : $T
          sdy.sharding_group %a group_id=3 : $T
          %1 = stablehlo.optimization_barrier %0 : $T
          %2 = stablehlo.custom_call @foo(%b) : ($T) -> $T
          %3 = stablehlo.custom_call @foo(%b) {{has_side_effect = true}} : ($T) -> $T
          return %b : $T
        }}""",
    "a dot gives what its operands suggest": f"""
        func.func @main(%a: $T {given('[{}, {"x"}]')},
                        %b: tensor<16x4xf32> {given('[{"x"}, {"y"}]')}) -> tensor<8x4xf32> {{
          %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {made('[{}, {"x"}]')}
            : ($T, tensor<16x4xf32>) -> tensor<8x4xf32>
          return %0 : tensor<8x4xf32>
        }}""",
    "operands of a concatenation agree": f"""
        func.func @main(%a: $T {given('[{"x"}, {}]')}, %b: $T {given('[{}, {"x"}]')}, %c: $T)
            -> tensor<8x48xf32> {{
          %0 = stablehlo.concatenate %a, %b, %c, dim = 1 : ($T, $T, $T) -> tensor<8x48xf32>
          return %0 : tensor<8x48xf32>
        }}""",
    "a loop gives all its results a sharding": f"""
        func.func @main(%a: $T {given('[{"x"}, {?}]')}, %b: $T, %i: tensor<i32>) -> $T {{
          %0:4 = stablehlo.while(%p=%i, %q=%a, %r=%b, %d=%b) : tensor<i32>, $T, $T, $T {_LOOP}
            %one = stablehlo.constant dense<1> : tensor<i32>
            %p2 = stablehlo.add %p, %one : tensor<i32>
            %dead = stablehlo.cosine %r : $T
            %r2 = stablehlo.add %r, %q : $T
            stablehlo.return %p2, %q, %r2, %d : tensor<i32>, $T, $T, $T
          }}
          return %0#2 : $T
        }}""",
    "manual axes are seen from outside only": f"""
        func.func @main(%a: $T {given('[{"x"}, {}]')}, %b: $T {given('[{?}, {"y", ?}]')}) -> $T {{
          %0 = sdy.manual_computation(%a, %b)
              in_shardings=[<@mesh, [{{"x", ?}}, {{?}}]>, <@mesh, [{{"x"}}, {{?}}]>]
              out_shardings=[<@mesh, [{{"x", ?}}, {{?}}]>] manual_axes={{"x", "z"}}
              (%p: tensor<4x16xf32>, %q: tensor<4x16xf32>) {{
            %c = stablehlo.constant dense<1.0> : tensor<4x16xf32>
            %1 = stablehlo.add %p, %c : tensor<4x16xf32>
            %2 = func.call @f(%1) : (tensor<4x16xf32>) -> tensor<4x16xf32>
            %3 = stablehlo.add %2, %q : tensor<4x16xf32>
            sdy.return %3 : tensor<4x16xf32>
          }} : ($T, $T) -> $T
          return %0 : $T
        }}
        func.func private @f(%a: tensor<4x16xf32>) -> tensor<4x16xf32> {{
          %0 = stablehlo.negate %a : tensor<4x16xf32>
          return %0 : tensor<4x16xf32>
        }}""",
    "a reduction is done before it is read": f"""
        func.func @main(%a: $T {given('[{"x"}, {}], unreduced={"y", "z"}')}, %b: $T) -> ($T, $T) {{
          %0 = stablehlo.add %a, %b {made('[{"x"}, {}], unreduced={"z"}')} : $T
          %1 = call @f(%a) : ($T) -> $T
          return %0, %1 : $T, $T
        }}
        func.func private @f(%a: $T) -> $T {{
          %0 = stablehlo.negate %a : $T
          return %0 : $T
        }}""",
    "a dot leaves a part of its reduction unreduced": f"""
        func.func @main(%a: $T {given('[{"x"}, {"y", "z"}]')},
                        %b: tensor<16x8xf32> {given('[{"y", "z"}, {}]')}) -> tensor<8x8xf32> {{
          %0 = stablehlo.dot %a, %b {made('[{"x"}, {}], unreduced={"z"}')}
            : ($T, tensor<16x8xf32>) -> tensor<8x8xf32>
          return %0 : tensor<8x8xf32>
        }}""",
    "a value becomes unreduced": f"""
        func.func @main(%a: $T {given('[{"x", "z"}, {}]')})
            -> ($T {given('[{"x"}, {}], unreduced={"y", "z"}')}) {{
          return %a : $T
        }}""",
    "an unreduced value is reduced again": f"""
        func.func @main(%a: $T {given('[{"x", "z"}, {}]')}) -> ($T, $T) {{
          %0 = sdy.reshard %a <@mesh, [{{"x"}}, {{}}], unreduced={{"z"}}> : $T
          %1 = sdy.reshard %0 <@mesh, [{{}}, {{}}]> : $T
          %2 = sdy.reshard %a <@mesh, [{{"x", "z"}}, {{}}], unreduced={{"y"}}> : $T
          %3 = stablehlo.negate %2 : $T
          return %1, %3 : $T, $T
        }}""",
    "a loop starts with nothing unreduced": f"""
        func.func @main(%a: $T {given('[{"x"}, {}], unreduced={"y"}')}, %i: tensor<i32>) -> $T {{
          %0:2 = stablehlo.while(%p=%i, %q=%a) : tensor<i32>, $T {_LOOP}
            %r = stablehlo.negate %q : $T
            stablehlo.return %p, %r : tensor<i32>, $T
          }}
          return %0#1 : $T
        }}""",
}


# Random shardings


def sharding(draw: random.Random, rank: int, none: float = 0.2) -> str:
    """A random sharding, or nothing."""
    if draw.random() < none:
        return ""
    axes = ['"x"', '"y"', '"z"']
    if draw.random() < 0.3:
        axes = ['"x"', '"y":(1)2', '"y":(2)2', '"z"']
    draw.shuffle(axes)
    dims: list[list[str]] = [[] for _ in range(rank)]
    for axis in axes:
        dim = draw.choice(dims)
        if draw.random() < 0.6 and dim[-1:] != ['"y":(1)2']:  # the whole axis is written so
            dim.append(axis)
    for dim in dims:
        if draw.random() < 0.4:
            dim.append("?")
    return f"[{', '.join('{' + ', '.join(d) + '}' for d in dims)}]"


def tensor(shape: list[int]) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def concatenation(seed: int) -> str:
    """A concatenation whose operands and result are split at random."""
    draw = random.Random(seed)
    rank = draw.choice([1, 2, 3])
    dim = draw.randrange(rank)
    base = [draw.choice([4, 8, 16]) for _ in range(rank)]
    shapes = []
    for _ in range(draw.choice([1, 2, 2, 3])):
        shapes.append([*base[:dim], draw.choice([4, 8, 16]), *base[dim + 1 :]])
    out = tensor([*base[:dim], sum(s[dim] for s in shapes), *base[dim + 1 :]])
    types = [tensor(s) for s in shapes]
    args = [f"%a{n}: {t} {given(sharding(draw, rank))}" for n, t in enumerate(types)]
    return module(f"""
        func.func @main({", ".join(args)}) -> ({out} {given(sharding(draw, rank, 0.6))}) {{
          %0 = stablehlo.concatenate {", ".join(f"%a{n}" for n in range(len(types)))}, dim = {dim}
            {made(sharding(draw, rank, 0.4))} : ({", ".join(types)}) -> {out}
          %1 = stablehlo.negate %0 : {out}
          return %1 : {out}
        }}""")


def product(seed: int) -> str:
    """A dot whose operands and result are split at random."""
    draw = random.Random(seed)
    batch = draw.choice([0, 0, 1])
    m, n, k = (draw.choice([4, 8, 16, 32]) for _ in range(3))
    lhs, rhs, out = (tensor([8] * batch + s) for s in ([m, k], [k, n], [m, n]))
    rank = batch + 2
    dims = ", batching_dims = [0] x [0]" if batch else ""
    return module(f"""
        func.func @main(%a: {lhs} {given(sharding(draw, rank, 0.1))},
                        %b: {rhs} {given(sharding(draw, rank, 0.1))})
            -> ({out} {given(sharding(draw, rank, 0.6))}) {{
          %0 = stablehlo.dot_general %a, %b{dims}, contracting_dims = [{batch + 1}] x [{batch}]
            {made(sharding(draw, rank))} : ({lhs}, {rhs}) -> {out}
          return %0 : {out}
        }}""")


def chain_of_calls(seed: int) -> str:
    """Two functions, called on values and in shardings at random."""
    draw = random.Random(seed)
    values = ["%a", "%b"]
    lines = []
    for n in range(draw.choice([1, 2, 3])):
        own = f"[<@mesh, {sharding(draw, 2, 0)}>, <@mesh, {sharding(draw, 2, 0)}>]"
        said = f"{{sdy.sharding = #sdy.sharding_per_value<{own}>}}" if draw.random() < 0.4 else ""
        read = f"{draw.choice(values)}, {draw.choice(values)}"
        lines.append(f"%{n}:2 = call @{draw.choice('ffg')}({read}) {said} : ($T, $T) -> ($T, $T)")
        values += [f"%{n}#0", f"%{n}#1"]
        if draw.random() < 0.5:
            read = f"{draw.choice(values)}, {draw.choice(values)}"
            lines.append(f"%n{n} = stablehlo.add {read} {made(sharding(draw, 2, 0.5))} : $T")
            values.append(f"%n{n}")
    args = [given(sharding(draw, 2, p)) for p in (0.2, 0.2, 0.6, 0.8, 0.8, 0.5, 0.7, 0.8, 0.9)]
    body = "\n          ".join(lines)
    return module(f"""
        func.func @main(%a: $T {args[0]}, %b: $T {args[1]}) -> ($T {args[2]}, $T) {{
          {body}
          return {draw.choice(values)}, {draw.choice(values)} : $T, $T
        }}
        func.func private @g(%a: $T {args[3]}, %b: $T) -> ($T, $T {args[4]}) {{
          %0:2 = call @f(%a, %b) : ($T, $T) -> ($T, $T)
          %1 = stablehlo.multiply %0#1, %b : $T
          return %0#0, %1 : $T, $T
        }}
        func.func private @f(%a: $T {args[5]}, %b: $T {args[6]}) -> ($T {args[7]}, $T {args[8]}) {{
          %c = stablehlo.constant dense<1.0> : $T
          %0 = stablehlo.add %a, %c {made(sharding(draw, 2, 0.7))} : $T
          %1 = stablehlo.add %b, %c : $T
          return {draw.choice(["%0", "%a"])}, {draw.choice(["%1", "%b"])} : $T, $T
        }}""")
