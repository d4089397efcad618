"""Small programs of ops that are kernels by themselves: sorts, windows, indices."""

from __future__ import annotations


def scatter_program(rows: int, columns: int) -> str:
    """Rows that are added at indices."""
    whole, at = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}x1xi32>"
    return f"""
func.func @main(%a: {whole}, %at: {at}, %b: {whole}) -> {whole} {{
  %0 = "stablehlo.scatter"(%a, %at, %b) ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
    : ({whole}, {at}, {whole}) -> {whole}
  return %0 : {whole}
}}"""


def pool_program(batch: int, side: int, channels: int) -> str:
    """Maxima of windows of two by two."""
    whole = f"tensor<{batch}x{side}x{side}x{channels}xf32>"
    pooled = f"tensor<{batch}x{side // 2}x{side // 2}x{channels}xf32>"
    return f"""
func.func @main(%a: {whole}) -> {pooled} {{
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%a, %least) ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.maximum %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }}) {{window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}}
    : ({whole}, tensor<f32>) -> {pooled}
  return %0 : {pooled}
}}"""


def unpool_program(batch: int, side: int, channels: int) -> str:
    """The gradient of the maxima of windows of two by two."""
    whole = f"tensor<{batch}x{side}x{side}x{channels}xf32>"
    pooled = f"tensor<{batch}x{side // 2}x{side // 2}x{channels}xf32>"
    return f"""
func.func @main(%a: {whole}, %b: {pooled}) -> {whole} {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.select_and_scatter"(%a, %b, %z) ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }}, {{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }}) {{window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}}
    : ({whole}, {pooled}, tensor<f32>) -> {whole}
  return %0 : {whole}
}}"""


def sort_program(rows: int, columns: int, dim: int) -> str:
    """Sorted columns or rows."""
    whole = f"tensor<{rows}x{columns}xf32>"
    return f"""
func.func @main(%a: {whole}) -> {whole} {{
  %0 = "stablehlo.sort"(%a) ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.compare LT, %x, %y, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }}) {{dimension = {dim} : i64, is_stable = true}} : ({whole}) -> {whole}
  return %0 : {whole}
}}"""


def order_program(rows: int, columns: int) -> str:
    """The order of rows: elements and their places, sorted together."""
    whole, places = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}x{columns}xi32>"
    return f"""
func.func @main(%a: {whole}) -> ({whole}, {places}) {{
  %0 = stablehlo.iota dim = 1 : {places}
  %1:2 = "stablehlo.sort"(%a, %0) ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>):
    %2 = stablehlo.compare LT, %x, %y, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  }}) {{dimension = 1 : i64, is_stable = true}} : ({whole}, {places}) -> ({whole}, {places})
  return %1#0, %1#1 : {whole}, {places}
}}"""


def best_program(rows: int, columns: int, count: int) -> str:
    """The largest elements of rows."""
    whole = f"tensor<{rows}x{columns}xf32>"
    best, places = (f"tensor<{rows}x{count}x{name}>" for name in ("f32", "i32"))
    return f"""
func.func @main(%a: {whole}) -> ({best}, {places}) {{
  %0:2 = chlo.top_k(%a, k = {count}) : {whole} -> ({best}, {places})
  return %0#0, %0#1 : {best}, {places}
}}"""


def folded_program(rows: int, columns: int) -> str:
    """The sums and products of columns by one op, element by element."""
    whole, side = f"tensor<{rows}x{columns}xf32>", f"tensor<{columns}xf32>"
    return f"""
func.func @main(%a: {whole}, %b: {whole}) -> ({side}, {side}) {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %o = stablehlo.constant dense<1.0> : tensor<f32>
  %0:2 = "stablehlo.reduce"(%a, %b, %z, %o) ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>, %u: tensor<f32>, %v: tensor<f32>):
    %1 = stablehlo.add %x, %u : tensor<f32>
    %2 = stablehlo.multiply %y, %v : tensor<f32>
    stablehlo.return %1, %2 : tensor<f32>, tensor<f32>
  }}) {{dimensions = array<i64: 0>}}
    : ({whole}, {whole}, tensor<f32>, tensor<f32>) -> ({side}, {side})
  return %0#0, %0#1 : {side}, {side}
}}"""


def running_program(rows: int, columns: int) -> str:
    """Running sums of rows."""
    whole = f"tensor<{rows}x{columns}xf32>"
    return f"""
func.func @main(%a: {whole}) -> {whole} {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%a, %z) ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }}) {{window_dimensions = array<i64: 1, {columns}>,
       padding = dense<[[0, 0], [{columns - 1}, 0]]> : tensor<2x2xi64>}}
    : ({whole}, tensor<f32>) -> {whole}
  return %0 : {whole}
}}"""
