"""Noise of devices: jitter of kernels, and a straggler, reproducible by a seed.

A collective begins when the last device of its group arrives. Of n devices whose arrivals differ by
a normal jitter, the last one is late by the largest of n draws; that maximum is drawn directly, so
a hundred thousand devices cost what eight cost.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from weft.records import dataclass

_NORMAL = NormalDist()
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of one step: jitter as a share of the computing time, and the slowest device."""

    jitter: float = 0.0  # the standard deviation of a stretch of computing, as a share of it
    straggler: float = 1.0  # the time of the slowest device relative to the others
    seed: int = 0

    def draws(self) -> NoiseDraws:
        """A fresh sequence of random delays."""
        return NoiseDraws(self)


class NoiseDraws:
    """The delays of one simulated step, in order."""

    def __init__(self, noise: Noise) -> None:
        self.noise = noise
        self.random = np.random.default_rng(noise.seed)

    def delay(self, computed: float, devices: int) -> float:
        """How much later than a typical device the last of a group ends its computing."""
        noise = self.noise
        late = computed * (noise.straggler - 1)
        if noise.jitter:
            # The largest of n uniform draws is distributed as u ** (1 / n).
            largest = float(self.random.random()) ** (1 / max(1, devices))
            share = _NORMAL.inv_cdf(min(max(largest, _TINY), 1 - _TINY))
            late += computed * noise.jitter * max(0.0, share)
        return late


QUIET = Noise()
