"""Workers in a Ray cluster: an actor for each, in the bundles of a placement group.

Ray places the workers and says where they are; the actor of a worker runs the script as a process
of its own, with torchrun's variables, so that it is the same as with any other launcher.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias

from weft.errors import WeftError, missing_extra
from weft.records import dataclass
from weft.workers.failure import ERROR_FILE
from weft.workers.forked import end_with_parent
from weft.workers.own_folder import OwnFolder

# Variables of the launching process that workers on other hosts get, too.
_PASSED = ("WEFT_", "JAX_", "XLA_", "TORCH_", "NCCL_", "GLOO_", "OMP_", "HF_", "PYTHON", "TRITON_")
_KILLED = -int(signal.SIGKILL)
_CHUNK = 1.0  # seconds that a request for output waits for a line
# The environment of the worker on a node: rank, local rank, workers there, node, address and port.
Variables: TypeAlias = Callable[[int, int, int, int, str, int], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class RayOptions:
    """Where and how workers are placed in a Ray cluster."""

    address: str = "auto"  # of the cluster; "local" starts one on this host
    cpus: float = 1.0  # of each worker
    gpus: float = 0.0
    strategy: str = "PACK"
    working_dir: str | None = None  # sent to all hosts; None for a file system that they share
    timeout: float = 300.0  # seconds to wait for the resources


class WorkerActor:
    """One worker on its node: the process of the script, its output and its end."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.folder = OwnFolder("weft-ray-")
        self.note = self.folder.path / "error.json"

    def place(self) -> tuple[str, str, int]:
        """The node, its address and a free port there."""
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), port

    def start(self, command: Sequence[str], environment: Mapping[str, str], folder: str) -> int:
        """Start the script; returns the process id."""
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **environment, ERROR_FILE: str(self.note)},
            cwd=folder if folder and Path(folder).is_dir() else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Ray kills the actors of a launcher that is lost, and not what these have started.
            preexec_fn=_end_with_actor if sys.platform == "linux" else None,
        )
        self.output = {
            "out": _Lines(self.process.stdout),
            "err": _Lines(self.process.stderr),
        }
        return self.process.pid

    def lines(self, which: str) -> list[str] | None:
        """The next lines of an output, after a while none; None at its end."""
        return self.output[which].take()

    def wait(self) -> tuple[int, str]:
        """The exit code, and the note of the worker's failure."""
        assert self.process is not None, "it was started"
        code = self.process.wait()
        note = self.note.read_text() if self.note.is_file() else ""
        self.folder.remove()
        return code, note

    def send_signal(self, sent: int) -> None:
        """Send a signal to the script."""
        assert self.process is not None, "it was started"
        self.process.send_signal(sent)


def _end_with_actor() -> None:
    end_with_parent(signal.SIGKILL)


class _Lines:
    """The lines of a pipe, read ahead by a thread."""

    def __init__(self, pipe: Any) -> None:
        self.held: list[str] = []
        self.is_over = False
        self.news = threading.Condition()
        threading.Thread(target=self._read, args=(pipe,), daemon=True).start()

    def _read(self, pipe: Any) -> None:
        for line in pipe:
            with self.news:
                self.held.append(line)
                self.news.notify_all()
        with self.news:
            self.is_over = True
            self.news.notify_all()

    def take(self) -> list[str] | None:
        """The output since the last call; None at the end."""
        with self.news:
            if not self.held and not self.is_over:
                self.news.wait(_CHUNK)
            found, self.held = self.held, []
            return None if self.is_over and not found else found


@dataclass(eq=False)
class RayWorker:
    """A worker in a cluster, with the interface of a process."""

    ray: Any
    actor: Any
    ended: Any  # the future of its exit code
    note: Path  # the launcher's copy of its failure note
    stdout: Iterator[str] = field(init=False)
    stderr: Iterator[str] = field(init=False)
    returncode: int | None = None

    def __post_init__(self) -> None:
        self.stdout, self.stderr = self._lines("out"), self._lines("err")

    def _lines(self, which: str) -> Iterator[str]:
        while True:
            try:
                lines = self.ray.get(self.actor.lines.remote(which))
            except self.ray.exceptions.RayActorError:  # its node is lost
                return
            if lines is None:
                return
            yield from lines

    def poll(self) -> int | None:
        """The exit code, if the worker has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises `subprocess.TimeoutExpired` if the worker runs on."""
        if self.returncode is None:
            done, _ = self.ray.wait([self.ended], timeout=timeout)
            if not done:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            try:
                self.returncode, note = self.ray.get(self.ended)
            except self.ray.exceptions.RayActorError:  # the actor is gone, with its node or killed
                self.returncode, note = _KILLED, ""
            if note:
                self.note.write_text(note)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, sent: int) -> None:
        """Send a signal to the worker."""
        if self.returncode is None:
            self.actor.send_signal.remote(sent)

    def terminate(self) -> None:
        """Ask the worker to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the worker."""
        self.send_signal(signal.SIGKILL)


