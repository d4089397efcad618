"""Workers that train with checkpoints, and are killed at random; the first writes the loss curve.

weft launch --workers 2 --restarts 99 tests/workers/launched_soak.py FOLDER STEPS CHANCE
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import numpy as np

import weft
from weft import Mesh, P

STEP = """
module @train {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%w: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                  %step: tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>})
      -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
          tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %rate = stablehlo.constant dense<0.1> : tensor<8x8xf32>
    %0 = stablehlo.dot_general %w, %w, contracting_dims = [0] x [0]
        : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %time = stablehlo.broadcast_in_dim %step, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %moved = stablehlo.add %0, %time : tensor<8x8xf32>
    %1 = stablehlo.sine %moved : tensor<8x8xf32>
    %2 = stablehlo.multiply %1, %w : tensor<8x8xf32>
    %loss = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
    %3 = stablehlo.subtract %1, %w : tensor<8x8xf32>
    %4 = stablehlo.multiply %3, %rate : tensor<8x8xf32>
    %5 = stablehlo.add %w, %4 : tensor<8x8xf32>
    return %5, %loss : tensor<8x8xf32>, tensor<f32>
  }
}
"""


def main(folder: Path, steps: int, chance: float) -> None:
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    kills = random.Random(1000 * attempt + rank)
    first = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    state = {"w": weft.put(first, P("x"), Mesh(x=4)), "step": 0}
    saves = folder / "saved"
    if saves.exists():
        state = weft.load_state(saves, state)
    program = weft.compile(STEP)
    for step in range(state["step"], steps):
        w, loss = program(state["w"], np.float32(step))  # the input of a step: no two are alike
        if rank == 0:
            with (folder / "losses.txt").open("a") as file:
                print(step, float(np.asarray(loss)).hex(), attempt, file=file)
        state = {"w": w, "step": step + 1}
        saved = weft.save_state(state, saves, background=True)
        if kills.random() < chance:
            os.kill(os.getpid(), signal.SIGKILL)
    saved.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
