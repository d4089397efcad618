"""CUDA's driver by ctypes: modules of compiled functions, their launches, and graphs.

Triton has launchers of its own, which a C compiler builds in a part of a second for each machine or
signature. Here all parameters are pointers, and no compiler or header need be installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from weft.records import dataclass

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_STATIC_SHARED = 48 << 10  # bytes that a function may use without asking for them
_HIDDEN = 4  # pointers behind a function's own: Triton's scratch, of which kernels use the first
_WARP = 32
_FUNCTIONS = {
    "cuDevicePrimaryCtxRetain": (ctypes.c_void_p, ctypes.c_int),
    "cuCtxSetCurrent": (ctypes.c_void_p,),
    "cuModuleLoadData": (ctypes.c_void_p, ctypes.c_char_p),
    "cuModuleGetFunction": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p),
    "cuFuncSetAttribute": (ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
    "cuLaunchKernel": (ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3),
    "cuGraphLaunch": (ctypes.c_void_p, ctypes.c_void_p),
    "cuGetErrorString": (ctypes.c_int, ctypes.c_void_p),
}


@cache
def driver() -> Any:
    """The driver's functions; a call releases the GIL."""
    library = ctypes.CDLL("libcuda.so.1")
    for name, types in _FUNCTIONS.items():
        getattr(library, name).argtypes = types
    return library


def require(code: int, what: str) -> None:
    """Raise the driver's error, if a call returned one."""
    if not code:
        return
    text = ctypes.c_char_p()
    driver().cuGetErrorString(code, ctypes.byref(text))
    reason = (text.value or b"unknown error").decode()
    raise RuntimeError(f"CUDA cannot {what}: {reason} (error {code})")


def enter(device: int) -> None:
    """Make the context that PyTorch uses this thread's: modules are loaded into it."""
    context = ctypes.c_void_p()
    require(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "use the GPU")
    require(driver().cuCtxSetCurrent(context), "use the GPU")


@dataclass(frozen=True, slots=True, eq=False)
class DeviceFunction:
    """A compiled Triton function in the memory of this thread's device."""

    handle: int
    threads: int  # of a program
    shared: int  # bytes
    scratch: int  # bytes of global memory for each program: tensor descriptors are built there

    @classmethod
    def load(cls, kernel: Any) -> DeviceFunction:
        """Load what Triton has compiled."""
        about, cuda = kernel.metadata, driver()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        loads = f"load {about.name}"
        require(cuda.cuModuleLoadData(ctypes.byref(module), kernel.asm["cubin"]), loads)
        name = about.name.encode()
        require(cuda.cuModuleGetFunction(ctypes.byref(function), module, name), loads)
        if about.shared > _STATIC_SHARED:
            code = cuda.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, about.shared)
            require(code, f"give {about.name} {about.shared} bytes of shared memory")
        scratch = getattr(about, "global_scratch_size", 0)
        return cls(function.value or 0, about.num_warps * _WARP, about.shared, scratch)

    def launch(self, grid: Sequence[int], pointers: Sequence[int], stream: int, at: int) -> None:
        """Enqueue it on a stream; `at` is the address of its scratch."""
        count = len(pointers) + _HIDDEN
        values = (ctypes.c_void_p * count)(*pointers, at)
        start = ctypes.addressof(values)
        parameters = (ctypes.c_void_p * count)(*range(start, start + 8 * count, 8))
        x, y, z = grid
        code = driver().cuLaunchKernel(
            self.handle, x, y, z, self.threads, 1, 1, self.shared, stream, parameters, None
        )
        if code:
            require(code, "launch a kernel")
