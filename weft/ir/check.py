"""Checks of operands and attributes that op declarations share."""

from __future__ import annotations

from weft.errors import WeftError
from weft.ir.types import TensorType, Type


def require(condition: bool, message: str, help: str) -> None:
    """Raise a WeftError with this message unless the condition holds."""
    if not condition:
        raise WeftError(message, help=help)


def tensor_type(name: str, index: int, type: Type) -> TensorType:
    """The operand's type, which must be a tensor's."""
    if not isinstance(type, TensorType):
        raise WeftError(f"{name}: operand {index} is {type}", help="it must be a tensor")
    return type


def one_of(name: str, index: int, type: Type, allowed: str) -> TensorType:
    """The operand's type, which must be a tensor of one of these kinds (`int float ...`)."""
    checked = tensor_type(name, index, type)
    if checked.dtype.kind not in allowed.split():
        raise WeftError(
            f"{name}: operand {index} is {checked}",
            help=f"its elements must be {' or '.join(allowed.split())}",
        )
    return checked


def same_type(name: str, *types: Type) -> TensorType:
    """The one type that all operands must have."""
    first = tensor_type(name, 0, types[0])
    for index, other in enumerate(types[1:], 1):
        if other is not first:
            raise WeftError(
                f"{name}: operand 0 is {first}, but operand {index} is {other}",
                help="the operands must have one type; convert or broadcast one of them",
            )
    return first


def dims_in_range(name: str, what: str, dims: tuple[int, ...], rank: int) -> None:
    """Refuse dims outside a tensor of that rank, and repeated ones."""
    for dim in dims:
        require(
            0 <= dim < rank,
            f"{name}: {what} holds {dim}, but the tensor has {rank} dims",
            f"use dims 0 to {rank - 1}",
        )
    require(
        len(set(dims)) == len(dims), f"{name}: {what} repeats a dim: {dims}", "name each dim once"
    )
