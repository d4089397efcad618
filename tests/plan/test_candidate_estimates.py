"""Golden table of the candidates of small programs: what is split, estimated seconds, bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from weft.capture import capture
from weft.machine import machine
from weft.planner.candidate_estimates import CandidateEstimator
from weft.planner.candidates import candidates, expert_dims, spec_of
from weft.planner.facts import ProgramFacts
from weft.planner.search import subject_of

GOLDEN = Path(__file__).parents[1] / "golden" / "plan"


def routed(weights, x):
    """Two layers with experts: every expert sees all rows."""
    for w in weights:
        h = jnp.einsum("bsd,edf->ebsf", x @ w["mix"], w["up"])
        x = x + jnp.einsum("ebsf,efd->bsd", jnp.tanh(h), w["down"])
    return x


def step(weights, moments, x):
    """One training step with an optimizer's state."""
    loss = lambda weights: jnp.sum(routed(weights, x) ** 2)  # noqa: E731
    value, slopes = jax.value_and_grad(loss)(weights)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, slopes)
    return jax.tree.map(lambda w, m: w - 0.1 * m, weights, moments), moments, value


def given() -> tuple[object, object]:
    shapes = {"mix": (256, 256), "up": (4, 256, 512), "down": (4, 512, 256)}
    layer = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
    return [layer, layer], jax.ShapeDtypeStruct((8, 64, 256), np.float32)


def described(facts: ProgramFacts) -> Iterator[str]:
    for a in facts.arguments:
        returned = "" if a.result is None else f", result {a.result}"
        yield f"{a.name}: {a.type}, classes {list(a.classes)}, {a.role} x{a.times}{returned}"
    yield f"sizes {list(facts.sizes)}, {facts.layers} layers, trains {facts.trains}"
    yield f"batch {facts.batch_dims}, sequence {facts.sequence_dims}, tensor {facts.tensor_dims}"
    yield f"experts {expert_dims(facts)}"
    for c, sums in sorted(facts.partial.items()):
        listed = sorted((t.bytes, t.classes, n) for t, n in sums.items())
        yield f"sums over class {c}: {listed}"
    yield f"saved {sorted((t.bytes, t.classes, n) for t, n in facts.saved)}"


def test_candidates_and_estimates(golden):
    weights, x = given()
    programs = {"training": (step, (weights, weights, x)), "inference": (routed, (weights, x))}
    lines = []
    for name, (function, arguments) in programs.items():
        facts = subject_of(capture(function, arguments)).facts
        estimator = CandidateEstimator(facts, machine("2x(4xh100)"))
        lines += [name, *described(facts)]
        for n, candidate in enumerate(candidates(facts, 8)):
            if n % 83:  # a sample, in which every mesh is
                continue
            made = estimator.estimate(candidate)
            axes = " ".join(f"{axis}={size}" for axis, size in candidate.axes)
            specs = ", ".join(f"{a.name} {spec_of(a, candidate)}" for a in facts.arguments[:7])
            lines.append(f"{n} {axes}: {1e6 * made.seconds:.4g} us, {made.memory:.0f} bytes")
            lines.append(f"  costs {1e6 * made.cost(1 << 22):.4g} in 4 MiB; {specs}")
    golden(GOLDEN / "candidates.txt", "".join(f"{line}\n" for line in lines))
