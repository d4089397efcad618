"""PyTorch's element types, and its type promotion."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

from weft.errors import Unsupported
from weft.ir.module import Value
from weft.ir.types import BOOL, DTYPES, F32, F64, I64, DType, TensorType

Number: TypeAlias = bool | int | float | complex
TorchOperand: TypeAlias = Value | Number

_NAMES = {
    "bool": "i1",
    "uint8": "ui8",
    "uint16": "ui16",
    "uint32": "ui32",
    "uint64": "ui64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ",
    "float8_e8m0fnu": "f8E8M0FNU",
}


@cache
def _ours() -> dict[Any, DType]:
    import torch

    return {getattr(torch, theirs): DTYPES[ours] for theirs, ours in _NAMES.items()}


@cache
def _theirs() -> dict[DType, Any]:
    return {ours: theirs for theirs, ours in _ours().items()}


def dtype_of_torch(theirs: Any) -> DType:
    """Weft's element type for a torch.dtype."""
    dtype = _ours().get(theirs)
    if dtype is None:
        raise Unsupported(
            f"tensors of {theirs}", help=f"Weft takes {', '.join(_NAMES)}; convert them first"
        )
    return dtype


def torch_dtype(ours: DType) -> Any:
    """The torch.dtype for an element type of Weft's."""
    return _theirs()[ours]


def default_float() -> DType:
    """PyTorch's default dtype, the type of Python floats."""
    import torch

    return dtype_of_torch(torch.get_default_dtype())


@cache
def promote_types(a: DType, b: DType) -> DType:
    """The smallest type that holds both, by PyTorch's lattice."""
    import torch

    return dtype_of_torch(torch.promote_types(torch_dtype(a), torch_dtype(b)))


def promoted(*operands: TorchOperand) -> DType:
    """PyTorch's type promotion: tensors outrank rank-0 tensors, which outrank Python numbers.

    A lower category counts only if its kind is higher: an f32 number makes integers f32, but leaves
    bf16 unchanged.
    """
    ranked: list[DType | None] = [None, None, None]  # categories: tensors, rank-0 tensors, numbers
    for operand in operands:
        rank, dtype = _ranked(operand)
        known = ranked[rank]
        ranked[rank] = dtype if known is None else promote_types(known, dtype)
    result = None
    for lower in ranked:
        result = _combined(result, lower)
    assert result is not None, "there is an operand"
    return result


def _ranked(operand: TorchOperand) -> tuple[int, DType]:
    if isinstance(operand, Value):
        assert isinstance(operand.type, TensorType), f"{operand.type} is not a tensor"
        return (0 if operand.type.rank else 1), operand.type.dtype
    if isinstance(operand, bool):
        return 2, BOOL
    if isinstance(operand, int):
        return 2, I64
    default = default_float()
    if isinstance(operand, float):
        return 2, default
    return 2, DTYPES[f"complex<{F64 if default is F64 else F32}>"]


def _combined(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex or (higher.is_float and not lower.is_complex):
        return higher
    # The lower one is complex: it changes the kind, and the higher one's width stays.
    if higher.is_float:
        return DTYPES[f"complex<{F64 if higher is F64 else F32}>"]
    if higher.kind == "bool" or not (lower.is_integer or lower.kind == "bool"):
        return promote_types(higher, lower)
    return higher


def computed_in(dtype: DType) -> DType:
    """The type that PyTorch's kernels compute in: f32 for narrow floats, rounded at the end."""
    return F32 if dtype.is_float and dtype.bits < 32 else dtype
