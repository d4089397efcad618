"""Options of the compiler that JAX passes through, known and unknown ones."""

from __future__ import annotations

from pathlib import Path

from tests.jax.door import run_on_weft, start

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
    {"xla_embed_ir_in_executable": True}, {"xla_embed_ir_in_executable": "False"},
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

y = jnp.linspace(-9, 9, 999)
exact, near = (jax.jit(jnp.exp, compiler_options=o)(y) for o in ({}, {"weft_approximate": "exp"}))
assert 0 < float(jnp.max(jnp.abs(near / exact - 1))) < 2**-13

def refused(options):
    try:
        lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    raise AssertionError(f"{options} were taken")

text = refused({"weft_level": 1})
assert "No such compile option: 'weft_level'" in text, text
assert "weft_opt_level, weft_explain, weft_target, weft_fold_sums" in text, text
assert "unknown level 3" in refused({"weft_opt_level": 3})
assert "'high' is not a valid integer" in refused({"weft_opt_level": "high"})
assert "expected llvm, numpy, triton" in refused({"weft_target": "grid"})
assert "'maybe' is not a valid bool value." in refused({"weft_fold_sums": "maybe"})
assert "no approximate function 'log'" in refused({"weft_approximate": "exp,log"})
assert "unknown tune mode 'always'" in refused({"weft_tune": "always"})
assert "is not a valid bool value." in refused({"xla_embed_ir_in_executable": "invalid_value"})
assert "'x' is not a valid int32 value." in refused({"xla_gpu_autotune_level": "x"})
assert "'1' is not a valid bool value." in refused({"xla_dump_hlo_as_text": 1})
lowered.compile(compiler_options={"xla_dump_hlo_as_text": True})
text = refused({"xla_dump_too": "here"})
assert text.startswith("INVALID_ARGUMENT: error: No such compile option: 'xla_dump_too'"), text
assert "did you mean xla_dump_to" in text, text
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


_MACHINE = """
import jax, jax.numpy as jnp, numpy as np

mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
rows, columns = (jax.NamedSharding(mesh, jax.P(*spec)) for spec in (("d",), (None, "d")))
f = jax.jit(lambda x, w: x @ w, in_shardings=(rows, columns), out_shardings=columns)

def compiled(size, dtype, **options):
    types = [jax.ShapeDtypeStruct((size, size), dtype, sharding=s) for s in (rows, columns)]
    return f.lower(*types).compile(compiler_options=options)

large = [
    compiled(32768, jnp.bfloat16, weft_opt_level=2, **more)
    for more in ({}, {"weft_machine": "h100"})
]
gathered, ring = [made.as_text() for made in large]
assert "all-gather" in gathered and "collective-permute" not in gathered
assert "collective-permute" in ring and "all-gather" not in ring
assert large[1].memory_analysis().temp_size_in_bytes > 0

x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 64)), jnp.float32)
given = jax.device_put(x, rows), jax.device_put(x, columns)
plain = compiled(64, jnp.float32)
for options in (
    {"weft_machine": "h100", "weft_opt_level": 2},
    {"weft_compute_streams": 2, "weft_communication_streams": "2", "weft_opt_level": 2},
    {"weft_combine_bytes": 0}, {"weft_combine_ops": 1},
):
    np.testing.assert_array_equal(compiled(64, jnp.float32, **options)(*given), plain(*given))

def refused(**options):
    try:
        compiled(64, jnp.float32, **options)
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    raise AssertionError(f"{options} were taken")

text = refused(weft_machine="h1000")
assert "While setting option weft_machine, unknown machine 'h1000'" in text, text
text = refused(weft_compute_streams=0)
assert "compute_streams=0: expected a number from 1 on" in text, text
assert "is not a valid integer" in refused(weft_combine_bytes="30MiB")

whole = jax.NamedSharding(mesh, jax.P())
sums = lambda x: (x.sum(0), (x * x).sum(0))
several = jax.jit(sums, in_shardings=rows, out_shardings=whole)
counts = [
    several.lower(given[0]).compile(compiler_options=o).as_text().count(" all-reduce(")
    for o in ({}, {"weft_combine_ops": 1})
]
assert counts == [1, 2], counts
print("done")
"""


