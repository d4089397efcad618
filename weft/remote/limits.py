"""The limits of a server for each of its clients."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

from weft.errors import WeftError
from weft.machine import bytes_text
from weft.records import dataclass

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a server: of one client, but for the number of clients."""

    bytes: int = 8 << 30  # of all arrays and programs, and of the memory of one run
    arrays: int = 100_000
    programs: int = 1_000
    program_bytes: int = 256 << 20  # of the text of one
    pending: int = 1_000  # requests whose replies are not sent yet, as executions under way
    transfers: int = 3  # uploads and downloads at a time
    devices: int = 1_024  # of a mesh
    clients: int = 16

    def as_fields(self) -> dict[str, int]:
        """The limits as fields of a message."""
        return asdict(self)

    def check(self, name: str, wanted: int, what: str, help: str) -> None:
        """Raise if a number is above a limit."""
        most = getattr(self, name)
        if wanted > most:
            shown = bytes_text if "bytes" in name else "{:,}".format
            raise WeftError(
                f"{what}: {shown(wanted)}, but the server's limit {name} is {shown(most)}",
                help=f"{help}, or start it with --limits {name}=...",
            )


def parse_limits(text: str) -> ServerLimits:
    """The limits of a command line: `bytes=4G,clients=2`."""
    known = {field.name for field in fields(ServerLimits)}
    limits: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        number, unit = value.upper().removesuffix("IB").removesuffix("B"), ""
        if number[-1:] in _UNITS:
            number, unit = number[:-1], number[-1:]
        if name not in known or not number.isdecimal() or int(number) < 1:
            raise WeftError(
                f"{part.strip()!r} is not a limit",
                help=f"give NAME=NUMBER, as bytes=4G; names are {', '.join(sorted(known))}",
            )
        limits[name] = int(number) * _UNITS[unit]
    return replace(ServerLimits(), **limits)
