"""Measured programs: saved executables run and recorded here, and the page of a profile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.executable.signature import ValueSpec
from weft.ir.types import Array
from weft.loaded import load
from weft.profile import Profile
from weft.recording import recording_to
from weft.report.page import page
from weft.reporting import timeline_json
from weft.run import run


def measured_executable(
    path: str,
    folder: Path,
    arguments: Callable[[Sequence[ValueSpec]], Sequence[Array]],
    runs: int,
) -> None:
    """Run a saved executable a few times, recorded in a folder."""
    with recording_to(folder):
        loaded = load(path)
        given = arguments(loaded.signature.arguments)
        for _ in range(runs):
            for result in run(loaded.program, *given):
                result.wait()


def write_measured_report(path: str | os.PathLike[str], found: Profile) -> None:
    """Write the page of a profile: its lines beside predicted ones, and the timeline."""
    try:
        Path(path).write_text(page(measured_data(found)), encoding="utf-8")
    except OSError as error:
        raise WeftError(
            f"cannot write {os.fspath(path)}: {error.strerror or error}",
            help="name a file in a folder that exists",
        ) from None


def measured_data(profile: Profile) -> dict[str, Any]:
    """The data of the page, as JSON's types."""
    line = profile.timeline
    workers = len(line.hosts)
    if workers > 1:
        events = [replace(e, track=f"{e.worker} {e.track}") for e in line.events]
        line = replace(line, events=tuple(events))
    first = line.hosts[0]
    about = f"{first['host']}, {first['cores']} cores"
    return {
        "program": line.name,
        "machine": {"name": about},
        "mesh": [],
        "devices": workers,
        "lines": [program.as_json() for program in profile.programs],
        "timeline": timeline_json(line),
        "memory": [],
        "collectives": [],
    }
