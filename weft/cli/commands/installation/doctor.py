"""`weft doctor`: versions, targets, processor, cache and knobs, for bug reports."""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import weft
from weft.cache.store import LIMIT, the_store
from weft.cli.commands.installation.doctor_checks import CHECKS, run_checks
from weft.cli.parser import Subparsers, command
from weft.cli.screen import print_json, print_labelled, quantity
from weft.emit.llvm.jit.processor import host, llvm_version
from weft.emit.llvm.pool.thread_count import thread_count
from weft.errors import WeftError
from weft.knobs import CACHE, KNOBS, cache_folder
from weft.machine import bytes_text

# Optional packages: the extra that installs each, and the features that need it.
PACKAGES = {
    "numpy": ("", ""),
    "ml_dtypes": ("", ""),
    "jaxlib": ("stablehlo", "StableHLO cannot be read"),
    "jax": ("jax", "JAX functions cannot be compiled"),
    "llvmlite": ("cpu", "programs run node by node in numpy"),
    "rich": ("cli", "the command line has no colours and no progress"),
    "grpcio": (None, ""),
    "torch": (None, ""),
    "triton": (None, ""),
}
_NEEDS = {"llvm": "llvmlite", "stablehlo": "jaxlib", "jax": "jax", "plugin": "jax"}
_VECTORS = ("avx2", "avx512f", "avx512bf16", "avx512fp16", "amx-bf16", "amx-int8", "neon", "sve")
_ALSO_SHOWN = ("JAX_PLATFORMS", "XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "doctor",
        "Say in one screen what is installed, what works and what is missing: attach it to a bug "
        "report. Every part is tried with a small program.",
        "weft doctor",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show the findings; status 1 if an installed part does not work."""
    report = findings()
    if arguments.json:
        print_json(report)
    else:
        print_labelled(lines(report))
    return 0 if all(check["works"] is not False for check in report["checks"].values()) else 1


def findings() -> dict[str, Any]:
    """The findings as data."""
    versions = {name: _version(name) for name in PACKAGES}
    names = ["numpy", *(n for n, package in _NEEDS.items() if versions[package] is not None)]
    checks: dict[str, dict[str, Any]] = {
        name: {"works": None, "text": f"{_NEEDS.get(name)} is not installed"} for name in CHECKS
    }
    for done in run_checks(names):
        checks[done.name] = {"works": done.works, "text": done.text}
    return {
        "weft": weft.__version__,
        "folder": str(Path(weft.__file__).parent),
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": versions,
        "processor": processor(),
        "checks": checks,
        "cache": cache(),
        "knobs": knobs(),
        "advice": [*advice(versions)],
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def advice(versions: dict[str, str | None]) -> Iterator[str]:
    """The packages to install for missing features."""
    for name, (extra, lack) in PACKAGES.items():
        if extra and versions[name] is None:
            yield f"pip install 'weft[{extra}]' ({name}: without it {lack})"


def processor() -> dict[str, Any]:
    """The processor's model, usable cores, and vector extensions of kernels."""
    facts: dict[str, Any] = {
        "model": _model(),
        "cores": os.cpu_count(),
        "vectors": None,
        "llvm": None,
    }
    try:
        facts["threads"] = thread_count()
    except WeftError as error:  # WEFT_THREADS is invalid
        facts["threads"] = error.message
    try:
        chip = host()
        facts |= {"llvm": llvm_version(), "cpu": chip.cpu}
        facts["vectors"] = [name for name in _VECTORS if chip.has(name)]
    except (WeftError, OSError, AttributeError):
        pass  # features are read through LLVM
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        facts["memory"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return facts


def _model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


def cache() -> dict[str, Any]:
    """The cache folder, its contents, and the reason if it is not writable."""
    try:
        folder = cache_folder()
    except WeftError as error:
        return {"folder": None, "problem": error.message}
    if folder is None:
        return {"folder": None, "problem": f"no home folder, and {CACHE.name} is not set"}
    count, nbytes = the_store().size()
    problem = unwritable(folder)
    return {"folder": str(folder), "entries": count, "bytes": nbytes, "problem": problem}


def unwritable(folder: Path) -> str | None:
    """The reason that a folder, which may not exist yet, is not writable; None if it is."""
    there = folder
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not os.path.isdir(there):
        return f"{there} is not a folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written"
    try:
        free = shutil.disk_usage(there).free
    except OSError as error:
        return f"{there}: {error.strerror or error}"
    return None if free > 1 << 20 else f"the disk of {there} is full"


def knobs() -> dict[str, dict[str, str | None]]:
    """The environment variables that are set, and errors in them."""
    values: dict[str, dict[str, str | None]] = {}
    known = {knob.name: knob for knob in KNOBS}
    for name in sorted(os.environ):
        if name in known:
            try:
                known[name].value()
                problem = None
            except WeftError as error:
                problem = f"{error.message}: {error.help}"
        elif name.startswith("WEFT_"):
            near = difflib.get_close_matches(name, known, n=1)
            problem = f"unknown; did you mean {near[0]}?" if near else "unknown"
        elif name in _ALSO_SHOWN:
            problem = None
        else:
            continue
        values[name] = {"value": os.environ[name], "problem": problem}
    return values


# Display


def lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The findings as pairs of label and text."""
    yield "weft", f"{facts['weft']} in {facts['folder']}"
    yield "python", f"{facts['python']} on {facts['system']}"
    there = [f"{name} {version}" for name, version in facts["packages"].items() if version]
    lacking = [name for name, version in facts["packages"].items() if not version]
    yield "packages", ", ".join(there) + (f"; not {', '.join(lacking)}" if lacking else "")
    yield "processor", _processor_text(facts["processor"])
    for name, check in facts["checks"].items():
        yield name, f"{_mark(check['works'])} {check['text']}"
    yield "cache", _cache_text(facts["cache"])
    shown = [
        f"{name}={entry['value']}" + (f" ({entry['problem']})" if entry["problem"] else "")
        for name, entry in facts["knobs"].items()
    ]
    yield "knobs", ", ".join(shown) or "none is set"
    yield "to install", "; ".join(facts["advice"]) or "nothing is missing"


def _processor_text(facts: dict[str, Any]) -> str:
    threads, cores = facts["threads"], facts["cores"]
    used = f"{threads} of {cores} cores used" if isinstance(threads, int) else str(threads)
    parts = [facts["model"], used]
    if "memory" in facts:
        parts.append(bytes_text(facts["memory"]))
    if facts["vectors"] is not None:
        has_tiles = any(name.startswith("amx") for name in facts["vectors"])
        vectors = " ".join(facts["vectors"]) or "no vector extensions"
        parts.append(vectors + ("" if has_tiles else ", no AMX"))
        parts.append(f"LLVM {facts['llvm']}")
    return ", ".join(parts)


def _cache_text(entry: dict[str, Any]) -> str:
    if entry["folder"] is None:
        return f"{_mark(None)} {entry['problem']}"
    count = "1 entry" if entry["entries"] == 1 else f"{entry['entries']:,} entries"
    size = f"{count}, {quantity(entry['bytes'], 'B')} of {quantity(LIMIT, 'B')}"
    state = entry["problem"] or "can be written"
    return f"{_mark(entry['problem'] is None)} {entry['folder']}: {size}; {state}"


def _mark(works: bool | None) -> str:
    """`✓`, `✗` or `-`; words if the terminal's encoding lacks them."""
    marks = {True: "✓", False: "✗", None: "-"}
    try:
        "".join(marks.values()).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        marks = {True: "ok:", False: "FAILS:", None: "-"}
    return marks[works]
