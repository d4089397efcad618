"""All kinds of sources: what `weft.compile` takes."""

from __future__ import annotations

from weft.array.jax_types import make_known_to_jax
from weft.capture.jax.function import jax_function
from weft.capture.options import CallOptions
from weft.capture.source import Source
from weft.capture.stablehlo.given import given_module
from weft.errors import WeftError

# Each is asked in turn, and gives None for what is not its own. What can be called is JAX's
# function unless somebody before claims it.
KINDS = (given_module, jax_function)


def source_of(program: object, options: CallOptions) -> Source:
    """The source that a program is."""
    make_known_to_jax()
    for kind in KINDS:
        made: Source | None = kind(program, options)
        if made is not None:
            return made
    raise WeftError(
        f"{type(program).__name__} {program!r} is nothing to compile"[:120],
        help="give a JAX function, a module, or StableHLO: its text, bytes or path",
    )
