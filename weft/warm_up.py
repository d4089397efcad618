"""A small program that the fork server compiles, so that its workers do not all pay for the first.

The first program compiles the methods of records, and sets up LLVM.
"""

from __future__ import annotations

from weft.ir.read import read_module
from weft.ops import BY_NAME
from weft.pipeline import compile_module
from weft.trace import Trace

_PROGRAM = """
"builtin.module"() <{sym_name = "warm_up"}> ({
  "sdy.mesh"() <{mesh = #sdy.mesh<["x"=2]>, sym_name = "mesh"}> : () -> ()
  "func.func"() <{arg_attrs = [{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}],
      function_type = (tensor<8x8xf32>) -> tensor<8x8xf32>,
      res_attrs = [{sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}], sym_name = "main"}> ({
  ^bb0(%arg0: tensor<8x8xf32>):
    %0 = "stablehlo.dot_general"(%arg0, %arg0) <{dot_dimension_numbers = #stablehlo.dot<
      lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0]>}>
      : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = "stablehlo.tanh"(%0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    "func.return"(%1) : (tensor<8x8xf32>) -> ()
  }) : () -> ()
}) : () -> ()
"""


def warm_up() -> None:
    """Compile the program; nothing runs, and no thread starts."""
    module = read_module(_PROGRAM.replace("\n      ", " "), BY_NAME, None)
    compile_module(module, tune="off", trace=Trace(None, module.name))
