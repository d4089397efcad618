"""DLPack through the door: memory shared both ways, and held as long as somebody reads it."""

from __future__ import annotations

import importlib.util

import pytest

from tests.jax.door import run_on_weft

HEAD = """
import gc
import numpy as np, jax, jax.numpy as jnp
D = jax.devices()
A = np.arange(64, dtype=np.float32).reshape(8, 8)
zero = jax.jit(lambda a: a * 0, donate_argnums=0)
churn = lambda size: [jnp.zeros(size) + n for n in range(20)]
"""

NUMPY = (
    HEAD
    + """
from jax.dlpack import from_dlpack
array = jnp.asarray(A) + 1
assert tuple(map(int, array.__dlpack_device__())) == (1, 0)
np.testing.assert_array_equal(np.from_dlpack(array), A + 1)
for name in "int8 uint8 int16 int32 uint32 float16 float32 complex64 bool".split():
    given = np.arange(6).astype(name).reshape(2, 3)
    np.testing.assert_array_equal(np.from_dlpack(jnp.asarray(given)), given)
    back = jnp.from_dlpack(given)
    assert back.dtype == given.dtype and back.tolist() == given.tolist()
for shape in ((), (0,), (2, 0, 3), (3, 1, 2)):
    assert jnp.from_dlpack(np.ones(shape, np.float32)).shape == shape
    assert np.from_dlpack(jnp.ones(shape)).shape == shape
np.testing.assert_array_equal(jnp.from_dlpack(A.T), A.T)
np.testing.assert_array_equal(jnp.from_dlpack(A[::2, 1:]), A[::2, 1:])
half = jnp.arange(5).astype(jnp.bfloat16)
assert from_dlpack(half).dtype == jnp.bfloat16
assert from_dlpack(A.copy(), device=D[1]).devices() == {D[1]}

# The memory is the same, unless a copy is asked for.
assert from_dlpack(array).unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
assert np.from_dlpack(array).ctypes.data == array.unsafe_buffer_pointer()
assert from_dlpack(array, copy=True).unsafe_buffer_pointer() != array.unsafe_buffer_pointer()
odd = np.zeros(65, np.uint8)[1:]
try:
    from_dlpack(odd, copy=False)
except ValueError as error:
    assert "requires a copy" in str(error)
assert from_dlpack(odd).sum() == 0

# It lives as long as it is read, and is not written to.
array = jnp.arange(100000.0) + 1
view = np.from_dlpack(array)
total = view.sum()
array.delete()
churned = churn(100000)
assert view.sum() == total
array = jnp.arange(1000.0) + 1
view, total = np.from_dlpack(array), 500500
zero(array).block_until_ready()
assert view.sum() == total and array.is_deleted()
given = np.arange(100000.0, dtype=np.float32)
array = jnp.from_dlpack(given)
zero(array).block_until_ready()
assert given.sum() > 0
capsule = (jnp.ones(3) + 1).__dlpack__()
del capsule
gc.collect()
capsules = [(jnp.ones(3) + n).__dlpack__() for n in range(1000)]
del capsules
gc.collect()

mesh = jax.make_mesh((8,), ("x",))
split = jax.device_put(A, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
try:
    np.from_dlpack(split)
except BufferError as error:
    print("8 devices" in str(error) or "unsharded" in str(error))
"""
)


def test_numpy() -> None:
    assert run_on_weft(NUMPY) == "True\n"


VERSIONED = (
    HEAD
    + """
import ctypes, ml_dtypes
from weft.jax.buffers.dlpack import array_in, tensor_of
from weft.jax.plugin import the_plugin
handles = the_plugin().handles

class Lent:  # what JAX 0.12 hands out, whichever JAX this is
    def __init__(self, array, **how):
        self.array, self.how = array, how
    def __dlpack_device__(self):
        return 1, 0
    def __dlpack__(self, **asked):
        return tensor_of(handles, self.array, max_version=(1, 0), **self.how)

view = np.from_dlpack(Lent(A))
assert view.ctypes.data == A.ctypes.data and not view.flags.writeable
np.testing.assert_array_equal(view, A)
assert np.from_dlpack(Lent(A, copied=True), copy=None).shape == A.shape
assert 'dltensor_versioned"' in repr(tensor_of(handles, A, max_version=(1, 3)))
assert '"dltensor"' in repr(tensor_of(handles, A, max_version=(0, 8)))
capsules = [Lent(A[n % 8]).__dlpack__() for n in range(1000)]
del capsules
view = np.from_dlpack(Lent(np.arange(1000.0)))
churned = churn(1000)
assert view.sum() == 499500

# In: as numpy and torch write them today, read-only ones, scalars and no elements, too.
A.flags.writeable = False
for given in (A, A[::2, 1:], np.full((), 3.0), np.zeros((0, 4))):
    np.testing.assert_array_equal(array_in(given.__dlpack__(max_version=(1, 0))), given)
narrow = "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3fn float8_e4m3b11fnuz float8_e4m3fnuz "
narrow += "float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
for name in narrow.split():
    given = np.arange(1, 7).astype(getattr(ml_dtypes, name))
    for version in ((1, 0), None):
        back = array_in(tensor_of(handles, given, max_version=version))
        assert back.dtype == given.dtype and back.tobytes() == given.tobytes()
whole = np.arange(3).__dlpack__(max_version=(1, 0))
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
major = ctypes.c_uint32.from_address(pointer(whole, b"dltensor_versioned"))
major.value = 2
try:
    array_in(whole)
except BufferError as error:
    print(error)
major.value = 1
"""
)


def test_versions_of_dlpack() -> None:
    assert run_on_weft(VERSIONED) == "a tensor of DLPack 2.0; 1.x is read\n"


TORCH = (
    HEAD
    + """
import torch
tensor = torch.arange(1000.0)
array = jnp.from_dlpack(tensor)
assert array.unsafe_buffer_pointer() == tensor.data_ptr()
del tensor
gc.collect()
taken = [torch.zeros(1000) for _ in range(50)]
assert array.sum() == 499500 and jax.jit(lambda a: a[::2])(array).sum() == 249500
array = jnp.arange(1000.0) + 1
tensor = torch.from_dlpack(array)
array.delete()
churned = churn(1000)
assert float(tensor.sum()) == 500500
assert torch.from_dlpack(jnp.arange(4).astype(jnp.bfloat16)).float().tolist() == [0, 1, 2, 3]
given = torch.arange(1000.0)
zero(jnp.from_dlpack(given)).block_until_ready()
print(float(given.sum()))
"""
)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_torch() -> None:
    assert run_on_weft(TORCH) == "499500.0\n"
