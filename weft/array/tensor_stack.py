"""Stacks in PyTorch's memory that numpy's functions take, by numpy's own dispatch protocols.

Collectives between processes are written once, with numpy's functions: on arrays of the host, and
on these, whose elements stay in the memory of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.array.torch_memory import numpy_dtype, torch_dtype
from weft.records import dataclass

PACKED = {"int1", "int2", "int4", "uint1", "uint2", "uint4"}  # PyTorch has names for these only
UNSIGNED = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}


@dataclass(eq=False)
class TensorStack:
    """A tensor with the interface of a numpy array, as far as collectives use it."""

    tensor: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy's element type."""
        return numpy_dtype(self.tensor.dtype)

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return int(self.tensor.ndim)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self.tensor.numel())

    @property
    def real(self) -> TensorStack:
        """The real part, a view."""
        return TensorStack(self.tensor.real)

    @real.setter
    def real(self, value: TensorStack) -> None:
        self.tensor.real.copy_(value.tensor)

    @property
    def imag(self) -> TensorStack:
        """The imaginary part, a view."""
        return TensorStack(self.tensor.imag)

    @imag.setter
    def imag(self, value: TensorStack) -> None:
        self.tensor.imag.copy_(value.tensor)

    def __getitem__(self, index: Any) -> TensorStack:
        """A view; a copy by an array of indices."""
        if isinstance(index, np.ndarray):
            return TensorStack(self.tensor[_tensor_like(self.tensor, index)])
        return TensorStack(self.tensor[index])

    def __mul__(self, count: int) -> TensorStack:
        """Every element times a number."""
        return TensorStack(self.tensor * count)

    def reshape(self, *shape: Any) -> TensorStack:
        """Other sizes; a view where the strides allow it."""
        return TensorStack(self.tensor.reshape(*shape))

    def transpose(self, *order: Any) -> TensorStack:
        """A view with dims in another order."""
        listed = order[0] if len(order) == 1 and not isinstance(order[0], int) else order
        return TensorStack(self.tensor.permute([int(d) for d in listed]))

    def astype(self, dtype: Any) -> TensorStack:
        """A copy with another element type."""
        return TensorStack(self.tensor.to(torch_dtype(np.dtype(dtype)), copy=True))

    def copy(self) -> TensorStack:
        """A dense copy."""
        import torch

        return TensorStack(self.tensor.clone(memory_format=torch.contiguous_format))

    def __array_function__(
        self, function: Callable[..., Any], types: object, args: Sequence[Any], kwargs: Any
    ) -> Any:
        """The functions of numpy that collectives call."""
        found = _FUNCTIONS.get(function)
        return NotImplemented if found is None else found(*args, **kwargs)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any
    ) -> Any:
        """numpy's elementwise functions, and reductions by them."""
        if method == "reduce" and out is None:
            return _reduced(ufunc, inputs[0], **kwargs)
        if method != "__call__" or kwargs:
            return NotImplemented
        (into,) = out or (None,)
        first, second = inputs
        found = _combined(ufunc, _operand(first, second), _operand(second, first))
        if into is None:
            return TensorStack(found)
        into.tensor.copy_(found)
        return into


def _operand(operand: Any, other: Any) -> Any:
    """A tensor of an operand: numpy's scalars take the place and type of the other one."""
    if isinstance(operand, TensorStack):
        return operand.tensor
    return _tensor_like(other.tensor, np.asarray(operand))