def test_machine_streams_and_combining() -> None:
    assert run_on_weft(_MACHINE) == "done\n"


def test_excess_precision_by_flag() -> None:
    source = _SOURCE[: _SOURCE.index("def refused")] + 'print("done")\n'
    flags = "--xla_allow_excess_precision=false"
    assert run_on_weft(source, XLA_FLAGS=flags) == "done\n"


_SAYS = """
import jax
for n in (1, 2):
    f = jax.jit(lambda a: a + n, compiler_options={"xla_cpu_enable_fast_math": True})
    assert f(1) == 1 + n
"""


def test_what_has_no_effect_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "inside"
    flags = "--xla_cpu_use_thunk_runtime=true --xla_force_host_platform_device_count=4"
    flags += f" --xla_dump_to={place}"
    done = start(_SAYS, "weft", devices=8, timeout=300, XLA_FLAGS=flags, WEFT_DEVICES="")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("weft: ")]
    assert sorted(said) == [
        "weft: XLA_FLAGS: --xla_cpu_use_thunk_runtime has no effect on Weft's devices",
        "weft: XLA_FLAGS=--xla_force_host_platform_device_count=4 counts JAX's CPU devices; "
        "Weft has 8: set WEFT_DEVICES=4",
        "weft: compiler option xla_cpu_enable_fast_math has no effect on Weft's devices",
        f"weft: xla_dump_to={place} cannot be written to: Not a directory",
    ]


_DUMPED = """
import jax, jax.numpy as jnp
from pathlib import Path
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("i")))

@jax.jit
def step(a):
    return jnp.sin(a).sum()

step(x)
folder = Path("{folder}")
jax.jit(lambda a: jnp.cos(a), compiler_options={{
    "xla_dump_to": str(folder / "own"), "xla_dump_hlo_as_proto": True, "xla_dump_hlo_as_dot": True,
    "xla_dump_hlo_pass_re": ".", "xla_dump_hlo_module_re": "lambda",
}})(x)
"""


def test_programs_are_dumped(tmp_path: Path) -> None:
    flags = f"--xla_dump_to={tmp_path / 'all'} --xla_dump_hlo_module_re=step"
    done = start(_DUMPED.format(folder=tmp_path), "weft", devices=8, timeout=300, XLA_FLAGS=flags)
    assert done.returncode == 0, done.stderr
    assert "weft: " not in done.stderr
    texts = {path.name.partition(".")[2]: path for path in (tmp_path / "all").iterdir()}
    before = texts["jit_step.before_optimizations.txt"].read_text()
    after = texts["jit_step.weft_after_optimizations.txt"].read_text()
    assert "f32[8]{0} sine" in before
    assert "f32[1]{0} sine" in after and "all-reduce" in after
    assert any(name.endswith(".ll") for name in texts)
    assert all(name.startswith("jit_step.") for name in texts), "others do not match"
    own = {path.name.partition(".")[2]: path.read_bytes() for path in (tmp_path / "own").iterdir()}
    names = {*own}
    for stage in ("before_optimizations", "weft_after_optimizations"):
        assert own[f"jit__lambda.{stage}.dot"].startswith(b"digraph")
        # A field of a protocol buffer: number and kind, the size by 7 bits a byte, the module.
        proto = own[f"jit__lambda.{stage}.hlo.pb"]
        length = next(n for n, byte in enumerate(proto[1:], 1) if byte < 0x80)
        size = sum((byte & 0x7F) << 7 * n for n, byte in enumerate(proto[1 : length + 1]))
        assert proto[0] == 0x0A and len(proto) == 1 + length + size and length > 1
    assert "jit__lambda.weft_after_optimizations.hlo.pb" in names
    assert "jit__lambda.partitioned.mlir" in names
    assert not any(name.endswith(".txt") for name in names), "another format was asked for"
