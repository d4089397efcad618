"""Which versions of jaxlib Weft works with: those that its tables of functions were tried with."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from weft.errors import WeftError

SUPPORTED = ((0, 10),)  # releases, by their first two numbers


def check_versions() -> None:
    """Refuse a jaxlib that Weft was not tried with, before it calls anything."""
    found = jaxlib_version()
    if release(found) not in SUPPORTED:
        known = ", ".join([".".join(map(str, numbers)) for numbers in SUPPORTED])
        raise WeftError(
            f"jaxlib {found} is installed, but Weft speaks to jaxlib {known}",
            help=f"pip install 'jax=={known}.*' 'jaxlib=={known}.*'",
        )


def release(text: str) -> tuple[int, int] | None:
    """The first two numbers of a version; None if it has none."""
    parts = text.split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])


@cache
def jaxlib_version() -> str:
    """The version of jaxlib that is installed."""
    try:
        return version("jaxlib")
    except PackageNotFoundError:
        from jaxlib.version import __version__

        return str(__version__)


def weft_version() -> str:
    """Weft's own version."""
    from weft import __version__

    return __version__


def makers() -> dict[str, str]:
    """The versions that a compiled program depends on."""
    return {"weft": weft_version(), "jaxlib": jaxlib_version()}
