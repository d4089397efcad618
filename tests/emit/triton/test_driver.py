"""Launches by CUDA's driver, without a GPU: what it would read, and its errors."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from weft.emit.triton.runtime import driver
from weft.emit.triton.runtime.driver import DeviceFunction, require


class Recorder:
    """A driver that keeps what launches give it."""

    def __init__(self, code=0):
        self.code, self.launched = code, []

    def cuLaunchKernel(self, *given):
        *numbers, parameters, extra = given
        addresses = [ctypes.c_void_p.from_address(at).value for at in [*parameters][:4]]
        self.launched.append((numbers, addresses, extra))
        return self.code

    def cuGetErrorString(self, code, text):
        ctypes.cast(text, ctypes.POINTER(ctypes.c_char_p))[0] = b"out of memory"
        return 0

    def cuModuleLoadData(self, module, image):
        assert image == b"a cubin"
        return 0

    def cuModuleGetFunction(self, function, module, name):
        ctypes.cast(function, ctypes.POINTER(ctypes.c_void_p))[0] = 77 if name == b"kernel" else 0
        return 0

    def cuFuncSetAttribute(self, function, attribute, value):
        return 2 if value > 200_000 else 0


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    monkeypatch.setattr(driver, "driver", lambda: made)
    return made


def kernel(shared):
    about = SimpleNamespace(name="kernel", shared=shared, num_warps=4, global_scratch_size=128)
    return SimpleNamespace(metadata=about, asm={"cubin": b"a cubin"})


def test_a_launch_passes_addresses_and_scratch(recorder):
    made = DeviceFunction.load(kernel(100_000))
    assert (made.threads, made.shared, made.scratch) == (128, 100_000, 128)
    made.launch((5, 2, 1), [0x1000, 1 << 40], 9, 0x2000)
    ((numbers, addresses, extra),) = recorder.launched
    assert numbers == [77, 5, 2, 1, 128, 1, 1, 100_000, 9] and extra is None
    assert addresses == [0x1000, 1 << 40, 0x2000, None]


def test_errors_are_the_drivers(recorder):
    with pytest.raises(RuntimeError, match=r"shared memory: out of memory \(error 2\)"):
        DeviceFunction.load(kernel(300_000))
    recorder.code = 2
    with pytest.raises(RuntimeError, match="cannot launch a kernel: out of memory"):
        DeviceFunction(77, 32, 0, 0).launch((1, 1, 1), [], 0, 0)
    require(0, "do anything")
