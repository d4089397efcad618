"""Nouns import nouns, verbs import nouns and no other verb, and optional packages stay optional."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

WEFT = Path(__file__).parent.parent / "weft"
NOUNS = {*"ir ops mesh machine cost array cache kernels native varying executable".split()} | {
    *"workers columns errors knobs patches recording records timeline trace target".split(),
    "tune",
}
VERBS = {*"capture shard partition optimize tile emit run".split()} | {
    *"simulate profile explain report evaluate".split()
}
# What may know two verbs: the pipeline and the doors that call it.
DOORS = {
    *"pipeline targets traced loaded compiled training dynamo eager compare cli".split(),
    "colocated",
} | {
    *"__init__ __main__ jax planner predict advise profiling ready remote reporting state".split(),
    "zoo",
}
# What looks on from the side, and at whom.
LOOKS_AT = {"explain": {"shard", "partition"}}
CORE = {"numpy", "ml_dtypes"}
# The files that may import an optional package, inside a function.
OPTIONAL = {
    "jaxlib": {
        "capture/jax/calls.py",
        "capture/jax/constrain.py",
        "capture/stablehlo/mlir_parser.py",
        "jax/buffers/client.py",
        "jax/patches/caching.py",
        "jax/programs/compiling.py",
        "jax/questions/device_program.py",
        "jax/programs/dumping.py",
        "jax/programs/profiling.py",
        "jax/versions.py",
        "jax/programs/xla_options.py",
    },
    "jax": {
        "array/exchange.py",
        "array/jax_types.py",
        "capture/jax/attention.py",
        "capture/jax/constrain.py",
        "capture/jax/trace.py",
        "capture/jax/buffers.py",
        "capture/jax/by_hand.py",
        "capture/jax/callbacks.py",
        "capture/jax/calls.py",
        "capture/jax/inline.py",
        "capture/jax/lowerings.py",
        "capture/jax/on_host.py",
        "capture/jax/scatters.py",
        "capture/jax/shardings.py",
        "capture/jax/values.py",
        "cli/commands/installation/doctor_checks.py",
        "jax/patches/caching.py",
        "capture/normalize/custom_partitioning.py",
        "jax/buffers/dlpack.py",
        "jax/patches/effects.py",
        "jax/patches/exporting.py",
        "jax/patches/guarding.py",
        "jax/questions/inspecting.py",
        "jax/patches/interrupts.py",
        "jax/patches/lowering.py",
        "jax/plugin.py",
        "jax/processes.py",
        "jax/programs/xla_options.py",
    },
    "torch": {
        "array/exchange.py",
        "array/tensor_stack.py",
        "array/torch_memory.py",
        "capture/torch/attention.py",
        "capture/torch/training/backward.py",
        "capture/torch/constrain.py",
        "capture/torch/decompositions/__init__.py",
        "capture/torch/decompositions/bags.py",
        "capture/torch/decompositions/checked.py",
        "capture/torch/decompositions/distances.py",
        "capture/torch/decompositions/drawing.py",
        "capture/torch/decompositions/gradients.py",
        "capture/torch/decompositions/layers.py",
        "capture/torch/decompositions/losses.py",
        "capture/torch/decompositions/matrices.py",
        "capture/torch/decompositions/orders.py",
        "capture/torch/decompositions/placing.py",
        "capture/torch/decompositions/sampling.py",
        "capture/torch/decompositions/scalar_indices.py",
        "capture/torch/decompositions/spacing.py",
        "capture/torch/decompositions/special.py",
        "capture/torch/dtypes.py",
        "capture/torch/exchange.py",
        "capture/torch/export.py",
        "capture/torch/flex.py",
        "capture/torch/functions.py",
        "capture/torch/graph.py",
        "capture/torch/graphs.py",
        "capture/torch/grouped.py",
        "capture/torch/in_place.py",
        "capture/torch/locations.py",
        "capture/torch/training/objective.py",
        "capture/torch/on_host.py",
        "capture/torch/own_gradients.py",
        "capture/torch/training/optimizers.py",
        "capture/torch/plans/by_name.py",
        "capture/torch/plans/experts.py",
        "capture/torch/sizes/buckets.py",
        "capture/torch/sizes/call.py",
        "capture/torch/sizes/shapes.py",
        "capture/torch/plans/sequence.py",
        "capture/torch/results.py",
        "capture/torch/source.py",
        "capture/torch/state.py",
        "capture/torch/strides.py",
        "capture/torch/training/step.py",
        "capture/torch/transforms.py",
        "cli/gpu_calibration.py",
        "compare/modules.py",
        "dynamo.py",
        "emit/triton/library/attention.py",
        "emit/triton/library/calls.py",
        "emit/triton/library/convolution.py",
        "emit/triton/library/cublaslt.py",
        "emit/triton/library/cudnn.py",
        "emit/triton/library/cudnn_convolution.py",
        "emit/triton/library/elementwise.py",
        "emit/triton/library/nodes.py",
        "emit/triton/library/pooling.py",
        "emit/triton/runtime/load.py",
        "emit/triton/runtime/stream.py",
        "emit/triton/source.py",
        "emit/triton/target.py",
        "emit/triton/tuning/candidates.py",
        "machine/here.py",
        "training.py",
        "workers/device_groups.py",
        "workers/gloo.py",
        "zoo/check.py",
        "zoo/handwritten.py",
        "zoo/model.py",
        "zoo/networks.py",
        "zoo/transformers.py",
    },
    "llvmlite": {"emit/llvm/jit/machine_code.py", "emit/llvm/jit/processor.py"},
    "triton": {
        "emit/triton/interpreted.py",
        "emit/triton/prelude.py",
        "emit/triton/source.py",
        "emit/triton/tuning/candidates.py",
    },
    "cudnn": {"emit/triton/library/cudnn.py", "emit/triton/library/cudnn_convolution.py"},
    "transformers": {"capture/torch/functions.py", "zoo/model.py"},
    "pynvml": {"machine/here.py"},
    "scipy": {"ops/numerics/schur.py", "ops/numerics/spectral.py"},
    "ray": {"workers/in_ray.py"},
    "grpc": {"remote/channel.py"},
    "rich": {
        "cli/commands/installation/cache.py",
        "cli/commands/installation/conformance.py",
        "cli/arrays.py",
        "cli/commands/evaluate.py",
        "cli/commands/kernels.py",
        "cli/commands/installation/knobs.py",
        "cli/commands/installation/ops.py",
        "cli/commands/plan.py",
        "cli/commands/run.py",
        "cli/screen.py",
        "cli/commands/show.py",
    },
}

# Files of the functions that Triton compiles, imported with their first kernel.
OF_TRITON = {"emit/triton/interpreted.py", "emit/triton/prelude.py"}
# Files that are imported inside functions only, with what they need at their top.
LATE = {"zoo/networks.py"}


def imports(tree: ast.AST, lazy: bool = False) -> Iterator[tuple[str, int, bool]]:
    """Every imported module with its line, and whether it is imported only when needed."""
    for node in ast.iter_child_nodes(tree):
        inner = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            inner = True
        match node:
            case ast.Import(names=names):
                yield from ((name.name, node.lineno, lazy) for name in names)
            case ast.ImportFrom(module="weft", names=names):
                yield from ((f"weft.{name.name}", node.lineno, lazy) for name in names)
            case ast.ImportFrom(module=module, level=level):
                yield ("." * level + (module or ""), node.lineno, lazy)
        yield from imports(node, inner)


def violations(file: str, source: str) -> Iterator[str]:
    """What is wrong with the imports of a file, one line each."""
    part = file.split("/")[0].removesuffix(".py")
    if part not in NOUNS | VERBS | DOORS:
        yield f"weft/{file}:1: {part} is in no list of tests/test_layering.py"
    for module, line, lazy in imports(ast.parse(source)):
        if reason := wrong(file, part, module, lazy):
            yield f"weft/{file}:{line}: imports {module}: {reason}"


def wrong(file: str, part: str, module: str, lazy: bool) -> str | None:
    """Why this import is wrong, or None."""
    package, _, rest = module.partition(".")
    if package == "":
        return "write imports in full"
    if package in OPTIONAL:
        if file not in OPTIONAL[package]:
            return "an optional package, and the file is not in the list of those that may"
        lazy = lazy or (package == "triton" and file in OF_TRITON) or file in LATE
        return None if lazy else "an optional package, to be imported inside a function"
    if package != "weft":
        known = package in sys.stdlib_module_names or package in CORE
        return None if known else "the core needs numpy and ml_dtypes only"
    target = rest.split(".")[0]
    if part in DOORS or target == part or target in LOOKS_AT.get(part, ()):
        return None
    if target in NOUNS:
        return "ir knows no op by name" if (part, target) == ("ir", "ops") else None
    return (
        f"{part} is a {'noun' if part in NOUNS else 'verb'}, and {target or 'weft'} is not a noun"
    )


def test_every_import_follows_the_layers():
    found = [
        problem
        for path in sorted(WEFT.rglob("*.py"))
        for problem in violations(path.relative_to(WEFT).as_posix(), path.read_text())
    ]
    assert not found, "\n" + "\n".join(found)


def test_no_star_imports():
    found = [
        f"{path}:{number}"
        for path in sorted(WEFT.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.lstrip().startswith("from ") and line.rstrip().endswith("import *")
    ]
    assert not found


@pytest.mark.parametrize(
    ("file", "source", "problem"),
    [
        ("ir/types.py", "import weft.capture", "ir/types.py:1: imports weft.capture: ir is a noun"),
        ("ir/op.py", "\nfrom weft.ops import OPS", "ir/op.py:2: imports weft.ops: ir knows no op"),
        ("shard/search.py", "from weft.partition import x", "shard is a verb, and partition is no"),
        (
            "shard/search.py",
            "from weft import evaluate",
            "shard is a verb, and evaluate is not a noun",
        ),
        (
            "shard/propagation/graph.py",
            "from weft.explain import x",
            "shard is a verb, and explain is not a noun",
        ),
        ("ops/sort.py", "import pandas", "the core needs numpy and ml_dtypes only"),
        ("ops/sort.py", "from . import x", "write imports in full"),
        ("ops/sort.py", "def f():\n  import torch", "ops/sort.py:2: imports torch: an optional"),
        ("cli/screen.py", "import rich", "to be imported inside a function"),
        ("helpers/x.py", "", "helpers is in no list"),
    ],
)
def test_a_wrong_import_is_found(file: str, source: str, problem: str):
    assert any(problem in found for found in violations(file, source))


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("evaluate.py", "from weft.ops import OPS\nimport numpy, math"),
        ("pipeline.py", "from weft.shard import shard\nfrom weft.partition import partition"),
        ("cli/screen.py", "def f():\n  from rich.console import Console"),
        ("cli/screen.py", "if TYPE_CHECKING:\n  from rich.console import Console"),
        ("errors.py", "from weft.ir.location import Location"),
        ("explain/reasons.py", "from weft.shard import Propagated"),
    ],
)
def test_a_right_import_is_not_found(file: str, source: str):
    assert not list(violations(file, source))
