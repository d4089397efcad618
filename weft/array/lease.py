"""Leases: pins on an array's memory while external readers hold views of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.array.memory import DeviceBuffer
from weft.ir.types import Array
from weft.native.cpython import address_of


class _Base:
    """The base object of exported views, by numpy's array interface.

    For device memory it exposes a host copy, while the buffer itself is pinned.
    """

    __slots__ = ("__array_interface__", "__weakref__", "data", "read_only")

    def __init__(self, data: Any, read_only: bool) -> None:
        self.data, self.read_only = data, read_only
        # Device memory has no array interface; the lease pins the buffer, and views are copies.
        if data.__class__ is DeviceBuffer:
            return
        self.__array_interface__: dict[str, Any] = {
            "shape": data.shape,
            "strides": data.strides,
            "typestr": data.dtype.str if data.dtype.isbuiltin == 1 else f"|V{data.itemsize}",
            "data": (address_of(data), read_only),
            "version": 3,
        }

    def view(self) -> Array:
        """A view whose base is this object."""
        if self.data.__class__ is DeviceBuffer:
            copy: Array = self.data.numpy()
            copy.flags.writeable = not self.read_only
            return copy
        made = np.asarray(self)
        dtype = self.data.dtype
        return made if made.dtype is dtype else made.view(dtype)  # dtypes of ml_dtypes


class Lease(_Base):
    """The base of all exported views of one stack: alive as long as any of them.

    numpy collapses a view's chain of bases down to the first non-ndarray. So views of views, slices
    and DLPack tensors all keep the lease alive, even if the first view is gone.
    """

    __slots__ = ("beside",)

    def __init__(self, data: Any) -> None:
        super().__init__(data, read_only=True)
        self.beside: Lease | None = None  # the lease of another stack on the same memory

    def writeable_view(self) -> Array:
        """A view for protocols without a read-only flag; writing to it is the reader's error."""
        return _Writeable(self).view()


class _Writeable(_Base):
    __slots__ = ("lease",)

    def __init__(self, lease: Lease) -> None:
        super().__init__(lease.data, read_only=False)
        self.lease = lease
