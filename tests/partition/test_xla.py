"""XLA runs our local programs: the text is a program that others can run."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles.xla_local import evaluated
from tests.partition.corpus import corpus_program
from tests.partition.differential import compare
from tests.partition.fuzz import triple
from tests.partition.program import Program
from tests.partition.split import mesh_of
from tests.partition.test_corpus import ALL, Key, label
from weft.ir.module import Module
from weft.ir.op import Op
from weft.ops.distributed.sharding import ShardyConstant
from weft.ops.reduce import Reduce
from weft.ops.shape import Constant

SHORT: tuple[Key, ...] = (
    ("mlp", "2x4", "tensor"),
    ("convolutional", "2x2x2", "space"),
    ("experts", "2x4", "experts"),
    ("loops", "2x4", "both"),
    ("mapped", "2x4", "both"),
    ("slices", "2x2x2", "both"),
)
FUZZ = 25
EXTREMES = ("stablehlo.maximum", "stablehlo.minimum")
CONSTANTS = (Constant, ShardyConstant)


def check(program: Program) -> None:
    """XLA's results on the pieces, put together, are those of one device."""
    found = program.check()
    mesh = mesh_of(found.local.function("main"), found.local.meshes)
    made = evaluated(found.local, found.stacked, mesh.size)
    compare(found.local, made, found.expected, program.length)


def starts_are_neutral(module: Module) -> bool:
    """Whether maxima and minima start from what changes nothing: XLA takes that for granted."""
    for node in module.nodes():
        if isinstance(node.op, Reduce) and node.regions[0].body.combiners[0] in EXTREMES:
            inits = [v.node for v in node.operands[len(node.operands) // 2 :]]
            if not all(n and isinstance(n.op, CONSTANTS) and is_endless(n.op) for n in inits):
                return False
    return True


def is_endless(op: Op) -> bool:
    """Whether a constant holds an infinity."""
    return bool(np.isinf(op.value.elements.astype(np.float64)).all())  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", SHORT, ids=label)
def test_corpus(key: Key):
    check(corpus_program(*key))


def test_random_programs():
    for program in map(triple, range(FUZZ)):
        if starts_are_neutral(program.module()):
            check(program)


@pytest.mark.long
@pytest.mark.parametrize("key", ALL, ids=label)
def test_whole_corpus(key: Key):
    check(corpus_program(*key))


@pytest.mark.long
@pytest.mark.parametrize("start", range(1000, 2000, 50))
def test_many_random_programs(start: int):
    for program in map(triple, range(start, start + 50)):
        if starts_are_neutral(program.module()):
            check(program)
