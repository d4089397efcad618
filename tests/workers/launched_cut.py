"""Workers that run until their network is cut, which they ask for after some steps."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import weft
from tests.workers.faults import STEP
from weft import Mesh, P
from weft.workers import joined_cluster


def main(cut: Path) -> None:
    w = weft.put(np.ones((8, 8), np.float32), P("x"), Mesh(x=4))
    program, cluster = weft.compile(STEP), joined_cluster()
    assert cluster is not None
    cluster.barrier("the first step")
    cluster.coordination.timeout = cluster.wire.timeout = 8.0
    for step in range(1000):
        (w,) = program(w)
        np.asarray(weft.put(w, P()))
        if step == 3 and os.environ["RANK"] == "0":
            cut.touch()
        time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
