"""Machines: devices, memories, links and domains, as data."""

from weft.machine.amounts import bytes_of, bytes_text, rate_text, seconds_text
from weft.machine.known import H100, H200, HOST, MACHINES, machine, user_files, user_folder
from weft.machine.machine import Cache, Figure, Links, Machine, Provenance

__all__ = [
    "H100",
    "H200",
    "HOST",
    "MACHINES",
    "Cache",
    "Figure",
    "Links",
    "Machine",
    "Provenance",
    "bytes_of",
    "bytes_text",
    "machine",
    "rate_text",
    "seconds_text",
    "user_files",
    "user_folder",
]
