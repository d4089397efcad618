"""JAX functions in scripts: `script.py:function`, their arguments and shardings."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.mesh import Mesh

_SCRIPT = re.compile(r"(.+\.py):([A-Za-z_]\w*)")


@dataclass(frozen=True)
class Script:
    """A function of a script, and what stands beside it."""

    path: str
    name: str
    names: dict[str, Any]

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        found = self.names.get(self.name)
        if not callable(found):
            known = ", ".join(n for n, v in self.names.items() if callable(v) and n[0] != "_")
            raise WeftError(
                f"{self.path} has no function {self.name!r}", help=f"it has {known or 'none'}"
            )
        function: Callable[..., Any] = found
        return function

    def inputs(self) -> tuple[Any, ...]:
        """The arguments that the script gives the function."""
        found = self.beside("inputs")
        if found is None:
            raise WeftError(
                f"{self.path} does not say what to call {self.name} with",
                help=f"define {self.name}_inputs there: a tuple of arguments, or a function that "
                "gives one",
            )
        made = found() if callable(found) else found
        return made if isinstance(made, tuple) else (made,)

    def shardings(self, mesh: Mesh | None) -> Any:
        """How the script splits the arguments, if a mesh is given and the script says it."""
        return None if mesh is None else self.beside("shardings")

    def beside(self, what: str) -> Any:
        """`function_inputs`, or else `inputs`."""
        return self.names.get(f"{self.name}_{what}", self.names.get(what))


def is_script(text: str) -> bool:
    """Whether this names a function of a script."""
    return _SCRIPT.fullmatch(text) is not None


def load_script(text: str) -> Script:
    """Run a script, up to its end, and find the function."""
    match = _SCRIPT.fullmatch(text)
    assert match is not None
    path, name = match[1], match[2]
    if not Path(path).is_file():
        raise WeftError(f"cannot read {path}: no such file", help="give the path of a script")
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        names = runpy.run_path(path, run_name="weft_run")
    finally:
        sys.path.pop(0)
    return Script(path, name, names)
