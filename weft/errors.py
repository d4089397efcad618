"""The errors of Weft: what is wrong, where in the user's program, and what to do about it."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.ir.location import Location


class WeftError(Exception):
    """Something the user can act on: a message, the user's line, our node, and what to do."""

    def __init__(
        self,
        message: str,
        *,
        help: str,  # the word users know from compilers
        loc: Location | None = None,
        node: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        self.loc = loc
        self.node = node

    def at(self, loc: Location, node: str | None = None) -> WeftError:
        """Add the place, unless an inner frame has named one already."""
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
    """A program that is right but asks for what Weft refuses to do, with the reason.

    Programs of JAX catch NotImplementedError for it.
    """


def missing_extra(package: str, extra: str, purpose: str) -> WeftError:
    """Say which extra to install when an optional package is absent."""
    return WeftError(
        f"{purpose} needs the package {package}, which is not installed",
        help=f"pip install 'weft[{extra}]'",
    )


_OWN = str(Path(__file__).parent) + os.sep


class WeftWarning(RuntimeWarning):
    """Something that Weft does otherwise than a program leads to expect, or does without."""


def warn(message: str) -> None:
    """Warn at the user's line and not at one of Weft's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, WeftWarning, stacklevel=level)
