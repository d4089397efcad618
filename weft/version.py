"""The version of the package, apart from the public names, which import all that needs it."""

from __future__ import annotations

__version__ = "0.2.0"
