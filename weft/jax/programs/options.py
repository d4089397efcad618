"""Compiler options: `jax.jit(f, compiler_options={"weft_opt_level": 2})`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any

from weft.errors import WeftError
from weft.jax.programs.dumping import HONOURED, Dump, dump_in
from weft.jax.programs.notices import notify
from weft.jax.programs.xla_options import (
    OptionValue,
    check_xla_options,
    flags_in_environment,
    notify_of_flags,
)
from weft.knobs import EXPLAIN, TUNES, Tune
from weft.machine import Machine, machine
from weft.ops.elementwise.approximate import approximable
from weft.optimize import LEVELS, Level, given_numbers
from weft.optimize.runner import LEAST
from weft.records import dataclass
from weft.targets import is_target, target_names


@dataclass(frozen=True, slots=True)
class PjrtOptions:
    """Compile options of a program."""

    level: Level = 1
    explain: bool = False
    explain_nothing: bool = False  # report also that nothing is sent
    target: str | None = None
    fold_sums: bool = True
    tune: Tune | None = None
    excess_precision: bool = True
    approximate: tuple[str, ...] = ()
    dump: Dump | None = None
    machine: Machine | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)  # fields of weft.optimize.Options


def options_in(pairs: Iterable[tuple[str, OptionValue]]) -> PjrtOptions:
    """Parse options by name and those in XLA_FLAGS; unknown ones are errors."""
    flags = flags_in_environment()
    options = PjrtOptions(explain=EXPLAIN.value())
    listed = [*((name, value) for name, value in flags.items() if name in _READ), *sorted(pairs)]
    others: list[tuple[str, OptionValue]] = []
    for name, value in listed:
        if name in _READ:
            read = _READ[name](name, value)
            if "numbers" in read:
                read = {"numbers": {**options.numbers, **read["numbers"]}}
            options = replace(options, **read)
        else:
            others.append((name, value))
    if others:
        check_xla_options(others, _READ)
        for name in sorted({name for name, _ in others} - {*HONOURED}):
            notify(f"compiler option {name} has no effect on Weft's devices")
    return replace(options, dump=dump_in(flags | dict(others)))


def notify_of_ignored_flags(devices: int) -> None:
    """Print which flags of XLA_FLAGS have no effect."""
    notify_of_flags([*_READ, *HONOURED], devices)


def _level(name: str, value: OptionValue) -> dict[str, Any]:
    number = _number(name, value)
    if number not in LEVELS:
        raise WeftError(
            f"While setting option {name}, unknown level {value!r}",
            help="; ".join([f"{level}: {about}" for level, about in LEVELS.items()]),
        )
    return {"level": number}


def _number(name: str, value: OptionValue) -> int:
    try:
        return int(value)
    except ValueError:
        raise WeftError(
            f"While setting option {name}, {value!r} is not a valid integer.",
            help="give a number",
        ) from None


def _truth(name: str, value: OptionValue) -> bool:
    word = str(value).lower()
    if word in ("true", "1"):
        return True
    if word in ("false", "0"):
        return False
    raise WeftError(
        f"While setting option {name}, {value!r} is not a valid bool value.",
        help="give True or False",
    )


def _explain(name: str, value: OptionValue) -> dict[str, Any]:
    return dict.fromkeys(("explain", "explain_nothing"), _truth(name, value))


def _target(name: str, value: OptionValue) -> dict[str, Any]:
    if not is_target(str(value)):
        raise WeftError(
            f"While setting option {name}, unknown target {value!r}",
            help=f"expected {', '.join(target_names())}",
        )
    return {"target": value}


def _tune(name: str, value: OptionValue) -> dict[str, Any]:
    if value not in TUNES:
        raise WeftError(
            f"While setting option {name}, unknown tune mode {value!r}",
            help=f"expected {', '.join(TUNES)}",
        )
    return {"tune": value}


def _text(key: str, read: Callable[[str], object], name: str, value: OptionValue) -> dict[str, Any]:
    """An option whose text the compiler reads."""
    try:
        return {key: read(str(value))}
    except WeftError as error:
        error.message = f"While setting option {name}, {error.message}"
        raise


def _counted(name: str, value: OptionValue) -> dict[str, Any]:
    number = _number(name, value)
    try:
        return {"numbers": given_numbers(**{name.removeprefix("weft_"): number})}
    except WeftError as error:
        error.message = f"While setting option {name}, {error.message}"
        raise


_READ: dict[str, Callable[[str, OptionValue], dict[str, Any]]] = {
    "weft_opt_level": _level,
    "weft_explain": _explain,
    "weft_target": _target,
    "weft_fold_sums": lambda name, value: {"fold_sums": _truth(name, value)},
    "weft_tune": _tune,
    "weft_approximate": partial(_text, "approximate", approximable),
    "weft_machine": partial(_text, "machine", machine),
    **{f"weft_{name}": _counted for name in LEAST},
    "xla_allow_excess_precision": lambda name, value: {"excess_precision": _truth(name, value)},
}
