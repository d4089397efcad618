"""`weft launch`: a script in several processes that share the devices of its meshes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from weft.cli.parser import Subparsers, command
from weft.cli.screen import print_json
from weft.errors import WeftError
from weft.knobs import TIMEOUT
from weft.workers.forked import CAN_FORK
from weft.workers.in_ray import RayOptions
from weft.workers.launch import LaunchJob, launch
from weft.workers.member import PORT


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "launch",
        "Run a script in several worker processes; each holds a part of the devices of a mesh.",
        "weft launch --workers 4 train.py --steps 100",
    )
    parser.add_argument("--workers", type=int, default=2, help="the workers of each host; else 2")
    parser.add_argument(
        "--restarts", type=int, default=0, help="how often a failed job starts again; else 0"
    )
    parser.add_argument(
        "--min-workers",
        type=int,
        metavar="N",
        help="start again with fewer workers after a failure, but no fewer than N",
    )
    parser.add_argument("--hosts", type=int, default=1, help="the number of hosts; else 1")
    parser.add_argument("--host", type=int, default=0, help="the number of this host, from 0 on")
    parser.add_argument(
        "--master", metavar="HOST:PORT", help="where the first worker of host 0 is reached"
    )
    parser.add_argument(
        "--start",
        choices=("fork", "spawn"),
        help="fork workers from one process that has imported PyTorch and Weft (the default on "
        "Linux), or spawn each as a new interpreter",
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="auto",
        metavar="ADDRESS",
        help="start the workers in a Ray cluster, all together or none: the cluster of this host "
        "(the default), one at an address, or `local` for a new one on this host",
    )
    for what, default in (("cpus", 1.0), ("gpus", 0.0)):
        parser.add_argument(
            f"--ray-{what}", type=float, default=default, metavar="N",
            help=f"{what[:-1].upper()}s of each worker in Ray; else {default:g}",
        )  # fmt: skip
    parser.add_argument(
        "--ray-strategy",
        choices=("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"),
        default="PACK",
        help="how Ray places the workers on hosts; else PACK",
    )
    parser.add_argument(
        "--ray-working-dir",
        metavar="FOLDER",
        help="a folder that Ray sends to all hosts, with the script in it; else they share files",
    )
    parser.add_argument("--json", action="store_true", help="print how it ended as JSON, last")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module by its name")
    parser.add_argument("script", help="the script, or the module with -m")
    own = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    own.required = False  # it may be empty: no error asks for it


def run(arguments: argparse.Namespace) -> int:
    """Start the workers and wait for them."""
    ended = launch(job_of(arguments), arguments.restarts, arguments.min_workers)
    if arguments.json:
        print_json(asdict(ended))
    if ended.rank is not None:
        print(f"error: worker {ended.rank} {ended.reason}", file=sys.stderr)
        if ended.error:
            print("\n".join(f"   |  {line}" for line in ended.error.splitlines()), file=sys.stderr)
        why = (
            "the system kills processes when memory is full; " if "SIGKILL" in ended.reason else ""
        )
        print(f"help: {why}the output of the workers, above, has the rest", file=sys.stderr)
    return ended.status


def job_of(arguments: argparse.Namespace) -> LaunchJob:
    """The job that a command line asks for."""
    if arguments.workers < 1 or arguments.hosts < 1 or arguments.restarts < 0:
        raise WeftError(
            f"{arguments.workers} workers on {arguments.hosts} hosts with {arguments.restarts} "
            "restarts",
            help="give at least one worker and host, and no negative number",
        )
    if arguments.min_workers is not None and not (
        1 <= arguments.min_workers <= arguments.workers and arguments.hosts == 1
    ):
        raise WeftError(
            f"--min-workers {arguments.min_workers} of {arguments.workers} workers on "
            f"{arguments.hosts} hosts",
            help="give a number from 1 to that of the workers, on one host",
        )
    if not 0 <= arguments.host < arguments.hosts:
        raise WeftError(
            f"--host {arguments.host} is not one of {arguments.hosts} hosts",
            help=f"hosts are numbered from 0 to {arguments.hosts - 1}",
        )
    if arguments.hosts > 1 and arguments.master is None:
        raise WeftError(
            "several hosts need to know where the first one is",
            help="give every host the same --master HOST:PORT",
        )
    _check_ray(arguments)
    if arguments.start == "fork" and not CAN_FORK:
        raise WeftError("workers are forked on Linux alone", help="--start spawn")
    if not arguments.module and not Path(arguments.script).is_file():
        raise WeftError(
            f"no such script: {arguments.script}",
            help="give a Python file, or -m and the name of a module",
        )
    address, port = "127.0.0.1", None
    if arguments.master is not None:
        address, _, text = arguments.master.partition(":")
        port = int(text) if text.isdecimal() else PORT
        if not address or (text and not text.isdecimal()) or not 0 < port < 1 << 16:
            raise WeftError(
                f"--master {arguments.master} is not an address",
                help="--master HOST:PORT, as 10.0.0.1:29500",
            )
    what = ["-m", arguments.script] if arguments.module else [arguments.script]
    forks = CAN_FORK if arguments.start is None else arguments.start == "fork"
    return LaunchJob(
        [*what, *arguments.arguments],
        arguments.workers,
        arguments.hosts,
        arguments.host,
        address,
        port,
        forks,
        _ray_options(arguments),
    )


def _check_ray(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together with Ray, which places the workers by itself."""
    if arguments.ray is None:
        return
    if arguments.hosts > 1 or arguments.master or arguments.start:
        raise WeftError(
            "--hosts, --master and --start are not for workers in a Ray cluster",
            help="Ray chooses the hosts: --ray-strategy SPREAD, and --workers is their number",
        )
    if arguments.ray_cpus < 0 or arguments.ray_gpus < 0:
        raise WeftError("a worker needs a negative resource", help="--ray-cpus 2 --ray-gpus 1")


def _ray_options(arguments: argparse.Namespace) -> RayOptions | None:
    if arguments.ray is None:
        return None
    folder = arguments.ray_working_dir
    return RayOptions(
        arguments.ray, arguments.ray_cpus, arguments.ray_gpus, arguments.ray_strategy, folder,
        TIMEOUT.value(),
    )  # fmt: skip
