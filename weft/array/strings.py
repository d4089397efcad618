"""String arrays: global arrays of text split over the devices of a mesh; no program reads them.

They travel beside the arrays of a program, as the names of its rows. The elements are UTF-8 text in
numpy's `StringDType`, in the memory of the host; there are no layouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from weft.array.addressable import Addressable
from weft.array.array import Shard
from weft.array.device import Device, device_at
from weft.errors import WeftError
from weft.ir.types import Array as Numpy
from weft.mesh import Mesh, Sharding
from weft.mesh.pieces import counts, piece_at

STRINGS = np.dtypes.StringDType()


def strings_of(value: Any) -> Numpy | None:
    """An array of strings in numpy's own type, copied; None for anything else."""
    if isinstance(value, StringArray):
        return value.numpy()
    if isinstance(value, str | list | tuple):
        if not isinstance(_first(value), str):
            return None
        # As objects: numpy would write numbers beside strings as strings.
        value = np.asarray(value, object)
    if getattr(getattr(value, "dtype", None), "kind", "") not in ("T", "U", "O"):
        return None
    held = np.asarray(value)
    if held.dtype.kind == "O" and not _is_text(held):
        return None
    if hasattr(held.dtype, "na_object") and not _is_text(held):
        raise WeftError(
            f"an array of {held.dtype} has missing strings", help="give every element a string"
        )
    made: Numpy = held.astype(STRINGS)
    return made


def _first(value: Any) -> Any:
    """The first element of nested lists."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return value


def _is_text(held: Numpy) -> bool:
    return held.size > 0 and all(isinstance(one, str) for one in held.flat)


class StringArray:
    """Strings of a global shape whose pieces are held by the devices of a mesh."""

    dtype = STRINGS

    def __init__(
        self,
        shape: tuple[int, ...],
        sharding: Sharding,
        mesh: Mesh,
        pieces: Mapping[int, Numpy],
        here: Addressable | None = None,
    ) -> None:
        self.shape, self.sharding, self.mesh, self.here = shape, sharding, mesh, here
        self._pieces: Mapping[int, Numpy] | None = pieces  # by place; None if deleted

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of strings."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> NoReturn:
        """Strings have no fixed size."""
        raise WeftError("strings have no fixed size in bytes", help="add up their lengths")

    @property
    def places(self) -> Sequence[int]:
        """The places in the mesh of this process's devices."""
        return range(self.mesh.size) if self.here is None else self.here.places

    @property
    def addressable_devices(self) -> tuple[Device, ...]:
        """The devices of this process that hold a shard."""
        return tuple(device_at(self.mesh, place, self.here) for place in self.places)

    @property
    def addressable_shards(self) -> tuple[Shard, ...]:
        """This process's shards, in the order of the mesh; read-only."""
        pieces = self._alive()
        return tuple(
            Shard(device_at(self.mesh, place, self.here), self._index(place), pieces[place])
            for place in self.places
        )

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process holds all of its devices."""
        return self.here is None

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the global value."""
        return all(n == 1 for n in counts(self.sharding, self.mesh))

    @property
    def is_ready(self) -> bool:
        """Strings are there when the array is."""
        return True

    def wait(self, timeout: float | None = None) -> StringArray:
        """Raise if the strings were released."""
        self._alive()
        return self

    block_until_ready = wait

    def numpy(self) -> Numpy:
        """The global value."""
        pieces = self._alive()
        if self.is_fully_replicated:
            return next(iter(pieces.values()))
        if self.here is not None:
            raise WeftError(
                f"these strings are not fully addressable: process {self.here.index} has "
                f"{len(self.here.places)} of {self.here.count} devices",
                help="read addressable_shards, or put the whole array with the sharding P()",
            )
        whole = np.empty(self.shape, STRINGS)
        for place, piece in pieces.items():
            whole[self._index(place)] = piece
        whole.flags.writeable = False
        return whole

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Numpy:
        made = self.numpy()
        if dtype is not None and np.dtype(dtype) != made.dtype:
            return made.astype(dtype)
        return made.copy() if copy else made

    def copy(self) -> StringArray:
        """The same strings and sharding."""
        made = {place: piece.copy() for place, piece in self._alive().items()}
        return StringArray(self.shape, self.sharding, self.mesh, _read_only(made), self.here)

    def delete(self) -> None:
        """Release the strings; later access to them raises."""
        self._pieces = None

    @property
    def is_deleted(self) -> bool:
        """Whether the strings were released."""
        return self._pieces is None

    def tolist(self) -> Any:
        """The strings as nested Python lists."""
        return self.numpy().tolist()

    def item(self, *index: Any) -> str:
        """The only string, or the one at an index."""
        return str(self.numpy().item(*index))

    def __getitem__(self, index: Any) -> Any:
        return self.numpy()[index]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dims has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numpy())

    def __repr__(self) -> str:
        shape = "x".join(map(str, (*self.shape, "string")))
        state = " deleted" if self.is_deleted else ""
        return f"<weft.StringArray {shape} {self.sharding.body()}{state}>"

    def __dlpack__(self, **options: Any) -> NoReturn:
        raise BufferError("DLPack has no strings")

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise WeftError(
            "strings cannot be computed with",
            help="compute on numpy.asarray(x), or on numbers in the place of strings",
        )

    __add__ = __radd__ = __mul__ = __rmul__ = __mod__ = __array_ufunc__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __eq__ = __ne__ = _refuse
    __hash__ = None  # type: ignore[assignment]

    def _index(self, place: int) -> tuple[slice, ...]:
        position = tuple([n for _, n in device_at(self.mesh, place, self.here).position])
        found = piece_at(position, self.shape, self.sharding, self.mesh)
        return tuple([slice(a, b) for a, b in found.bounds])

    def _alive(self) -> Mapping[int, Numpy]:
        if self._pieces is None:
            raise WeftError(
                "this array of strings was deleted: its elements are gone", help="keep a copy"
            )
        return self._pieces


def put_strings(
    held: Numpy, sharding: Sharding, mesh: Mesh, here: Addressable | None = None
) -> StringArray:
    """The shards of this process of an array of strings."""
    if sharding.unreduced:
        raise WeftError("strings have no partial sums", help="give a sharding without unreduced")
    strings = StringArray(held.shape, sharding, mesh, {}, here)
    # Equal pieces are one object: a replicated array is stored once.
    cut: dict[tuple[tuple[int, int], ...], Numpy] = {}
    pieces: dict[int, Numpy] = {}
    for place in strings.places:
        index = strings._index(place)
        key = tuple([(part.start, part.stop) for part in index])
        if key not in cut:
            cut[key] = np.array(held[index], STRINGS)
        pieces[place] = cut[key]
    strings._pieces = _read_only(pieces)
    return strings


def _read_only(pieces: dict[int, Numpy]) -> Mapping[int, Numpy]:
    for piece in pieces.values():
        piece.flags.writeable = False
    return pieces
