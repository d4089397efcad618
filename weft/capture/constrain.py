"""`weft.constrain(x, P("data", None))`: sharding constraints inside a program, in any framework."""

from __future__ import annotations

import sys
from typing import Any

from weft.capture.jax.constrain import constrain_arrays
from weft.capture.shardings import Spelled
from weft.capture.torch.constrain import constrain_module, constrain_tensors, is_tensors
from weft.errors import WeftError
from weft.ir.location import user_location


def constrain(x: Any, sharding: Spelled = None, *, inputs: Spelled = None) -> Any:
    """Constrain the sharding of a value in a function that Weft captures.

    The value is an array of JAX, a tensor of PyTorch, or a pytree of them. For a module of
    PyTorch, its outputs are constrained by the sharding, and its positional arguments by `inputs`,
    in every call until the returned handle is removed. Without a mesh, as when the function runs
    eagerly, values are returned unchanged; a sharding that names axes then gives a warning, and an
    error if it does not fit.
    """
    torch = sys.modules.get("torch")
    try:
        if torch is not None:
            if isinstance(x, torch.nn.Module):
                return constrain_module(x, sharding, inputs)
            if inputs is None and is_tensors(x):
                return constrain_tensors(x, sharding)
        if inputs is not None:
            raise WeftError(
                f"constrain: {type(x).__name__} is not a module, and has no inputs",
                help="inputs= is for modules of PyTorch; constrain values one by one",
            )
        if "jax" not in sys.modules:
            raise WeftError(
                f"constrain: {type(x).__name__} is neither a JAX value nor a tensor",
                help="call it on the arrays inside a function that is compiled",
            )
        return constrain_arrays(x, sharding)
    except WeftError as error:
        raise error.at(user_location()) from None
