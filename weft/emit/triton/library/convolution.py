"""Convolutions by PyTorch's library, cuDNN on NVIDIA GPUs: contractions with a padded window.

A kernel of loops has no op: the window is read off the guards of its operand, each of which is a
spatial dim, `stride * out + dilation * tap - pad`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from weft.emit.triton.emitted import LibraryCall
from weft.emit.triton.library.product import Matrices, after_scratch, dense_index
from weft.emit.triton.product import contract_of, refuses_matrix_units
from weft.kernels.kernel import Affine, Choose, Contract, Fill, Guard, Kernel, Load, Operand, Step
from weft.kernels.roles import size_of
from weft.records import dataclass

LEAST = 1 << 28  # multiplications from which cuDNN is worth its launches
TAPS = 16  # of a spatial dim: the library has no kernels for larger windows (weights' gradients)
_TYPES = {"bf16", "f16", "f32"}


@dataclass(frozen=True, slots=True)
class LibraryConvolution:
    """A convolution on views: batch, channels and spatial dims each."""

    given: Matrices
    weights: Matrices
    out: Matrices
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]
    tf32: bool
    epilogue: tuple[Kernel, tuple[int, ...]]
    scratch: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class _Window:
    """One spatial dim: its factors of outputs and taps, and its numbers."""

    out: int
    tap: int
    size: int
    stride: int
    dilation: int
    pad: int


def library_convolution(kernel: Kernel) -> LibraryConvolution | None:
    """The convolution of a kernel of collapsed loops, if it is one that the library takes."""
    if refuses_matrix_units(kernel, _TYPES) is not None:
        return None
    at = contract_of(kernel)
    contract = kernel.steps[at]
    assert isinstance(contract, Contract)
    if math.prod(f.size for f in kernel.factors) < LEAST:
        return None
    for one, other in ((contract.lhs, contract.rhs), (contract.rhs, contract.lhs)):
        given, weights = _padded(kernel, one), kernel.steps[other]
        if given is None or not isinstance(weights, Load) or weights.guards or weights.shifts:
            continue
        windows = [_window(kernel, guard, contract) for guard in given.guards]
        found = [window for window in windows if window is not None]
        if len(found) == len(windows):
            return _convolution(kernel, at, given, weights, found)
    return None


def _padded(kernel: Kernel, number: int) -> Load | None:
    """The load of an operand that is 0 outside of its guards."""
    match kernel.steps[number]:
        case Choose(guards=guards, inside=inside, outside=outside):
            load, zero = kernel.steps[inside], kernel.steps[outside]
            if isinstance(load, Load) and load.guards == guards and not load.shifts:
                return load if _is_zero(zero) and 1 <= len(guards) <= 3 else None
    return None


def _is_zero(step: Step) -> bool:
    return isinstance(step, Fill) and step.value == 0


def _window(kernel: Kernel, guard: Guard, contract: Contract) -> _Window | None:
    """The spatial dim of a guard."""
    index = guard.index
    used = [f for f, stride in enumerate(index.strides) if stride and kernel.factors[f].size > 1]
    taps = [f for f in used if f in contract.over]
    outs = [f for f in used if f not in contract.over]
    if len(taps) != 1 or len(outs) != 1 or guard.low != 0 or index.offset > 0:
        return None
    (tap,), (out,) = taps, outs
    stride, dilation, pad = index.strides[out], index.strides[tap], -index.offset
    if stride < 1 or dilation < 1 or kernel.factors[tap].size > TAPS:
        return None
    made = _Window(out, tap, guard.high, stride, dilation, pad)
    reach = made.size + 2 * pad - dilation * (kernel.factors[tap].size - 1) - 1
    enough = reach // stride + 1 >= kernel.factors[out].size
    return made if enough and pad <= dilation * (kernel.factors[tap].size - 1) else None


def _convolution(
    kernel: Kernel, at: int, given: Load, weights: Load, windows: Sequence[_Window]
) -> LibraryConvolution | None:
    contract = kernel.steps[at]
    assert isinstance(contract, Contract)
    spatial = {f for window in windows for f in (window.out, window.tap)}
    rest = [f for f, factor in enumerate(kernel.factors) if factor.size > 1 and f not in spatial]
    of_given, of_weights = ({f for f in rest if s.at.strides[f]} for s in (given, weights))
    inner = [f for f in rest if f in contract.over]
    batch = [f for f in rest if f not in contract.over and f in of_given - of_weights]
    outer = [f for f in rest if f not in contract.over and f in of_weights - of_given]
    if max(len(inner), len(batch), len(outer)) > 1 or len(rest) != len({*inner, *batch, *outer}):
        return None
    if any(f not in of_given & of_weights for f in inner):
        return None
    steps = [_step(given.at, window) for window in windows]
    if any(step is None or weights.at.strides[w.tap] <= 0 or weights.at.strides[w.out]
           for step, w in zip(steps, windows, strict=True)):  # fmt: skip
        return None
    apart = [step or 0 for step in steps]
    offset = given.at.offset + sum(w.pad * s for w, s in zip(windows, apart, strict=True))
    if offset < 0 or given.dtype is not weights.dtype or contract.dtype is not given.dtype:
        return None
    taps, outs = [w.tap for w in windows], [w.out for w in windows]
    place = dense_index(kernel, (*batch, *outer, *outs))
    number = len(kernel.operands)
    sizes = (*[size_of(kernel, f) for f in (batch, inner)], *[w.size for w in windows])
    strides = (*[_stride(given.at, f) for f in (batch, inner)], *apart)
    scratch, epilogue = after_scratch(kernel, at, place)
    return LibraryConvolution(
        Matrices(given.operand, offset, sizes, strides),
        _view(kernel, weights.operand, weights.at, outer, inner, taps),
        _view(kernel, number, place, batch, outer, outs),
        tuple([w.stride for w in windows]),
        tuple([w.pad for w in windows]),
        tuple([w.dilation for w in windows]),
        contract.tf32,
        epilogue,
        (scratch,),
    )


def _step(at: Affine, window: _Window) -> int | None:
    """The memory stride of a spatial dim, along which outputs and taps move alike."""
    step, rest = divmod(at.strides[window.tap], window.dilation)
    fits = rest == 0 and step > 0 and at.strides[window.out] == step * window.stride
    return step if fits else None


def _stride(at: Affine, factors: Sequence[int]) -> int:
    return at.strides[factors[0]] if factors else 1


def _view(
    kernel: Kernel,
    operand: int,
    at: Affine,
    first: Sequence[int],
    second: Sequence[int],
    spatial: Sequence[int],
) -> Matrices:
    sizes = (*[size_of(kernel, f) for f in (first, second)],
             *[kernel.factors[f].size for f in spatial])  # fmt: skip
    strides = (_stride(at, first), _stride(at, second), *[at.strides[f] for f in spatial])
    return Matrices(operand, at.offset, sizes, strides)


def convolution_call(name: str, found: LibraryConvolution) -> LibraryCall:
    """The call of a convolution."""
    sides = (found.given, found.weights, found.out)
    shown = " * ".join([str(side.sizes) for side in sides[:2]])
    text = (
        f"# {name}\n# convolution by PyTorch: {shown} -> {found.out.sizes}, stride {found.stride}, "
        f"pad {found.pad}, dilation {found.dilation}\n"
    )
    operands = tuple([side.operand for side in sides])
    return LibraryCall(name, text, operands, partial(_convolve, found))


def _convolve(found: LibraryConvolution, *tensors: Any) -> None:
    import torch

    sides = (found.given, found.weights, found.out)
    given, weights, out = (
        tensor.as_strided(side.sizes, side.strides, side.offset)
        for tensor, side in zip(tensors, sides, strict=True)
    )
    numbers = (found.stride, found.pad, found.dilation)
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = found.tf32
    try:
        made = torch.convolution(given, weights, None, *numbers, False, (0,) * len(found.stride), 1)
    finally:
        torch.backends.cudnn.allow_tf32 = before
    # A pad that the program has at one end only makes more outputs than it asks for.
    for dim, size in enumerate(out.shape):
        made = made.narrow(dim, 0, size)
    out.copy_(made)
