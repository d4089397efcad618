"""`weft launch`: a script in several processes that share the devices of its meshes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from weft.cli.parser import Subparsers, command
from weft.cli.screen import print_json
from weft.errors import WeftError
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
    parser.add_argument("--hosts", type=int, default=1, help="the number of hosts; else 1")
    parser.add_argument("--host", type=int, default=0, help="the number of this host, from 0 on")
    parser.add_argument(
        "--master", metavar="HOST:PORT", help="where the first worker of host 0 is reached"
    )
    parser.add_argument("--json", action="store_true", help="print how it ended as JSON, last")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module by its name")
    parser.add_argument("script", help="the script, or the module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")


def run(arguments: argparse.Namespace) -> int:
    """Start the workers and wait for them."""
    ended = launch(job_of(arguments), arguments.restarts)
    if arguments.json:
        print_json(asdict(ended))
    if ended.rank is not None:
        print(f"error: worker {ended.rank} {ended.reason}", file=sys.stderr)
        print("help: its own output, above, has the reason", file=sys.stderr)
    return ended.status


def job_of(arguments: argparse.Namespace) -> LaunchJob:
    """The job that a command line asks for."""
    if arguments.workers < 1 or arguments.hosts < 1 or arguments.restarts < 0:
        raise WeftError(
            f"{arguments.workers} workers on {arguments.hosts} hosts with {arguments.restarts} "
            "restarts",
            help="give at least one worker and host, and no negative number",
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
    if not arguments.module and not Path(arguments.script).is_file():
        raise WeftError(
            f"no such script: {arguments.script}",
            help="give a Python file, or -m and the name of a module",
        )
    address, port = "127.0.0.1", None
    if arguments.master is not None:
        address, _, text = arguments.master.partition(":")
        port = int(text) if text.isdecimal() else PORT
        if not address or (text and not text.isdecimal()):
            raise WeftError(
                f"--master {arguments.master} is not an address",
                help="--master HOST:PORT, as 10.0.0.1:29500",
            )
    what = ["-m", arguments.script] if arguments.module else [arguments.script]
    line = [sys.executable, *what, *arguments.arguments]
    return LaunchJob(line, arguments.workers, arguments.hosts, arguments.host, address, port)
