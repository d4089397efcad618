"""`weft.save_state` and `weft.load_state`: checkpoints as safetensors files with an index.

The files hold whole tensors, whatever the mesh: pieces are written to their places in a tensor,
and read from there by any other sharding. The index is that of Hugging Face's checkpoints.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from weft.array.array import Array
from weft.array.exchange import to_numpy
from weft.array.put import put
from weft.array.safetensors import (
    TensorFile,
    TensorPieces,
    UnsavedTensor,
    in_files,
    write_tensors,
)
from weft.capture.torch.state import (
    restore_settings,
    restore_tensors,
    settings_text,
    state_tensors_by_name,
)
from weft.capture.torch.training import TrainingStep
from weft.errors import WeftError
from weft.ir.types import dtype_of
from weft.mesh import P

INDEX = "model.safetensors.index.json"
_SETTINGS = "weft.optimizer"  # the key of an optimizer's options in the index


def save_state(state: Any, path: str | os.PathLike[str], *, file_bytes: int = 5 << 30) -> None:
    """Write a state into a folder: safetensors files and their index.

    A state is a pytree of arrays (JAX's, Weft's, numpy's), a PyTorch module, or a training step,
    whose optimizer is saved, too. Sharded arrays are written piece by piece; a file has up to
    `file_bytes` bytes, or one tensor.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = [_unsaved(name, value) for name, value in _named(state).items()]
    files = [*in_files(tensors, file_bytes)]
    places: dict[str, str] = {}
    for n, listed in enumerate(files, 1):
        name = f"model-{n:05}-of-{len(files):05}.safetensors"
        # Wide elements first, so that all are aligned.
        listed.sort(key=lambda each: -each.dtype.numpy.itemsize)
        write_tensors(folder / name, listed)
        places |= {each.name: name for each in listed}
    metadata: dict[str, Any] = {"total_size": sum(each.nbytes for each in tensors)}
    if (step := _step_of(state)) is not None:
        metadata[_SETTINGS] = settings_text(step.optimizer)
    text = json.dumps({"metadata": metadata, "weight_map": places}, indent=2)
    partial = folder / f"{INDEX}.partial-{os.getpid()}"
    partial.write_text(text)
    os.replace(partial, folder / INDEX)


def load_state(
    path: str | os.PathLike[str], into: Any = None, *, mesh: Any = None, plan: Any = None
) -> Any:
    """Read a state that was saved on any mesh.

    `into` is a PyTorch module or a training step, whose tensors are overwritten; or a pytree of
    arrays or of their types, which tells types and shardings of the arrays that are returned.
    Without it the result is a dict of arrays by name. These are put on a `mesh` with the sharding
    of the first pattern in `plan` that matches; their elements are read from the files, on memory
    maps, when they are used. `path` is a folder, or one safetensors file.
    """
    saved, metadata = _stored(Path(path))
    readers = {name: lambda n=name, f=file: f.array(n) for name, file in saved.items()}
    step = _step_of(into)
    if step is not None or _is_module(into):
        module, optimizer = (into, None) if step is None else (step.module, step.optimizer)
        restore_tensors(module, optimizer, readers)
        if step is not None and _SETTINGS in metadata:
            restore_settings(step.optimizer, metadata[_SETTINGS])
        return into
    if into is not None:
        return _tree_like(into, saved)
    return {name: _put(name, file.array(name), mesh, plan) for name, file in saved.items()}


def _stored(path: Path) -> tuple[dict[str, TensorFile], dict[str, Any]]:
    """The file of each tensor, and the index's metadata."""
    if path.is_file() and path.suffix == ".safetensors":
        file = TensorFile(path)
        return dict.fromkeys(file.tensors, file), {}
    index = path / INDEX
    if not index.is_file() and (path / "model.safetensors").is_file():
        return _stored(path / "model.safetensors")
    try:
        listed = json.loads(index.read_text())
        places: dict[str, str] = listed["weight_map"]
    except (OSError, ValueError, KeyError) as error:
        raise WeftError(
            f"{path} holds no checkpoint: {error}",
            help=f"give a folder that has {INDEX}, or a safetensors file",
        ) from None
    files = {name: TensorFile(path / name) for name in dict.fromkeys(places.values())}
    for name, place in places.items():
        if name not in files[place].tensors:
            raise WeftError(
                f"{path / place} has no tensor {name}, which the index says it has",
                help="copy or save the checkpoint again",
            )
    return {name: files[place] for name, place in places.items()}, listed.get("metadata", {})


def _put(name: str, array: np.ndarray[Any, Any], mesh: Any, plan: Any) -> Array:
    found = next((s for pattern, s in (plan or {}).items() if fnmatchcase(name, pattern)), P())
    return put(array, found, mesh) if mesh is not None else put(array)


# States


def _step_of(state: Any) -> TrainingStep | None:
    source = getattr(state, "_source", None)  # of a compiled program
    return source if isinstance(source, TrainingStep) else None


def _is_module(state: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(state, torch.nn.Module)


def _named(state: Any) -> dict[str, Any]:
    """The tensors of a state by name."""
    if (step := _step_of(state)) is not None:
        return state_tensors_by_name(step.module, step.optimizer)
    if _is_module(state):
        return state_tensors_by_name(state)
    if hasattr(state, "_source"):
        raise WeftError(
            "a compiled program has no state of its own",
            help="save the module, the training step, or the arrays that it is called with",
        )
    found: dict[str, Any] = {}
    for name, leaf in _leaves(state):
        if name in found:
            raise WeftError(f"two arrays have the name {name}", help="rename a key of the state")
        found[name] = leaf
    return found


def _leaves(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays of a pytree, by the path of their keys."""
    jax = sys.modules.get("jax")
    if jax is not None:
        for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
            yield ".".join([_key(each) for each in path]) or "value", leaf
        return
    if isinstance(state, Mapping):
        entries = [(str(key), state[key]) for key in sorted(state)]
    elif isinstance(state, tuple | list):
        entries = [(str(n), each) for n, each in enumerate(state)]
    else:
        if state is not None:
            yield prefix.removesuffix(".") or "value", state
        return
    for key, each in entries:
        yield from _leaves(each, f"{prefix}{key}.")


def _key(entry: Any) -> str:
    """One step of a path, as JAX has it: a key, an index, or a field's name."""
    for word in ("key", "idx", "name"):
        if hasattr(entry, word):
            return str(getattr(entry, word))
    return str(entry)


def _unsaved(name: str, value: Any) -> UnsavedTensor:
    if isinstance(value, Array) or hasattr(value, "addressable_shards"):
        if not value.is_fully_addressable:
            raise WeftError(
                f"{name} is split over several processes", help="save it where all shards are"
            )
        return UnsavedTensor(name, dtype_of(np.dtype(value.dtype)), value.shape, _shards(value))
    array = to_numpy(value)
    return UnsavedTensor(name, dtype_of(array.dtype), array.shape, [((...,), array)])


def _shards(value: Any) -> TensorPieces:
    """The distinct pieces of a sharded array."""
    seen: set[tuple[tuple[int | None, int | None], ...]] = set()
    for shard in value.addressable_shards:
        bounds = tuple([(part.start, part.stop) for part in shard.index])
        if bounds not in seen:
            seen.add(bounds)
            yield shard.index, np.asarray(shard.data)


def _tree_like(tree: Any, saved: Mapping[str, TensorFile]) -> Any:
    """The arrays of a pytree, each read by its name, in the tree's types and shardings."""
    leaves = [*_leaves(tree)]
    missing = [name for name, _ in leaves if name not in saved]
    if missing:
        raise WeftError(
            f"the checkpoint has no {', '.join(missing[:3])}",
            help=f"it has {', '.join([*saved][:3])} and {max(len(saved) - 3, 0)} more",
        )
    made = [_like(name, leaf, saved[name].array(name)) for name, leaf in leaves]
    jax = sys.modules.get("jax")
    if jax is not None:
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(tree), made)
    return _rebuilt(tree, iter(made))


def _rebuilt(tree: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(tree, Mapping):
        found = {key: _rebuilt(tree[key], leaves) for key in sorted(tree)}
        return {key: found[key] for key in tree}
    if isinstance(tree, tuple | list):
        made = [_rebuilt(each, leaves) for each in tree]
        return type(tree)(*made) if hasattr(tree, "_fields") else type(tree)(made)
    return None if tree is None else next(leaves)


def _like(name: str, leaf: Any, array: np.ndarray[Any, Any]) -> Any:
    if isinstance(leaf, bool | int | float | complex):
        return array.item()
    shape, dtype = tuple(leaf.shape), np.dtype(leaf.dtype)
    if (shape, dtype) != (array.shape, array.dtype):
        raise WeftError(
            f"{name} is {array.dtype}{[*array.shape]} in the checkpoint, and "
            f"{dtype}{[*shape]} here",
            help="give a tree with the types that were saved",
        )
    if isinstance(leaf, Array):
        return put(array, leaf.sharding, leaf.mesh)
    sharding, jax = getattr(leaf, "sharding", None), sys.modules.get("jax")
    if jax is not None and sharding is not None:
        return jax.make_array_from_callback(shape, sharding, lambda index: array[index])
    return np.array(array)
