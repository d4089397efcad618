"""Checks of the zoo: results and gradients of a compiled model against eager PyTorch."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import weft
from weft.capture import capture
from weft.errors import WeftError
from weft.records import dataclass
from weft.zoo.model import ZooModel

ZooVerdict = Literal["equal", "differs", "refused"]
PASSES = ("forward", "gradients")
DTYPES = ("f32", "bf16")
MESHES: dict[str, dict[str, int] | None] = {
    "1": None,
    "4": {"data": 2, "model": 2},
    "8": {"data": 2, "model": 4},
}
# Errors relative to the largest element. Two orders of summation in f32 differ by so much; bf16 may
# be off by as much again as eager's own bf16 is from its f32.
_TOLERANCE = {
    "f32": {"forward": 1e-4, "gradients": 1e-3},
    "bf16": {"forward": 0.03, "gradients": 0.1},
}
_SLACK = 3.0


@dataclass(frozen=True, slots=True)
class ZooResult:
    """One model, type, pass and mesh: how it was compiled, and how far it is from eager."""

    model: str
    dtype: str
    what: str  # forward or gradients
    mesh: str  # its number of devices
    verdict: ZooVerdict
    seconds: float = 0.0  # processor time to compile and run it once
    ops: int = 0  # nodes of the captured module
    collectives: int = 0  # runs of collectives on one device
    error: float = 0.0  # relative to the largest element
    allowed: float = 0.0
    detail: str = ""


def check(
    model: ZooModel,
    dtype: str = "f32",
    meshes: Sequence[str] = tuple(MESHES),
    passes: Sequence[str] = PASSES,
    device: str = "cpu",
) -> Iterator[ZooResult]:
    """Compare a model on a device with eager on the host, for each pass and mesh."""
    for what in passes:
        expected, allowed = _reference(model, dtype, what)
        for mesh in meshes:
            yield _compared(model, dtype, what, mesh, expected, allowed, device)


def _reference(model: ZooModel, dtype: str, what: str) -> tuple[dict[str, Any], float]:
    """Eager's tensors by name, and the allowed error."""
    import torch

    run = _eager_forward if what == "forward" else _eager_gradients
    allowed = _TOLERANCE[dtype][what]
    try:
        expected = run(*_build_model(model, dtype, what))
    except NotImplementedError:  # PyTorch has no kernel for the type (a pool in bf16)
        if dtype == "f32":
            raise
        wide = run(*_build_model(model, "f32", what))
        return {name: held.to(torch.bfloat16) for name, held in wide.items()}, allowed
    if dtype == "bf16":
        wide = run(*_build_model(model, "f32", what))
        own = relative_error({k: v.to(torch.float32) for k, v in expected.items()}, wide)[0]
        allowed = max(allowed, _SLACK * own)
    return expected, allowed


def _build_model(model: ZooModel, dtype: str, what: str) -> tuple[Any, dict[str, Any]]:
    import torch

    module, inputs = model.make()
    if what == "gradients" and not model.in_evaluation:
        module.train()
    if dtype == "bf16":
        module = module.to(torch.bfloat16)
        inputs = {
            name: held.to(torch.bfloat16)
            if isinstance(held, torch.Tensor) and held.is_floating_point()
            else held
            for name, held in inputs.items()
        }
    return module, inputs


