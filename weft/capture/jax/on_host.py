"""Primitives that JAX computes on the host: raising errors, solving sparse systems."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.capture.jax.callbacks import host_call
from weft.capture.jax.calls import LoweringRule, rules_of

_SPARSE = "jax.experimental.sparse.linalg"  # slow to import: used only if loaded


def solves_sparse() -> bool:
    """Whether JAX's sparse solver is imported."""
    return _SPARSE in sys.modules


def host_rules() -> tuple[tuple[Any, LoweringRule], ...]:
    """The lowerings of host primitives in the imported parts of JAX."""
    from jax._src import checkify

    rules = rules_of(checkify, {"check_p": _check})
    if solves_sparse():
        rules += rules_of(sys.modules[_SPARSE], {"spsolve_p": _spsolve})
    return rules


def _check(ctx: Any, *args: Any, err_tree: Any, debug: bool) -> Sequence[Any]:
    """A checkify check that was not functionalized: a callback that raises."""
    from jax._src import checkify, config

    if debug:
        return []
    if not config.xla_runtime_errors.value:
        raise checkify.functionalization_error
    return host_call(ctx, partial(checkify.python_err, err_tree), args, None)


def _spsolve(ctx: Any, data: Any, indices: Any, indptr: Any, b: Any, **_: Any) -> Sequence[Any]:
    operands = (data, indices, indptr, b)
    return host_call(ctx, _solved, operands, None, has_side_effect=False)


def _solved(data: Any, indices: Any, indptr: Any, b: Any) -> tuple[Any]:
    """The solution of a sparse system in CSR form, by the solver that JAX uses."""
    sparse = sys.modules[_SPARSE].scipy.sparse
    rows = tuple([np.asarray(part) for part in (data, indices, indptr)])
    known = np.asarray(b)
    found = sparse.linalg.spsolve(sparse.csr_matrix(rows, shape=(known.size,) * 2), known)
    return (found.astype(known.dtype),)
