"""Weft's lowerings of JAX primitives that JAX lowers for some platforms only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

from weft.capture.jax.buffers import buffer_rules
from weft.capture.jax.by_hand import by_hand_rules
from weft.capture.jax.callbacks import callback_rules
from weft.capture.jax.calls import LoweringRule, custom_call, location_of, rules_of
from weft.capture.jax.on_host import host_rules, solves_sparse
from weft.capture.jax.pallas import has_pallas, pallas_rules
from weft.capture.jax.scatters import scatter_rules
from weft.errors import Unsupported


def lowering_rules() -> tuple[tuple[Any, LoweringRule], ...]:
    """Every primitive with a lowering of Weft's.

    The tuple is one object, since JAX caches lowerings by it, until more of JAX is imported.
    """
    return _rules(solves_sparse(), has_pallas())


@cache
def _rules(sparse: bool, pallas: bool) -> tuple[tuple[Any, LoweringRule], ...]:
    called = (*callback_rules(), *buffer_rules())
    ours = (*_linalg_rules(), *scatter_rules(), *_platform_rules(), *_other_rules())
    return (*called, *host_rules(), *ours, *by_hand_rules(), *pallas_rules())


def unsupported_primitive(jaxpr: Any, error: NotImplementedError) -> Unsupported:
    """The error for a primitive without a lowering, at the user's line."""
    for eqn in _equations(jaxpr.jaxpr):
        if not _has_lowering(eqn.primitive):
            return Unsupported(
                f"the JAX primitive {eqn.primitive.name!r} has no lowering for this platform",
                help="write this line with other functions",
                loc=location_of(eqn.source_info.traceback),
            )
    return Unsupported(f"JAX cannot lower the program: {error}", help="see JAX's error above")


