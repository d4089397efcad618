"""User contexts: the user's stack at the call that made an array, captured once a call site.

An error that is raised later, elsewhere, carries the contexts of the arrays that it went through.
"""

from __future__ import annotations

import itertools
import linecache
import os
import sys
import threading
from types import FrameType
from typing import TypeAlias

from weft.records import dataclass

_LIBRARIES = {"weft", "jax", "jaxlib", "torch", "numpy"}
_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep  # Python's own library
_INSTALLED = tuple(f"{_STANDARD}{name}-packages" for name in ("site", "dist"))
_DEPTH = 8  # frames of a stack
_MOST = 1 << 14  # call sites
_MOST_NOTES = 4  # of one error
CallSite: TypeAlias = tuple[str, int, str, int]


@dataclass(frozen=True, slots=True)
class UserContext:
    """The stack of a call: file, line and function, innermost first."""

    id: int  # unique in this process
    frames: tuple[tuple[str, int, str], ...]

    @property
    def place(self) -> str:
        """`train.py:41  loss = step(x)`: the innermost line."""
        if not self.frames:
            return "an unknown line"
        file, line, _ = self.frames[0]
        return line_at(file, line)

    def __str__(self) -> str:
        """All lines of the stack, innermost first."""
        outer = [f"\n  called by {file}:{line} in {name}" for file, line, name in self.frames[1:]]
        return self.place + "".join(outer)


class ContextRegistry:
    """The contexts of this process, by call site and by id; safe in threads."""

    def __init__(self, most: int = _MOST) -> None:
        self._lock = threading.RLock()
        self._most = most
        self._sites: dict[CallSite, UserContext] = {}
        self._by_id: dict[int, UserContext] = {}
        self._ids = itertools.count(1)
        self._users: dict[str, bool] = {}  # whether the code of a file is the user's

    def __len__(self) -> int:
        return len(self._sites)

    def here(self) -> UserContext:
        """The context of the call of Weft that is running; its stack is that of the first time."""
        frame: FrameType | None = sys._getframe(1)
        users = self._users
        while frame is not None:
            code = frame.f_code
            is_user = users.get(code.co_filename)
            if is_user is None:
                is_user = users[code.co_filename] = is_users(frame)
            if is_user:
                # By the offset of the bytecode: two calls in one line are two sites.
                site = (code.co_filename, code.co_firstlineno, code.co_name, frame.f_lasti)
                found = self._sites.get(site)
                return self._add(site, frame) if found is None else found
            frame = frame.f_back
        return NOWHERE

    def _add(self, site: CallSite, frame: FrameType) -> UserContext:
        frames: list[tuple[str, int, str]] = []
        at: FrameType | None = frame
        while at is not None and len(frames) < _DEPTH:
            if is_users(at):
                frames.append((at.f_code.co_filename, at.f_lineno, at.f_code.co_name))
            at = at.f_back
        with self._lock:
            context = self._sites.get(site)
            if context is None:
                if len(self._sites) >= self._most:  # arrays hold on to their contexts
                    self._sites.clear()
                    self._by_id.clear()
                context = self._sites[site] = UserContext(next(self._ids), tuple(frames))
                self._by_id[context.id] = context
            return context

    def find(self, id: int | None) -> UserContext | None:
        """The context of an id, if it is still known."""
        if id is None:
            raise TypeError("None is no id of a context")
        return self._by_id.get(id)


def line_at(file: str, line: int) -> str:
    """`train.py:41  loss = step(x)`: a line of a file."""
    source = linecache.getline(file, line).strip()
    return f"{file}:{line}  {source[:120]}" if source else f"{file}:{line}"


def users_line(thread: threading.Thread) -> str:
    """The line of the user's code that a thread runs now, or calls others from; empty if none."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and not is_users(frame):
        frame = frame.f_back
    if frame is None:
        return ""
    # Between the lines of a function it is on none.
    return line_at(frame.f_code.co_filename, frame.f_lineno or frame.f_code.co_firstlineno)


def is_users(frame: FrameType) -> bool:
    """Whether a frame is of the user's code."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    file = frame.f_code.co_filename
    # By its file, too: the launcher's process that workers are forked from is `__main__`.
    if file.startswith(_STANDARD) and not file.startswith(_INSTALLED):
        return False
    return package not in _LIBRARIES and not file.startswith(("<frozen", _OWN))


def note(error: BaseException, context: UserContext | None) -> None:
    """Note in an error which call computed an array that has it; the first cause comes first."""
    if context is None or not context.frames:
        return
    text = f"computed by {context}"
    before = getattr(error, "__notes__", ())
    if text not in before and len(before) < _MOST_NOTES:
        error.add_note(text)


NOWHERE = UserContext(0, ())
CONTEXTS = ContextRegistry()
