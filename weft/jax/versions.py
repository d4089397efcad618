"""Supported versions of jaxlib, and the errors and warnings for others."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from weft.errors import WeftError
from weft.jax.abi import api

TRIED = ((0, 10), (0, 11), (0, 12))  # releases by major and minor number
# jaxlib's error about an incompatible plugin
_TOO_OLD = "is older than the minimum supported version"


def check_versions() -> None:
    """Raise for a jaxlib older than the tested ones, and warn about a newer one."""
    installed = jaxlib_version()
    numbers = release(installed)
    known = ", ".join([f"{major}.{minor}" for major, minor in TRIED])
    if numbers is not None and numbers < TRIED[0]:
        raise WeftError(
            f"jaxlib {installed} is installed, but Weft speaks to jaxlib {known}", help=_install()
        )
    if numbers not in TRIED:
        _warn_of(installed, known)


@cache
def _warn_of(found: str, known: str) -> None:
    warnings.warn(
        f"Weft was tried with jaxlib {known}, and jaxlib {found} is installed: "
        f"it may work, or fail in odd ways; {_install()}",
        RuntimeWarning,
        stacklevel=4,
    )


def too_old(error: Exception) -> WeftError | None:
    """The error for a jaxlib that does not support Weft's PJRT version, if this is one."""
    if _TOO_OLD not in str(error):
        return None
    ours = ".".join(map(str, api().version))
    return WeftError(
        f"jaxlib {jaxlib_version()} does not speak Weft's version {ours} of PJRT's C API: {error}",
        help=_install(),
    )


def _install() -> str:
    (major, first), (_, last) = TRIED[0], TRIED[-1]
    span = f">={major}.{first},<{major}.{last + 1}"
    return f"pip install 'jax{span}' 'jaxlib{span}'"


def release(text: str) -> tuple[int, int] | None:
    """Major and minor number of a version; None if malformed."""
    parts = text.split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])


@cache
def jaxlib_version() -> str:
    """The installed version of jaxlib."""
    try:
        return version("jaxlib")
    except PackageNotFoundError:
        from jaxlib.version import __version__

        return str(__version__)


def weft_version() -> str:
    """Weft's own version."""
    from weft.executable.version import __version__

    return __version__


def makers() -> dict[str, str]:
    """The versions that a compiled program depends on."""
    return {"weft": weft_version(), "jaxlib": jaxlib_version()}
