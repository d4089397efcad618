"""The corpus of JAX programs on eight devices: in lockstep, or on workers, which compare with that.

python tests/workers/launched_corpus.py FOLDER [PROGRAM ...]              writes the results
weft launch --workers 4 tests/workers/launched_corpus.py FOLDER [...]     compares with them
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import weft
from tests import programs
from tests.programs import PROGRAMS, jax
from tests.tolerance import difference
from weft import Mesh, P
from weft.workers import member

MESH = Mesh(x=2, y=4)
LENGTH = 64  # roundings of sums, in another order on another number of workers


def split(array: Any) -> P:
    """The first dim over as many devices as divide it."""
    size = array.shape[0] if array.ndim else 1
    return P(("x", "y")) if size % 8 == 0 else P("x") if size % 2 == 0 else P()


def results(name: str) -> list[np.ndarray]:
    """All results of a program, whole."""
    programs.random = np.random.default_rng(0)  # whichever programs came before
    function, arguments = PROGRAMS[name]()
    arguments = jax.tree.map(np.asarray, arguments)
    has_mesh = "sdy.mesh" in jax.jit(function).lower(*arguments).as_text()
    more = {} if has_mesh else {"mesh": MESH, "in_shardings": jax.tree.map(split, arguments)}
    made = weft.compile(function, *arguments, **more)(*arguments)
    leaves = jax.tree.leaves(made, is_leaf=lambda leaf: hasattr(leaf, "gathered"))
    return [np.asarray(leaf.gathered() if hasattr(leaf, "gathered") else leaf) for leaf in leaves]


def raw(array: np.ndarray) -> np.ndarray:
    """The bytes of an array, which compare and save for every type."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def main(folder: Path, names: list[str]) -> None:
    me, equal = member(), 0
    for name in names or PROGRAMS:
        made = results(name)
        path = folder / f"{name}.npz"
        if me is None:
            np.savez(path, *map(raw, made))
            continue
        with np.load(path) as file:
            stored = [file[key] for key in file.files]
        expected = [s.view(a.dtype).reshape(a.shape) for s, a in zip(stored, made, strict=True)]
        pairs = [*zip(made, expected, strict=True)]
        equal += all(np.array_equal(raw(a), raw(b)) for a, b in pairs)
        found = [difference(a, b, LENGTH) for a, b in pairs]
        assert not any(found), f"{name}: {found}"
    count = len(names or PROGRAMS)
    print(f"{count} programs are equal, {equal} to the bit" if me else f"{count} programs ran")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
