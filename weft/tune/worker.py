"""`python -m weft.tune.worker`: times candidates for another process, by messages on its pipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from weft.kernels.kernel import Kernel
from weft.kernels.read import parse_kernel
from weft.target import Options, Target
from weft.tune.bench import Bench
from weft.tune.process import CandidateFailed, receive, send


class BenchWorker:
    """The candidates of the latest kernel."""

    def __init__(self) -> None:
        self.bench: Bench | None = None

    def answer(self, question: Any) -> Any:
        """The answer to a message: a time, or the reasons of failures."""
        if question[0] == "kernel":
            self.bench = None  # frees the operands of the kernel before
            return self._prepared(*question[1:])
        assert self.bench is not None, "a kernel comes first"
        match question:
            case ["load", name, text]:
                self.bench.load({name: _kernel(text)})
                return None
            case ["check", name]:
                if reason := self.bench.mismatch(name):
                    raise CandidateFailed(reason)
                return None
            case ["time", name]:
                return self.bench.seconds(name)
        raise AssertionError(f"unknown message {question[0]!r}")

    def _prepared(
        self, record: dict[str, Any], text: str, texts: Mapping[str, str]
    ) -> dict[str, str]:
        """Load candidates; why some cannot be, by name."""
        failed: dict[str, str] = {}
        candidates = {name: _kernel(one) for name, one in texts.items()}
        self.bench = Bench(_kernel(text), {}, _target(record))
        try:
            self.bench.load(candidates)  # all at once: they are compiled in parallel
        except Exception:  # noqa: BLE001  # which one, and why, is found one by one
            for name, candidate in candidates.items():
                try:
                    self.bench.load({name: candidate})
                except Exception as error:  # noqa: BLE001  # reported
                    failed[name] = reason(error)
        first = next(iter(candidates))
        if first not in failed:
            self.bench.mismatch(first)  # with which the others are compared
        return failed


def _kernel(text: str) -> Kernel:
    kernel = parse_kernel(text)
    assert isinstance(kernel, Kernel), "candidates are kernels of loops"
    return kernel


def _target(record: dict[str, Any]) -> Target:
    """The target of a record that another process of this program wrote."""
    of: type[Target] = getattr(import_module(record["module"]), record["name"])
    return of(Options(**record["options"]))


def reason(error: Exception) -> str:
    """The first line of an error."""
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, CandidateFailed) else f"{type(error).__name__}: {text[:200]}"


def main() -> None:
    """Answer messages until the pipe is closed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of kernels and libraries must not mix with answers
    worker = BenchWorker()
    while True:
        try:
            question = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = worker.answer(question)
        except Exception as error:  # noqa: BLE001  # reported by the process that asked
            # An error of a launch may leave the device unusable for this process.
            ended = question[0] != "load" and not isinstance(error, CandidateFailed)
            send(answers, {"failed": reason(error), "ended": ended})
            if ended:
                return
        else:
            send(answers, {"found": answer})


if __name__ == "__main__":
    main()
