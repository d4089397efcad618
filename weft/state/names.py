"""The tensors of a state by name: of a pytree, a PyTorch module, or a training step."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from weft.capture.torch.state import state_tensors_by_name
from weft.capture.torch.training.step import TrainingStep
from weft.errors import WeftError


def step_of(state: Any) -> TrainingStep | None:
    """The training step behind a compiled one."""
    source = getattr(state, "_source", None)  # of a compiled program
    return source if isinstance(source, TrainingStep) else None


def is_module(state: Any) -> bool:
    """Whether a state is a module of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(state, torch.nn.Module)


def named_tensors(state: Any) -> dict[str, Any]:
    """The tensors of a state by name."""
    tensors: dict[str, Any] = {}
    for prefix, leaf in parts_of(state):
        for inner, tensor in _tensors_of(leaf).items():
            if (name := f"{prefix}{inner}") in tensors:
                raise WeftError(
                    f"two arrays have the name {name}", help="rename a key of the state"
                )
            tensors[name] = tensor
    return tensors


def parts_of(state: Any) -> Iterator[tuple[str, Any]]:
    """The modules, training steps and arrays of a state, with what their names begin with."""
    if has_tensors(state) or hasattr(state, "_source"):
        yield "", state
        return
    for name, leaf in leaves_of(state):
        yield (f"{name}." if has_tensors(leaf) else name), leaf


def has_tensors(state: Any) -> bool:
    """Whether a state is one object with tensors of its own: a module or a training step."""
    return is_module(state) or step_of(state) is not None


def _tensors_of(leaf: Any) -> dict[str, Any]:
    """The tensors of a module or a training step by name; those of an array under no name."""
    if (step := step_of(leaf)) is not None:
        return state_tensors_by_name(step.module, step.optimizer)
    if is_module(leaf):
        return state_tensors_by_name(leaf)
    if hasattr(leaf, "_source"):
        raise WeftError(
            "a compiled program has no state of its own",
            help="save the module, the training step, or the arrays that it is called with",
        )
    return {"": leaf}


def leaves_of(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays of a pytree, by the path of their keys."""
    jax = sys.modules.get("jax")
    if jax is not None:
        for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
            yield ".".join([_key(each) for each in path]) or "value", leaf
        return
    if isinstance(state, Mapping):
        entries = [(str(key), state[key]) for key in sorted(state)]  # JAX's order
    elif isinstance(state, tuple | list):
        entries = [(str(n), each) for n, each in enumerate(state)]
    else:
        if state is not None:
            yield prefix.removesuffix(".") or "value", state
        return
    for key, each in entries:
        yield from leaves_of(each, f"{prefix}{key}.")


def _key(entry: Any) -> str:
    """One step of a path, as JAX has it: a key, an index, or a field's name."""
    for word in ("key", "idx", "name"):
        if hasattr(entry, word):
            return str(getattr(entry, word))
    return str(entry)
