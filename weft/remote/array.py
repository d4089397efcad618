"""Arrays at a server: known here by type and sharding, fetched when their elements are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.array.array import Array, ArraySpec, sub_axes_for
from weft.array.jax_types import make_known_to_jax
from weft.array.lease import Lease
from weft.array.stacked import Stacked, split
from weft.errors import WeftError
from weft.ir.types import Array as Numpy
from weft.ir.types import TensorType
from weft.remote.wire import INLINE, SMALL, WireMessage, array_from, room_for, size_of

if TYPE_CHECKING:
    from weft.remote.connection import Connection


class RemoteArray(Array):
    """An array at a server: reading its elements fetches them, once.

    It is ready when the server has computed it.
    """

    connection: Connection
    handle: int
    _is_freed = False
    _elements: memoryview | None = None  # of a small one, which came with the news

    @classmethod
    def at(cls, connection: Connection, handle: int, spec: ArraySpec) -> RemoteArray:
        """The array of a handle, not ready yet."""
        make_known_to_jax(cls)
        made = cls.of(None, spec)
        assert type(made) is RemoteArray
        made.connection, made.handle = connection, handle
        return made

    def complete(self, error: BaseException | None, elements: memoryview | None = None) -> None:
        """The server has computed it, or failed to."""
        self._elements = elements
        if error is not None:
            self.fail(error)
        else:
            self._complete()

    def _fetch(self) -> None:
        """Fetch the elements; without waiting first, as the reply comes when they are computed."""
        self.check_alive()
        if self._error is not None:
            raise self._error
        if self.held is not None:
            return
        spec = self.spec
        value = self._received(TensorType(spec.shape, spec.dtype))
        here = split(value, spec.sharding, spec.mesh, sub_axes_for(spec.sharding, spec.mesh))
        with self.changing:
            # Two threads may have fetched it, or it was deleted meanwhile: the first one wins, and
            # nothing is revived.
            if self.held is None and self._deleted is None:
                self.held = here

    def _received(self, type: TensorType) -> Numpy:
        room, size = room_for(type), size_of(type)
        if size <= SMALL or size > INLINE:  # it comes with the news; transfers are not in order
            self.wait()
        if size > INLINE:
            self.connection.download(self.handle, room)
        else:
            body: bytes | memoryview | None = self._elements
            if body is None:
                body = self.connection.request("fetch", array=self.handle).wait().body
            if len(body) != len(room):
                raise WeftError(
                    f"the server sent {len(body):,} bytes of a {type}",
                    help="this is a bug in weft; please report it",
                )
            room[:] = np.frombuffer(body, np.uint8)
        return array_from(room, type)

    # Where elements are read

    def enqueued(self) -> Stacked:
        """The pieces."""
        return self.stacked

    @property
    def stacked(self) -> Stacked:
        """The pieces of all devices; blocks."""
        self._fetch()
        return super().stacked

    def lend(self) -> tuple[Stacked, Lease]:
        """The pieces for an external reader, and the lease that pins their memory."""
        self._fetch()
        return super().lend()

    def take_claimed(self) -> Stacked:
        """The elements for a consumer that has claimed them."""
        if self._deleted is None:
            self._fetch()
        return super().take_claimed()

    def settle_on_host(self, timeout: float | None = None) -> None:
        """Block until the server has computed it, even if it was deleted; raises its error."""
        if self.held is None:
            super().settle_on_host(timeout)

    def delete(self, why: str = "deleted") -> None:
        """Release the memory, at the server, too."""
        super().delete(why)
        self._free()

    def _free(self) -> None:
        if not self._is_freed:
            self._is_freed = True
            self.connection.drop(self.handle, self.nbytes)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the process, or half made
            self._free()


def parts_of(message: WireMessage | None, count: int) -> Iterator[memoryview | None]:
    """The elements of each result that came with the news that all are computed."""
    sizes: Sequence[int] = () if message is None else message.fields.get("sizes", ())
    at = 0
    for n in range(count):
        size = sizes[n] if n < len(sizes) else 0
        assert message is not None or not size
        yield memoryview(message.body)[at : at + size] if message is not None and size else None
        at += size
