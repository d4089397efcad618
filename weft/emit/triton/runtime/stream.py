"""PyTorch's current stream of a device, and events in it."""

from __future__ import annotations

from typing import Any


class TorchEvent:
    """A point in a CUDA stream, or a later one: nothing is recorded until something waits for it.

    Recording costs more host time than launching a graph, and few results are waited for one by
    one.
    """

    __slots__ = ("done", "stream")

    def __init__(self, stream: Any) -> None:
        self.stream, self.done = stream, False

    @property
    def is_ready(self) -> bool:
        """Whether all earlier work is done."""
        self.done = self.done or bool(self.stream.query())
        return self.done

    def wait(self) -> None:
        """Block until all earlier work is done."""
        if not self.done:
            self.stream.synchronize()
            self.done = True


class TorchStream:
    """The stream on which PyTorch's own work runs, so that neither waits for the other in vain."""

    def __init__(self, device: Any) -> None:
        import torch

        self.cuda, self.device, self.index = torch.cuda, device, device.index
        self.raw_stream = torch._C._cuda_getCurrentRawStream
        self.known: dict[int, Any] = {}  # streams by their handles

    @property
    def current(self) -> Any:
        """PyTorch's current stream."""
        raw = self.raw_stream(self.index)
        found = self.known.get(raw)
        if found is None:
            found = self.known[raw] = self.cuda.current_stream(self.device)
        return found

    def record(self) -> TorchEvent:
        """An event after all work enqueued so far."""
        found = self.known.get(self.raw_stream(self.index))
        return TorchEvent(self.current if found is None else found)

    def wait(self, event: Any) -> None:
        """Make later work wait for an event."""
        if isinstance(event, TorchEvent):
            self.current.wait_stream(event.stream)
        else:
            event.wait()

    def synchronize(self) -> None:
        """Block until all work enqueued so far is done."""
        self.current.synchronize()
