"""The options that JAX passes through: `jax.jit(f, compiler_options={"weft_opt_level": 2})`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from weft.errors import WeftError
from weft.knobs import EXPLAIN, TUNES, Tune
from weft.optimize import LEVELS, Level
from weft.target import TARGETS

Given: TypeAlias = bool | int | float | str

# Of XLA's own options, those whose type jaxlib's description of them does not tell.
_XLAS: dict[str, type] = {"xla_embed_ir_in_executable": bool}


@dataclass(frozen=True, slots=True)
class Options:
    """How a program is compiled."""

    level: Level = 1
    explain: bool = False
    explain_nothing: bool = False  # also that nothing is sent
    target: str | None = None
    fold_sums: bool = True
    tune: Tune | None = None
    excess_precision: bool = True


_DEFAULT = Options()


def options_in(given: Iterable[tuple[str, Given]], flags: Options = _DEFAULT) -> Options:
    """The options that are given by name, or by flags of the process.

    XLA's own are checked where that is possible.
    """
    chosen = replace(flags, explain=EXPLAIN.value())
    for name, value in sorted(given):
        if name in _READ:
            chosen = replace(chosen, **_READ[name](name, value))
        elif name.startswith("xla_"):
            _check_xlas(name, value)  # it is about how XLA compiles, which does not happen here
        else:
            raise WeftError(
                f"No such compile option: {name!r}",
                help=f"Weft's are {', '.join(_READ)}; XLA's begin with xla_ and are ignored",
            )
    return chosen


def _level(name: str, value: Given) -> dict[str, Any]:
    number = _number(name, value)
    if number not in LEVELS:
        raise WeftError(
            f"While setting option {name}, {value!r} is no level",
            help="; ".join([f"{level}: {about}" for level, about in LEVELS.items()]),
        )
    return {"level": number}


def _number(name: str, value: Given) -> int:
    try:
        return int(value)
    except ValueError:
        raise WeftError(
            f"While setting option {name}, {value!r} is not a valid integer.",
            help="give a number",
        ) from None


def _truth(name: str, value: Given) -> bool:
    word = str(value).lower()
    if word in ("true", "1"):
        return True
    if word in ("false", "0"):
        return False
    raise WeftError(
        f"While setting option {name}, {value!r} is not a valid bool value.",
        help="give True or False",
    )


def _explain(name: str, value: Given) -> dict[str, Any]:
    return dict.fromkeys(("explain", "explain_nothing"), _truth(name, value))


def _target(name: str, value: Given) -> dict[str, Any]:
    if value not in TARGETS:
        raise WeftError(
            f"While setting option {name}, {value!r} is no target",
            help=f"targets are {', '.join(TARGETS)}",
        )
    return {"target": value}


def _tune(name: str, value: Given) -> dict[str, Any]:
    if value not in TUNES:
        raise WeftError(
            f"While setting option {name}, {value!r} is no way of tuning",
            help=f"there are {', '.join(TUNES)}",
        )
    return {"tune": value}


_READ: dict[str, Callable[[str, Given], dict[str, Any]]] = {
    "weft_opt_level": _level,
    "weft_explain": _explain,
    "weft_target": _target,
    "weft_fold_sums": lambda name, value: {"fold_sums": _truth(name, value)},
    "weft_tune": _tune,
    "xla_allow_excess_precision": lambda name, value: {"excess_precision": _truth(name, value)},
}


def _check_xlas(name: str, value: Given) -> None:
    from jaxlib import _jax

    whole = _jax.CompileOptions()  # held: what is inside of it dies with it
    build = whole.executable_build_options
    kind = _XLAS.get(name) or type(getattr(build.debug_options, name, None))
    if kind is bool:
        _truth(name, value)
    elif kind is int:
        _number(name, value)