def _has_lowering(primitive: Any) -> bool:
    from jax._src.interpreters import mlir

    # The rule for all platforms; one for another platform only does not count.
    return primitive in mlir._lowerings or any(primitive is p for p, _ in lowering_rules())


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr and of those inside it."""
    from jax._src.core import jaxprs_in_params

    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from _equations(inner)


# Matrix decompositions: from the primitives' parameters to those of Weft's custom calls


def _linalg_rules() -> tuple[tuple[Any, LoweringRule], ...]:
    from jax._src.lax import linalg

    rules: dict[str, LoweringRule] = {
        "eig_p": _eig,
        "eigh_p": _eigh,
        "svd_p": _svd,
        "geqrf_p": partial(_plain, "weft.qr"),
        "geqp3_p": partial(_plain, "weft.pivoted_qr"),
        "householder_product_p": partial(_plain, "weft.householder_product"),
        "lu_p": partial(_plain, "weft.lu"),
        "schur_p": _schur,
        "hessenberg_p": partial(_plain, "weft.hessenberg"),
        "tridiagonal_p": _tridiagonal,
        "tridiagonal_solve_p": _tridiagonal_solve,
    }
    return rules_of(linalg, {name: partial(_of_matrices, rule) for name, rule in rules.items()})


def _of_matrices(rule: LoweringRule, ctx: Any, *operands: Any, **keywords: Any) -> Any:
    """The rule with a check for element types that LAPACK supports."""
    dtype = ctx.avals_in[0].dtype
    if dtype.char not in "fdFD":
        raise Unsupported(
            f"Unsupported dtype {dtype} of the matrices",
            help="cast them to float32, float64, complex64 or complex128",
            loc=location_of(ctx.traceback),
        )
    return rule(ctx, *operands, **keywords)


def _plain(name: str, ctx: Any, *operands: Any, **_: Any) -> list[Any]:
    return custom_call(ctx, name, operands)


def _eig(
    ctx: Any,
    operand: Any,
    *,
    compute_left_eigenvectors: bool,
    compute_right_eigenvectors: bool,
    **_: Any,
) -> list[Any]:
    config = {"left": compute_left_eigenvectors, "right": compute_right_eigenvectors}
    return custom_call(ctx, "weft.eig", [operand], config)


def _eigh(
    ctx: Any,
    operand: Any,
    *,
    lower: bool,
    subset_by_index: tuple[int, int] | None = None,
    **_: Any,
) -> list[Any]:
    first = subset_by_index[0] if subset_by_index else 0
    return custom_call(ctx, "weft.eigh", [operand], {"lower": lower, "first": first})


def _svd(
    ctx: Any,
    operand: Any,
    *,
    full_matrices: bool,
    compute_uv: bool,
    subset_by_index: tuple[int, int] | None = None,
    **_: Any,
) -> list[Any]:
    config = {
        "full_matrices": full_matrices,
        "vectors": compute_uv,
        "first": subset_by_index[0] if subset_by_index else 0,
    }
    return custom_call(ctx, "weft.svd", [operand], config)


def _schur(
    ctx: Any, operand: Any, *, compute_schur_vectors: bool, sort_eig_vals: bool, **_: Any
) -> list[Any]:
    if sort_eig_vals:
        raise Unsupported(
            "Schur decompositions with sorted eigenvalues are not supported",
            help="leave out the sorting, as JAX on CPUs needs it, too",
            loc=location_of(ctx.traceback),
        )
    return custom_call(ctx, "weft.schur", [operand], {"vectors": compute_schur_vectors})


def _tridiagonal(ctx: Any, operand: Any, *, lower: bool, **_: Any) -> list[Any]:
    return custom_call(ctx, "weft.tridiagonal", [operand], {"lower": lower})


def _tridiagonal_solve(
    ctx: Any, *operands: Any, perturb_singular: bool = False, **_: Any
) -> list[Any]:
    config = {"perturb_singular": perturb_singular}
    return custom_call(ctx, "weft.tridiagonal_solve", operands, config)


# platform_dependent branches: without one for Weft, the CPU branch is taken, since the default is
# often a kernel for accelerators.


def _platform_rules() -> tuple[tuple[Any, LoweringRule], ...]:
    from jax._src.lax.control_flow import conditionals

    index_lowering = getattr(conditionals, "_platform_index_lowering", None)
    cond_lowering = getattr(conditionals, "_cond_lowering", None)
    if index_lowering is None or cond_lowering is None:
        return ()
    rules = {
        "platform_index_p": partial(_platform_index, index_lowering),
        "cond_p": partial(_branches, cond_lowering),
    }
    return rules_of(conditionals, rules)


def _platform_index(theirs: LoweringRule, ctx: Any, *, platforms: Any) -> Any:
    return theirs(ctx, platforms=_with_own(platforms))


def _branches(theirs: LoweringRule, ctx: Any, *operands: Any, **params: Any) -> Any:
    if params.get("branches_platforms") is not None:
        params["branches_platforms"] = _with_own(params["branches_platforms"])
    return theirs(ctx, *operands, **params)


def _with_own(platforms: Sequence[tuple[str, ...] | None]) -> tuple[tuple[str, ...] | None, ...]:
    """The platforms of every branch; Weft is added to the CPU branch unless it has its own."""
    if any(names and "weft" in names for names in platforms):
        return tuple(platforms)
    return tuple([(*names, "weft") if names and "cpu" in names else names for names in platforms])


# Primitives that some platforms approximate, or have as collectives: exact and collectives here


def _other_rules() -> tuple[tuple[Any, LoweringRule], ...]:
    from jax._src.lax import ann, parallel

    collectives: dict[str, LoweringRule] = {"pbroadcast_dynamic_p": _broadcast_from}
    broadcast = getattr(parallel, "_pbroadcast_lowering", None)
    if broadcast is not None:
        collectives["pbroadcast_p"] = broadcast
    found = rules_of(ann, {"approx_top_k_p": _approx_top_k}) + rules_of(parallel, collectives)
    return found + _ragged_rules()


def _ragged_rules() -> tuple[tuple[Any, LoweringRule], ...]:
    """Ragged dots as they are: for CPUs JAX multiplies all rows by every matrix."""
    from jax._src.lax import lax

    whole = getattr(lax, "_ragged_dot_general_lower", None)
    masked = getattr(lax, "_ragged_dot_general_impl", None)
    if whole is None or masked is None:
        return ()
    return rules_of(lax, {"ragged_dot_general_p": partial(_ragged_dot, whole, masked)})


def _ragged_dot(whole: LoweringRule, masked: Any, ctx: Any, *operands: Any, **params: Any) -> Any:
    from jax._src import core
    from jax._src.interpreters import mlir

    if all(core.is_constant_shape(aval.shape) for aval in ctx.avals_in):
        return whole(ctx, *operands, **params)
    return mlir.lower_fun(masked, multiple_results=False)(ctx, *operands, **params)


def _broadcast_from(ctx: Any, operand: Any, source: Any, *, axis_name: Any) -> Any:
    """A broadcast from a dynamic source device (JAX 0.12), for any element type."""
    from jax._src.interpreters import mlir

    return mlir.lower_fun(partial(_taken_from, axis_name=axis_name), multiple_results=False)(
        ctx, operand, source
    )


def _taken_from(operand: Any, source: Any, *, axis_name: Any) -> Any:
    """An all_gather and a slice: a masked sum would lose the sign of -0.0."""
    from jax import lax

    pieces = lax.all_gather(operand, axis_name)
    return lax.dynamic_index_in_dim(pieces, source, 0, keepdims=False)


def _approx_top_k(
    ctx: Any, operand: Any, *, reduction_dimension: int, is_max_k: bool, **_: Any
) -> Any:
    from jax._src.interpreters import mlir

    dim = reduction_dimension % len(ctx.avals_in[0].shape)
    k = ctx.avals_out[0].shape[dim]
    search = partial(_exact_top_k, dim=dim, k=k, largest=is_max_k)
    return mlir.lower_fun(search, multiple_results=True)(ctx, operand)


def _exact_top_k(operand: Any, *, dim: int, k: int, largest: bool) -> list[Any]:
    """The largest (or smallest) elements along a dim, and their indices."""
    from jax import lax

    places = lax.broadcasted_iota("int32", operand.shape, dim)
    # Ascending by the negated key: a sort that is stable, so that equal elements keep their order.
    ranked = -operand if largest else operand
    _, values, indices = lax.sort([ranked, operand, places], dimension=dim, num_keys=1)
    return [lax.slice_in_dim(each, 0, k, axis=dim) for each in (values, indices)]
