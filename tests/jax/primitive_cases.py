"""Uses of every primitive of JAX, with every type: those that JAX itself keeps for its tests."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np

from tests.jax.side_by_side import Case

# What is determined up to signs, or says nothing of some elements: told by functions of numpy's.
_UNDETERMINED = ("eig", "svd", "qr", "schur", "hessenberg", "cholesky", "lu", "tridiagonal")
_UNDETERMINED_ORDER = "isstable_False"


def every_use(part: int, parts: int) -> list[Case]:
    """A part of all uses."""
    return [_case(use) for use in _uses()[part::parts]]


def one_use_each() -> list[Case]:
    """One use of each primitive, with one type after another."""
    by_primitive: dict[str, list[Any]] = defaultdict(list)
    for use in _uses():
        by_primitive[use.group_name].append(use)
    return [_case(uses[n % len(uses)]) for n, uses in enumerate(by_primitive.values())]


def _uses() -> list[Any]:
    from jax._src.internal_test_util import test_harnesses

    return [
        use
        for use in test_harnesses.all_harnesses
        if use.filter("cpu")
        and not use.group_name.startswith(_UNDETERMINED)
        and _UNDETERMINED_ORDER not in use.name
    ]


def _case(use: Any) -> Case:
    return Case(use.fullname, use.dyn_fun, partial(_arguments, use))


def _arguments(use: Any) -> Any:
    return use.dyn_args_maker(np.random.RandomState(0))
