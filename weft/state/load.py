"""`weft.load_state`: a checkpoint onto any mesh."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from weft.array.array import Array
from weft.array.put import put
from weft.array.safetensors import TensorFile
from weft.capture.torch.state import restore_settings, restore_tensors, tensor_like
from weft.errors import WeftError, warn
from weft.mesh import P
from weft.state.names import has_tensors, is_module, parts_of, step_of
from weft.state.save import INDEX, SETTINGS


def load_state(
    path: str | os.PathLike[str], into: Any = None, *, mesh: Any = None, plan: Any = None
) -> Any:
    """Read a state that was saved on any mesh.

    `into` is a PyTorch module or a training step, whose tensors are overwritten; or a pytree of
    them, and of arrays or of their types, which gives the types and shardings of the returned
    arrays. Without it the result is a dict of arrays by name. These are put on a `mesh` with the
    sharding of the first pattern in `plan` that matches; their elements are read from the files, on
    memory maps, when they are used. `path` is a folder, or one safetensors file.
    """
    saved, metadata = _stored(Path(path))
    if into is None:
        return {name: _put(name, file.array(name), mesh, plan) for name, file in saved.items()}
    parts = [*parts_of(into)]
    _check_names(parts, saved)
    made = [_restored(prefix, part, saved, metadata) for prefix, part in parts]
    if len(parts) == 1 and made[0] is into:
        return into
    jax = sys.modules.get("jax")
    if jax is not None:
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(into), made)
    return _rebuilt(into, iter(made))


def _restored(
    prefix: str, part: Any, saved: Mapping[str, TensorFile], metadata: Mapping[str, Any]
) -> Any:
    """A module or training step, overwritten; or a new array like a leaf."""
    step = step_of(part)
    if step is None and not is_module(part):
        return _like(prefix, part, saved[prefix].array(prefix))
    names = [name for name in saved if name.startswith(prefix)]
    readers = {n.removeprefix(prefix): lambda n=n: saved[n].array(n) for n in names}
    module, optimizer = (part, None) if step is None else (step.module, step.optimizer)
    restore_tensors(module, optimizer, readers)
    if step is not None and (settings := metadata.get(f"{prefix}{SETTINGS}")) is not None:
        restore_settings(step.optimizer, settings)
    return part


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
    sharding = next((s for pattern, s in (plan or {}).items() if fnmatchcase(name, pattern)), P())
    return put(array, sharding, mesh) if mesh is not None else put(array)


def _check_names(parts: Sequence[tuple[str, Any]], saved: Mapping[str, TensorFile]) -> None:
    """Raise if the checkpoint lacks arrays of a pytree; warn if a key of it has more of them."""
    names = {name for name, part in parts if not has_tensors(part)}
    missing = [name for name in names if name not in saved]
    if missing:
        raise WeftError(
            f"the checkpoint has no {', '.join(missing[:3])}",
            help=f"it has {', '.join([*saved][:3])} and {max(len(saved) - 3, 0)} more",
        )
    # A tree with fewer keys reads a part of a checkpoint; but a key that was saved with more
    # arrays, as that of an optimizer which has made no step yet, would lose them.
    keys = {name.partition(".")[0] for name in names if "." in name}
    whole = tuple([prefix for prefix, part in parts if has_tensors(part)])
    unread = [name for name in saved if name not in names and not name.startswith(whole)]
    more = [name for name in unread if name.partition(".")[0] in keys]
    if more:
        rest = f" and {len(more) - 3} more" if len(more) > 3 else ""
        warn(f"not loaded, as the state to load has no such keys: {', '.join(more[:3])}{rest}")


def _rebuilt(tree: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(tree, Mapping):
        # Leaves come in the order of sorted keys, as JAX flattens a dict.
        values = {key: _rebuilt(tree[key], leaves) for key in sorted(tree)}
        return {key: values[key] for key in tree}
    if isinstance(tree, tuple | list):
        parts = [_rebuilt(each, leaves) for each in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return None if tree is None else next(leaves)


def _like(name: str, leaf: Any, array: np.ndarray[Any, Any]) -> Any:
    if isinstance(leaf, bool | int | float | complex):
        return array.item()
    if type(leaf).__module__.partition(".")[0] == "torch":
        return tensor_like(name, leaf, array)
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
