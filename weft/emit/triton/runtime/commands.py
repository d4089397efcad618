"""The launch queue: kernels in order on one stream, replayed as a CUDA graph where addresses recur.

A graph is captured when a queue runs with the same addresses for the second time; queues remember
a few. Other addresses are launched kernel by kernel.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Callable, Hashable
from functools import cached_property, partial
from typing import Any

from weft.array.torch_memory import TorchMemory
from weft.emit.triton.runtime.driver import driver, require
from weft.target import KernelList

GRAPHS = 8  # graphs of a queue, of the latest addresses


class GraphCommands(KernelList):
    """Kernels with their operands' addresses."""

    def __init__(self, memory: TorchMemory) -> None:
        super().__init__()
        self.memory = memory
        self.graphs: dict[Hashable, Any] = {}  # by addresses; None where seen once
        self.current = _current_stream(memory)
        self.uncaptured: str | None = None  # why no graph can be captured

    @cached_property
    def scratch(self) -> Any:
        """Scratch that the kernels use one after another."""
        most = max((sum(loaded.scratch) for loaded, _ in self.listed), default=0)
        return self.memory.reserve(most) if most else None

    def run(self) -> None:
        """Enqueue all kernels."""
        if self.memory.device.type == "cpu":
            self.launch()
            return
        key = self.pointers.tobytes()
        if not self.replayed(key):
            self.run_as(key)

    def replayed(self, key: Hashable) -> bool:
        """Enqueue the graph of a key; False if it has none."""
        graph = self.graphs.get(key)
        if graph is None:
            return False
        # As `launch` does, without its call: this is most of a small program's time.
        code = graph.enqueue(graph.executable, self.current())
        if code:
            graph.refuse(code)
        return True

    def run_as(self, key: Hashable) -> None:
        """Enqueue all kernels under a key of their addresses, of which a graph is kept."""
        if self.memory.device.type == "cpu":
            self.launch()
        elif key in self.graphs and self.uncaptured is None:
            self._capture(key)
        else:
            # The oldest goes first: a dict keeps the order of insertion.
            while len(self.graphs) >= GRAPHS:
                del self.graphs[next(iter(self.graphs))]
            self.graphs[key] = None
            self.launch()

    def _capture(self, key: Hashable) -> None:
        """Capture a graph and run it; kernels that no graph takes are launched one by one."""
        try:
            self.graphs[key] = self.captured()
        except RuntimeError as error:
            self.uncaptured = str(error)
            warnings.warn(
                f"a program with {self.listed[0][0].name} runs kernel by kernel, not as a CUDA "
                f"graph: {str(error).splitlines()[0]}",
                stacklevel=2,
            )
            self.launch()
        else:
            self.graphs[key].launch(self.current())

    def launch(self) -> None:
        """Launch the kernels one by one."""
        _THREAD.enter(self.memory)
        addresses, stream = self.pointers.tolist(), self.current()
        start = 0 if self.scratch is None else self.memory.start(self.scratch)
        for loaded, part in self.listed:
            arguments, at = addresses[part], start
            for nbytes in loaded.scratch:
                arguments.append(at)
                at += nbytes
            for one in loaded.parts:
                one(arguments, stream)

    def captured(self) -> CapturedGraph:
        """The graph of a run with these addresses."""
        torch = self.memory.torch
        torch.cuda.current_blas_handle()  # this thread's, which cannot be created while capturing
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        # Outside of the capture, where a synchronization is an error.
        torch.cuda.synchronize()
        # Other threads may allocate or wait meanwhile, which a global capture would make an error.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.launch()
        graph.instantiate()
        return CapturedGraph(graph)


class _Thread(threading.local):
    """Whether libraries find this thread's CUDA context, which PyTorch sets by its first use."""

    entered = False

    def enter(self, memory: TorchMemory) -> None:
        """Set it: libraries warn of threads that have none."""
        if not self.entered and memory.device.type != "cpu":
            memory.torch.cuda.set_device(memory.device)
            memory.torch.cuda.current_stream().query()
            self.entered = True


_THREAD = _Thread()


class CapturedGraph:
    """A CUDA graph that the driver launches: PyTorch's own replay takes twice the host's time."""

    __slots__ = ("enqueue", "executable", "graph")

    def __init__(self, graph: Any) -> None:
        self.graph = graph  # owns the executable
        self.executable = ctypes.c_void_p(graph.raw_cuda_graph_exec())
        self.enqueue = driver().cuGraphLaunch

    def launch(self, stream: int) -> None:
        """Enqueue it on a stream."""
        code = self.enqueue(self.executable, stream)
        if code:
            self.refuse(code)

    def refuse(self, code: int) -> None:
        """Raise the driver's error."""
        require(code, "launch a graph")


def _current_stream(memory: TorchMemory) -> Callable[[], int]:
    """The handle of PyTorch's current stream, as a function of no arguments."""
    if memory.device.type == "cpu":
        return lambda: 0
    return partial(memory.torch._C._cuda_getCurrentRawStream, memory.device.index)
