"""The factor rules of Shardy's known custom calls, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import TensorType, Types

CustomRule: TypeAlias = Callable[[Types, Types], Rule]


def custom_rule(name: str, operands: Types, results: Types) -> Rule | None:
    """The rule of a custom call by name; None if unknown."""
    make = _RULES.get(name)
    return None if make is None else make(operands, results)


def _shape(type: object) -> tuple[int, ...]:
    return type.bounds if isinstance(type, TensorType) else ()


def _pointwise(operands: Types, results: Types) -> Rule:
    return RuleBuilder(operands, results).pointwise(_shape((*results, *operands)[0])).build()


def _eigh(operands: Types, results: Types) -> Rule:
    """Batch dims; eigenvalues share the factor of the eigenvectors' columns.

    As in Shardy shardings propagate through the matrix dims, of Cholesky too, though they do not
    through those of a QR. The computation needs whole matrices in any case: `outer_calls` of the
    partitioner splits batch dims only.
    """
    shape = _shape(operands[0])
    first, second = len(shape) - 2, len(shape) - 1
    builder = _batches(operands, results, shape)
    builder.factor([first], _row([first, None], results), shape[first])
    return builder.factor([second], _row([second, first], results), shape[second]).build()


def _qr(operands: Types, results: Types) -> Rule:
    """Batches; the matrices must be whole."""
    shape, taus = _shape(operands[0]), _shape(results[-1])
    first, second = len(shape) - 2, len(shape) - 1
    builder = _batches(operands, results, shape)
    builder.factor([first], _row([first, None], results), shape[first], "whole")
    builder.factor([second], _row([second, None], results), shape[second], "whole")
    return builder.factor([None], _row([None, first], results), taus[first], "whole").build()


def _householder(operands: Types, results: Types) -> Rule:
    """Batches; the matrices must be whole."""
    shape, taus = _shape(operands[0]), _shape(operands[-1])
    first, second = len(shape) - 2, len(shape) - 1
    builder = _batches(operands, results, shape)
    builder.factor(_row([first, None], operands), [first], shape[first], "whole")
    builder.factor(_row([second, None], operands), [second], shape[second], "whole")
    return builder.factor(_row([None, first], operands), [None], taus[first], "whole").build()


def _top_k(operands: Types, results: Types) -> Rule:
    """All dims pass but the searched one."""
    builder = RuleBuilder(operands, results)
    for dim, (size, out_size) in enumerate(
        zip(_shape(operands[0]), _shape(results[0]), strict=True)
    ):
        same = size == out_size
        role = "pass" if same else "whole"
        where = [dim] * len(operands), [dim] * len(results)
        builder.factor(*where, size, role, blocked=not same)  # type: ignore[arg-type]
    return builder.build()


def _approximate_top_k(operands: Types, results: Types) -> Rule:
    """All dims pass but the searched one, which may be split in the operand, not in the result."""
    builder = RuleBuilder(operands, results)
    tensors = [bool(_shape(t)) for t in operands]
    nowhere = [None] * len(operands), [None] * len(results)
    for dim, (size, out_size) in enumerate(
        zip(_shape(operands[0]), _shape(results[0]), strict=True)
    ):
        read = [dim if is_tensor else None for is_tensor in tensors]
        if size == out_size:
            builder.factor(read, [dim] * len(results), size)
            continue
        builder.factor(read, nowhere[1], size)
        builder.factor(nowhere[0], [dim] * len(results), out_size, "whole", blocked=True)
    return builder.build()


def _batches(operands: Types, results: Types, shape: tuple[int, ...]) -> RuleBuilder:
    builder = RuleBuilder(operands, results)
    for dim, size in enumerate(shape[:-2]):
        builder.factor([dim] * len(operands), [dim] * len(results), size)
    return builder


def _row(dims: list[int | None], types: Types) -> list[int | None]:
    return dims[: len(types)]


_POINTWISE = """
    annotate_device_placement Cholesky CompactWyHelper InspectSharding LayoutConstraint mhlo.erf
    InvertDiagBlocksLowerTriangular InvertDiagBlocksUpperTriangular MoveToDevice MoveToHost
    X64Combine X64SplitHigh X64SplitLow xla.megascale.provide_metadata
""".split()

_RULES: dict[str, CustomRule] = {
    **dict.fromkeys(_POINTWISE, _pointwise),
    "Eigh": _eigh,
    "Qr": _qr,
    "QrDecompositionBlock": _qr,
    "ProductOfElementaryHouseholderReflectors": _householder,
    "mhlo.topk": _top_k,
    "ApproxTopK": _approximate_top_k,
    "PartialReduce": _approximate_top_k,
}
