"""A machine: devices, their memory and rates, and the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from weft.errors import WeftError
from weft.ir.types import DType
from weft.records import dataclass

Provenance: TypeAlias = Literal["measured", "published", "guessed"]
Curve: TypeAlias = tuple[tuple[float, float], ...]

# Seconds of a unit of work of each kind: of a processor's kernels on one thread, of the steps of a
# lockstep program, and of a GPU's kernels.
OVERHEADS = {
    "call": "a call of a program",
    "argument": "an argument of a call",
    "result": "a result of a call",
    "queue": "a run that is not brief, by the stream's thread",
    "queued_argument": "an argument of such a run",
    "queued_result": "a result of such a run",
    "segment": "a native call of kernels after another step of a program",
    "operand": "an operand of a host step",
    "view": "an operand of a host step whose result is a view",
    "summand": "an operand of a collective that adds up",
    "summed": "a byte of its operands and results",
    "wake": "handing chunks of a kernel to other threads",
    "register": "one instruction on a vector register in fused loops",
    "division": "a division of a vector register",
    "function": "a tanh of a vector register; other functions by their length",
    "strided": "one element that is not beside its neighbour in memory",
    "turned": "an element of a tile that loops transpose",
    "line": "an entry of a vectorized loop",
    "chain": "a step of a reduction, which waits for the one before",
    "across": "a reduction of the lanes of a register",
    "block": "a register block of a product",
    "packed": "a register that is copied to a product's panel",
    "transposed": "a register that is transposed to a product's panel",
    "gathered": "an element that is gathered to a product's panel",
    "head": "one head of attention",
    "attention": "a flop of attention, of whole registers",
    "scores": "a score of attention",
    "few": "a register of scores of a query, where a head has few",
    "scalar": "a flop of an op that runs element by element",
    "window": "a register of a window",
    "element": "an element of a running sum; on a GPU of a row that one block reduces",
    "row": "an index of a scatter or a gather",
    "records": "a row that is sorted",
    "sorted": "an element of rows that are sorted; on a GPU by a library",
    "latency": "the shortest kernel of a GPU, beyond its launch",
    "cold": "the first access to a GPU's memory, where a kernel moves more than a little",
    "library": "a library call of several kernels: a scatter, a sort",
    "scattered": "an element that a library adds at an index",
}


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
    nominal: float | None = None  # bytes a second on the data sheet, which `@400G` replaces
    torus: tuple[int, ...] = ()  # its sides; () where every device reaches every other at once
    wraps: bool = True  # whether the ends of a torus are joined; else it is a mesh


@dataclass(frozen=True, slots=True)
class Cache:
    """A level of memory before the device's own: its bytes, and how many come from it a second."""

    name: str
    size: int
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Figure:
    """The provenance of a number of a machine."""

    key: str  # such as `rates.bf16`
    provenance: Provenance
    note: str = ""


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
    kind: str = "gpu"  # cpu, gpu, tpu or grid
    capability: str = ""  # of NVIDIA's GPUs, such as 9.0
    table: str = ""  # the machine of the table of measured collectives that this one is like
    devices: int | None = None  # how many there are; None for any number
    domain_ids: tuple[int, ...] = ()  # the fast domain of every device, where it is not regular
    caches: tuple[Cache, ...] = ()  # the nearest first
    threads: int = 1  # of a processor, which share its rates
    streams: tuple[int, int] = (4, 1)  # for computing, and for communication
    memory_curve: Curve = ()  # bytes of a kernel, and the share of `bandwidth` that it reaches
    product_curve: Curve = ()  # flops of a product, and the share of its rate that it reaches
    attention_curve: Curve = ()  # flops of one head, and the share of the rate that they reach
    operand_curve: Curve = ()  # bytes of a product, and the share of `bandwidth` that they reach
    # Seconds beside the roofline, by name (see `OVERHEADS`); none where nothing was measured.
    overheads: tuple[tuple[str, float], ...] = ()
    precision: tuple[tuple[str, str], ...] = ()  # what the rate of an element type stands for
    figures: tuple[Figure, ...] = field(default=(), compare=False)
    sources: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def fast(self) -> Links:
        """The fast interconnect."""
        return self.links[0]

    @property
    def fast_devices(self) -> int | None:
        """The devices of one fast-interconnect domain; None for all devices."""
        return self.links[0].devices

    def rate(self, dtype: DType, computed_as: str = "") -> float:
        """Flops a second of products of an element type, or of the type that computes it.

        A product of f32 runs at the rate of TF32 only where the program's dot algorithm says so.
        """
        rates = dict(self.rates)
        if computed_as in rates:
            return rates[computed_as]
        real = dtype.real
        wide = "f8" if real.is_float and real.bits <= 8 else real.name
        if real.is_float and real.bits <= 4 and "f4" in rates:
            wide = "f4"
        # Other types have no units of their own: small integers use those of i8, the rest f32's.
        if wide not in rates:
            wide = "i8" if real.kind in ("int", "uint", "bool") and real.bits <= 8 else "f32"
        return rates[wide]

    def bandwidth_at(self, size: float) -> float:
        """Bytes a second of a kernel that moves so many: small ones do not fill the memory."""
        return self.bandwidth * share_at(self.memory_curve, size)

    def overhead(self, name: str) -> float:
        """Seconds of one unit of a kind of `OVERHEADS`; 0 where it was not measured."""
        return next((seconds for key, seconds in self.overheads if key == name), 0.0)

    def domains_of(self, members: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The fast domain of each of some devices."""
        if self.domain_ids:
            return np.asarray(self.domain_ids, np.int64)[members]
        return members // self.fast_devices if self.fast_devices else np.zeros_like(members)

    def provenance(self, key: str) -> Provenance:
        """Whether a number was measured, published or guessed."""
        return next((f.provenance for f in self.figures if f.key == key), "guessed")

    def with_memory(self, memory: int) -> Machine:
        """The same machine with this many bytes of memory per device."""
        return replace(self, memory=memory)

    def with_domains(self, ids: Sequence[int | None]) -> Machine:
        """The same devices in other fast domains, named for each of them; by all or by none."""
        named = [n for n in ids if n is not None]
        if named and len(named) < len(ids):
            missing = [n for n, domain in enumerate(ids) if domain is None]
            raise WeftError(
                f"{len(named)} of {len(ids)} devices name their fast domain, device {missing[0]} "
                "does not",
                help="name the domain of every device, or of none",
            )
        return replace(self, domain_ids=tuple(named), devices=len(ids) if named else self.devices)

    def holding(self, devices: int) -> Machine:
        """This machine, if it has so many devices; else an error."""
        if self.devices is not None and devices > self.devices:
            raise WeftError(
                f"the mesh has {devices:,} devices, but {self.name} has {self.devices:,}",
                help=f"make the mesh smaller, or name a larger machine: {devices}x...",
            )
        return self


def share_at(curve: Curve, amount: float) -> float:
    """The share of a rate that is reached, between the points of a curve; 1 without a curve."""
    if not curve:
        return 1.0
    # In the logarithm of the amount: points of a curve are decades apart.
    sizes, shares = zip(*curve, strict=True)
    return float(np.interp(np.log(max(amount, 1.0)), np.log(sizes), shares))
