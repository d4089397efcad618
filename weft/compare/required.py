"""The correlation that a comparison requires: the caller's, or a file's by model and target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.records import dataclass

CORRELATION = 0.999  # where none is given


@dataclass(frozen=True, slots=True)
class RequiredCorrelation:
    """The least correlation of every module's output, and modules that need not have it."""

    correlation: float = CORRELATION
    exempt: Mapping[str, str] = field(default_factory=dict)  # patterns of paths, with the reason

    def reason(self, path: str) -> str:
        """The reason that a module is exempt, or an empty text."""
        return next((why for at, why in self.exempt.items() if fnmatchcase(path, at)), "")


def read_required(file: Path, model: str, target: str) -> RequiredCorrelation:
    """The requirements of a file for a model on a target.

    The file is JSON: `{"Llama": {"llvm": {"correlation": 0.999, "exempt": {"layers.0": "why"}}}}`.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeftError(f"cannot read {file}: {error}", help="give a file of JSON") from None
    held: Any = found
    for word, what in ((model, "model"), (target, "target")):
        if not isinstance(held, dict) or word not in held:
            known = ", ".join(held) if isinstance(held, dict) else "nothing"
            raise WeftError(
                f"{file} requires nothing of the {what} {word!r}; it has {known}",
                help='add {"' + model + '": {"' + target + '": {"correlation": 0.999}}}',
            )
        held = held[word]
    return as_required(held, str(file))


def as_required(held: Any, where: str) -> RequiredCorrelation:
    """A correlation and exemptions, checked."""
    if not isinstance(held, dict) or not held.keys() <= {"correlation", "exempt"}:
        raise WeftError(
            f"{where}: {held!r} is not what a comparison requires",
            help='write {"correlation": 0.999, "exempt": {"layers.0.*": "the reason"}}',
        )
    correlation, exempt = held.get("correlation", CORRELATION), held.get("exempt", {})
    if not isinstance(correlation, int | float) or not -1 <= correlation <= 1:
        raise WeftError(
            f"{where}: the correlation {correlation!r} is not a number from -1 to 1",
            help="write a number such as 0.999",
        )
    if not isinstance(exempt, dict) or not all(isinstance(w, str) and w for w in exempt.values()):
        raise WeftError(
            f"{where}: an exemption without a reason",
            help='write {"layers.0.*": "the reason"}',
        )
    return RequiredCorrelation(float(correlation), exempt)
