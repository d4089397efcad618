"""An estimate: seconds, how far off they may be, and where they come from."""

from __future__ import annotations

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted seconds, the interval that holds nine of ten measurements, and the source."""

    seconds: float
    low: float
    high: float
    source: str
