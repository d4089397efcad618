"""Interpolation of measured collectives: latency and bandwidth underneath, kriging on top.

The seconds of one kind of collective are first fitted by `latency(n) + bytes / bandwidth(n)`, with
power laws of the group size n. What that leaves is interpolated in log-log by kriging: a weighted
mean of the nearest measured rows, whose weights follow from how alike rows are. Rows are alike if
they are of one curve (all but the size equal), of neighbouring sizes and groups, or of equal bytes
for each device, which is where protocols switch. Outliers lose weight until the others agree.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import numpy.typing as npt

from weft.records import dataclass

Floats = npt.NDArray[np.float64]
_NEIGHBOURS = 32  # rows that an estimate is made of
_ROUNDS = 4  # of iterative reweighting, which lowers the weight of outliers
_SPOT = 0.3  # log2 of sizes and groups that are the same spot of two machines


@dataclass(frozen=True, slots=True)
class CovarianceParameters:
    """Hyperparameters of the Gaussian process's covariance, fitted by leaving rows out."""

    # Standard deviations in log seconds; `_sizes` and `_groups` are length scales in doublings.
    curve: float  # of one curve
    curve_sizes: float
    kind: float  # shared by all curves of a kind, over sizes and groups
    kind_sizes: float
    kind_groups: float
    share: float  # the same over the bytes of each device
    share_sizes: float
    share_groups: float
    spot: float  # deviation of one size and group that machines of a family share
    noise: float  # of a small measurement, in log seconds
    quiet: float  # the share of it that large ones have
    large: float  # log2 of the bytes from which measurements are quiet
    tails: float  # degrees of freedom of the noise: the fewer, the less an outlier counts
    machines: float  # correlation of two machines of a family
    spread: float  # half width of the 90% interval of left-out rows, in standard deviations


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of one kind of collective on the machines of one family, as arrays."""

    machine: npt.NDArray[np.int64]
    variant: npt.NDArray[np.int64]  # the pattern
    dtype: npt.NDArray[np.int64]
    devices: npt.NDArray[np.int64]  # in all groups
    group: Floats  # log2 of the group's devices
    size: Floats  # log2 of the bytes
    seconds: Floats  # their log
    rounding: Floats  # deviation of the published figure's last digit, in log seconds

    def take(self, chosen: npt.NDArray[np.int64]) -> TableRows:
        """Some of the rows."""
        return TableRows(*(getattr(self, f.name)[chosen] for f in fields(self)))


def covariance(a: TableRows, b: TableRows, like: CovarianceParameters) -> Floats:
    """The covariance of the deviations of two sets of rows, as a matrix."""
    sizes = np.abs(a.size[:, None] - b.size)
    groups = np.abs(a.group[:, None] - b.group)
    shares = np.abs((a.size - a.group)[:, None] - (b.size - b.group))
    machine, variant = a.machine[:, None] == b.machine, a.variant[:, None] == b.variant
    dtype, devices = a.dtype[:, None] == b.dtype, a.devices[:, None] == b.devices
    curve = machine & variant & dtype & devices & (groups == 0)
    # Matern 3/2 over sizes: curves of a kind are smooth, but for the steps of protocols.
    smooth = np.sqrt(3.0) * sizes / like.kind_sizes
    shared = like.kind**2 * (1 + smooth) * np.exp(-smooth - groups / like.kind_groups)
    shared += like.share**2 * np.exp(-shares / like.share_sizes - groups / like.share_groups)
    shared += like.spot**2 * ((sizes < _SPOT) & (groups < _SPOT))
    # Patterns and element types hardly matter: two that differ in these are nearly alike.
    shared *= np.where(machine, 1.0, like.machines) * np.where(variant, 1.0, 0.95)
    shared *= np.where(dtype, 1.0, 0.99)
    return np.asarray(shared + like.curve**2 * curve * np.exp(-sizes / like.curve_sizes))


def noise(rows: TableRows, like: CovarianceParameters) -> Floats:
    """The variance of measurements."""
    small = 1 / (1 + np.exp(rows.size - like.large))
    scale = like.noise * (like.quiet + (1 - like.quiet) * small)
    return np.asarray(scale**2 + rows.rounding**2)


def deviation(
    ask: TableRows, rows: TableRows, left: Floats, like: CovarianceParameters
) -> tuple[float, float]:
    """The predicted residual of the row `ask` from the fit, by kriging, and its standard deviation.

    `left` are the residuals of the measured rows.
    """
    near = covariance(ask, rows, like)[0]
    if len(near) > _NEIGHBOURS:
        chosen = np.argpartition(-near, _NEIGHBOURS)[:_NEIGHBOURS]
        near, rows, left = near[chosen], rows.take(chosen), left[chosen]
    among, own = covariance(rows, rows, like), noise(rows, like)
    weights = own
    for _ in range(_ROUNDS):  # as if the noise were Student's: an outlier's own variance grows
        solved = np.linalg.solve(among + np.diag(weights), np.stack([left, near], axis=1))
        apart = solved[:, 0] * weights
        weights = own * (like.tails + apart**2 / own) / (like.tails + 1)
    found = float(near @ solved[:, 0])
    prior = float(covariance(ask, ask, like)[0, 0])
    variance = prior - float(near @ solved[:, 1]) + float(noise(ask, like)[0])
    return found, float(np.sqrt(max(variance, 1e-8)))


@dataclass(frozen=True, slots=True)
class Fit:
    """`latency(n) + bytes / bandwidth(n)`, both power laws of the group size."""

    parameters: tuple[float, float, float, float]

    def log_seconds(self, group: Floats, size: Floats) -> Floats:
        """Log seconds of groups (log2 of devices) and sizes (log2 of bytes)."""
        latency, transfer = self.parts(group, size)
        return np.asarray(np.logaddexp(latency, transfer))

    def parts(self, group: Floats, size: Floats) -> tuple[Floats, Floats]:
        """Log seconds of the latency, and of the transfer."""
        # Centred at 8 devices (log2 is 3), so that constants and exponents are fitted apart.
        a, b, c, d = self.parameters
        return a + b * (group - 3), size * np.log(2) - (c + d * (group - 3))


_RIDGE = np.array([1e-3, 1e-1, 1e-3, 1e-1])  # of the exponents more than of the constants


def fit(group: Floats, size: Floats, seconds: Floats) -> Fit:
    """The fit to rows, by Gauss-Newton on log seconds; outliers beyond 15% count less."""
    small, large = seconds[np.argsort(size)[: max(1, len(size) // 4)]], np.argmax(size)
    rate = size[large] * np.log(2) - seconds[large]
    at = np.array([float(np.median(small)), 0.0, float(rate), 0.0])
    design = np.stack([np.ones_like(group), group - 3], axis=1)
    for _ in range(30):
        current = Fit(tuple(at))
        latency, _transfer = current.parts(group, size)
        log_seconds = current.log_seconds(group, size)
        off = seconds - log_seconds
        weight = 1 / np.maximum(1.0, np.abs(off) / 0.15)
        # The derivatives of log(latency + transfer) by their logs are the shares of the two.
        share = np.exp(latency - log_seconds)[:, None]
        slope = np.concatenate([design * share, design * (share - 1)], axis=1)
        pull = slope.T @ (weight * off) - _RIDGE * np.array([0.0, at[1], 0.0, at[3]])
        at = at + np.linalg.solve(slope.T @ (slope * weight[:, None]) + np.diag(_RIDGE), pull)
    return Fit(tuple(at))
