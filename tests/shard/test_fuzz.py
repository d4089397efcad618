"""Random programs: Weft's propagation beside Shardy's, value by value."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.catalogue import CHECKED, EXAMPLES
from tests.shard.compare import compared, listed
from tests.shard.fuzz import MESHES, Sharder, program
from tests.shard.oracle import as_listed, propagated
from weft.capture import parse
from weft.ir.attrs import Attrs
from weft.ir.module import Module, Value
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.mesh import Mesh
from weft.shard import PropagationLevel, propagate, shard

CHUNK = 50
# Local ops are made by partition, when shardings are gone; to Shardy they are composites.
SHARDED = [op for op in CHECKED if not op.composite]
# Why the oracle may give no answer.
REFUSED = (
    "ended with status -11",  # a priority on a dead value (see test_propagate.py)
    "cannot cross ManualComputationOp boundaries",  # a group in a function called twice
)


def check(seeds: range, level: PropagationLevel = "user") -> None:
    """Compare the programs of these seeds; the oracle may fail on few of them."""
    failed = []
    for seed in seeds:
        text = program(seed)
        theirs = propagated(text, level, final=False)
        if theirs.error is not None:
            failed.append((seed, theirs.error))
            continue
        ours = listed(propagate(parse(text), level))
        found = list(compared(theirs.propagated, ours))
        assert not found, f"seed {seed} ({level}): {found[:5]}\n{text}"
        assert ours == listed(propagate(parse(text), level)), f"seed {seed} is not deterministic"
    assert len(failed) <= 3 + len(seeds) // 20, failed
    assert all(any(known in error for known in REFUSED) for _, error in failed), failed


@pytest.mark.parametrize("start", range(0, 200, CHUNK))
def test_random_programs(start: int):
    check(range(start, start + CHUNK))


def check_whole(seeds: range) -> None:
    """Compare what comes out in the end: every op, in order, with its shardings."""
    for seed in seeds:
        text = program(seed)
        theirs = propagated(text)
        if theirs.error is None:
            found = list(compared(theirs.final, as_listed(shard(parse(text)).text())))
            assert not found, f"seed {seed}: {found[:5]}\n{text}"


@pytest.mark.parametrize("start", range(20_000, 20_100, CHUNK))
def test_random_programs_through_the_whole_pipeline(start: int):
    check_whole(range(start, start + CHUNK))


@pytest.mark.long
@pytest.mark.parametrize("start", range(21_000, 23_000, CHUNK))
def test_many_random_programs_through_the_whole_pipeline(start: int):
    check_whole(range(start, start + CHUNK))


@pytest.mark.parametrize("level", ["op", "aggressive", "basic"])
def test_random_programs_on_simpler_levels(level: PropagationLevel):
    check(range(10_000, 10_040), level)


@pytest.mark.long
@pytest.mark.parametrize("start", range(200, 2600, CHUNK))
def test_many_random_programs(start: int):
    check(range(start, start + CHUNK))


@pytest.mark.long
@pytest.mark.parametrize("level", ["op", "aggressive", "basic"])
@pytest.mark.parametrize("start", range(11_000, 11_300, CHUNK))
def test_many_random_programs_on_simpler_levels(start: int, level: PropagationLevel):
    check(range(start, start + CHUNK), level)


# One op at a time: every op that Weft knows, with random shardings around it


def annotated(module: Module, seed: int) -> Module:
    """The module with random shardings on the arguments and results of its main."""
    rng = random.Random(seed)
    axes = rng.choice(MESHES)
    mesh = Sharder(rng, "mesh", axes)

    def attrs(values: tuple[Value, ...], chance: float) -> tuple[Attrs, ...]:
        made: list[Attrs] = []
        for value in values:
            is_tensor = isinstance(value.type, TensorType) and value.type.is_static
            if is_tensor and rng.random() < chance:
                sharding = mesh.draw(value.type.sizes)  # type: ignore[union-attr]
                made.append((("sdy.sharding", f"#sdy.sharding{sharding}"),))
            else:
                made.append(())
        return tuple(made)

    main = module.functions["main"]
    main = replace(
        main, arg_attrs=attrs(main.body.args, 0.6), res_attrs=attrs(main.body.results, 0.3)
    )
    functions = dict(module.functions) | {"main": main}
    return replace(module.with_functions(functions), meshes={"mesh": Mesh(axes)})


def check_op(example: Any, seed: int) -> None:
    module = example.module()
    if "main" not in module.functions or module.meshes:
        return
    if getattr(example.op, "call_target_name", "").startswith("weft."):
        return  # a call of ours, of which Shardy knows nothing
    text = annotated(module, seed).text()
    theirs = propagated(text, final=False)
    if theirs.error is None:
        found = list(compared(theirs.propagated, listed(propagate(parse(text)))))
        assert not found, f"{found[:5]}\n{text}"


@pytest.mark.parametrize("op", SHARDED, ids=lambda op: op.name)
def test_every_op(op: type[Op]):
    @settings(max_examples=3)
    @given(EXAMPLES[op], st.integers(0, 10**6))
    def each(example: Any, seed: int) -> None:
        check_op(example, seed)

    each()


@pytest.mark.long
@pytest.mark.parametrize("op", SHARDED, ids=lambda op: op.name)
def test_every_op_often(op: type[Op]):
    @settings(max_examples=40)
    @given(EXAMPLES[op], st.integers(0, 10**6))
    def each(example: Any, seed: int) -> None:
        check_op(example, seed)

    each()
