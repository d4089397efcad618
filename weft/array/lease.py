"""Leases: memory of an array that readers outside of Weft hold, so that nothing may write to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.types import Array


class Lease:
    """The base of all views that were exported of one stack: alive as long as one of them is.

    numpy has a view refer to the first base that is not an array of its own kind. So views of
    views, slices and DLPack tensors all keep the lease alive, whatever became of the first view.
    """

    __slots__ = ("__weakref__", "beside", "data")

    def __init__(self, data: Array) -> None:
        self.data = data
        self.beside: Lease | None = None  # of another stack that has the same memory

    @property
    def __array_interface__(self) -> dict[str, Any]:
        address, _ = self.data.__array_interface__["data"]
        return self.data.__array_interface__ | {"data": (address, True)}

    def view(self) -> Array:
        """A read-only view of the memory."""
        return np.asarray(self).view(self.data.dtype)  # numpy's interface has no ml_dtypes

    def writeable_view(self) -> Array:
        """A view for protocols without a read-only flag; writing to it is the reader's mistake."""
        return np.asarray(_Writeable(self)).view(self.data.dtype)


class _Writeable:
    __slots__ = ("lease",)

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.lease.data.__array_interface__
