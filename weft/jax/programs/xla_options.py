"""XLA's options: validation by XLA itself, and notices about those without effect."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from weft.errors import WeftError
from weft.jax.programs.notices import notify
from weft.knobs import DEVICES

OptionValue: TypeAlias = bool | int | float | str

FLAGS = "XLA_FLAGS"
_COUNT = "xla_force_host_platform_device_count"
_PROBE = "module @options { func.func @main() { return } }"
# rejected by XLA after all others are accepted
_LAST: tuple[str, OptionValue] = ("no_option_of_this_name", 0)


def flags_in_environment() -> dict[str, str]:
    """The flags of XLA_FLAGS by name, possibly from a file; `true` for those without value."""
    return _parsed(os.environ.get(FLAGS, "").strip())


@cache
def _parsed(text: str) -> dict[str, str]:
    if text and not text.startswith("-"):
        try:
            text = Path(text).read_text()
        except OSError:  # XLA treats an unreadable file as empty
            return {}
    flags: dict[str, str] = {}
    for word in shlex.split(text):
        name, is_set, value = word.lstrip("-").partition("=")
        flags[name] = value if is_set else "true"
    return flags


def notify_of_flags(honoured: Iterable[str], devices: int) -> None:
    """Print which flags of XLA_FLAGS have no effect on Weft."""
    flags = flags_in_environment()
    count = flags.get(_COUNT)
    if count is not None and count != str(devices) and not os.environ.get(DEVICES.name):
        notify(
            f"{FLAGS}=--{_COUNT}={count} counts JAX's CPU devices; Weft has {devices}: "
            f"set {DEVICES.name}={count}"
        )
    for name in sorted({*flags} - {*honoured, _COUNT}):
        notify(f"{FLAGS}: --{name} has no effect on Weft's devices")


def check_xla_options(options: Sequence[tuple[str, OptionValue]], own: Iterable[str]) -> None:
    """Raise for options that XLA rejects, with its message."""
    message = _refusal(tuple([(name, value, type(value)) for name, value in options]))
    if message is None:
        return
    hint = "give a value of the type that XLA's option has"
    unknown = [name for name, _ in options if f"No such compile option: '{name}'" in message]
    if unknown:
        near = difflib.get_close_matches(unknown[0], [*own, *_xla_names()], n=2, cutoff=0.75)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        hint += f"Weft's are {', '.join(own)}; others are XLA's own"
    raise WeftError(message, help=hint)


@cache
def _refusal(overrides: tuple[tuple[str, OptionValue, type], ...]) -> str | None:
    """XLA's error for these options from its CPU compiler, if any; nothing is compiled.

    Types are part of the cache key: XLA accepts True and rejects 1.
    """
    from jaxlib import _jax

    client = _cpu_client()
    options = _jax.CompileOptions()
    # the error about the empty program, past option parsing
    options.executable_build_options.debug_options.xla_dump_to = ""
    options.env_option_overrides = [*((name, value) for name, value, _ in overrides), _LAST]
    try:
        client.compile_and_load(_PROBE, _jax.DeviceList((client.local_devices()[0],)), options)
    except _jax.JaxRuntimeError as error:
        message = str(error)
        return None if f"'{_LAST[0]}'" in message else message.partition(": ")[2] or message
    return None


def _cpu_client() -> Any:
    """JAX's CPU client, which exists beside Weft's."""
    from jax._src import xla_bridge

    known: Mapping[str, Any] = xla_bridge._backends
    return known.get("cpu") or _own_cpu_client()


@cache
def _own_cpu_client() -> Any:
    from jax._src.lib import xla_client

    return xla_client.make_cpu_client()


@cache
def _xla_names() -> tuple[str, ...]:
    """The names of XLA's options in jaxlib."""
    from jaxlib import _jax

    whole = _jax.CompileOptions()  # keeps its parts alive
    options = whole.executable_build_options.debug_options
    return tuple([name for name in dir(options) if name.startswith("xla_")])
