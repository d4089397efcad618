"""Convolutions by PyTorch's library, cuDNN on NVIDIA GPUs: contractions with a padded window.

A kernel of loops has no op: the window is read off the guards of its operand, each of which is a
spatial dim, `stride * out + dilation * tap - pad`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from weft.emit.triton.emitted import LibraryCall
from weft.emit.triton.library.absorbed import Absorbed, absorbed, finish
from weft.emit.triton.library.cudnn_convolution import EACH, LibraryConvolution, cudnn_convolution
from weft.emit.triton.library.places import Matrices, dense_index
from weft.emit.triton.library.product import PACKED_TYPES, after_scratch, only_store
from weft.emit.triton.product import contract_of, refuses_matrix_units
from weft.kernels.kernel import (
    Affine,
    Choose,
    Contract,
    Factor,
    Fill,
    Guard,
    Kernel,
    Load,
    Operand,
    Step,
    Store,
)
from weft.kernels.roles import size_of
from weft.records import dataclass

LEAST = 1 << 28  # multiplications from which cuDNN is worth its launches
PADDED = 32  # channels from which they are not padded
TAPS = 16  # of a spatial dim: the library has no kernels for larger windows (weights' gradients)
_TYPES = {"bf16", "f16", "f32"}


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
        image, weights = _padded(kernel, one), kernel.steps[other]
        if image is None or not isinstance(weights, Load) or weights.guards or weights.shifts:
            continue
        windows = [_window(kernel, guard, contract) for guard in image.guards]
        usable = [window for window in windows if window is not None]
        if len(usable) == len(windows):
            return _convolution(kernel, at, image, weights, usable)
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
    window = _Window(out, tap, guard.high, stride, dilation, pad)
    # PyTorch pads both ends alike: that must give enough outputs, and those too many are cut off.
    reach = window.size + 2 * pad - dilation * (kernel.factors[tap].size - 1) - 1
    enough = reach // stride + 1 >= kernel.factors[out].size
    return window if enough and pad <= dilation * (kernel.factors[tap].size - 1) else None


def _convolution(
    kernel: Kernel, at: int, image: Load, weights: Load, windows: Sequence[_Window]
) -> LibraryConvolution | None:
    contract = kernel.steps[at]
    assert isinstance(contract, Contract)
    spatial = {f for window in windows for f in (window.out, window.tap)}
    rest = [f for f, factor in enumerate(kernel.factors) if factor.size > 1 and f not in spatial]
    of_image, of_weights = ({f for f in rest if s.at.strides[f]} for s in (image, weights))
    inner = [f for f in rest if f in contract.over]
    batch = [f for f in rest if f not in contract.over and f in of_image - of_weights]
    outer = [f for f in rest if f not in contract.over and f in of_weights - of_image]
    if max(len(inner), len(batch), len(outer)) > 1 or len(rest) != len({*inner, *batch, *outer}):
        return None
    if any(f not in of_image & of_weights for f in inner):
        return None
    steps = [_step(image.at, window) for window in windows]
    if any(step is None or weights.at.strides[w.tap] <= 0 or weights.at.strides[w.out]
           for step, w in zip(steps, windows, strict=True)):  # fmt: skip
        return None
    apart = [step or 0 for step in steps]
    # The guarded index begins before the image; the library wants the address of its first element.
    offset = image.at.offset + sum(w.pad * s for w, s in zip(windows, apart, strict=True))
    if offset < 0 or image.dtype is not weights.dtype or contract.dtype is not image.dtype:
        return None
    taps, outs = [w.tap for w in windows], [w.out for w in windows]
    sizes = (*[size_of(kernel, f) for f in (batch, inner)], *[w.size for w in windows])
    strides = (*[_stride(image.at, f) for f in (batch, inner)], *apart)
    sides = (
        Matrices(image.operand, offset, sizes, strides),
        _view(kernel, weights.operand, weights.at, outer, inner, taps),
    )
    last = image.dtype.name in PACKED_TYPES and _is_last(kernel, strides[1], outer)
    place = dense_index(kernel, (*batch, *outs, *outer) if last else (*batch, *outer, *outs))
    channels = -(-sizes[1] // EACH) * EACH if sizes[1] < PADDED else sizes[1]
    # cuDNN's kernels with an epilogue read eight channels at a time.
    can_absorb = last and channels % EACH == 0 and size_of(kernel, outer) % EACH == 0
    epilogue_steps, operand, written = _destination(kernel, at, outer, place, can_absorb=can_absorb)
    epilogue: tuple[Kernel, tuple[int, ...]] | None = None
    scratch: tuple[Operand, ...] = ()
    if operand == len(kernel.operands):
        held, epilogue = after_scratch(kernel, at, place, epilogue_steps.last)
        scratch = (held,)
    copies: list[tuple[Kernel, tuple[int, ...]]] = []
    for n, side in enumerate(sides if last else ()):
        if side.strides[1] != 1 or side.sizes[1] != channels:
            number = len(kernel.operands) + len(scratch)
            moved, copy = _packed(kernel, side, channels, number)
            sides = (moved, sides[1]) if n == 0 else (sides[0], moved)
            copies.append((copy, (side.operand, number)))
            scratch += (copy.operands[1],)
    return LibraryConvolution(
        image.dtype,
        *sides,
        _view(kernel, operand, written, batch, outer, outs),
        tuple([w.stride for w in windows]),
        tuple([w.pad for w in windows]),
        tuple([w.dilation for w in windows]),
        contract.tf32,
        epilogue_steps,
        tuple(copies),
        epilogue,
        scratch,
    )


def _is_last(kernel: Kernel, stride: int, outer: Sequence[int]) -> bool:
    """Whether channels are, or will be, next to each other: those that are read, or written."""
    store = only_store(kernel)
    return stride == 1 or (store is not None and _stride(store.at, outer) == 1)


def _packed(kernel: Kernel, side: Matrices, channels: int, number: int) -> tuple[Matrices, Kernel]:
    """A side with so many channels, last, in scratch of this number; and the copy to there."""
    source = kernel.operands[side.operand]
    order = (0, *range(2, len(side.sizes)), 1)
    sizes = [channels if d == 1 else side.sizes[d] for d in order]
    factors = tuple([Factor(f"i{n}", size) for n, size in enumerate(sizes)])
    at = Affine(tuple([side.strides[d] for d in order]), side.offset)
    dense: list[int] = [math.prod(sizes[n + 1 :]) for n in range(len(sizes))]
    guards: tuple[Guard, ...] = ()
    if channels != side.sizes[1]:  # 0 behind the last channel
        guards = (Guard(Affine((*[0] * (len(sizes) - 1), 1)), 0, side.sizes[1]),)
    held = Operand(source.dtype, (math.prod(sizes),), True)
    steps = (Load(0, at, source.dtype, guards), Store(1, Affine(tuple(dense)), 0))
    operands = (replace(source, output=False), held)
    copy = Kernel(f"{kernel.name}_packed", factors, operands, steps)
    places = dict(zip(order, dense, strict=True))
    strides = tuple([places[d] for d in range(len(order))])
    all_sizes = (side.sizes[0], channels, *side.sizes[2:])
    return Matrices(number, 0, all_sizes, strides), copy


def _destination(
    kernel: Kernel, at: int, outer: Sequence[int], place: Affine, *, can_absorb: bool
) -> tuple[Absorbed, int, Affine]:
    """The library's epilogue, and the place of its result: the only result's, or scratch."""
    contract, store = kernel.steps[at], only_store(kernel)
    assert isinstance(contract, Contract)
    for number, to in ((-1, None if store is None else store.at), (len(kernel.operands), place)):
        if to is None or min(to.strides) < 0:
            continue
        fused = absorbed(kernel, at, outer, to, contract.dtype) if can_absorb else None
        fused = fused or Absorbed(at)
        if number >= 0:
            return fused, number, to
        if store is not None and store.arg == fused.last:
            return fused, store.operand, to
    raise AssertionError("a dense place has no negative strides")


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


def convolution_call(name: str, convolution: LibraryConvolution) -> LibraryCall:
    """The call of a convolution."""
    sides = (convolution.image, convolution.weights, convolution.out)
    shown = " * ".join([str(side.sizes) for side in sides[:2]])
    text = (
        f"# {name}\n# convolution by PyTorch: {shown}{convolution.absorbed.shown} -> "
        f"{convolution.out.sizes}, stride {convolution.stride}, pad {convolution.pad}, "
        f"dilation {convolution.dilation}\n"
    )
    operands = (*[side.operand for side in sides], *convolution.absorbed.operands)
    bare = replace(convolution, copies=(), epilogue=None, scratch=())
    return LibraryCall(name, text, operands, partial(_convolve, bare))


def _convolve(convolution: LibraryConvolution, *tensors: Any) -> None:
    if tensors[0].device.type != "cpu" and convolution.is_channels_last:
        graph = cudnn_convolution(convolution)
        if graph is not None:
            graph(tensors)
            return
    import torch

    sides = (convolution.image, convolution.weights, convolution.out)
    image, weights, out = (
        tensor.as_strided(side.sizes, side.strides, side.offset)
        for tensor, side in zip(tensors[:3], sides, strict=True)
    )
    is_wide = image.device.type == "cpu" and not convolution.absorbed.is_nothing
    if is_wide:  # interpreted: rounded once, as by the library
        image, weights = image.float(), weights.float()
    numbers = (convolution.stride, convolution.pad, convolution.dilation)
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = convolution.tf32
    try:
        result = torch.convolution(
            image, weights, None, *numbers, False, (0,) * len(convolution.stride), 1
        )
    finally:
        torch.backends.cudnn.allow_tf32 = before
    # A pad that the program has at one end only makes more outputs than it asks for.
    for dim, size in enumerate(out.shape):
        result = result.narrow(dim, 0, size)
    if not convolution.absorbed.is_nothing:
        result = finish(result.float(), convolution.absorbed, 1, convolution.out, *tensors[3:])
    out.copy_(result)
