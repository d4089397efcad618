"""Functions of tensors as modules that PyTorch can export, with the state that they read."""

from __future__ import annotations

import enum
import inspect
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from weft.errors import WeftError


def modules_of(function: Callable[..., Any]) -> Any:
    """A container of the modules that a function reads, by their names there; None if none.

    A bare parameter is refused: PyTorch would export its value as a constant, which goes stale.
    """
    import torch

    modules: dict[str, Any] = {}
    for name, held in _read_by(function, set()):
        if isinstance(held, torch.nn.Parameter):
            raise WeftError(
                f"{function.__name__} reads the parameter {name} from outside",
                help="pass it as an argument, or compile the module that it belongs to",
            )
        if isinstance(held, torch.nn.Module):
            modules.setdefault(name, held)
    if not modules:
        return None
    container = torch.nn.Module()
    for name, held in modules.items():
        container.add_module(name, held)
    return container


def _read_by(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The globals and closure cells that a function and its callees read, by name."""
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    held = {name: _content(cell) for name, cell in cells}
    # co_names also has names of attributes: at worst a global is listed that is not read.
    held |= {n: function.__globals__[n] for n in code.co_names if n in function.__globals__}
    for name, value in held.items():
        yield name, value
        yield from _read_by(value, seen)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an unbound cell
        return None


def as_module(function: Any, module: Any) -> Any:
    """The module to export: the module itself, or one whose forward is the function."""
    import torch

    if function is module:
        return module
    called = _as_forward(function)

    class Called(torch.nn.Module):  # type: ignore[misc]
        """A function, and the modules that it reads."""

        def __init__(self) -> None:
            super().__init__()
            if module is not None:
                self.inner = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return called(*args, **kwargs)

    Called.__name__ = getattr(function, "__name__", "a function")  # for error messages
    return Called()


def _as_forward(function: Any) -> Any:
    """The function renamed to forward: PyTorch keeps the lines of functions of that name only."""
    if isinstance(function, types.MethodType):
        return types.MethodType(_as_forward(function.__func__), function.__self__)
    if not isinstance(function, types.FunctionType):
        return function
    code = function.__code__.replace(co_name="forward")
    forward = types.FunctionType(
        code, function.__globals__, "forward", function.__defaults__, function.__closure__
    )
    forward.__kwdefaults__ = function.__kwdefaults__
    return forward


def state_of(module: Any, prefix: str, marks: list[object]) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers by name, tied ones repeated; modes and hooks are added to `marks`.

    They are looked up for every call, so that replaced parameters are seen.
    """
    marks.append((module.training, *module._forward_hooks, *module._forward_pre_hooks))
    for held in (module._parameters, module._buffers):
        for name, value in held.items():
            if value is not None:
                yield f"{prefix}{name}", value
    for name, inner in module._modules.items():
        if inner is not None:
            yield from state_of(inner, f"{prefix}{name}.", marks)


# Arguments that are not tensors


def static_key(leaf: Any) -> Hashable:
    """The part of the cache key for an argument that is not a tensor."""
    if isinstance(leaf, float | complex):
        return repr(leaf)  # 0.0 equals -0.0, and NaN does not equal itself
    if isinstance(leaf, types.FunctionType) and modules_of(leaf) is not None:
        raise WeftError(
            f"the argument {leaf.__name__} is a function that reads modules",
            help="compile a module that has them: their parameters would be constants here",
        )
    if isinstance(leaf, _NUMBERS) or _is_held(leaf):
        return leaf  # type: ignore[no-any-return]
    raise WeftError(
        f"an argument is a {type(leaf).__name__}, neither a tensor nor a number",
        help="pass tensors, as with torch.from_numpy(x), numbers, strings or None, in tuples and "
        "dicts; or register the class: torch.export.register_dataclass",
    )


_NUMBERS = (bool, int, float, complex, str, type(None))


def _is_held(leaf: Any) -> bool:
    """Whether an argument is a constant of PyTorch's or Python's that export does not take."""
    import torch

    kinds = (torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)
    return isinstance(leaf, (*kinds, types.FunctionType, types.BuiltinFunctionType))


def with_held(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A call whose dtypes, devices and functions are constants of the function."""
    from torch.utils._pytree import tree_flatten, tree_unflatten

    leaves, tree = tree_flatten((args, kwargs))
    held = {n: leaf for n, leaf in enumerate(leaves) if _is_held(leaf)}
    if not held:
        return function, args, kwargs

    def forward(*args: Any, **kwargs: Any) -> Any:
        given, tree = tree_flatten((args, kwargs))
        filled = [held.get(n, leaf) for n, leaf in enumerate(given)]
        args, kwargs = tree_unflatten(filled, tree)
        return function(*args, **kwargs)

    args, kwargs = tree_unflatten([None if n in held else x for n, x in enumerate(leaves)], tree)
    return forward, args, kwargs


def check_tensor(tensor: Any) -> None:
    """Refuse a tensor that is not one dense array."""
    import torch

    what = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    if tensor.is_nested or tensor.layout != torch.strided:
        raise WeftError(
            f"an argument is a {what} tensor",
            help="Weft computes with dense tensors: pass x.to_dense(), or x.to_padded_tensor(0)",
        )


def parameter_names_of(function: Any) -> list[str]:
    """The names of a function's parameters; none where they are not known."""
    try:
        return [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        return []


# Caches of keys and values of Hugging Face's models: arguments and results of calls


def register_caches(module: Any) -> None:
    """Let PyTorch look into the caches that a module's models take and return.

    By the registration that transformers' own exporter has. The one for ExecuTorch forgets how many
    tokens a sliding window has seen.
    """
    if module is None or "transformers" not in sys.modules:
        return
    from transformers import PreTrainedModel

    models = [each for each in module.modules() if isinstance(each, PreTrainedModel)]
    if not models:
        return
    try:
        from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model
    except ImportError:  # an older version, whose caches are refused when they are returned
        return
    for each in {type(model): model for model in models}.values():
        register_cache_pytrees_for_model(each)


def check_caches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse caches as arguments that keep state outside of tensors: a call would not change it."""
    if "transformers" not in sys.modules:
        return
    from transformers.cache_utils import Cache, StaticCache, StaticLayer

    for value in (*args, *kwargs.values()):
        if not isinstance(value, Cache):
            continue
        kinds = {type(layer).__name__: type(layer) for layer in getattr(value, "layers", ())}
        if type(value) is not StaticCache or {*kinds.values()} - {StaticLayer}:
            found = f" of {', '.join(sorted(kinds))}" if kinds else ""
            raise WeftError(
                f"the argument is a {type(value).__name__}{found}: a call would not change it",
                help="give a transformers.StaticCache of full attention, which changes in place; "
                "or none: then the call returns a new one",
            )
