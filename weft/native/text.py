"""Texts of native code, remembered: lowering takes longer than all else where objects are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.cache.code import files_digest
from weft.cache.entry import Key
from weft.cache.store import the_store
from weft.native.function import NativeFunction

_HERE = Path(__file__).parent


def remembered_text(
    name: str, files: Sequence[Path], parts: Mapping[str, str], make: Callable[[], str]
) -> str:
    """A text, made or remembered. It depends on the code of folders or files and on `parts`."""
    said = [("files", files_digest([_HERE, *files])), *parts.items()]
    key = Key("native", name, tuple(said))
    known = the_store().get(key, counted=False)
    if known is None:
        known = make().encode()
        the_store().put(key, known)
    return known.decode()


def lowered_text(
    triple: str,
    exported: Sequence[NativeFunction[..., Any]],
    constants: Mapping[str, int] | None = None,
) -> str:
    """The text of functions and of all that they call, for a target."""
    from weft.native.builder import NativeModule  # what is remembered needs no compiler
    from weft.native.lower import lower

    module = NativeModule(triple)
    lower(module, exported, constants)
    return module.text()
