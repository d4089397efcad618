"""The same functions on Weft's devices and on JAX's own, in one process, and what differs."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tests.tolerance import difference

ROUNDINGS = 4  # of a result, one after another; JAX's devices do some of them in wider types
ONE = 1.0  # below which elements are measured as if they were one: JAX's own tolerances are so


@dataclass(frozen=True, slots=True)
class Case:
    """A function, and what makes its arguments."""

    name: str
    function: Callable[..., Any]
    arguments: Callable[[], Sequence[Any]] = tuple


def report(cases: Iterable[Case]) -> None:
    """Run cases, and end the process with a list of those that are wrong."""
    ran, found = 0, []
    for case in cases:
        ran += 1
        problem = wrong(case)
        if problem is not None:
            found.append(f"{case.name}: {problem}")
    print(f"{ran} ran, {len(found)} wrong")
    if found:
        print("\n".join(found), file=sys.stderr)
        sys.exit(1)


def wrong(case: Case) -> str | None:
    """How results differ from those on JAX's devices; None where those fail themselves."""
    ours, theirs = jax.devices("weft")[0], jax.devices("cpu")[0]
    try:
        expected = _ran(case, theirs)
    except Exception:  # noqa: BLE001  # nothing to compare with
        return None
    try:
        actual = _ran(case, ours)
    except Exception:  # noqa: BLE001  # what the list is about
        return traceback.format_exc(limit=1)
    leaves, tree = jax.tree.flatten(expected)
    others, like = jax.tree.flatten(actual)
    if tree != like:
        return f"the results are {like}, expected {tree}"
    pairs = zip(map(_plain, others), map(_plain, leaves), strict=True)
    return next((d for a, e in pairs if (d := difference(a, e, ROUNDINGS, ONE))), None)


def _ran(case: Case, device: Any) -> Any:
    with jax.default_device(device):
        return jax.block_until_ready(jax.jit(case.function)(*case.arguments()))


def _plain(value: Any) -> np.ndarray:
    """A result as numpy knows it: keys of random numbers by their bits."""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        value = jax.random.key_data(value)
    return np.asarray(value)
