"""`weft.save_state`: checkpoints, written by all processes together, at once or in the background.

A checkpoint is replaced as a whole: until the index has its name, the earlier one is there.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from weft.array.array import Array, Shard
from weft.array.exchange import to_numpy
from weft.array.safetensors import (
    TensorPieces,
    UnsavedTensor,
    fill_file,
    in_files,
    make_file,
)
from weft.capture.torch.state import settings_text
from weft.errors import WeftError
from weft.ir.types import dtype_of
from weft.state.names import named_tensors, parts_of, step_of
from weft.state.savers import SaveGroup, agree, compare, savers

INDEX = "model.safetensors.index.json"
ShardSlices: TypeAlias = tuple[tuple[int | None, int | None], ...]
SETTINGS = "weft.optimizer"  # the key of an optimizer's options in the index, after its prefix


class Saving:
    """A checkpoint that is being written; programs may run, and overwrite the state, meanwhile."""

    def __init__(self, written: Future[None]) -> None:
        self._written, self._is_reported = written, False

    @property
    def is_done(self) -> bool:
        """Whether it was written, or has failed."""
        return self._written.done()

    def wait(self) -> None:
        """Wait until it is written; raises its error."""
        self._is_reported = True
        self._written.result()

    def _raise_unreported(self) -> None:
        """Wait; raises an error that was not raised before."""
        if self._written.exception() is not None and not self._is_reported:
            self.wait()


_last: list[Saving] = []
_order = threading.Lock()
_background = ThreadPoolExecutor(1, "weft-save")  # one after another, the last ones at exit


def save_state(
    state: Any,
    path: str | os.PathLike[str],
    *,
    file_bytes: int = 5 << 30,
    background: bool = False,
) -> Saving:
    """Write a state into a folder: safetensors files and their index.

    A state is a PyTorch module, or a training step, whose optimizer is saved, too; or a pytree of
    them and of arrays (JAX's, Weft's, numpy's, PyTorch's) and numbers. Sharded arrays are written
    piece by piece; a file has up to `file_bytes` bytes, or one tensor. Of several processes all
    must call it, with a folder that they share: each writes its own pieces. A checkpoint that is
    there is replaced when all of the new one is written. With `background` it is written while the
    program goes on: mutable tensors are copied first, and an error is raised by the result's
    `wait`, or by the next save.
    """
    with _order:
        while _last:
            # An earlier save in the background ends first, and its error is raised here.
            _last.pop()._raise_unreported()
        together = savers()
        tensors = [*_unsaved(named_tensors(state), together)]
        if background:
            tensors = [replace(each, pieces=[*map(_stable_piece, each.pieces)]) for each in tensors]
        metadata: dict[str, Any] = {"total_size": sum(each.nbytes for each in tensors)}
        for prefix, part in parts_of(state):
            if (step := step_of(part)) is not None:
                metadata[f"{prefix}{SETTINGS}"] = settings_text(step.optimizer)
        listed = [*in_files(tensors, file_bytes)]
        saving = Saving(_background.submit(_write, Path(path), listed, metadata, together))
        if background:
            _last.append(saving)
            return saving
    saving.wait()
    return saving


def _write(
    folder: Path,
    files: Sequence[list[UnsavedTensor]],
    metadata: Mapping[str, Any],
    together: SaveGroup,
) -> None:
    """Write a checkpoint, in step with the other processes."""
    for listed in files:  # wide elements first: then every tensor is aligned without padding
        listed.sort(key=lambda each: -each.dtype.numpy.itemsize)
    # Compared before anything is written: processes with other tensors would write to other offsets
    # of the same files.
    kinds = [[(t.name, t.dtype.name, t.shape) for t in listed] for listed in files]
    compare(together, [folder.name, kinds])
    names = _Names(folder, len(files), together)
    try:
        # Every step ends with a barrier: no process writes before the files have their size, and
        # none publishes before all pieces are there.
        _step(together, "made the files", lambda: names.make(files))
        _step(together, "written its pieces", lambda: names.fill(files))
        _step(together, "named the files", lambda: names.publish(files, metadata))
    finally:
        if together.rank == 0:
            names.clean()


def _step(together: SaveGroup, what: str, act: Callable[[], None]) -> None:
    """Act, and wait until all processes have; an error of one is an error of all."""
    failed: BaseException | None = None
    try:
        act()
    except BaseException as error:  # noqa: BLE001  # raised by agree
        failed = error
    agree(together, what, failed)


class _Names:
    """The files of a checkpoint: under temporary names until all are written, then under theirs."""

    def __init__(self, folder: Path, count: int, together: SaveGroup) -> None:
        self.folder, self.count, self.together = folder, count, together
        self.token = together.tell("begun to save", os.urandom(4).hex())[0]  # the first one's
        self.partial = [folder / f".{self.token}-{n}.partial" for n in range(1, count + 1)]

    def make(self, files: Sequence[list[UnsavedTensor]]) -> None:
        """The first process creates the files, with their headers."""
        if self.together.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path, listed in zip(self.partial, files, strict=True):
                make_file(path, listed)

    def fill(self, files: Sequence[list[UnsavedTensor]]) -> None:
        """Every process writes its pieces."""
        for path, listed in zip(self.partial, files, strict=True):
            if not path.exists():
                raise FileNotFoundError(
                    f"{path.parent} is not the folder of process 0: save to a file system that "
                    "all processes share"
                )
            fill_file(path, listed)

    def publish(self, files: Sequence[list[UnsavedTensor]], metadata: Mapping[str, Any]) -> None:
        """Give the files their names, replace the index, and remove the earlier files."""
        if self.together.rank != 0:
            return
        before = _files_of(self.folder)
        places: dict[str, str] = {}
        for n, (path, listed) in enumerate(zip(self.partial, files, strict=True), 1):
            name = f"model-{n:05}-of-{self.count:05}.safetensors"
            if name in before:  # it is read until there is the new index
                name = f"model-{n:05}-of-{self.count:05}-{self.token}.safetensors"
            # The files first, the index last: until then readers see the earlier checkpoint, whole.
            os.replace(path, self.folder / name)
            places |= {each.name: name for each in listed}
        text = json.dumps({"metadata": metadata, "weight_map": places}, indent=2)
        partial = self.folder / f".{self.token}-index.partial"
        with open(partial, "w") as file:
            file.write(text)
            file.flush()
            # Before the rename, as in `container_writing`: a crash must not leave a name without
            # its contents.
            os.fsync(file.fileno())
        os.replace(partial, self.folder / INDEX)
        # After the index: a reader that opened the earlier one may have its files open, and keeps
        # them.
        for name in before - {*places.values()}:
            (self.folder / name).unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove unfinished files, of this save or of one that was killed."""
        for path in self.folder.glob(".*.partial"):
            path.unlink(missing_ok=True)


