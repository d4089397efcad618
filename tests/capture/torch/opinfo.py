"""PyTorch's database of ops drives the importer: every sample of an op, against eager.

`python -m tests.capture.torch.opinfo --dtypes float32 --samples 4` prints counts and holes.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.tolerance import difference
from weft.array.exchange import to_numpy
from weft.capture import capture
from weft.capture.torch.aten import LOWERINGS
from weft.capture.torch.decompositions import OURS
from weft.errors import Unsupported
from weft.evaluate import evaluate

# What programs are checked for; the others are rarely computed with.
DTYPES = "float32 bfloat16 int64 bool float64 float16 int32 uint8 complex64".split()
# Results that no two implementations share: random numbers, memory without values, strides. And
# sparse tensors, which are no arrays.
NO_NUMBERS = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "bernoulli", "multinomial", "normal", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "uniform", "cauchy", "exponential", "geometric", "log_normal", "pca_lowrank",
    "svd_lowrank", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "resize_", "resize_as_",
    "nn.functional._scaled_dot_product_attention", "nn.functional.rrelu", "rand", "randperm",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward",
    "sparse.mm", "sparse.sampled_addmm", "to_sparse",
}  # fmt: skip

# Ops that say where elements were, of equal ones any.
TIES = {"sort", "argsort", "topk", "kthvalue", "median", "mode", "nanmedian"}
# Eigenvectors and singular vectors have any sign or phase: PyTorch's own tests compare their
# absolute values.
PHASES = {"linalg.eig", "linalg.eigh", "linalg.svd", "svd"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one sample: passed, refused (by the op named), or wrong."""

    op: str
    dtype: str
    state: str
    what: str = ""


def op_names(entry: Any) -> str:
    """The name of an op with its variant."""
    variant = entry.variant_test_name
    return f"{entry.name}.{variant}" if variant else str(entry.name)