def _tensor_like(tensor: Any, array: np.ndarray[Any, Any]) -> Any:
    """An array of the host beside a tensor."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(tensor.device)


def _combined(ufunc: np.ufunc, first: Any, second: Any) -> Any:
    """Two tensors combined, in the wider of their types."""
    import torch

    name = str(first.dtype).removeprefix("torch.")
    if name in UNSIGNED:  # PyTorch hardly computes with these: the bits of signed ones are the same
        assert ufunc not in (np.maximum, np.minimum), "`can_combine` excludes them"
        signed = getattr(torch, UNSIGNED[name])
        return _combined(ufunc, first.view(signed), second.view(signed)).view(first.dtype)
    if first.is_complex():  # PyTorch multiplies by a complex 1, which changes signs of zeros
        assert ufunc is np.add, "`can_combine` excludes others"
        return torch.view_as_complex(torch.view_as_real(first) + torch.view_as_real(second))
    if second.itemsize == 1:  # PyTorch promotes no float8
        second = second.to(first.dtype)
    return getattr(torch, _COMBINERS[ufunc])(first, second)


def can_combine(ufunc: Any, dtype: np.dtype[Any]) -> bool:
    """Whether tensors of an element type are combined by one of numpy's functions."""
    if dtype.kind == "c":
        return ufunc is np.add
    if dtype.name == "float8_e8m0fnu":  # PyTorch rounds negative numbers to others than NaN
        return False
    is_order = ufunc in (np.maximum, np.minimum)
    return ufunc in _COMBINERS and not (is_order and dtype.name in UNSIGNED)


def is_tensor_type(dtype: np.dtype[Any]) -> bool:
    """Whether PyTorch has tensors of an element type."""
    import torch

    kind = getattr(torch, dtype.name, None)
    return isinstance(kind, torch.dtype) and dtype.name not in PACKED


def _reduced(
    ufunc: np.ufunc,
    stack: TensorStack,
    axis: Any,
    dtype: Any = None,
    keepdims: bool = False,
    initial: None = None,
) -> TensorStack:
    """A reduction, in the order of the elements, as numpy's along outer dims."""
    assert keepdims, "as collectives call it"
    tensor = stack.tensor if dtype is None else stack.tensor.to(torch_dtype(np.dtype(dtype)))
    for dim in (axis,) if isinstance(axis, int) else axis:
        total = tensor.narrow(dim, 0, 1)
        for n in range(1, tensor.shape[dim]):
            total = _combined(ufunc, total, tensor.narrow(dim, n, 1))
        tensor = total
    return TensorStack(tensor)


def _tensors(parts: Sequence[TensorStack]) -> list[Any]:
    return [part.tensor for part in parts]


def _stack(parts: Sequence[TensorStack]) -> TensorStack:
    import torch

    return TensorStack(torch.stack(_tensors(parts)))


def _concatenate(parts: Sequence[TensorStack]) -> TensorStack:
    import torch

    return TensorStack(torch.cat(_tensors(parts)))


def _broadcast_to(stack: TensorStack, shape: Sequence[int]) -> TensorStack:
    return TensorStack(stack.tensor.broadcast_to(tuple(shape)))


def _zeros_like(stack: TensorStack, shape: Sequence[int] | None = None) -> TensorStack:
    return TensorStack(stack.tensor.new_zeros(stack.shape if shape is None else tuple(shape)))


def _einsum(stack: TensorStack, labels: Sequence[int], order: Sequence[int]) -> TensorStack:
    """Only diagonals and transposes: views, of every element type."""
    tensor, left = stack.tensor, [*labels]
    for label in {one for one in left if left.count(one) > 1}:
        first, second = [n for n, one in enumerate(left) if one == label]
        tensor = tensor.diagonal(dim1=first, dim2=second)  # the diagonal comes last
        left = [one for n, one in enumerate(left) if n not in (first, second)] + [label]
    return TensorStack(tensor.permute([left.index(label) for label in order]))


def _may_share_memory(first: TensorStack, second: TensorStack) -> bool:
    ours, theirs = first.tensor.untyped_storage(), second.tensor.untyped_storage()
    return bool(ours.data_ptr() == theirs.data_ptr())


_COMBINERS: Mapping[Any, str] = {
    np.add: "add",
    np.multiply: "mul",
    np.maximum: "maximum",
    np.minimum: "minimum",
    np.bitwise_and: "bitwise_and",
    np.bitwise_or: "bitwise_or",
    np.bitwise_xor: "bitwise_xor",
    np.logical_and: "logical_and",
    np.logical_or: "logical_or",
    np.logical_xor: "logical_xor",
}
_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    np.stack: _stack,
    np.concatenate: _concatenate,
    np.broadcast_to: _broadcast_to,
    np.zeros_like: _zeros_like,
    np.empty_like: _zeros_like,
    np.einsum: _einsum,
    np.may_share_memory: _may_share_memory,
}
