"""`weft machines`: the machines that programs can be compiled and costed for."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import fields
from typing import Any

from weft.cli.parser import Subparsers, command
from weft.cli.screen import plural, print_json, print_labelled, print_table, print_text
from weft.columns import Column
from weft.ir.types import DTYPES
from weft.machine import (
    MACHINES,
    Machine,
    bytes_text,
    machine,
    rate_text,
    seconds_text,
    user_files,
    user_folder,
)
from weft.machine.files import CURVES

_SHOWN = ("name", "kind", "domain", "memory", "memory/s", "bf16", "f32", "links", "network")


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "machines",
        "List the machines that --machine takes; `weft machine NAME` shows all numbers of one.",
        "weft machines --json",
    )
    parser.add_argument("--json", action="store_true", help="print them as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show the table."""
    machines = [machine(name) for name in dict.fromkeys((*MACHINES, *user_files()))]
    if arguments.json:
        print_json([machine_json(one) for one in machines])
        return 0
    columns = [Column(head, right=n > 1) for n, head in enumerate(_SHOWN)]
    print_table(columns, [row(one) for one in machines])
    print_text(f"\ndomain: devices of one fast interconnect. Your own files: {user_folder()}")
    return 0


def row(one: Machine) -> tuple[str, ...]:
    """A machine in a line."""
    last = one.links[-1]
    return (
        one.name,
        one.kind,
        str(one.fast_devices or "any"),
        bytes_text(one.memory),
        rate_text(one.bandwidth, "B"),
        rate_text(one.rate(DTYPES["bf16"])),
        rate_text(one.rate(DTYPES["f32"])),
        rate_text(one.fast.bandwidth, "B"),
        rate_text(last.bandwidth, "B") if len(one.links) > 1 else "-",
    )


def show(one: Machine, *, as_json: bool) -> None:
    """All numbers of a machine, each with its provenance."""
    if as_json:
        print_json(machine_json(one))
        return
    print_text(f"{one.name}: {one.about}")
    count = "any number of devices" if one.devices is None else plural(one.devices, "device")
    domain = f"in domains of {one.fast_devices}" if one.fast_devices else "in one domain"
    print_text(f"{count}, {domain}\n")
    columns = (
        Column("figure"),
        Column("value", right=True),
        Column("is"),
        Column("note", fit="wrap"),
    )
    print_table(columns, [(f.key, shown(one, f.key), f.provenance, f.note) for f in one.figures])
    print()
    texts = [(f"{name} products", text) for name, text in one.precision]
    print_labelled([*texts, *one.sources])


def shown(one: Machine, key: str) -> str:
    """A number with its unit."""
    section, _, name = key.partition(".")
    if section == "rates":
        return f"{rate_text(dict(one.rates)[name], 'flop/s')}"
    if section == "efficiency":
        curve = getattr(one, CURVES[name])
        return f"{curve[0][1]:.0%} to {curve[-1][1]:.0%}"
    if section == "overheads":
        return seconds_text(one.overhead(name))
    if name == "threads":
        return str(one.threads)
    if section in ("links", "caches"):
        number, _, name = name.partition(".")
        value = getattr(getattr(one, section)[int(number)], name)
    elif name.endswith("_streams"):
        return str(one.streams[name != "compute_streams"])
    else:
        value = getattr(one, name)
    if name in ("launch", "latency", "prepare"):
        return seconds_text(value)
    if name in ("memory", "size", "chunk"):
        return bytes_text(value)
    return rate_text(value, "flop/s" if name in ("vector", "transcendental") else "B/s")


def machine_json(one: Machine) -> dict[str, Any]:
    """A machine as data, with how many of its numbers were measured, published and guessed."""
    data = {f.name: getattr(one, f.name) for f in fields(one)}
    data["links"] = [{f.name: getattr(link, f.name) for f in fields(link)} for link in one.links]
    data["caches"] = [{f.name: getattr(c, f.name) for f in fields(c)} for c in one.caches]
    for name in ("rates", "overheads", "precision", "sources"):
        data[name] = dict(data[name])
    data["figures"] = {f.key: {"is": f.provenance, "note": f.note} for f in one.figures}
    data["counts"] = dict(Counter(f.provenance for f in one.figures))
    return data
