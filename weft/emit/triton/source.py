"""Triton functions from their text: compiled for a GPU, or interpreted on the host."""

from __future__ import annotations

import linecache
import os
from functools import cache
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any

from weft.array.torch_memory import ALIGNED
from weft.errors import WeftError, missing_extra

if TYPE_CHECKING:
    from weft.emit.triton.emitted import GridLaunch

HEAD = "import triton\nimport triton.language as tl\n\n\n"


def is_interpreted() -> bool:
    """Whether Triton interprets kernels on the host: TRITON_INTERPRET=1."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def require_triton() -> None:
    """Raise if Triton or PyTorch is not installed."""
    try:
        import torch  # noqa: F401
        import triton  # noqa: F401
    except ImportError:
        raise missing_extra("triton", "gpu", "the triton target") from None


def require_gpu() -> None:
    """Raise if kernels can run nowhere: no GPU is here, and Triton does not interpret them."""
    require_triton()
    import torch

    if not is_interpreted() and not torch.cuda.is_available():
        raise WeftError(
            "the triton target needs a GPU that PyTorch can use, and there is none",
            help="use target='llvm', or TRITON_INTERPRET=1 to interpret kernels on the host",
        )


@cache
def _parse_one_by_one() -> None:
    """Let one thread at a time parse a Triton function.

    Python 3.11 counts the depth of all threads' syntax trees in one number, and fails where they
    are built at the same time.
    """
    from triton.runtime.jit import JITFunction

    lock, parse = Lock(), JITFunction.parse

    def parse_alone(function: Any) -> Any:
        with lock:
            return parse(function)

    JITFunction.parse = parse_alone


@cache
def _modules() -> dict[str, Any]:
    """The names that emitted functions refer to."""
    import triton
    import triton.language as tl

    _parse_one_by_one()
    if is_interpreted():
        from weft.emit.triton.interpreted import LIB, P

        return {"triton": triton, "tl": tl, "lib": LIB, "p": P}
    from triton.language.extra import libdevice

    from weft.emit.triton import prelude

    return {"triton": triton, "tl": tl, "lib": libdevice, "p": prelude}


@cache
def function_of(name: str, text: str) -> Any:
    """The Triton function of a text."""
    require_triton()
    # Of its own, since several functions may have one name: threads make them at the same time.
    path = f"<weft {name} {sha256(text.encode()).hexdigest()[:16]}>"
    whole = HEAD + text
    # Triton reads the source of a function from its file; this is where Python looks first.
    linecache.cache[path] = (len(whole), None, whole.splitlines(True), path)
    space: dict[str, Any] = {"__name__": "weft.emit.triton.kernels", **_modules()}
    exec(compile(whole, path, "exec"), space)
    return space[name]


def compiled(launch: GridLaunch, target: Any) -> Any:
    """A function compiled for a target, which need not be here."""
    import triton
    from triton.compiler import ASTSource

    function = function_of(launch.name, launch.text)
    names = function.arg_names
    signature = dict(zip(names, launch.signature, strict=True))
    # The memory plan aligns buffers, and `adopt` foreign ones: Triton may use vector loads of 16
    # bytes.
    attributes = {(n,): [["tt.divisibility", ALIGNED]] for n in range(len(names))}
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    if not launch.fused_multiply_add:
        options["enable_fp_fusion"] = False
    source = ASTSource(function, signature, {}, attributes)
    return triton.compile(source, target=target, options=options)


def gpu_target(device: Any) -> Any:
    """The target of Triton's compiler that a PyTorch device is."""
    import torch
    from triton.backends.compiler import GPUTarget

    major, minor = torch.cuda.get_device_capability(device)
    return GPUTarget("cuda", 10 * major + minor, 32)
