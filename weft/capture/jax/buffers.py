"""JAX's `buffer_callback`: Python functions that write into output buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.capture.jax.callbacks import emit_call
from weft.capture.jax.calls import LoweringRule, rules_of
from weft.ir.types import Array


def buffer_rules() -> tuple[tuple[Any, LoweringRule], ...]:
    """The lowering of the `buffer_callback` primitive."""
    from jax._src import buffer_callback

    return rules_of(buffer_callback, {"buffer_callback_p": _buffer_callback})


class HostBuffer:
    """An operand or a result of a buffer callback, in host memory."""

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return self._array.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self._array.dtype

    @property
    def writeable(self) -> bool:
        """Whether it is a result."""
        return self._array.flags.writeable

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy or (dtype is not None and np.dtype(dtype) != self.dtype):
            return np.array(self._array, dtype)
        return self._array

    def __dlpack__(self, **asked: Any) -> Any:
        return self._array.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class CallContext:
    """The execution context of a buffer callback."""

    @property
    def stage(self) -> Any:
        """The stage of the call: execution."""
        from jax.experimental.buffer_callback import ExecutionStage

        return ExecutionStage.EXECUTE

    @property
    def stream(self) -> int:
        """The GPU stream, which does not exist here."""
        import jax

        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: XLA FFI GPU context is not available")


def _buffer_callback(
    ctx: Any,
    *args: Any,
    callback: Callable[..., Any],
    in_tree: Any,
    out_tree: Any,
    has_side_effect: bool,
    input_output_aliases: Sequence[tuple[int, int]],
    **_: Any,
) -> Sequence[Any]:
    results = [(aval.shape, aval.dtype) for aval in ctx.avals_out]
    shared = {result: operand for operand, result in input_output_aliases}
    call = partial(_on_buffers, callback, in_tree, out_tree, results, shared)
    made, _token = emit_call(ctx, call, None, args, has_side_effect=has_side_effect)
    return made


def _on_buffers(
    callback: Callable[..., Any],
    in_tree: Any,
    out_tree: Any,
    results: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
    shared: dict[int, int],
    *args: Any,
) -> tuple[Array, ...]:
    """Call with read-only operands and writable results; some results alias operands."""
    operands = [
        # An aliased operand is overwritten by the callback, and others may read the argument: copy
        # it.
        np.array(arg) if n in shared.values() else np.asarray(arg)
        for n, arg in enumerate(args)
    ]
    result_arrays = [
        # A result in the memory of its operand: the callback writes over what it reads.
        operands[shared[n]] if n in shared else np.zeros(shape, dtype)
        for n, (shape, dtype) in enumerate(results)
    ]
    read = [array.view() for array in operands]
    for array in read:
        array.flags.writeable = False
    positional, named = in_tree.unflatten([HostBuffer(array) for array in read])
    outputs = out_tree.unflatten([HostBuffer(array) for array in result_arrays])
    if callback(CallContext(), outputs, *positional, **named) is not None:
        raise ValueError("buffer_callback callback must not return any values.")
    return tuple(result_arrays)
