"""The errors of Weft: message, location in the user's program, and remedy."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.ir.location import Location


class WeftError(Exception):
    """An error that the user can act on: message, user's line, node, and remedy."""

    def __init__(
        self,
        message: str,
        *,
        help: str,  # the label in compiler diagnostics
        loc: Location | None = None,
        node: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        self.loc = loc
        self.node = node

    def at(self, loc: Location, node: str | None = None) -> WeftError:
        """Add the location, unless an inner frame has set one."""
        if self.loc is None or not self.loc.known:
            self.loc = loc
        if self.node is None:
            self.node = node
        return self

    def __str__(self) -> str:
        lines = [f"error: {self.message}"]
        if self.loc is not None and self.loc.known:
            lines.append(f"  --> {self.loc.describe()}")
        if self.node is not None:
            lines.append(f"   |  {self.node}")
        lines.append(f"help: {self.help}")
        return "\n".join(lines)


class Unsupported(WeftError, NotImplementedError):
    """A valid program with a feature that Weft does not support, with the reason.

    A NotImplementedError, since JAX programs catch that.
    """


def missing_extra(package: str, extra: str, purpose: str) -> WeftError:
    """The error for a missing optional package, with the extra to install."""
    return WeftError(
        f"{purpose} needs the package {package}, which is not installed",
        help=f"pip install 'weft[{extra}]'",
    )


_OWN = str(Path(__file__).parent) + os.sep


class WeftWarning(RuntimeWarning):
    """A deviation from the program's request, or a fallback."""


def warn(message: str) -> None:
    """Warn at the user's line, not at one of Weft's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, WeftWarning, stacklevel=level)
