"""Machines as TOML files: every number with its provenance.

A number is written `[value, provenance]` or `[value, provenance, note]`, the provenance being
`measured`, `published` or `guessed`; its value may have a unit: `["79GiB", "published"]`.
`based_on = "h100"` takes missing values from another machine.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeAlias, get_args

from weft.errors import WeftError
from weft.machine.amounts import bytes_of, rate_of, seconds_of
from weft.machine.machine import OVERHEADS, Cache, Figure, Links, Machine, Provenance

Table: TypeAlias = Mapping[str, Any]
PROVENANCES: tuple[Provenance, ...] = get_args(Provenance)
_TEXTS = ("about", "kind", "capability", "table")
_SECTIONS = (
    "device",
    "rates",
    "precision",
    "efficiency",
    "overheads",
    "links",
    "caches",
    "sources",
)
_TOP = (*_TEXTS, "based_on", "overlaps", *_SECTIONS)
_KINDS = ("cpu", "gpu", "tpu", "grid")
_DEVICE: Mapping[str, Callable[[str], float]] = {
    "memory": bytes_of,
    "bandwidth": rate_of,
    "vector": rate_of,
    "transcendental": rate_of,
    "launch": seconds_of,
    "threads": float,
    "compute_streams": float,
    "communication_streams": float,
}
_LINKS: Mapping[str, Callable[[str], float]] = {
    "bandwidth": rate_of,
    "latency": seconds_of,
    "launch": seconds_of,
    "prepare": seconds_of,
    "chunk": bytes_of,
    "nominal": rate_of,
}
_CACHE: Mapping[str, Callable[[str], float]] = {"size": bytes_of, "bandwidth": rate_of}
CURVES = {
    "memory": "memory_curve",
    "products": "product_curve",
    "attention": "attention_curve",
    "operands": "operand_curve",
}
_RATES = ("f64", "f32", "tf32", "f16", "bf16", "f8", "f4", "i8")


def read_machine(path: Path, base: Callable[[str], Machine]) -> Machine:
    """The machine that a file describes; `base` finds the one that it is based on."""
    try:
        content = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise WeftError(f"{path} is not TOML: {error}", help="correct the file there") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise WeftError(f"cannot read {path}: {why}", help="name a machine's TOML file") from None
    return _Reader(path).machine(content, base)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # true is an int


class _Reader:
    """Reads one file; errors name the file and the key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.figures: dict[str, Figure] = {}

    def machine(self, content: Table, base: Callable[[str], Machine]) -> Machine:
        self.check_names(content, _TOP, "")
        found = {n: self.text(content[n], n) for n in _TEXTS if n in content}
        values: dict[str, Any] = {"name": self.path.stem, **found}
        if "based_on" in content:
            values = self.inherited(self.base(content["based_on"], base)) | values
        if values.get("kind", "gpu") not in _KINDS:
            raise self.error(
                "kind", f"unknown kind {values['kind']!r}", f"one of {', '.join(_KINDS)}"
            )
        if "overlaps" in content:
            values["overlaps"] = self.flag(content["overlaps"], "overlaps")
        self.device(self.section(content, "device"), values)
        rates = self.numbers(
            self.section(content, "rates"), dict.fromkeys(_RATES, rate_of), "rates"
        )
        values["rates"] = tuple((dict(values.get("rates", ())) | rates).items())
        overheads = self.numbers(
            self.section(content, "overheads"), dict.fromkeys(OVERHEADS, seconds_of), "overheads"
        )
        values["overheads"] = tuple((dict(values.get("overheads", ())) | overheads).items())
        self.tables(content, values)
        self.whole(values)
        return Machine(**values)

    def base(self, named: Any, base: Callable[[str], Machine]) -> Machine:
        """The machine that this one is based on."""
        try:
            return base(self.text(named, "based_on"))
        except WeftError as error:
            raise self.error("based_on", error.message, error.help) from None

    def inherited(self, base: Machine) -> dict[str, Any]:
        """The values of the base machine, its figures included."""
        self.figures = {figure.key: figure for figure in base.figures}
        return {f.name: getattr(base, f.name) for f in fields(base) if f.name != "name"}

    def device(self, section: Table, values: dict[str, Any]) -> None:
        numbers = self.numbers(section, _DEVICE, "device")
        compute, talk = values.get("streams", (4, 1))
        streams = (
            numbers.pop("compute_streams", compute),
            numbers.pop("communication_streams", talk),
        )
        values["streams"] = (int(streams[0]), int(streams[1]))
        values.update(numbers)

    def tables(self, content: Table, values: dict[str, Any]) -> None:
        """Links, caches, curves, and the texts about precision and sources."""
        if "links" in content:
            values["links"] = tuple(self.links(n, one) for n, one in self.array(content, "links"))
        if "caches" in content:
            values["caches"] = tuple(self.cache(n, one) for n, one in self.array(content, "caches"))
        efficiency = self.section(content, "efficiency")
        self.check_names(efficiency, CURVES, "efficiency.")
        for key, name in CURVES.items():
            if key in efficiency:
                values[name] = self.curve(efficiency[key], f"efficiency.{key}")
        for name in ("precision", "sources"):
            texts = {k: self.text(v, f"{name}.{k}") for k, v in self.section(content, name).items()}
            values[name] = tuple((dict(values.get(name, ())) | texts).items())
        values["figures"] = tuple(self.figures.values())

    def links(self, number: int, table: Table) -> Links:
        where = f"links.{number}"
        self.check_names(table, (*_LINKS, "name", "devices", "torus", "wraps"), f"{where}.")
        values: dict[str, Any] = self.numbers(table, _LINKS, where, skip=("name", "devices"))
        self.has(values, ("bandwidth", "latency", "launch"), where)
        if "chunk" in values:
            values["chunk"] = int(values["chunk"])
        devices = table.get("devices")
        if devices is not None and (type(devices) is not int or devices < 1):  # true is an int
            raise self.error(
                f"{where}.devices",
                f"{devices!r} is not a number of devices",
                "leave it out for any number",
            )
        sides = table.get("torus", [])
        if not isinstance(sides, list) or not all(type(n) is int and n > 0 for n in sides):
            raise self.error(
                f"{where}.torus", f"{sides!r} is not a list of sides", "write [16, 16]"
            )
        torus, wraps = tuple(sides), self.flag(table.get("wraps", True), f"{where}.wraps")
        name = self.text(table.get("name", where), f"{where}.name")
        return Links(name, devices, torus=torus, wraps=wraps, **values)

    def cache(self, number: int, table: Table) -> Cache:
        where = f"caches.{number}"
        self.check_names(table, (*_CACHE, "name"), f"{where}.")
        values = self.numbers(table, _CACHE, where, skip=("name",))
        self.has(values, ("size", "bandwidth"), where)
        name = self.text(table.get("name", where), f"{where}.name")
        return Cache(name, int(values["size"]), values["bandwidth"])

    def curve(self, entry: Any, key: str) -> tuple[tuple[float, float], ...]:
        """Points of a curve, by growing size; the provenance stands for all of them."""
        points, provenance, note = self.entry(entry, key)
        pairs = isinstance(points, list) and all(
            isinstance(p, list) and len(p) == 2 and all(map(_is_number, p)) for p in points
        )
        example = 'write [[[1e6, 0.2], [1e9, 1.0]], "measured"]'
        if not pairs or not points:
            raise self.error(key, f"{points!r} is not a list of sizes and shares", example)
        sizes, shares = zip(*points, strict=True)
        if [*sizes] != sorted({*sizes}):
            raise self.error(key, f"the sizes {[*sizes]} do not grow", example)
        if min(shares) <= 0:
            raise self.error(key, f"the shares {[*shares]} are not all above 0", example)
        self.figures[key] = Figure(key, provenance, note)
        return tuple((float(size), float(share)) for size, share in points)

    def numbers(
        self,
        section: Table,
        units: Mapping[str, Callable[[str], float]],
        where: str,
        skip: Collection[str] = (),
    ) -> dict[str, Any]:
        """The numbers of a section, each of them with its figure."""
        if not skip:
            self.check_names(section, units, f"{where}.")
        values: dict[str, Any] = {}
        for name in units:
            if name not in section:
                continue
            key = f"{where}.{name}"
            value, provenance, note = self.entry(section[name], key)
            number = self.number(value, key, units[name])
            if number < 0 or (number == 0 and units[name] is not seconds_of):
                raise self.error(key, f"{value!r} is not positive", "write a number above 0")
            values[name] = int(number) if name in ("memory", "threads") else number
            self.figures[key] = Figure(key, provenance, note)
        return values

    def number(self, value: Any, key: str, unit: Callable[[str], float]) -> float:
        """A number, or a text with a unit."""
        if isinstance(value, str):
            try:
                return unit(value)
            except WeftError as error:
                raise self.error(key, error.message, error.help) from None
        if not _is_number(value):
            raise self.error(key, f"{value!r} is not a number", "write 3.0e12")
        return float(value)

    def flag(self, value: Any, key: str) -> bool:
        if not isinstance(value, bool):
            raise self.error(key, f"{value!r} is neither true nor false", "write true or false")
        return value

    def entry(self, entry: Any, key: str) -> tuple[Any, Provenance, str]:
        """Value, provenance and note of `[value, provenance, note]`."""
        if not isinstance(entry, list) or len(entry) not in (2, 3) or entry[1] not in PROVENANCES:
            raise self.error(
                key,
                f"{entry!r} lacks the provenance of the number",
                f'write [3.0e12, "measured"]; known: {", ".join(PROVENANCES)}',
            )
        return entry[0], entry[1], self.text(entry[2], key) if len(entry) == 3 else ""

    def text(self, value: Any, key: str) -> str:
        if not isinstance(value, str):
            raise self.error(key, f"{value!r} is not a text", "write it in quotes")
        return value

    def section(self, content: Table, name: str) -> Table:
        found = content.get(name, {})
        if not isinstance(found, dict):
            raise self.error(name, "not a section", f"write [{name}] and its keys below it")
        return found

    def array(self, content: Table, name: str) -> list[tuple[int, Table]]:
        found = content[name]
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise self.error(name, "not a list of sections", f"write [[{name}]] before each")
        return [*enumerate(found)]

    def check_names(self, section: Table, names: Collection[str], where: str) -> None:
        for name in section:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                if where == "overheads.":
                    hint += "another version may have measured it: run `weft calibrate` again; "
                raise self.error(
                    f"{where}{name}", "unknown key", f"{hint}known: {', '.join(names)}"
                )

    def has(self, values: Table, names: Collection[str], where: str) -> None:
        if missing := [name for name in names if name not in values]:
            raise self.error(where, f"{missing[0]} is missing", f"give {', '.join(missing)}")

    def whole(self, values: dict[str, Any]) -> None:
        """Refuse a machine that lacks something, or whose outermost links join only a few."""
        needed = [
            f.name for f in fields(Machine) if f.default is MISSING and f.default_factory is MISSING
        ]
        self.has(values, needed, "the machine")
        if "f32" not in dict(values["rates"]):
            raise self.error("rates", "f32 is missing", "it stands for types without a rate")
        if not values["links"] or values["links"][-1].devices is not None:
            raise self.error(
                "links",
                "the last of them must join any number of devices",
                "leave `devices` out there",
            )

    def error(self, key: str, what: str, help: str) -> WeftError:
        return WeftError(f"{self.path}: {key}: {what}", help=help)
