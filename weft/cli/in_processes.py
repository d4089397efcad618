"""Jobs in forked processes, one for each core, whose results are JSON."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from weft.emit.llvm.pool.thread_count import thread_count

ProcessJob: TypeAlias = Callable[[], Any]  # its result is JSON data


def in_processes(jobs: Sequence[ProcessJob], processes: int | None = None) -> list[Any]:
    """The results of jobs in their order, by as many processes as this one may use cores.

    A job that fails in another process runs again in this one, which raises its error.
    """
    count = min(len(jobs), thread_count() if processes is None else processes)
    if count < 2 or not hasattr(os, "fork"):
        return [job() for job in jobs]
    # Interleaved: jobs that take long are often neighbours.
    children = {part: _forked(jobs[part::count]) for part in range(1, count)}
    results: list[Any] = [None] * len(jobs)
    try:
        results[::count] = [job() for job in jobs[::count]]
        for part, (child, pipe) in children.items():
            with os.fdopen(pipe, "rb", closefd=False) as reader:
                text = reader.read()
            failed = os.waitpid(child, 0)[1] != 0
            # It is reaped: `finally` must not wait for its number again.
            children[part] = (0, pipe)
            listed = jobs[part::count]
            results[part::count] = [job() for job in listed] if failed else json.loads(text)
    finally:
        for child, pipe in children.values():
            os.close(pipe)  # a child that still writes ends by the broken pipe
            if child:
                os.waitpid(child, 0)
    return results


def _forked(jobs: Sequence[ProcessJob]) -> tuple[int, int]:
    """The number of a process that runs jobs, and the pipe that their results come from."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # JAX warns of its threads; the child runs nothing of it.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    status = 1
    try:
        os.close(reader)
        text = json.dumps([job() for job in jobs]).encode()
        with os.fdopen(writer, "wb") as out:
            out.write(text)
        status = 0
    finally:
        os._exit(status)  # without the handlers of the process that it is a copy of
