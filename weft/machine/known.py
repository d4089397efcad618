"""Machines by name: files of the package, files of the user's own, and `32x(8xh200)@400G`."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from weft.errors import WeftError
from weft.machine.amounts import link_rate_of
from weft.machine.files import read_machine
from weft.machine.machine import Figure, Machine

SHIPPED = Path(__file__).parent / "data"
_TIMES = re.compile(r"(\d+)\s*x\s*(.+)", re.S)


class _Shipped(Mapping[str, Machine]):
    """The machines of the package, read on first use."""

    def __getitem__(self, name: str) -> Machine:
        if name not in _names(SHIPPED):
            raise KeyError(name)
        path = SHIPPED / f"{name}.toml"
        return _read(path, path.stat().st_mtime_ns)

    def __iter__(self) -> Iterator[str]:
        return iter(_names(SHIPPED))

    def __len__(self) -> int:
        return len(_names(SHIPPED))


@lru_cache(maxsize=8)
def _names(folder: Path) -> tuple[str, ...]:
    names = sorted(path.stem for path in folder.glob("*.toml"))
    return tuple(sorted(names, key=lambda name: name != "host"))


@lru_cache(maxsize=256)
def _read(path: Path, changed: int) -> Machine:
    """The machine of a file; `changed` is its time stamp, so that an edited file is read again."""

    def base(name: str) -> Machine:
        # The user's `host` is based on ours, not on itself; ours on nothing of the user's.
        ours = path.parent == SHIPPED or name == path.stem
        return MACHINES[name] if ours and name in MACHINES else machine(name)

    try:
        return read_machine(path, base)
    except RecursionError:
        raise WeftError(
            f"{path}: based_on leads back to the same file", help="base it on another machine"
        ) from None


MACHINES: Mapping[str, Machine] = _Shipped()
HOST, H100, H200 = (MACHINES[name] for name in ("host", "h100", "h200"))


def user_folder() -> Path | None:
    """The folder of the user's own machine files; None for a user without a home."""
    if named := os.environ.get("XDG_CONFIG_HOME"):
        return Path(named) / "weft" / "machines"
    try:
        return Path.home() / ".config" / "weft" / "machines"
    except RuntimeError:
        return None


def user_files() -> dict[str, Path]:
    """The user's own machine files, by name."""
    folder = user_folder()
    if folder is None or not folder.is_dir():
        return {}
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def machine(name: str) -> Machine:
    """The machine that a text names.

    A name (`h100`), a TOML file or a folder with one, or so many devices of a machine: `8xh100`,
    `32x(8xh200)@400G` for 32 nodes of 8, each device with a network card of 400 Gbit/s.
    """
    text = name.strip()
    if text.endswith(".toml") or (os.sep in text and "@" not in text):
        return _of_path(Path(text))
    unit, at, card = text.rpartition("@") if "@" in text else (text, "", "")
    found = _multiple(unit.strip(), text)
    return _with_card(found, card, text) if at else found


def _of_path(path: Path) -> Machine:
    if path.is_dir():
        files = sorted(path.glob("*.toml"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files) or "none"
            raise WeftError(f"{path} has {len(files)} machine files", help=f"name one: {names}")
        path = files[0]
    if not path.is_file():
        raise WeftError(f"no machine file {path}", help="name a TOML file, or a machine")
    return _read(path, path.stat().st_mtime_ns)


def _multiple(text: str, whole: str) -> Machine:
    """`8xh100`, `32x(8xh200)`, or a name alone."""
    match = _TIMES.fullmatch(text)
    if match is None:
        if text.startswith("(") and text.endswith(")"):
            return _multiple(text[1:-1].strip(), whole)
        return _named(text, whole)
    count, unit = int(match[1]), match[2].strip()
    if count < 1:
        raise _malformed(whole, "there must be at least one")
    if unit.startswith("("):
        if not unit.endswith(")"):
            raise _malformed(whole, "a parenthesis is not closed")
        node = _multiple(unit[1:-1].strip(), whole)
        if node.devices is None:
            raise _malformed(whole, f"the number of {node.name} in a node is missing")
        return replace(node, name=whole, devices=count * node.devices)
    if _TIMES.fullmatch(unit):
        raise _malformed(whole, f"the nodes need parentheses, as in {count}x({unit})")
    base = _named(unit, whole)
    fast, links = base.fast.devices, base.links
    if fast is not None and count < fast:
        # Fewer devices than a whole domain: `4xh100` is a smaller domain, not half of one.
        links = (replace(links[0], devices=count), *links[1:])
    return replace(base, name=whole, devices=count, links=links)


def _with_card(base: Machine, card: str, whole: str) -> Machine:
    """The machine with other network cards between its domains."""
    try:
        rate = link_rate_of(card)
    except WeftError as error:
        raise WeftError(f"{whole!r}: {error.message}", help=error.help) from None
    outer = base.links[-1]
    if len(base.links) < 2 or outer.nominal is None:
        raise WeftError(
            f"{whole!r}: {base.name} has no network cards",
            help="leave out what follows the @",
        )
    scaled = outer.bandwidth * rate / outer.nominal
    outer = replace(outer, bandwidth=scaled, nominal=rate)
    key = f"links.{len(base.links) - 1}."
    named = {
        f"{key}bandwidth": Figure(f"{key}bandwidth", "guessed", "the same share of another card"),
        f"{key}nominal": Figure(f"{key}nominal", "guessed", f"as given: @{card}"),
    }
    figures = tuple(named.get(figure.key, figure) for figure in base.figures)
    return replace(base, name=whole, links=(*base.links[:-1], outer), figures=figures)


def _named(name: str, whole: str) -> Machine:
    lower = name.lower()
    own = user_files()
    if lower in own:
        return _read(own[lower], own[lower].stat().st_mtime_ns)
    if lower in MACHINES:
        return MACHINES[lower]
    known = (*MACHINES, *(n for n in own if n not in MACHINES))
    near = difflib.get_close_matches(lower, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    inside = f" (in {whole!r})" if name != whole else ""
    raise WeftError(
        f"unknown machine {name!r}{inside}",
        help=f"{hint}known: {', '.join(known)}; others by a TOML file of your own: mine.toml",
    )


def _malformed(whole: str, why: str) -> WeftError:
    return WeftError(
        f"{whole!r} names no machine: {why}", help="write h100, 8xh100 or 32x(8xh200)@400G"
    )
