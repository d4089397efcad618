"""`weft profile`: a measured timeline of a script or an executable, beside the predicted one."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from weft.cli.arrays import random_arguments
from weft.cli.parser import Subparsers, command, natural
from weft.cli.screen import plural, print_json, print_text
from weft.errors import WeftError
from weft.executable.signature import ValueSpec
from weft.ir.types import Array
from weft.machine import seconds_text
from weft.profile import Profile, profile
from weft.profiling import measured_executable, write_measured_report
from weft.recording import FOLDER

_SHOWN = 4  # programs whose lines are printed


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "profile",
        "Measure a script, with all workers that it starts, or a saved executable: launches, "
        "collectives and compiler stages in one timeline, and each line's seconds beside the "
        "predicted ones. Kernels are launched one by one meanwhile.",
        "weft profile -- weft launch --workers 4 train.py",
    )
    parser.add_argument(
        "-o", "--timeline", metavar="OUT.json", default="profile.json",
        help="the timeline for Perfetto or chrome://tracing (default: profile.json)",
    )  # fmt: skip
    parser.add_argument("--report", metavar="OUT.html", help="write a page of timeline and lines")
    parser.add_argument(
        "--keep", metavar="FOLDER", help="keep the recordings there, to merge those of more hosts"
    )
    parser.add_argument("--runs", type=natural, default=10, help="of an executable (default: 10)")
    parser.add_argument("--seed", type=natural, default=0, help="of its random arguments")
    parser.add_argument("--json", action="store_true", help="print the profile as JSON")
    parser.add_argument(
        "what", nargs=argparse.REMAINDER, metavar="EXECUTABLE | FOLDER... | -- COMMAND ARG...",
        help="a saved executable; folders of --keep; or a command and its arguments",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, merge, write and print."""
    words: list[str] = arguments.what
    if not words or words == ["--"]:
        raise WeftError(
            "nothing to profile", help="weft profile -- python train.py, or a saved executable"
        )
    status, folders, own_folder = 0, [Path(word) for word in words], None
    _check_paths(words)
    is_script = words[0] == "--" or words[0].endswith(".py")
    is_script = is_script or not all(path.exists() for path in folders)
    if is_script or not all(path.is_dir() for path in folders):
        own_folder = _folder(arguments.keep)
        folders = [own_folder]
    try:
        if is_script:
            status = _run_command(words[words[0] == "--" :], folders[0])
        elif own_folder is not None:
            _run_executable(words, own_folder, arguments)
        result = profile(*folders, name=_name(words))
    except WeftError:
        if own_folder is not None and arguments.keep is not None:
            _discard(own_folder)
        if status:  # the command printed its own error
            why = f"the command ended with status {status}: nothing is measured"
            print(why, file=sys.stderr)  # not among JSON
            return status
        raise
    finally:
        if own_folder is not None and arguments.keep is None:
            shutil.rmtree(own_folder, ignore_errors=True)
    result.timeline.save(arguments.timeline)
    if arguments.report:
        write_measured_report(arguments.report, result)
    if arguments.json:
        print_json(result.as_json() | {"status": status, "written": arguments.timeline})
    else:
        _show(result, arguments)
    return status


def _check_paths(words: list[str]) -> None:
    """Refuse executables and folders that are missing, and folders without recordings."""
    first = Path(words[0])
    if words[0] == "--" or not (first.exists() or first.suffix == ".weft") or first.suffix == ".py":
        return  # a command, which may be named without its path
    # Words behind an existing file may be what its user takes for its arguments.
    for path in map(Path, words if first.is_dir() else words[:1]):
        if not path.exists():
            raise WeftError(
                f"there is no file or folder {path}",
                help="name a file of compiled.save, or folders of weft profile --keep",
            )
        if path.is_dir() and not any(path.glob("*.jsonl")):
            raise WeftError(
                f"the folder {path} has no recordings",
                help="name a folder that weft profile --keep has filled",
            )


def _folder(keep: str | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="weft-profile-"))
    path = Path(keep).absolute()
    if path.exists() and any(path.glob("*.jsonl")):
        raise WeftError(f"{keep} has recordings already", help="give --keep a new folder")
    return path


def _discard(folder: Path) -> None:
    """Remove the recordings of a failed run, in which nothing is measured; other files stay."""
    for path in folder.glob("*.jsonl"):
        path.unlink()
    with suppress(OSError):  # there is none, or it has other files
        folder.rmdir()


def _run_command(words: list[str], folder: Path) -> int:
    """Run a command whose processes are recorded; returns its exit status."""
    words = [sys.executable, *words] if words[0].endswith(".py") else words
    try:
        status = subprocess.run(words, env=os.environ | {FOLDER: str(folder)}, check=False)
    except OSError as error:
        raise WeftError(
            f"cannot run {words[0]}: {error.strerror or error}",
            help="give a command after --, or a saved executable",
        ) from None
    return status.returncode if status.returncode >= 0 else 128 - status.returncode


def _run_executable(words: list[str], folder: Path, arguments: argparse.Namespace) -> None:
    """Run a saved executable on random arguments, recorded in this process."""
    if len(words) > 1:
        raise WeftError(
            f"{words[0]} takes no arguments: {' '.join(words[1:])}",
            help="write -- before a command; options come before the executable",
        )
    made = partial(_random, seed=arguments.seed)
    measured_executable(words[0], folder, made, max(arguments.runs, 1))


def _random(specs: Sequence[ValueSpec], seed: int) -> list[Array]:
    return [a for a in random_arguments([s.type for s in specs], seed) if a is not None]


def _name(words: list[str]) -> str:
    rest = [word for word in words if word.endswith(".py")] or words[words[0] == "--" :]
    return Path(rest[0]).name


def _show(result: Profile, arguments: argparse.Namespace) -> None:
    for program in result.programs[:_SHOWN]:
        head, *lines = str(program).split("\n")
        print_text(head, "bold")
        print("\n".join(lines))
    if left := result.programs[_SHOWN:]:
        print_text(f"{plural(len(left), 'program')} more; --json has all", "dim")
    workers = len(result.timeline.hosts)
    if workers > 1:
        waited = [f"{worker} ({seconds_text(s)})" for worker, s in result.waited.items()][:4]
        them = "worker" if len(waited) == 1 else "workers"
        last = f"; the others waited longest for {them} {', '.join(waited)}" if waited else ""
        print_text(f"{result.matched:,} collectives matched on {workers} workers{last}")
    if result.dropped:
        print_text(f"{plural(result.dropped, 'run')} past the limit of events are left out")
    written = [arguments.timeline, *([arguments.report] if arguments.report else [])]
    print_text(f"written: {', '.join(written)}; ui.perfetto.dev opens the timeline", "dim")