def _files_of(folder: Path) -> set[str]:
    """The files of the checkpoint in a folder, by its index."""
    try:
        places = json.loads((folder / INDEX).read_text())["weight_map"]
        return {name for name in places.values() if Path(name).name == name}
    except (OSError, ValueError, KeyError, AttributeError):
        return set()


# Pieces


def _unsaved(named: Mapping[str, Any], together: SaveGroup) -> Iterator[UnsavedTensor]:
    """The tensors, with the pieces that this process writes."""
    written = [0] * together.size  # bytes that each process writes of tensors that all have
    for name, value in named.items():
        if isinstance(value, Array) or hasattr(value, "addressable_shards"):
            dtype, shape = dtype_of(np.dtype(value.dtype)), tuple(value.shape)
            if not value.is_fully_addressable:
                own = _own_shards(value, together) if isinstance(value, Array) else _first(value)
                yield UnsavedTensor(name, dtype, shape, own)
                continue
            pieces = _distinct(value)
        else:
            if isinstance(value, str | bytes):
                raise WeftError(
                    f"{name} is a {type(value).__name__}; a checkpoint holds arrays and numbers",
                    help="keep it in a file of its own, or leave it out of the state",
                )
            is_number = isinstance(value, bool | int | float | complex)
            # In 64 bits, not in JAX's default types: a count of steps must come back as it was.
            array = to_numpy(np.asarray(value) if is_number else value)
            dtype, shape, pieces = dtype_of(array.dtype), array.shape, [((...,), array)]
        tensor = UnsavedTensor(name, dtype, shape, pieces)
        # The same choice in every process, since all see the same tensors in the same order.
        writer = min(range(together.size), key=written.__getitem__)
        written[writer] += tensor.nbytes
        yield tensor if writer == together.rank else replace(tensor, pieces=())


def _distinct(value: Any) -> TensorPieces:
    """The distinct pieces of a sharded array."""
    seen: set[ShardSlices] = set()
    for shard in value.addressable_shards:
        if (bounds := _bounds(shard)) not in seen:
            seen.add(bounds)
            yield shard.index, np.asarray(shard.data)


def _own_shards(value: Array, together: SaveGroup) -> TensorPieces:
    """Of each piece of an array over several workers, one of those that have it writes it."""
    holders: dict[ShardSlices, dict[int, Shard]] = {}
    for shard in value.shards:
        holders.setdefault(_bounds(shard), {}).setdefault(shard.device.process_index, shard)
    for n, shards in enumerate(holders.values()):
        writer = [*shards][n % len(shards)]  # in turn, so that holders share the work
        if writer == together.rank:
            yield shards[writer].index, np.asarray(shards[writer].data)


def _first(value: Any) -> TensorPieces:
    """The pieces of a JAX array of which this process has the first replica."""
    for shard in value.addressable_shards:
        if shard.replica_id == 0:  # of each piece exactly one process has it
            yield shard.index, np.asarray(shard.data)


def _bounds(shard: Any) -> ShardSlices:
    return tuple([(part.start, part.stop) for part in shard.index])


def _stable_piece(piece: tuple[tuple[Any, ...], Any]) -> tuple[tuple[Any, ...], Any]:
    """A piece that no later step overwrites: a copy if its memory is writable.

    The arrays of JAX and Weft are immutable, and not donated while they are read.
    """
    index, array = piece
    return index, np.array(array) if array.flags.writeable else array
