"""Membership: which worker this process is, by the variables of the launcher that started it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

from weft.errors import WeftError
from weft.records import dataclass

PORT = 29500  # torchrun's default
PROGRESS = "weft-progress"  # the name of a worker's thread that reports its progress


@dataclass(frozen=True, slots=True)
class WorkerRank:
    """One worker: its rank among all, and the address of the first one's key-value store."""

    rank: int
    size: int
    address: str
    port: int
    local_rank: int  # its rank among the workers of its host
    local_size: int
    launcher: str

    def __post_init__(self) -> None:
        for name, rank, size in (
            ("rank", self.rank, self.size),
            ("local rank", self.local_rank, self.local_size),
        ):
            if not 0 <= rank < size:
                raise WeftError(
                    f"{self.launcher} gives this process {name} {rank} of {size}",
                    help="ranks count from 0 to the number of workers",
                )


def member(environment: Mapping[str, str] = os.environ) -> WorkerRank | None:
    """The worker that this process was launched as; None if there are no others."""
    found = launched(environment)
    return None if found is None or found.size == 1 else found


def launched(environment: Mapping[str, str] = os.environ) -> WorkerRank | None:
    """The worker that this process was launched as, alone or not; None without a launcher."""
    single = None  # it may be alone in a job of another launcher
    for find in (_torchrun, _open_mpi, _hydra, _slurm):
        found = find(environment)
        if found is not None and found.size > 1:
            return found
        single = single or found
    return single


def _torchrun(environ: Mapping[str, str]) -> WorkerRank | None:
    """By RANK and WORLD_SIZE, which torchrun and `weft launch` set."""
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    read = _reader("torchrun", environ)
    rank, size = read("RANK", None), read("WORLD_SIZE", None)
    local = read("LOCAL_RANK", rank), read("LOCAL_WORLD_SIZE", size)
    return WorkerRank(rank, size, *_address(environ, "127.0.0.1"), *local, "torchrun")


def _open_mpi(environ: Mapping[str, str]) -> WorkerRank | None:
    """By the variables of Open MPI's mpirun."""
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    return _by_mpi(environ, *names)


def _hydra(environ: Mapping[str, str]) -> WorkerRank | None:
    """By the variables of Hydra, the mpiexec of MPICH and Intel MPI.

    Slurm may set PMI_RANK, too, but no local ranks.
    """
    if "PMI_RANK" not in environ or "MPI_LOCALRANKID" not in environ:
        return None
    return _by_mpi(environ, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")


def _by_mpi(
    environ: Mapping[str, str], rank: str, size: str, local_rank: str, local_size: str
) -> WorkerRank:
    """By the names of an MPI's variables."""
    read = _reader("mpirun", environ)
    ranks = read(rank, None), read(size, None)
    local = read(local_rank, ranks[0]), read(local_size, ranks[1])
    if local[1] < ranks[1] and "MASTER_ADDR" not in environ:
        raise WeftError(
            "mpirun does not pass the address of the first worker to the other hosts",
            help="mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ..., or -genv MASTER_ADDR HOST",
        )
    return WorkerRank(*ranks, *_address(environ, "127.0.0.1"), *local, "mpirun")


def _slurm(environ: Mapping[str, str]) -> WorkerRank | None:
    """By the variables of Slurm's srun; a batch script's own shell has no SLURM_STEP_ID."""
    if "SLURM_PROCID" not in environ or "SLURM_STEP_ID" not in environ:
        return None
    read = _reader("Slurm", environ)
    rank, size = read("SLURM_PROCID", None), read("SLURM_STEP_NUM_TASKS", read("SLURM_NTASKS", 1))
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST", "127.0.0.1")
    address, port = _address(environ, first_host(nodes))
    if "MASTER_PORT" not in environ:  # two jobs may share a host
        port = 20000 + read("SLURM_JOB_ID", 0) % 20000
    local = read("SLURM_LOCALID", rank)
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "").split("(")[0].split(",")[0]
    local_size = int(tasks) if tasks.isdecimal() else local + 1
    return WorkerRank(rank, size, address, port, local, max(local_size, local + 1), "Slurm")


def first_host(listed: str) -> str:
    """The first host of Slurm's list: `node[003-006,9],other` begins with `node003`."""
    found = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?", listed)
    return listed if found is None else found[1] + (found[2] or "")


def _address(environ: Mapping[str, str], host: str) -> tuple[str, int]:
    port = _reader("the launcher", environ)("MASTER_PORT", PORT)
    return environ.get("MASTER_ADDR", host), port


def _reader(launcher: str, environ: Mapping[str, str]) -> Callable[[str, int | None], int]:
    def read(name: str, default: int | None) -> int:
        text = environ.get(name)
        if text is None and default is not None:
            return default
        if text is None or not text.isdecimal():
            raise WeftError(
                f"{launcher} sets {name}={text}", help=f"{name} must be a nonnegative integer"
            )
        return int(text)

    return read
