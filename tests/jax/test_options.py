"""Options of the compiler that JAX passes through, known and unknown ones."""

from __future__ import annotations

from tests.jax.door import run_on_weft

_SOURCE = """
import os

import jax, jax.numpy as jnp

FLAGS = os.environ.get("XLA_FLAGS", "")

x = jnp.arange(8.0)
f = lambda a: jnp.sin(a) @ a
lowered = jax.jit(f).lower(x)
expected = float(f(x))
for options in (
    {"weft_opt_level": 0}, {"weft_opt_level": "2"}, {"weft_target": "numpy"},
    {"weft_target": "llvm", "weft_fold_sums": False}, {"weft_explain": False},
    {"weft_tune": "off"},
    {"xla_embed_ir_in_executable": True}, {"xla_embed_ir_in_executable": "false"},
    {"xla_dump_max_hlo_modules": 200}, {"xla_gpu_auto_spmd_partitioning_memory_budget_ratio": 0.5},
    {"optimization_level": 19},  # as XLA numbers O1
):
    assert abs(float(lowered.compile(compiler_options=options)(x)) - expected) < 1e-4, options
assert float(jax.jit(f, compiler_options={"weft_opt_level": 1})(x)) == expected

narrow = jnp.float32([1.2345678]).astype(jnp.bfloat16)
square = lambda a: (a * a).astype("float32")
kept, rounded = (
    float(jax.jit(square, compiler_options={"xla_allow_excess_precision": allow})(narrow)[0])
    for allow in (True, False)
)
assert (kept, rounded) == (1.523681640625, 1.5234375)
assert float(jax.jit(square)(narrow)[0]) == (rounded if "precision=false" in FLAGS else kept)

def refused(options):
    try:
        lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    raise AssertionError(f"{options} were taken")

text = refused({"weft_level": 1})
assert "No such compile option: 'weft_level'" in text, text
assert "weft_opt_level, weft_explain, weft_target, weft_fold_sums" in text, text
assert "3 is no level" in refused({"weft_opt_level": 3})
assert "'high' is not a valid integer" in refused({"weft_opt_level": "high"})
assert "targets are llvm, numpy" in refused({"weft_target": "grid"})
assert "'maybe' is not a valid bool value." in refused({"weft_fold_sums": "maybe"})
assert "'always' is no way of tuning" in refused({"weft_tune": "always"})
assert "is not a valid bool value." in refused({"xla_embed_ir_in_executable": "invalid_value"})
try:
    jax.jit(f, compiler_options={"invalid_key": 1})(x)
except jax.errors.JaxRuntimeError as error:
    assert "No such compile option: 'invalid_key'" in str(error), error
else:
    raise AssertionError("an unknown option was taken")
print("done")
"""


def test_options() -> None:
    assert run_on_weft(_SOURCE) == "done\n"


def test_excess_precision_by_flag() -> None:
    source = _SOURCE[: _SOURCE.index("def refused")] + 'print("done")\n'
    flags = "--xla_allow_excess_precision=false"
    assert run_on_weft(source, XLA_FLAGS=flags) == "done\n"
