"""Machines are data: found by name, with rates for every element type."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from weft.errors import WeftError
from weft.ir.types import DTYPES
from weft.machine import H100, HOST, MACHINES, bytes_of, bytes_text, machine
from weft.machine.files import PROVENANCES

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "machine"


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_is_whole(name: str):
    found = machine(name)
    assert found.name == name and found.about
    assert found.memory > 0 and found.bandwidth > 0 and found.links
    for dtype in DTYPES.values():
        assert found.rate(dtype) > 0
    assert found.figures and {f.provenance for f in found.figures} <= set(PROVENANCES)
    numbers = {f"rates.{dtype}" for dtype, _ in found.rates}
    numbers |= {f"device.{name}" for name in ("memory", "bandwidth", "vector", "launch")}
    numbers |= {f"links.{n}.bandwidth" for n in range(len(found.links))}
    assert numbers <= {f.key for f in found.figures}, "every number says where it comes from"
    assert found.links[-1].devices is None, "the outermost links join as many as there are"


@pytest.mark.parametrize("name", MACHINES)
def test_rates_are_a_share_of_the_peak_in_their_notes(name: str):
    """A rate near or above its peak was taken from a figure with sparsity, or is one."""
    found = machine(name)
    rates = {f"rates.{dtype}": rate for dtype, rate in found.rates}
    rates |= {"device.vector": found.vector, "device.transcendental": found.transcendental}
    peaks = {f.key: re.search(r"peak (?:about )?([\d.]+)", f.note) for f in found.figures}
    for key, rate in rates.items():
        if peak := peaks[key]:
            assert 0.5 < rate / (float(peak[1]) * 1e12) < 0.95, key


def test_the_figures_of_machines(golden: Callable[[Path, str], None]):
    """Whoever changes a figure says so."""
    lines = []
    for found in MACHINES.values():
        lines.append(f"{found.name}: {found.about}")
        names = [f.name for f in fields(found)[2:] if f.name not in ("figures", "sources")]
        lines += [f"  {name} = {getattr(found, name)!r}" for name in names]
    golden(GOLDEN / "known.txt", "\n".join(lines) + "\n")


def test_names_are_found_in_any_case():
    assert machine("H100") is H100


def test_an_unknown_machine_is_an_error_with_the_known_ones():
    with pytest.raises(WeftError, match="unknown machine 'h10'") as caught:
        machine("h10")
    assert "did you mean h100?" in caught.value.help
    assert all(name in caught.value.help for name in MACHINES)


def test_rates_follow_the_width_of_the_elements():
    rates = [H100.rate(DTYPES[name]) for name in ("f32", "bf16", "f8E4M3FN")]
    assert rates == sorted(rates)
    assert H100.rate(DTYPES["f32"], "tf32") > 5 * H100.rate(DTYPES["f32"])
    assert machine("b200").rate(DTYPES["f4E2M1FN"]) > machine("b200").rate(DTYPES["f8E4M3FN"])
    assert H100.rate(DTYPES["i4"]) == H100.rate(DTYPES["i8"])
    assert H100.rate(DTYPES["complex<f64>"]) == H100.rate(DTYPES["f64"])


@pytest.mark.parametrize(
    ("text", "count"),
    [("4096", 4096), ("80GiB", 80 << 30), ("1.5KiB", 1536), ("2 MB", 2_000_000), ("1t", 10**12)],
)
def test_amounts_of_memory(text: str, count: int):
    assert bytes_of(text) == count


def test_an_amount_of_nothing_known_is_refused():
    with pytest.raises(WeftError, match="cannot parse 'lots' as a memory size"):
        bytes_of("lots")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (100, "100 B"), (1536, "1.5 KiB"), (79 << 30, "79 GiB"), (3 << 40, "3 TiB")],
)
def test_amounts_are_readable(count: int, text: str):
    assert bytes_text(count) == text


def test_another_memory_makes_another_machine():
    small = HOST.with_memory(1 << 20)
    assert small.memory == 1 << 20 and small.links == HOST.links and HOST.memory > small.memory
