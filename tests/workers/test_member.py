"""Which worker a process is, by the variables of every launcher."""

from __future__ import annotations

import pytest

from weft.errors import WeftError
from weft.mesh import Axis, Mesh
from weft.mesh.axes import inner_axes
from weft.workers.launch import LaunchJob, variables
from weft.workers.member import WorkerRank, first_host, member

SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[012-013],big7",
    "SLURM_JOB_ID": "40123",
}


def test_a_process_that_was_started_alone():
    assert member({}) is None
    assert member({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert member({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None, "a batch script's shell"


def test_torchrun():
    given = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    found = member({**given, "MASTER_ADDR": "head", "MASTER_PORT": "1234"})
    assert found == WorkerRank(3, 4, "head", 1234, 1, 2, "torchrun")


def test_slurm():
    found = member(SLURM)
    assert found == WorkerRank(5, 8, "gpu012", 20123, 1, 4, "Slurm")
    assert member({**SLURM, "MASTER_PORT": "1", "MASTER_ADDR": "head"}) == WorkerRank(
        5, 8, "head", 1, 1, 4, "Slurm"
    )


@pytest.mark.parametrize(
    ("listed", "first"),
    [("one", "one"), ("a,b", "a"), ("n[3-5]", "n3"), ("n[03,07],m", "n03"), ("a.b-c[1]", "a.b-c1")],
)
def test_hosts_of_slurm(listed: str, first: str):
    assert first_host(listed) == first


def test_mpirun():
    given = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
    assert member(given) == WorkerRank(1, 4, "127.0.0.1", 29500, 1, 4, "mpirun")
    several = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    with pytest.raises(WeftError, match="does not pass the address of the first worker"):
        member({**given, **several})


def test_mpich_and_intel_mpi():
    given = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    with pytest.raises(WeftError, match="-genv MASTER_ADDR HOST"):
        member(given)
    found = member({**given, "MASTER_ADDR": "head"})
    assert found == WorkerRank(3, 4, "head", 29500, 1, 2, "mpirun")
    assert member({**SLURM, "PMI_RANK": "5", "PMI_SIZE": "8"}) == member(SLURM), "srun --mpi=pmi2"


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"RANK": "4"}, "rank 4 of 4"), ({"RANK": "x"}, "RANK=x"), ({"WORLD_SIZE": "-2"}, "-2")],
)
def test_variables_that_are_wrong(changed: dict[str, str], said: str):
    with pytest.raises(WeftError, match=said):
        member({"RANK": "0", "WORLD_SIZE": "4", **changed})


def test_launched_workers_know_themselves():
    job = LaunchJob(["x"], workers=2, hosts=2, host=1, address="head")
    found = member(variables(job.ranks[1], 1, 2, 1, "head", 77, attempt=0, size=4, threads=1))
    assert found == WorkerRank(3, 4, "head", 77, 1, 2, "torchrun")


@pytest.mark.parametrize(
    ("mesh", "count", "axes"),
    [
        (Mesh(x=4), 1, ()),
        (Mesh(x=4), 4, (Axis("x"),)),
        (Mesh(x=4), 2, (Axis("x", 2, 2),)),
        (Mesh(x=2, y=4), 4, (Axis("y"),)),
        (Mesh(x=4, y=2), 4, (Axis("x", 2, 2), Axis("y"))),
        (Mesh(x=2, y=6), 3, (Axis("y", 2, 3),)),
    ],
)
def test_the_devices_of_a_worker_are_consecutive(mesh: Mesh, count: int, axes: tuple[Axis, ...]):
    assert inner_axes(mesh, count) == axes


def test_devices_that_follow_no_axis():
    with pytest.raises(WeftError, match="do not follow the axes"):
        inner_axes(Mesh(x=2, y=6), 4)
