"""The launch queue: kernels in order on one stream, replayed as a CUDA graph where addresses recur.

A graph is captured when a queue runs with the same addresses for the second time; queues remember
a few. Other addresses are launched kernel by kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from weft.array.torch_memory import TorchMemory
from weft.emit.triton.runtime.load import LoadedParts
from weft.target import Addresses

GRAPHS = 8  # graphs of a queue, of the latest addresses


class GraphCommands:
    """Kernels with their operands' addresses."""

    def __init__(self, memory: TorchMemory) -> None:
        self.memory = memory
        # Without Python's wrapper; PyTorch for CPUs has no graphs.
        self.replay: Any = getattr(memory.torch.cuda.CUDAGraph.__mro__[1], "replay", None)
        self.listed: list[tuple[LoadedParts, slice]] = []
        self.operands: list[int] = []
        self.graphs: dict[bytes, Any] = {}  # by addresses; None where seen once
        self.uncaptured: str | None = None  # why no graph can be captured

    def kernel(self, loaded: LoadedParts, operands: Sequence[int]) -> int:
        """Append a kernel."""
        start = len(self.operands)
        self.operands += operands
        self.listed.append((loaded, slice(start, len(self.operands))))
        return start

    @cached_property
    def pointers(self) -> Addresses:
        """The addresses of all operands, allocated on first use."""
        return np.array(self.operands, np.uint64)

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
        graph = self.graphs.get(key)
        if graph is not None:
            self.replay(graph)
        elif key in self.graphs and self.uncaptured is None:
            self._capture(key)
        else:
            # The oldest goes first: a dict keeps the order of insertion.
            while len(self.graphs) >= GRAPHS:
                del self.graphs[next(iter(self.graphs))]
            self.graphs[key] = None
            self.launch()

    def _capture(self, key: bytes) -> None:
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
            self.replay(self.graphs[key])

    def launch(self) -> None:
        """Launch the kernels one by one."""
        addresses, stream = self.pointers.tolist(), self._stream()
        start = 0 if self.scratch is None else self.memory.start(self.scratch)
        for loaded, part in self.listed:
            given, at = addresses[part], start
            for nbytes in loaded.scratch:
                given.append(at)
                at += nbytes
            for one in loaded.parts:
                one(given, stream)

    def _stream(self) -> int:
        if self.memory.device.type == "cpu":
            return 0
        device = self.memory.device
        stream: int = self.memory.torch._C._cuda_getCurrentRawStream(device.index)
        return stream

    def captured(self) -> Any:
        """The graph of a run with these addresses."""
        torch = self.memory.torch
        torch.cuda.current_blas_handle()  # this thread's, which cannot be created while capturing
        graph = torch.cuda.CUDAGraph()
        # Outside of the capture, where a synchronization is an error.
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.launch()
        return graph
