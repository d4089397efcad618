"""Machines: devices, memories, links and domains, as data."""

from weft.machine.known import H100, H200, HOST, MACHINES, machine
from weft.machine.machine import Links, Machine, bytes_of, bytes_text

__all__ = [
    "H100",
    "H200",
    "HOST",
    "MACHINES",
    "Links",
    "Machine",
    "bytes_of",
    "bytes_text",
    "machine",
]
