"""The candidate that a product takes: the one that was measured to be the fastest, or the model's.

Measured are classes of products on this machine, each once; what was found is remembered on disk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from weft.cache.choices import is_anything_remembered
from weft.cache.store import the_store
from weft.emit.llvm.jit.machine_code import host
from weft.emit.llvm.product.blocking import chip_of
from weft.emit.llvm.product.emit import emit_product
from weft.emit.llvm.tuning.candidates import AS_MODELLED, Options, candidates, options_of
from weft.emit.llvm.tuning.measure import Bench
from weft.emit.llvm.tuning.product_class import class_of
from weft.emit.llvm.tuning.tuning import Measure, Measured, known, machine_name, tune
from weft.kernels.kernel import Kernel
from weft.knobs import Tune

KIND = "product"
_WORTH = 1 << 21  # multiplications that are worth it
_ROOM = 2 << 30  # bytes of operands that are made up
_BUDGET = 1.0  # seconds that candidates of a class may run
# What this process has looked up, by folder, machine and class: it does not change its mind.
_KNOWN: dict[tuple[tuple[Path | None, str, str], Tune], Measured | None] = {}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A candidate, and why it is the one."""

    name: str
    why: str
    options: Options = field(default_factory=dict)


def tuned(kernel: Kernel, how: Tune) -> Kernel:
    """The kernel with the options of the candidate that it takes."""
    options = choice(kernel, how).options if is_tuned(kernel) and how != "off" else {}
    return _with(kernel, options) if options else kernel


def is_tuned(kernel: Kernel) -> bool:
    """Whether a kernel has candidates: it is a product, and nobody has said how to compute it."""
    return kernel.schedule.kind == "packed" and not kernel.schedule.options


def choice(kernel: Kernel, how: Tune) -> Chosen:
    """The candidate of a product."""
    if how == "off":
        return Chosen(AS_MODELLED, "nothing is tuned")
    if how == "remembered" and not _KNOWN and not is_anything_remembered():
        return _chosen(None)
    if math.prod([factor.size for factor in kernel.factors]) < _WORTH:
        return Chosen(AS_MODELLED, "so little work is not measured")
    chip = chip_of(host())
    wanted = class_of(kernel, chip)
    at = (the_store().folder, machine_name(), wanted.text)
    if (at, how) not in _KNOWN:
        if how == "measure":
            _KNOWN[at, how] = _measured(kernel, wanted.text, candidates(wanted, chip))
            _KNOWN[at, "remembered"] = _KNOWN[at, how]
        else:
            _KNOWN[at, how] = known(KIND, wanted.text, counted=False)
    return _chosen(_KNOWN[at, how])


def explained(kernel: Kernel, how: Tune) -> Chosen | None:
    """The choice for a kernel that has its options already, if it is a product."""
    plain = _with(kernel, {})
    return choice(plain, how) if is_tuned(plain) else None


def _chosen(measured: Measured | None) -> Chosen:
    """The best one that can be had here."""
    if measured is None or (measured.seconds and AS_MODELLED not in measured.seconds):
        return Chosen(AS_MODELLED, "nothing like it was measured on this machine")
    if measured.busy:
        return Chosen(AS_MODELLED, "the machine was too busy to measure")
    if not measured.seconds:
        return Chosen(AS_MODELLED, "it is too large to be measured, or there is no other way")
    best = measured.best_of(lambda name: options_of(name) is not None) or AS_MODELLED
    took, model = (measured.seconds[name] for name in (best, AS_MODELLED))
    count = len(measured.seconds)
    why = f"measured: {1e6 * took:.0f} us"
    if best == AS_MODELLED:
        return Chosen(best, f"{why}, and none of {count - 1} others is clearly faster")
    why = f"{why}, {took / model:.2f} of what the cost model chose, the best of {count}"
    return Chosen(best, why, options_of(best) or {})


def _measured(kernel: Kernel, shape_class: str, ways: dict[str, Options]) -> Measured:
    """Times from an earlier run, or measured now."""
    if sum(operand.nbytes for operand in kernel.operands) > _ROOM:
        ways = {AS_MODELLED: {}}

    def ready() -> Measure:
        made = {name: emit_product(_with(kernel, way), host()) for name, way in ways.items()}
        return Bench(kernel, made).seconds

    return tune(KIND, shape_class, [*ways], ready, _BUDGET)


def _with(kernel: Kernel, options: Options) -> Kernel:
    schedule = replace(kernel.schedule, options=tuple(sorted(options.items())))
    return replace(kernel, schedule=schedule)
