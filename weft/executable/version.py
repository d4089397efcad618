"""The version of the package, which executables are saved with."""

from __future__ import annotations

__version__ = "0.2.0"
