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
