"""Faults of workers: 51 of them, by action, moment and victim; the script that has one of them.

weft launch --workers 2 tests/workers/faults.py kill step 1 FOLDER
"""

from __future__ import annotations

import ctypes
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import weft
from weft import Mesh, P
from weft.workers import joined_cluster, member

PATIENCE = 6.0  # seconds until workers give each other up, once they run
STEP = """
module @step {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%w: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.dot_general %w, %w, contracting_dims = [0] x [0]
        : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = stablehlo.tanh %0 : tensor<8x8xf32>
    return %1 : tensor<8x8xf32>
  }
}
"""
OTHER = STEP.replace("@step", "@other").replace("tanh", "sine")
ACROSS = STEP.replace('"x"=4', '"y"=2, "x"=2')
PROGRAMS = {"program": OTHER, "mesh": ACROSS}


@dataclass(frozen=True)
class Fault:
    """What one of two workers does, and when."""

    action: str
    moment: str
    victim: int

    def __str__(self) -> str:
        return f"{self.action}-{self.moment}-{self.victim}"

    @property
    def is_slow(self) -> bool:
        """Whether the job goes on."""
        return self.action in ("slow", "freeze")


FAULTS = [
    *[
        Fault("kill", m, v)
        for m in ("start", "joined", "step", "collective", "save")
        for v in (0, 1)
    ],
    *[Fault("stop", m, v) for m in ("joined", "step", "save") for v in (0, 1)],
    *[Fault("raise", m, v) for m in ("start", "joined", "step") for v in (0, 1)],
    *[Fault("stuck", m, v) for m in ("step", "save") for v in (0, 1)],
    *[Fault(a, "step", v) for a in ("exit", "status", "memory", "cut") for v in (0, 1)],
    Fault("program", "joined", 1),
    Fault("order", "step", 1),
    Fault("slow", "step", 1),
    *[Fault(a, "step", v) for a in ("linger", "hang", "gil") for v in (0, 1)],
    *[Fault("crash", "collective", v) for v in (0, 1)],
    *[Fault(a, "step", 1) for a in ("freeze", "loader", "clock", "exec")],
    Fault("disk", "step", 0),
    Fault("mesh", "joined", 1),
]


def _rank() -> int:
    me = member()
    assert me is not None
    return me.rank


def strike(action: str) -> None:
    """Do what the fault is, in this worker."""
    print(f"fault: {action}", file=sys.stderr, flush=True)
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise ValueError("no more data")
        case "exit":
            sys.exit(0)
        case "status":
            os._exit(3)
        case "stuck":
            time.sleep(1000)
        case "slow":
            time.sleep(3)
        case "memory":
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + 2**28, size + 2**28))
            np.ones(2**32, np.uint8)
        case "cut":
            cut_sockets()
        case "freeze":
            subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        case "linger":
            threading.Thread(target=time.sleep, args=(1000,)).start()
            sys.exit()
        case "hang":
            threading.Thread(target=time.sleep, args=(1000,)).start()
            raise ValueError("no more data")
        case "gil":
            ctypes.PyDLL(None).sleep(1000)
        case "crash":
            ctypes.string_at(0)
        case "loader":
            rows: queue.Queue[int] = queue.Queue()
            threading.Thread(target=lambda: rows.put(1 // 0)).start()
            rows.get()
        case "disk":  # full, for this worker
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        case "clock":
            now = time.time
            time.time = lambda: now() + 3600
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exec":
            os.execvp("sleep", ["sleep", "1000"])


def cut_sockets() -> None:
    """End every connection of this process, as a network does that fails."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as found:
                    found.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def main(fault: Fault, folder: Path) -> None:
    mesh, is_victim = Mesh(x=4), _rank() == fault.victim

    def reach(moment: str) -> None:
        if is_victim and fault.moment == moment and fault.action not in (*PROGRAMS, "order"):
            strike(fault.action)

    reach("start")
    first = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    state = {"w": weft.put(first, P("x"), mesh), "step": 0}
    cluster = joined_cluster()
    assert cluster is not None
    cluster.barrier("the first step")
    cluster.coordination.timeout = cluster.wire.timeout = PATIENCE
    time.sleep(1)  # the others are past the barrier
    reach("joined")
    program, other = weft.compile(PROGRAMS.get(fault.action, STEP) if is_victim else STEP), None
    if fault.action == "order":
        other = weft.compile(OTHER)
        weft.put(program(state["w"])[0], P())
        weft.put(other(state["w"])[0], P())
    for step in range(4):
        if step == 2:
            reach("step")
            if fault.moment == "collective":
                # The victim waits for the other worker when it strikes.
                if is_victim:
                    threading.Timer(0.3, strike, [fault.action]).start()
                else:
                    time.sleep(1.5)
        runs = other if other is not None and is_victim and step == 2 else program
        (w,) = runs(state["w"])
        state = {"w": w, "step": step + 1}
        saved = weft.save_state(state, folder, background=True)
        if step == 2:
            reach("save")
        saved.wait()
    sys.stdout.write(f"ended at {state['step']}\n")  # at once: all workers of torchrun share it


if __name__ == "__main__":
    main(Fault(sys.argv[1], sys.argv[2], int(sys.argv[3])), Path(sys.argv[4]))
