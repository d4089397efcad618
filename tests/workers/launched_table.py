"""What two launched workers run: every collective with every dtype, each equal to lockstep."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from tests.run.collectives import KINDS, Case, bits, lockstep
from tests.workers.gloo_processes import GlooProcesses
from weft.ir.types import DTYPES
from weft.mesh import Axis, Mesh
from weft.workers import joined_cluster

BITWISE = ("and", "or", "xor")


def table() -> Iterator[tuple[str, str]]:
    """Every collective and dtype that StableHLO allows: only integers have bitwise reductions."""
    for kind in KINDS:
        for dtype in DTYPES:
            is_integer = DTYPES[dtype].is_integer or dtype == "i1"
            if is_integer or kind.split()[-1] not in BITWISE:
                yield kind, dtype


def check(kind: str, dtype: str, way: str) -> None:
    """This worker's device has the bits of lockstep."""
    cluster = joined_cluster()
    assert cluster is not None
    rank = cluster.rank
    case = Case(kind, Mesh(x=2), (Axis("x"),), (Axis("x"),), way, dtype)
    assert str(case.type.dtype) == dtype, "the case has taken another dtype"
    module, pieces = case.module(), case.pieces()
    expected = lockstep(module, pieces)
    processes = GlooProcesses(module, [], [cluster, cluster])
    found = processes.programs[rank](*processes.given(rank, pieces))
    for stacked, all_of_them in zip(found, expected, strict=True):
        ours, theirs = stacked.piece(rank), all_of_them[rank]
        np.testing.assert_array_equal(bits(ours), bits(theirs))


def main(share: int) -> None:
    rows = [row for n, row in enumerate(table()) if n % share == 0]
    for number, (kind, dtype) in enumerate(rows):
        try:
            check(kind, dtype, ("plain", "asynchronous")[number % 2])
        except Exception as error:
            raise AssertionError(f"{kind} of {dtype}") from error
    print(f"{len(rows)} collectives are equal")


if __name__ == "__main__":
    main(int(sys.argv[1]))
