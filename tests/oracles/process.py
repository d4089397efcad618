"""Oracles run in processes of their own, because some inputs end the process they run in."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Crashed(Exception):
    """The oracle's process ended, or did not answer in time."""


class Oracle:
    """A process that answers JSON with JSON, a line each; started when first needed, and again."""

    def __init__(self, module: str, timeout: float = 60.0) -> None:
        self.module = module
        self.timeout = timeout
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: object) -> Any:
        """The answer to a request; a refusal is raised as a ValueError."""
        process = self._running()
        assert process.stdin and process.stdout
        timer = threading.Timer(self.timeout, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line.endswith("\n"):
            process.kill()
            self._process = None
            raise Crashed(f"{self.module} ended with status {process.wait()}")
        kind, answer = json.loads(line)
        if kind == "error":
            raise ValueError(answer)
        return answer

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=ROOT,
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
                text=True,
            )
            atexit.register(self.close)
        return self._process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def serve(answer: Callable[[Any], object]) -> None:
    """Answer the requests on standard input, until there are no more."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what the library prints must not spoil the answers
        for line in sys.stdin:
            try:
                reply = ("ok", answer(json.loads(line)))
            except Exception as error:  # noqa: BLE001  # whatever it raises is the answer
                reply = ("error", f"{type(error).__name__}: {error}")
            print(json.dumps(reply), file=answers, flush=True)
