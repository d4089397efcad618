"""Files of tensors in the safetensors format: read on memory maps, written piece by piece.

A file is the length of its header (8 bytes), the header (JSON: type, shape and offsets by name),
and the tensors' elements, row-major. numpy maps and writes these without another package.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from weft.errors import WeftError
from weft.ir.types import DTYPES, Array, DType
from weft.records import dataclass

# Names of element types in a header.
_NAMES = {
    "BOOL": "i1", "I8": "i8", "I16": "i16", "I32": "i32", "I64": "i64",
    "U8": "ui8", "U16": "ui16", "U32": "ui32", "U64": "ui64",
    "F16": "f16", "BF16": "bf16", "F32": "f32", "F64": "f64",
    "F8_E4M3": "f8E4M3FN", "F8_E5M2": "f8E5M2", "C64": "complex<f32>",
}  # fmt: skip
_DTYPES = {name: DTYPES[ours] for name, ours in _NAMES.items() if ours in DTYPES}
_MOST_HEADER = 100_000_000  # bytes, the format's limit
_ALIGNED = 64  # bytes; the format asks for 8

TensorPieces = Iterable[tuple[tuple[Any, ...], Array]]  # pieces of a tensor and their places


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its type, and where its elements are."""

    dtype: DType
    shape: tuple[int, ...]
    start: int  # in bytes, from the beginning of the file
    stop: int


class TensorFile:
    """A file on a memory map: a tensor's bytes are read from disk when its elements are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.bytes = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise WeftError(f"{path} cannot be read: {error}", help="check the path") from None
        self.tensors, self.metadata = self._header()

    def array(self, name: str) -> Array:
        """A tensor's elements, read-only, in the memory of the map."""
        found = self.tensors[name]
        raw = np.asarray(self.bytes[found.start : found.stop])
        return raw.view(found.dtype.numpy).reshape(found.shape)

    def _header(self) -> tuple[dict[str, StoredTensor], dict[str, str]]:
        size = self.bytes.size
        length = int(self.bytes[:8].view("<u8")[0]) if size >= 8 else size
        if length > min(size - 8, _MOST_HEADER):
            raise self._damaged("its header is longer than the file")
        try:
            listed = json.loads(bytes(self.bytes[8 : 8 + length]))
            metadata = listed.pop("__metadata__", {})
            return {n: self._stored(n, e, 8 + length) for n, e in listed.items()}, metadata
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(f"its header is not valid: {error}") from None

    def _stored(self, name: str, entry: Mapping[str, Any], base: int) -> StoredTensor:
        if entry["dtype"] not in _DTYPES:
            raise WeftError(
                f"{self.path}: {name} has elements of {entry['dtype']}",
                help=f"known types are {', '.join(_DTYPES)}",
            )
        dtype, shape = _DTYPES[entry["dtype"]], tuple([int(size) for size in entry["shape"]])
        start, stop = (base + int(offset) for offset in entry["data_offsets"])
        wanted = math.prod(shape) * dtype.numpy.itemsize
        if min(shape, default=0) < 0 or stop - start != wanted or not base <= start:
            raise self._damaged(f"{name} does not fit its offsets")
        if stop > self.bytes.size:
            raise self._damaged(f"{name} ends beyond the file")
        return StoredTensor(dtype, shape, start, stop)

    def _damaged(self, why: str) -> WeftError:
        return WeftError(
            f"{self.path} is not a safetensors file, or is damaged: {why}",
            help="copy or save it again",
        )


@dataclass(frozen=True, slots=True)
class UnsavedTensor:
    """A tensor to be written: its type, and its pieces, which are fetched one after another."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    pieces: TensorPieces

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.shape) * self.dtype.numpy.itemsize


def make_file(path: Path, tensors: Sequence[UnsavedTensor]) -> None:
    """Make a file with its header, and room for the elements."""
    names = {dtype: name for name, dtype in _DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for each in tensors:
        if each.dtype not in names:
            raise WeftError(
                f"{each.name} has elements of {each.dtype.name}, which safetensors has no name for",
                help="convert it first",
            )
        entry = {"dtype": names[each.dtype], "shape": [*each.shape]}
        header[each.name] = {**entry, "data_offsets": [end, end + each.nbytes]}
        end += each.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNED)
    with open(path, "wb") as file:
        _reserve(file, 8 + len(text) + end)
        file.write(len(text).to_bytes(8, "little") + text)


def _reserve(file: BinaryIO, size: int) -> None:
    """Give a file its size and the blocks for it: what maps a file on a full disk is killed."""
    try:
        file.truncate(size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot
            return
        folder = Path(file.name).parent
        raise WeftError(
            f"{folder} has no room for a file of {size:,} bytes: {error.strerror}",
            help="free some, or save to another folder; what was saved before is still there",
        ) from error


def fill_file(path: Path, tensors: Sequence[UnsavedTensor]) -> None:
    """Write pieces of all tensors to their places; other processes may write others meanwhile."""
    whole = np.memmap(path, np.uint8, "r+")
    start = 8 + int(whole[:8].view("<u8")[0])
    for each in tensors:
        room = whole[start : start + each.nbytes].view(each.dtype.numpy).reshape(each.shape)
        for index, piece in each.pieces:
            room[index] = piece
        start += each.nbytes
    whole.flush()
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def in_files(tensors: Iterable[UnsavedTensor], most_bytes: int) -> Iterator[list[UnsavedTensor]]:
    """The tensors of each file: as many as fit into so many bytes, one at least."""
    held: list[UnsavedTensor] = []
    size = 0
    for each in tensors:
        if held and size + each.nbytes > most_bytes:
            yield held
            held, size = [], 0
        held.append(each)
        size += each.nbytes
    if held:
        yield held
