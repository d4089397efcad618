"""Progress and summary of tuning on the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field

from weft.cli.screen import plural
from weft.records import dataclass
from weft.tune import TriedClass, TuneProgress, listening

_SHOWN = 4  # candidates of a class in the summary


@dataclass(slots=True)
class TuneLog:
    """The classes that were measured, or looked up to be."""

    tried: list[TriedClass] = field(default_factory=list)

    def begin(self, kernel: str, candidates: int) -> None:
        """Announce a measurement: it takes seconds."""
        print(f"tuning {kernel}: {candidates} candidates", file=sys.stderr, flush=True)

    def end(self, tried: TriedClass) -> None:
        """Note a class, with a line if it was measured now."""
        self.tried.append(tried)
        if tried.took:
            print(
                f"  {tried.best}: {tried.why}, in {tried.took:.1f} s", file=sys.stderr, flush=True
            )


@contextmanager
def logged(how: str | None) -> Iterator[TuneLog]:
    """A log of what is measured meanwhile, in the mode `measure`."""
    log = TuneLog()
    if how != "measure":
        yield log
        return
    with listening(TuneProgress(log.begin, log.end)):
        yield log


def tune_summary(tried: Sequence[TriedClass]) -> list[str]:
    """The summary of measured classes: candidates, times, failures and reasons of choices."""
    lines: list[str] = []
    measured = [one for one in tried if one.seconds]
    if measured:
        spent = sum(one.took for one in measured)
        lines.append(
            f"tuned: {plural(len(measured), 'kind')} of kernels, measured in {spent:.1f} s"
        )
    for one in measured:
        ranked = sorted(one.seconds.items(), key=lambda pair: pair[1])
        shown = ", ".join(f"{name} {1e6 * took:.1f} us" for name, took in ranked[:_SHOWN])
        more = f", and {len(ranked) - _SHOWN} more" if len(ranked) > _SHOWN else ""
        cached = "" if one.took else " (cached)"
        lines.append(f"  {one.shape_class}{cached}: {one.best}; {shown}{more}")
        lines += [f"    {name} failed: {why}" for name, why in one.failed.items()]
    return lines