class RayGang:
    """The workers of one attempt: a placement group, and an actor in each of its bundles."""

    def __init__(self, options: RayOptions, workers: int) -> None:
        self.ray, self.options = connected(options), options
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = {"CPU": options.cpus} | ({"GPU": options.gpus} if options.gpus else {})
        self.group = placement_group([bundle] * workers, strategy=options.strategy)
        self._wait_for_resources(bundle, workers)
        kind = self.ray.remote(WorkerActor)
        self.actors = [
            kind.options(
                num_cpus=options.cpus,
                num_gpus=options.gpus,
                max_concurrency=8,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self.group, index),
            ).remote()
            for index in range(workers)
        ]

    def _wait_for_resources(self, bundle: Mapping[str, float], workers: int) -> None:
        """Wait until all bundles are reserved: workers start together or not at all."""
        try:
            self.ray.get(self.group.ready(), timeout=self.options.timeout)
        except self.ray.exceptions.GetTimeoutError:
            free = self.ray.available_resources()
            self.close()
            listed = ", ".join(f"{name} {free.get(name, 0):g}" for name in bundle)
            wanted = ", ".join(f"{name} {amount:g}" for name, amount in bundle.items())
            raise WeftError(
                f"the Ray cluster has no room for {workers} workers of {wanted} each within "
                f"{self.options.timeout:g} s: {listed} are free",
                help="start fewer workers, or with other --ray-cpus and --ray-gpus",
            ) from None

    def start(
        self, command: Sequence[str], variables: Variables, notes: Path
    ) -> dict[int, RayWorker]:
        """Start the script on every actor, with ranks in the order of nodes."""
        places = self.ray.get([actor.place.remote() for actor in self.actors])
        nodes = [*dict.fromkeys(node for node, *_ in places)]
        order = sorted(range(len(places)), key=lambda n: nodes.index(places[n][0]))
        _, address, port = places[order[0]]
        address = "127.0.0.1" if len(nodes) == 1 else address  # closed to other hosts
        passed = {name: v for name, v in os.environ.items() if name.startswith(_PASSED)}
        folder = "" if self.options.working_dir else os.getcwd()
        counts = {node: [n for n in order if places[n][0] == node] for node in nodes}
        started = []
        for rank, n in enumerate(order):
            node = places[n][0]
            local, there = counts[node].index(n), len(counts[node])
            own = variables(rank, local, there, nodes.index(node), address, port)
            started.append(self.actors[n].start.remote([*command], {**passed, **own}, folder))
        self.ray.get(started)  # calls of an actor may overtake each other
        return {
            rank: RayWorker(
                self.ray, self.actors[n], self.actors[n].wait.remote(), notes / f"{rank}.json"
            )
            for rank, n in enumerate(order)
        }

    def close(self) -> None:
        """Return the resources to the cluster."""
        from ray.util.placement_group import remove_placement_group

        for actor in getattr(self, "actors", ()):
            self.ray.kill(actor)
        remove_placement_group(self.group)


def connected(options: RayOptions) -> Any:
    """Ray, connected to a cluster or with one of its own on this host."""
    try:
        import ray
    except ImportError:
        raise missing_extra("ray", "cluster", "weft launch --ray") from None
    if ray.is_initialized():
        return ray
    runtime = {} if options.working_dir is None else {"working_dir": options.working_dir}
    where = {} if options.address == "local" else {"address": options.address}
    try:
        ray.init(**where, runtime_env=runtime, log_to_driver=False, logging_level="warning")
    except (ConnectionError, ValueError) as error:
        raise WeftError(
            f"there is no Ray cluster at {options.address}: {error}",
            help="start one with `ray start --head`, give its address, or --ray local",
        ) from None
    return ray
