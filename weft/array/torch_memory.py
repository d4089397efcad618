"""Device memory by PyTorch's allocator; the host's where Triton interprets kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from heapq import heappop, heappush
from importlib.util import find_spec
from typing import Any

import numpy as np

from weft.array.memory import Adopted, AllocatorStats, DeviceBuffer, DeviceMemory, MemoryBlock
from weft.errors import WeftError, missing_extra
from weft.ir.types import Array

_CUDA, _HOST = 2, 1  # device types of DLPack
ALIGNED = DeviceMemory.aligned
_NO_PLACE = (None, 0)  # of a foreign block
_SMALL, _KEPT = 1 << 20, 256  # bytes of a block that is kept for reuse; blocks of one size


class TorchMemory(DeviceMemory):
    """The memory of one PyTorch device: blocks are tensors of bytes.

    PyTorch's allocator frees in the order of its current stream, on which kernels are launched.
    """

    def __init__(self, device: str) -> None:
        import torch

        self.torch = torch
        self.device = torch.device(device)
        self._index = self.device.index  # looked up once
        kind = _HOST if self.device.type == "cpu" else _CUDA
        self.dlpack_device = (kind, self.device.index or 0)
        self._empty, self._byte = torch.empty, torch.uint8
        # Small free blocks by size and stream: PyTorch's allocator takes microseconds for one. The
        # lowest address comes first, so that calls repeat their addresses, and graphs are replayed.
        self._free: dict[tuple[int, int | None], list[Any]] = {}
        self._stream: Any = _no_stream if kind == _HOST else torch._C._cuda_getCurrentRawStream

    def reserve(self, nbytes: int) -> Any:
        """A tensor of bytes."""
        return self.take(nbytes)[1]

    def take(self, nbytes: int) -> tuple[int, Any]:
        """A tensor of bytes, after its address."""
        # Not of no bytes: all of them have address 0.
        stream = self._stream(self._index) if 0 < nbytes <= _SMALL else None
        free = self._free.get((nbytes, stream))
        if free:
            taken: tuple[int, Any] = heappop(free)
            return taken
        try:
            block = self._empty(nbytes, dtype=self._byte, device=self.device)
        except self.torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from None
        address: int = block.data_ptr()
        kept = None if stream is None else self._free.setdefault((nbytes, stream), [])
        block.place = (kept, address)  # where it is kept when it is free
        return address, block

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An uninitialized tensor of one of PyTorch's element types."""
        try:
            return self._empty(shape, dtype=dtype, device=self.device)
        except self.torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from None

    def element_type(self, dtype: np.dtype[Any]) -> Any:
        """PyTorch's element type of numpy's."""
        return torch_dtype(dtype)

    def free(self, block: Any) -> None:
        """Keep a small block for the next one; the allocator takes others back by themselves.

        Kernels run in the order of the stream, so that its next user writes after its last reader.
        """
        kept, address = getattr(block, "place", _NO_PLACE)  # the list of its size and stream
        if kept is not None and len(kept) < _KEPT:
            heappush(kept, (address, block))

    def start(self, block: Any) -> int:
        """The address of a block."""
        address: int = block.data_ptr()
        return address

    def bytes_of(self, held: DeviceBuffer | Array) -> Any:
        """The bytes of a buffer or a host array, as a tensor."""
        if isinstance(held, DeviceBuffer):
            assert held.memory is self, "the buffer is in this memory"
            raw = held.block.raw
            if raw.dtype is not self._byte or raw.ndim != 1:  # an adopted tensor
                raw = raw.detach().view(-1).view(self._byte)
            return raw.narrow(0, held.offset, held.nbytes)
        flat = np.ravel(held, order="K").view(np.uint8) if held.nbytes else np.empty(0, np.uint8)
        return self.torch.from_numpy(flat)

    def copy(self, source: DeviceBuffer | Array, into: DeviceBuffer | Array) -> None:
        """Copy, after earlier launches; a copy to the host waits for them."""
        if not source.nbytes:
            return
        if isinstance(source, np.ndarray) and not source.flags.writeable:
            source = source.copy()  # PyTorch has no tensors of read-only memory
        # Not waiting for the stream: CUDA has read pageable memory when the copy is enqueued.
        to_device = isinstance(source, np.ndarray) and not isinstance(into, np.ndarray)
        self.bytes_of(into).copy_(self.bytes_of(source), non_blocking=to_device)

    def tensor(self, buffer: DeviceBuffer) -> Any:
        """A tensor of the buffer's memory, without a copy."""
        buffer.block.is_lent = True
        dtype = torch_dtype(buffer.dtype)
        if not buffer.nbytes:
            return self._empty(buffer.shape, dtype=dtype, device=self.device)
        return self.bytes_of(buffer).view(dtype).view(buffer.shape)

    def adopt(self, foreign: Any) -> DeviceBuffer | None:
        """The memory of a tensor, or of an array with DLPack, that is on this device."""
        tensor = self._tensor_of(foreign)
        if tensor is None or tensor.device != self.device:
            return None
        return self._adopted(tensor).buffer

    def consume(self, capsule: Any) -> Adopted:
        """A tensor of this device in a capsule of DLPack."""
        tensor = self.torch.from_dlpack(capsule)
        if tensor.device != self.device:
            raise BufferError(f"a tensor on {tensor.device}; arrays are on {self.device}")
        return self._adopted(tensor)

    def _adopted(self, tensor: Any) -> Adopted:
        # Conjugation and negation are flags of a view, which no kernel reads.
        plain = tensor.resolve_conj().resolve_neg()
        dense = plain if plain.is_contiguous() else plain.detach().contiguous()
        if dense.data_ptr() % ALIGNED:
            # A view such as x[1:]: vector loads of a compiled kernel would fault there.
            dense = dense.detach().clone()
        raw = dense if dense.numel() else self.reserve(0)
        dtype = numpy_dtype(dense.dtype)
        block = MemoryBlock(self, raw)
        block.is_lent = True  # the memory is the tensor's
        buffer = DeviceBuffer(self, block, 0, tuple(dense.shape), dtype)
        return Adopted(buffer, dense is not tensor)

    def _tensor_of(self, foreign: Any) -> Any:
        if isinstance(foreign, self.torch.Tensor):
            return foreign
        where = getattr(foreign, "__dlpack_device__", None)
        if isinstance(foreign, np.ndarray) or where is None or where() != self.dlpack_device:
            return None
        return self.torch.from_dlpack(foreign)

    def rearranged(
        self, buffer: DeviceBuffer, apart: tuple[int, ...], order: tuple[int, ...]
    ) -> DeviceBuffer:
        """The elements with dims split and transposed, as a dense buffer."""
        # By words of an element's size: PyTorch need not know its type.
        words = np.dtype({1: "u1", 2: "i2", 4: "i4", 8: "i8", 16: "c16"}[buffer.dtype.itemsize])
        flat = self.tensor(self.view(buffer, 0, apart, words))
        made = self._adopted(flat.permute(order).contiguous()).buffer
        return self.view(made, 0, made.shape, buffer.dtype)

    def _picked(
        self, buffer: DeviceBuffer, count: int, picked: Sequence[int], shape: tuple[int, ...]
    ) -> DeviceBuffer:
        made = self.allocate(shape, buffer.dtype, buffer.nbytes // count * len(picked))
        if made.nbytes:
            index = self.torch.tensor([*picked], device=self.device)
            rows, into = self.bytes_of(buffer).view(count, -1), self.bytes_of(made)
            self.torch.index_select(rows, 0, index, out=into.view(len(picked), -1))
        return made

    def use(self) -> AllocatorStats | None:
        """The bytes that PyTorch's allocator counts; None for the host's."""
        if self.device.type == "cpu":
            return None
        cuda, device = self.torch.cuda, self.device
        _, limit = cuda.mem_get_info(device)
        used, peak = cuda.memory_allocated(device), cuda.max_memory_allocated(device)
        return AllocatorStats(used, peak, cuda.memory_reserved(device), limit)

    def exported(self, buffer: DeviceBuffer) -> Any:
        """A tensor that shares the buffer's memory."""
        return self.tensor(buffer)


def _no_stream(_: int) -> None:
    """The host's memory is not kept for reuse."""


@cache
def torch_memory(device: str) -> TorchMemory:
    """The memory of a device, one object for each; of the current one without a number."""
    import torch

    if device == "cuda":
        return torch_memory(f"cuda:{torch.cuda.current_device()}")
    return TorchMemory(device)


def memory_of(device: str) -> TorchMemory:
    """The memory of a device that PyTorch has."""
    if find_spec("torch") is None:
        raise missing_extra("torch", "gpu", f"memory of {device!r}")
    try:
        return torch_memory(device)
    except (RuntimeError, AssertionError) as error:
        raise WeftError(
            f"PyTorch has no device {device!r}: {str(error).splitlines()[0]}",
            help="weft.put without a device places arrays in the host's memory",
        ) from None


@cache
def torch_dtype(dtype: np.dtype[Any]) -> Any:
    """PyTorch's element type of numpy's."""
    import torch

    names = {"float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2"}
    return getattr(torch, names.get(dtype.name, dtype.name))


@cache
def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """numpy's element type of PyTorch's."""
    import ml_dtypes

    name = str(dtype).removeprefix("torch.")
    known = getattr(ml_dtypes, name, None)
    return np.dtype(name if known is None else known)


def tensor_at(address: int, nbytes: int, device: Any) -> Any:
    """A tensor of bytes at an address, whose memory its owner keeps alive."""
    import torch

    if not nbytes:  # which has no address
        return torch.empty(0, dtype=torch.uint8, device=device)
    if device.type == "cpu":
        import ctypes

        raw = (ctypes.c_uint8 * nbytes).from_address(address)
        return torch.frombuffer(raw, dtype=torch.uint8)
    return torch.as_tensor(_CudaBytes(address, nbytes), device=device)


class _CudaBytes:
    """Bytes of device memory by the CUDA array interface."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }
