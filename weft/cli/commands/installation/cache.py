"""`weft cache`: the entries of the cache on disk, reasons of misses, and clearing."""

from __future__ import annotations

import argparse
import difflib
import time
from collections.abc import Iterable
from typing import Any

from weft.cache.choices import choices
from weft.cache.ledger import Miss, UsageCounts
from weft.cache.store import DiskStore, Stored, the_store
from weft.cache.why import Reason, why
from weft.cli.parser import Subparsers, command
from weft.cli.screen import plural, print_json, print_table, print_text, quantity
from weft.columns import Column
from weft.errors import WeftError
from weft.knobs import CACHE

_ACTIONS = ("show", "clear", "why")
_DIGEST = 12  # characters of a digest that are shown


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "cache",
        "Show the cache on disk (machine code of kernels, measured choices), clear it, "
        "or tell why something was not found there.",
        "weft cache why",
    )
    parser.add_argument(
        "action",
        nargs="?",
        choices=_ACTIONS,
        default="show",
        help="show: entries, bytes, hits and misses by kind (the default); clear: remove all, or "
        "all of a kind; why: why the last miss was one, or the last of a name",
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the kind to clear, or the kernel or choice missed"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show, clear or explain the cache that WEFT_CACHE names."""
    store = the_store()
    if arguments.action == "clear":
        _clear(store, arguments.name, as_json=arguments.json)
    elif arguments.action == "why":
        _why(store, arguments.name, as_json=arguments.json)
    else:
        if arguments.name is not None:
            arguments.parser.error(f"unrecognized arguments: {arguments.name}")
        _show(store, as_json=arguments.json)
    return 0


# Entries


def table(stored: Iterable[Stored], page: UsageCounts) -> dict[str, dict[str, Any]]:
    """By kind: entries, bytes, hits, misses, and the time of last use."""
    rows: dict[str, dict[str, Any]] = {}
    for kind in sorted({"kernel", "choice", *page.hits, *page.misses}, reverse=True):
        hits, misses = page.hits[kind], page.misses[kind]
        rows[kind] = {"entries": 0, "bytes": 0, "hits": hits, "misses": misses, "used": None}
    for entry in stored:
        row = rows.setdefault(
            entry.record.key.kind, {"entries": 0, "bytes": 0, "hits": 0, "misses": 0, "used": None}
        )
        row["entries"] += 1
        row["bytes"] += entry.nbytes
        row["used"] = max(row["used"] or 0.0, entry.used)
    return rows


def tuning_records() -> list[dict[str, Any]]:
    """The tuning records: shape class, machine, the best candidate and all times."""
    records = []
    for stored, choice in choices():
        fields = choice if isinstance(choice, dict) else {"best": choice}
        records.append(dict(stored.record.key.parts) | fields | {"made": stored.record.made})
    return records


def _show(store: DiskStore, *, as_json: bool) -> None:
    rows, measured = table(store.entries(), store.ledger.page()), tuning_records()
    if as_json:
        folder = None if store.folder is None else str(store.folder)
        kinds = {"folder": folder, "limit": store.limit, "kinds": rows}
        print_json(kinds | {"choices": measured})
        return
    columns = (
        Column("kind"),
        *[Column(head, right=True) for head in ("entries", "bytes", "hits", "misses")],
        Column("last used"),
    )
    shown = [
        (
            kind,
            f"{row['entries']:,}",
            quantity(row["bytes"], "B"),
            f"{row['hits']:,}",
            f"{row['misses']:,}",
            "" if row["used"] is None else _ago(row["used"]),
        )
        for kind, row in rows.items()
    ]
    print_table(columns, shown, lambda row, column, nth: "" if column else "bold")
    for choice in measured:
        head = f"{choice['what is chosen']} {choice['shape class']}"
        print_text(f"{head}: {choice['best']}")
    total = sum(row["bytes"] for row in rows.values())
    where = store.folder or f"no folder, for want of a home; {CACHE.name} may name one"
    print_text(f"{where}: {quantity(total, 'B')} of {quantity(store.limit, 'B')}")


# Clearing


def _clear(store: DiskStore, kind: str | None, *, as_json: bool) -> None:
    known = {entry.record.key.kind for entry in store.entries()} | {"kernel", "choice"}
    if kind is not None and kind not in known:
        raise WeftError(f"unknown kind {kind!r}", help=f"kinds are {', '.join(sorted(known))}")
    count, nbytes = store.clear(kind)
    if as_json:
        print_json({"entries": count, "bytes": nbytes})
    else:
        entries = "1 entry" if count == 1 else f"{count:,} entries"
        print(f"removed {entries}, {quantity(nbytes, 'B')}")


# Reasons of misses


def _why(store: DiskStore, name: str | None, *, as_json: bool) -> None:
    page = store.ledger.page()
    miss = _find_miss(page.missed, name)
    if miss is None:
        if as_json:
            print_json(None)
        else:
            print("nothing was looked for in vain: there was no miss yet")
        return
    reason = why(miss, page, store.entries())
    if as_json:
        print_json(_as_json(miss, reason))
        return
    print(f"{miss.key.kind} {miss.key.name}: missed {_ago(miss.time)}")
    print(f"  {reason.sentence}")
    if reason.nearest is not None:
        record = reason.nearest.record
        print(f"  the nearest: {record.key.kind} {record.key.name}, made {_ago(record.made)}")
    for part in reason.differences:
        print(f"    {part.part}: wanted {_short(part.wanted)}, there {_short(part.there)}")
    others = plural(len(page.missed) - 1, "other")
    print(f"({others} of the last misses can be asked for by name)")


def _find_miss(missed: tuple[Miss, ...], name: str | None) -> Miss | None:
    if name is None:
        return missed[-1] if missed else None
    found = [m for m in missed if name in (m.key.name, m.key.name.partition(" ")[0])]
    if found:
        return found[-1]
    near = difflib.get_close_matches(name, [m.key.name for m in missed], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise WeftError(
        f"{name!r} is not among the {len(missed)} recorded misses",
        help=f"{hint}`weft cache why` explains the last one",
    )


def _as_json(miss: Miss, reason: Reason) -> dict[str, Any]:
    nearest = reason.nearest
    return {
        "kind": miss.key.kind,
        "name": miss.key.name,
        "time": miss.time,
        "key": dict(miss.key.parts),
        "why": reason.sentence,
        "nearest": None if nearest is None else nearest.record.key.name,
        "differences": {d.part: {"wanted": d.wanted, "there": d.there} for d in reason.differences},
    }


def _short(value: str) -> str:
    """A value; digests are abbreviated."""
    hexadecimal = len(value) == 64 and all(c in "0123456789abcdef" for c in value)
    return f"{value[:_DIGEST]}..." if hexadecimal else value or "nothing"


def _ago(when: float) -> str:
    """`3 minutes ago`."""
    seconds = max(0.0, time.time() - when)
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            return f"{plural(int(seconds // size), unit)} ago"
    return f"{plural(int(seconds), 'second')} ago"
