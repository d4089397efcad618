"""What launched workers run: a sharded program, parts of arrays, and a fault if asked for."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial

import numpy as np

import weft
from weft import Mesh, P
from weft.colocated import colocated

MODULE = """
module @sum {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                  %w: tensor<16x4xf32>)
      -> (tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
    %0 = stablehlo.dot_general %a, %a, contracting_dims = [0] x [0]
        : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
    %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0]
        : (tensor<16x16xf32>, tensor<16x4xf32>) -> tensor<16x4xf32>
    return %1 : tensor<16x4xf32>
  }
}
"""


def next_rows(mesh: Mesh, x: weft.Array) -> weft.Array:
    """The rows of this worker, plus one."""
    return weft.put_local(np.concatenate([s.data for s in x.addressable_shards]) + 1, P("x"), mesh)


def main(fault: str) -> None:
    mesh, rank = Mesh(x=4), int(os.environ["RANK"])
    a = np.arange(128, dtype=np.float32).reshape(8, 16) % 7
    w = np.ones((16, 4), np.float32)
    program = weft.compile(MODULE)
    workers = int(os.environ["WORLD_SIZE"])
    rows = 8 // workers
    given = weft.put_local(a[rank * rows : (rank + 1) * rows], P("x"), mesh)
    assert given.shape == (8, 16) and len(given.addressable_shards) == 4 // workers
    whole = weft.put(given, P(), mesh)
    np.testing.assert_array_equal(whole, a)
    columns = weft.put(given, P(None, "x"))
    for shard in columns.addressable_shards:
        np.testing.assert_array_equal(shard.data, a[shard.index])
    beside = colocated(partial(next_rows, mesh))
    for _ in range(2):
        np.testing.assert_array_equal(weft.put(beside(given), P(), mesh), a + 1)
    for step in range(3):
        if step == 1 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "raises":
                raise ValueError("no more data")
            if fault == "stuck":
                time.sleep(100)
        (made,), (again,) = program(given, w), program(a, w)
        np.testing.assert_array_equal(made, a.T @ a @ w)
        np.testing.assert_array_equal(again, made)
    # One write: under torchrun all workers write to the same place.
    sys.stdout.write(f"devices {len(weft.devices())} sum {np.asarray(made).sum()}\n")


if __name__ == "__main__":
    main(sys.argv[1])
