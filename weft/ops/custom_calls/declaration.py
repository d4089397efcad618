"""Declarations of custom calls by name: types, factors, reference and work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from weft.ir.check import require
from weft.ir.op import Evaluation
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.scan import dictionary
from weft.ir.types import TensorType, Types
from weft.ir.work import Work, moved
from weft.records import dataclass

Config: TypeAlias = Mapping[str, int]  # the values of backend_config; booleans are 0 and 1
CallResults: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class CallUse:
    """One use of a custom call: its configuration, its result types, and its evaluation."""

    config: Config
    outs: Types
    run: Evaluation | None = None


def _bytes(config: Config, operands: Types, results: Types) -> Work:
    return Work(bytes=moved(*operands, *results))


@dataclass(frozen=True, slots=True)
class KnownCall:
    """A custom call: its type check, factors, numpy reference, and work.

    `check` refuses types that do not fit. `batched`: the reference accepts any number of leading
    batch dims shared by all operands. `pure`: it has no side effect.
    """

    check: Callable[[str, Config, Types, Types], None]
    reference: Callable[..., CallResults]  # of a CallUse and the operands
    rule: Callable[[Types, Types], Rule] | None = None  # None: every dim must be whole
    work: Callable[[Config, Types, Types], Work] = _bytes
    batched: bool = False
    pure: bool = False


@lru_cache(maxsize=4096)
def config_of(text: str | None) -> Config:
    """`{lower = true, index = 3 : i64}` as numbers; other values are ignored."""
    if text is None or not text.startswith("{"):
        return {}
    config: dict[str, int] = {}
    for name, value in dictionary(text).items():
        word = value.partition(" :")[0]
        if word in ("true", "false"):
            config[name] = int(word == "true")
        elif word.lstrip("-").isdigit():
            config[name] = int(word)
    return config


def config_text(**values: int) -> str:
    """Numbers and booleans as the text of a `backend_config`."""
    parts = [
        f"{name} = {str(value).lower() if isinstance(value, bool) else f'{value} : i64'}"
        for name, value in sorted(values.items())
    ]
    return f"{{{', '.join(parts)}}}"


def by_batch(core: int) -> Callable[[Types, Types], Rule]:
    """The rule of a call whose first operand has `core` dims after the batch dims."""

    def rule(operands: Types, results: Types) -> Rule:
        builder = RuleBuilder(operands, results)
        first = operands[0] if operands else None
        shape = first.bounds[:-core] if isinstance(first, TensorType) else ()
        for dim, size in enumerate(shape):
            builder.factor([dim] * len(operands), [dim] * len(results), size)
        return builder.build()

    return rule


def identity_types(name: str, config: Config, operands: Types, results: Types) -> None:
    """Refuse a change of type."""
    require(
        results == operands,
        f"custom call {name!r} changes a type",
        "its results are its operands",
    )