def _compared(
    model: ZooModel,
    dtype: str,
    what: str,
    mesh: str,
    expected: dict[str, Any],
    allowed: float,
    device: str,
) -> ZooResult:
    import torch
    from torch.utils._pytree import tree_map_only

    module, inputs = _build_model(model, dtype, what)
    module = module.to(device)
    inputs = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), inputs)
    sizes = MESHES[mesh]
    on = None if sizes is None else weft.Mesh([*sizes.items()])
    run = _forward if what == "forward" else _gradients
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled, outputs = run(module, inputs, on)
    except WeftError as error:
        return ZooResult(
            model.name, dtype, what, mesh, "refused", time.process_time() - began,
            detail=str(error),
        )  # fmt: skip
    seconds = time.process_time() - began
    off, where = relative_error({k: v.cpu() for k, v in outputs.items()}, expected)
    nodes = len(compiled.program.stage("captured").function("main").body.nodes)
    sent = sum(row.count for row in compiled.collectives())
    is_equal = off <= allowed and outputs.keys() == expected.keys()
    return ZooResult(
        model.name, dtype, what, mesh, "equal" if is_equal else "differs",
        seconds, nodes, sent, off, allowed, "" if is_equal else where,
    )  # fmt: skip


def capture_seconds(model: ZooModel) -> float:
    """Processor seconds to capture a model's forward pass: export, decomposition and import."""
    module, inputs = model.make()
    began = time.process_time()
    capture(module, (), inputs)
    return time.process_time() - began


def _forward(module: Any, inputs: dict[str, Any], mesh: Any) -> tuple[Any, dict[str, Any]]:
    compiled = weft.compile(module, mesh=mesh)
    return compiled, _tensors(compiled(**inputs))


def _gradients(module: Any, inputs: dict[str, Any], mesh: Any) -> tuple[Any, dict[str, Any]]:
    """The gradients: what momentum holds after one step from zero."""
    import torch

    # A rate of 0 leaves the parameters as they are; the momentum becomes the gradient.
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0, momentum=0.9)
    step = weft.train_step(module, _objective, optimizer, mesh=mesh)
    loss = step(**inputs)
    gradients = {"the loss": loss}
    for name, parameter in module.named_parameters():
        held = optimizer.state.get(parameter, {}).get("momentum_buffer")
        if held is not None:
            gradients[name] = held
    return step, gradients


def _eager_forward(module: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    import torch

    with torch.no_grad():
        return _tensors(module(**inputs))


def _eager_gradients(module: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    loss = _objective(module, **inputs)
    loss.backward()
    gradients = {"the loss": loss.detach()}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:  # tables of positions may be frozen
            unused = parameter.grad is None
            gradients[name] = parameter.detach() * 0 if unused else parameter.grad
    return gradients


def _objective(module: Any, **inputs: Any) -> Any:
    """A loss that depends on all that a model returns, and is not constant after norms."""
    import torch

    found = [t for t in _tensors(module(**inputs)).values() if t.is_floating_point()]
    return sum(torch.sin(t.float() + 0.5).mean() for t in found)


def _tensors(output: Any) -> dict[str, Any]:
    """The tensors in a model's output, by path."""
    import torch
    from torch.utils._pytree import keystr, tree_flatten_with_path

    paths, _ = tree_flatten_with_path(output)
    return {keystr(p): leaf for p, leaf in paths if isinstance(leaf, torch.Tensor)}


def relative_error(actual: dict[str, Any], expected: dict[str, Any]) -> tuple[float, str]:
    """The largest error, relative to the largest element of its tensor or a small part of all."""
    import torch

    worst, where = 0.0, ""
    finite = [v.double().abs().max().item() for v in expected.values() if v.numel()]
    floor = 1e-2 * max([v for v in finite if v < float("inf")], default=1.0)
    for name in expected.keys() & actual.keys():
        a, b = actual[name].double(), expected[name].double()
        if a.shape != b.shape:
            return float("inf"), f"{name} has shape {[*a.shape]}, not {[*b.shape]}"
        if not b.numel():
            continue
        off = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
        off = torch.where(off.isnan(), float("inf"), off).max().item()
        most = b[b.isfinite()].abs().max().item() if bool(b.isfinite().any()) else 0.0
        error = off / max(most, floor, 1e-12)
        if error > worst:
            worst, where = error, name
    missing = expected.keys() ^ actual.keys()
    return (float("inf"), f"missing {sorted(missing)[0]}") if missing else (worst, where)
