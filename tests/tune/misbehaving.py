"""A target whose candidates crash, hang, fail or compute something else, as their options say."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import replace

from weft.ir.types import F32
from weft.kernels.kernel import Affine, Factor, Kernel, Load, Operand, Schedule, Store
from weft.target import AS_MODELLED, SequentialLaunches, Target

SIZE = 64
COPY = Kernel(
    "copy",
    (Factor("i0", SIZE),),
    (Operand(F32, (SIZE,), False), Operand(F32, (SIZE,), True)),
    (Load(0, Affine((1,)), F32), Store(1, Affine((1,)), 0)),
    Schedule("in_order", (0,)),
)


def candidate(**options: int) -> Kernel:
    return replace(COPY, schedule=replace(COPY.schedule, options=tuple(options.items())))


CANDIDATES = {
    AS_MODELLED: candidate(wait=3),
    "crashes": candidate(crash=1),
    "fast": candidate(wait=1),
    "hangs": candidate(hang=1),
    "wrong": candidate(wrong=1),
    "unloadable": candidate(unloadable=1),
    "fails": candidate(fail=1),
    "slow": candidate(wait=5),
}


class Misbehaving(Target):
    """Copies, each in its own way."""

    name = "misbehaving"
    measures_apart = True

    def load(self, kernels):
        for kernel in kernels:
            if dict(kernel.schedule.options).get("unloadable"):
                raise ValueError("it does not compile\nfor long reasons")
        return kernels

    def commands(self):
        return SequentialLaunches(launch)


def launch(kernel, addresses):
    how = dict(kernel.schedule.options)
    if how.get("crash"):
        os.abort()
    if how.get("fail"):
        raise RuntimeError("a launch failed")
    time.sleep(how.get("wait", 0) * 1e-3 + how.get("hang", 0) * 60)
    if not how.get("wrong"):
        ctypes.memmove(int(addresses[1]), int(addresses[0]), 4 * SIZE)
