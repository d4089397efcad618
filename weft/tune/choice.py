"""The schedule of a kernel: the fastest measured one, or the cost model's.

Each class of kernels is measured once on a machine, and cached on disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from weft.cache.choices import is_anything_remembered
from weft.cache.store import the_store
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Kernel
from weft.knobs import Tune
from weft.records import dataclass
from weft.target import AS_MODELLED, Candidates, Target
from weft.tune.bench import Bench
from weft.tune.measured import CLEARLY, Measure, Measured, recall_measurements, tune
from weft.tune.process import BenchProcess, close_worker
from weft.tune.progress import TriedClass, report_begin, report_end

_MOST_BYTES = 2 << 30  # bytes of synthetic operands
_BYTES_OUT_OF_PROCESS = 8 << 30  # the same, in the memory of a device
_BUDGET = 1.0  # seconds of measurement for a class
_BUDGET_OUT_OF_PROCESS = 4.0  # the same in another process, after candidates are compiled
_CLEARLY_OUT_OF_PROCESS = 0.985  # the winner's time over the default's
# Two threads that measure at a time would time each other.
_ONE_AT_A_TIME = threading.Lock()
# Lookups of this process, by folder, machine and class: a process never changes its choice.
_KNOWN: dict[tuple[tuple[Path | None, str, str], Tune], Measured | None] = {}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The chosen candidate, and the reason."""

    name: str
    why: str
    options: Mapping[str, int] = field(default_factory=dict)


def tuned(kernel: AnyKernel, target: Target) -> AnyKernel:
    """The kernel with its chosen options."""
    if not isinstance(kernel, Kernel) or target.options.tune == "off":
        return kernel
    best = choice(kernel, target)
    return kernel if best is None or not best.options else _with(kernel, best.options)


def choice(kernel: Kernel, target: Target) -> Chosen | None:
    """The candidate for a kernel; None if it has none."""
    how, options = target.options.tune, target.candidates(kernel)
    if options is None:
        return None
    if how == "off":
        return Chosen(AS_MODELLED, "nothing is tuned")
    if options.why_not_tuned:  # first: the reason must not depend on what else was measured
        return Chosen(AS_MODELLED, options.why_not_tuned)
    if how == "remembered" and not _KNOWN and not is_anything_remembered():
        return _best_available(None, options)
    at = (the_store().folder, options.machine, options.shape_class)
    if (at, how) not in _KNOWN:
        if how == "measure":
            _KNOWN[at, how] = _measured(kernel, options, target)
            _KNOWN[at, "remembered"] = _KNOWN[at, how]
        else:
            _KNOWN[at, how] = recall_measurements(
                options.kind, options.machine, options.shape_class, counted=False,
                clearly=_clearly(target),
            )  # fmt: skip
    return _best_available(_KNOWN[at, how], options)


def end_tuning(target: Target) -> None:
    """End the process that measured, which holds memory of the device, if there is one."""
    if target.options.tune == "measure" and target.measures_apart:
        with _ONE_AT_A_TIME:
            close_worker()


def explained(kernel: AnyKernel, target: Target) -> Chosen | None:
    """The choice of a kernel whose options are already set, if it has candidates."""
    return choice(_with(kernel, {}), target) if isinstance(kernel, Kernel) else None


def _best_available(measured: Measured | None, options: Candidates) -> Chosen:
    """The best candidate available here."""
    if measured is None or (measured.seconds and AS_MODELLED not in measured.seconds):
        return Chosen(AS_MODELLED, "nothing like it was measured on this machine")
    if measured.busy:
        return Chosen(AS_MODELLED, "the machine was too busy to measure")
    if not measured.seconds:
        return Chosen(AS_MODELLED, "it is too large to be measured, or has no other candidate")
    best = measured.best_of(lambda name: options.options(name) is not None) or AS_MODELLED
    took, model = (measured.seconds[name] for name in (best, AS_MODELLED))
    count = len(measured.seconds)
    why = f"measured: {1e6 * took:.0f} us"
    if measured.failed:
        why += f" ({len(measured.failed)} of {len(measured.tried)} cannot run)"
    if best == AS_MODELLED:
        return Chosen(best, f"{why}, and none of {count - 1} others is clearly faster")
    why = f"{why}, {took / model:.2f} of what the cost model chose, the best of {count}"
    return Chosen(best, why, options.options(best) or {})


def _measured(kernel: Kernel, options: Candidates, target: Target) -> Measured:
    """Times from the cache, or measured now."""
    ways = options.ways()
    is_apart = target.measures_apart
    most = _BYTES_OUT_OF_PROCESS if is_apart else _MOST_BYTES
    if sum(operand.nbytes for operand in kernel.operands) > most:
        ways = {AS_MODELLED: {}}
    failed: dict[str, str] = {}
    began: list[float] = []

    def ready() -> Measure:
        report_begin(kernel.name, len(ways))
        began.append(time.monotonic())
        candidates = {name: _with(kernel, way) for name, way in ways.items()}
        if not is_apart:
            return Bench(kernel, candidates, target).seconds
        bench = BenchProcess(kernel, candidates, target)
        bench.failed = failed
        bench.prepare()
        return bench.seconds

    budget = _BUDGET_OUT_OF_PROCESS if is_apart else _BUDGET
    with _ONE_AT_A_TIME:
        measured = tune(
            options.kind, options.machine, options.shape_class, [*ways], ready, budget, failed,
            _clearly(target),
        )  # fmt: skip
    took = time.monotonic() - began[0] if began else 0.0
    best = _best_available(measured, options)
    report_end(
        TriedClass(
            kernel.name,
            options.shape_class,
            took,
            measured.seconds,
            measured.failed,
            best.name,
            best.why,
        )
    )
    return measured


def _clearly(target: Target) -> float:
    """The share of the model's time that a winner may take: a device alone has less noise."""
    return _CLEARLY_OUT_OF_PROCESS if target.measures_apart else CLEARLY


def _with(kernel: Kernel, options: Mapping[str, int]) -> Kernel:
    schedule = replace(kernel.schedule, options=tuple(sorted(options.items())))
    return replace(kernel, schedule=schedule)