def entries(*, core: bool = False) -> list[Any]:
    """The ops of the database that have numbers to compare; `core`: those of core ATen alone."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = [entry for entry in op_db if entry.name not in NO_NUMBERS]
    return [entry for entry in found if is_core(entry)] if core else found


def is_core(entry: Any) -> bool:
    """Whether the op, or one that its name is short for, belongs to the core ATen opset."""
    import torch

    for name in {entry.aten_name, entry.name, f"_{entry.name}", entry.name.rpartition(".")[2]}:
        packet = getattr(torch.ops.aten, str(name).replace(".", "_"), None)
        overloads = packet.overloads() if packet is not None else ()
        if any(torch.Tag.core in getattr(packet, over).tags for over in overloads):
            return True
    return False


def is_lowered(entry: Any) -> bool:
    """Whether the op has a lowering or a decomposition of ours."""
    ours = {n.split(".")[1].strip("_") for n in LOWERINGS | OURS if n.startswith("aten.")}
    theirs = (entry.aten_name, entry.name)
    return not ours.isdisjoint(str(n).rpartition(".")[2].strip("_") for n in theirs)


def samples(entry: Any, dtype: str, most: int | None) -> Iterator[Any]:
    """Sample inputs, spread over all that there are if only so many are wanted."""
    import torch

    torch.manual_seed(0)
    theirs = getattr(torch, dtype)
    if theirs not in entry.supported_dtypes("cpu"):
        return
    found = list(entry.sample_inputs("cpu", theirs, requires_grad=False))
    step = 1 if most is None else max(1, -(-len(found) // most))
    yield from found[::step]


@dataclass(frozen=True, slots=True)
class Call:
    """A sample as a function of its tensors, and what eager gives for them."""

    entry: Any
    dtype: str
    function: Callable[..., list[Any]]
    tensors: list[Any]
    expected: list[Any]


def call_of(entry: Any, dtype: str, sample: Any) -> Call | None:
    """A sample that has tensors, draws no numbers, and that eager accepts, or None."""
    import torch
    from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

    leaves, tree = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*given: Any) -> list[Any]:
        filled = [*leaves]
        for n, value in zip(places, given, strict=True):
            filled[n] = value
        first, args, kwargs = tree_unflatten(filled, tree)
        made = entry.op(first, *args, **kwargs)
        made = sample.output_process_fn_grad(made) if entry.name in PHASES else made
        return [x for x in tree_leaves(made) if isinstance(x, torch.Tensor)]

    if not places or sample.kwargs.get("dropout_p"):
        return None
    try:
        expected = function(*[leaves[n].clone() for n in places])
    except Exception:  # noqa: BLE001  # a sample that eager itself refuses
        return None
    return Call(entry, dtype, function, [leaves[n].clone() for n in places], expected)


def together(calls: list[Call]) -> list[str]:
    """What is wrong with samples that are captured as one program, which is quick."""
    starts = [0, *itertools.accumulate(len(call.tensors) for call in calls)]

    def whole(*given: Any) -> list[list[Any]]:
        cuts = zip(calls, itertools.pairwise(starts), strict=True)
        return [call.function(*given[begin:end]) for call, (begin, end) in cuts]

    given = [x for call in calls for x in call.tensors]
    captured = capture(whole, given)
    made = evaluate(captured.module, *map(to_numpy, given))[len(captured.updated) :]
    expected = [(call, n, x) for call in calls for n, x in enumerate(call.expected)]
    bad = []
    for ours, (call, n, theirs) in zip(made, expected, strict=True):
        if call.entry.name in TIES and (n > 0 or call.entry.name == "argsort"):
            continue
        found = difference(ours, to_numpy(theirs.resolve_conj()), length=64, least=1e-4)
        if found is not None:
            bad.append(f"{op_names(call.entry)} {call.dtype}, result {n}: {found}")
    return bad


def check(entry: Any, dtype: str, sample: Any) -> Outcome:
    """One sample, captured and evaluated, against eager."""
    name, call = op_names(entry), call_of(entry, dtype, sample)
    if call is None:
        return Outcome(name, dtype, "skipped", "no tensors, or eager refuses it")
    try:
        bad = together([call])
    except Unsupported as error:
        return Outcome(name, dtype, "refused", error.message.partition(" ")[0])
    return Outcome(name, dtype, "wrong", bad[0]) if bad else Outcome(name, dtype, "passed")


def sweep(
    chosen: list[Any],
    dtypes: list[str],
    most: int | None,
    tell: Callable[[Outcome], None],
    seconds: float = math.inf,
) -> list[Outcome]:
    """All samples of these ops and types, as many of each as begin within so many seconds."""
    made = []
    for entry, dtype in itertools.product(chosen, dtypes):
        end = time.monotonic() + seconds
        for sample in samples(entry, dtype, most):
            try:
                late = time.monotonic() > end
                out_of_time = Outcome(op_names(entry), dtype, "skipped", "out of time")
                outcome = out_of_time if late else check(entry, dtype, sample)
            except Exception as error:  # noqa: BLE001  # one op must not hide the others
                what = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
                outcome = Outcome(op_names(entry), dtype, "failed", what)
            tell(outcome)
            made.append(outcome)
    return made


def summary(outcomes: list[Outcome]) -> str:
    """Counts, and the holes by name."""
    counts = collections.Counter(o.state for o in outcomes)
    lines = [", ".join(f"{n} {state}" for state, n in sorted(counts.items()))]
    refused = collections.defaultdict(set)
    for o in outcomes:
        if o.state == "refused":
            refused[o.what].add(o.op)
    lines += [f"  hole {what}: {' '.join(sorted(ops))}" for what, ops in sorted(refused.items())]
    bad = sorted({(o.state, o.op, o.dtype, o.what) for o in outcomes
                  if o.state in ("wrong", "failed")})  # fmt: skip
    lines += [f"  {state} {op} {dtype}: {what}" for state, op, dtype, what in bad]
    return "\n".join(lines)


def main() -> None:
    """Run a part of the database, as asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", help="names, or beginnings of them; all without")
    parser.add_argument("--dtypes", nargs="*", default=DTYPES)
    parser.add_argument("--samples", type=int, help="of each op and type; all without")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for each op and type")
    parser.add_argument("--core", action="store_true", help="ops of core ATen only")
    parser.add_argument("--log", action="store_true", help="tell every outcome on stderr")
    parser.add_argument("--part", default="0/1", help="i/n: every n-th op, from the i-th on")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    index, parts = map(int, given.part.split("/"))
    wanted = tuple(given.ops) or ("",)
    chosen = [e for e in entries(core=given.core) if op_names(e).startswith(wanted)][index::parts]
    bad = ("wrong", "failed")

    def tell(o: Outcome) -> None:
        if o.state in bad or given.log:
            print(o.state, o.op, o.dtype, o.what[:200], file=sys.stderr, flush=True)

    print(summary(sweep(chosen, given.dtypes, given.samples, tell, given.seconds)))


if __name__ == "__main__":
    main()
