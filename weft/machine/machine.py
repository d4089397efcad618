"""A machine: devices, their memory and rates, and the links between them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from weft.errors import WeftError
from weft.ir.types import DType

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.I)
_PREFIXES = ("", "K", "M", "G", "T")


@dataclass(frozen=True, slots=True)
class Links:
    """The interconnect of one domain: its device count, bandwidth and latencies."""

    name: str
    devices: int | None  # in one domain; None for all devices
    bandwidth: float  # bytes a second of a device in each direction (full duplex)
    latency: float  # seconds of latency between two devices
    launch: float  # seconds of launch overhead of a collective
    prepare: float = 0.0  # seconds of overhead of each chunk of a message
    chunk: int = 4 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices of one kind: memory, compute rates and interconnect, in bytes and seconds."""

    name: str
    about: str
    memory: int  # bytes of one device
    bandwidth: float  # bytes a second to and from its memory
    rates: tuple[tuple[str, float], ...]  # flops a second of matrix products, by element type
    vector: float  # flops a second of everything else (the vector units)
    transcendental: float  # transcendental calls a second
    launch: float  # seconds of launch overhead of a kernel
    links: tuple[Links, ...]  # the fast interconnect first, then the network between its domains
    overlaps: bool = True  # whether communication overlaps with computation

    @property
    def fast(self) -> Links:
        """The fast interconnect."""
        return self.links[0]

    @property
    def fast_devices(self) -> int | None:
        """The devices of one fast-interconnect domain; None for all devices."""
        return self.links[0].devices

    def rate(self, dtype: DType) -> float:
        """Flops a second in products of that element type."""
        rates = dict(self.rates)
        real = dtype.real
        wide = "f8" if real.is_float and real.bits <= 8 else real.name
        if wide not in rates:
            wide = "i8" if real.kind in ("int", "uint", "bool") and real.bits <= 8 else "f32"
        return rates[wide]

    def with_memory(self, memory: int) -> Machine:
        """The same machine with this many bytes of memory per device."""
        return replace(self, memory=memory)


def bytes_of(text: str) -> int:
    """`80GiB`, `512MB` or `1024` as a number of bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise WeftError(
            f"cannot parse {text!r} as a memory size", help="write 80GiB, 512MB or 4096"
        )
    number, prefix, binary = match.groups()
    unit = 1024.0 if binary else 1000.0
    return round(float(number) * math.pow(unit, _PREFIXES.index(prefix.upper())))


def bytes_text(count: float) -> str:
    """`79.6 GiB`: a number of bytes in three digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            exact = unit == "B" or abs(count) >= 1000  # `.3g` would switch to 1.01e+03
            return f"{count:,.0f} {unit}" if exact else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} TiB" if count < 1000 else f"{count:,.0f} TiB"
