"""Workers that save every step in the background; one is killed, and all resume."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

import weft
from weft import Mesh, P

STEP = """
module @step {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%w: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>,
                                       tf.aliasing_output = 0 : i32})
      -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.dot_general %w, %w, contracting_dims = [0] x [0]
        : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = stablehlo.tanh %0 : tensor<8x8xf32>
    return %1 : tensor<8x8xf32>
  }
}
"""


def main(folder: Path) -> None:
    rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    first = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    state = {"w": weft.put(first, P("x"), Mesh(x=4)), "step": 0}
    if attempt != "0":
        state = weft.load_state(folder, state)
        print("resumed at", state["step"])
    program = weft.compile(STEP)
    for step in range(state["step"], 6):
        (w,) = program(state["w"])
        state = {"w": w, "step": step + 1}
        saved = weft.save_state(state, folder, background=True)
        if step == 3:
            saved.wait()
            if rank == "1" and attempt == "0":
                os.kill(os.getpid(), signal.SIGKILL)
    saved.wait()
    print("ended at", state["step"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
