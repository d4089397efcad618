"""LLVM texts of native code, cached on disk: lowering would dominate a warm start."""

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
    name: str, folders: Sequence[Path], parts: Mapping[str, str], make: Callable[[], str]
) -> str:
    """A text from the cache, or a new one. Its key: the source files of folders, and `parts`."""
    key_parts = [("files", files_digest([_HERE, *folders])), *parts.items()]
    key = Key("native", name, tuple(key_parts))
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
    """The text of functions and their callees, for a target."""
    from weft.native.builder import NativeModule  # a warm start, by cached texts, imports neither
    from weft.native.lower import lower

    module = NativeModule(triple)
    lower(module, exported, constants)
    return module.text()
