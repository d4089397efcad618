"""Compiled programs as bytes: what was asked for, and the program as far as it can be written.

The optimized program is kept, so that loading begins where kernels are emitted, which are
remembered on disk. A checksum shows damage, and the versions say who can read it.
"""

from __future__ import annotations

import hashlib
import json

from weft.capture.normalize.absorb_composites import absorb_composites
from weft.capture.stablehlo.mlir_parser import read_in_process
from weft.errors import Unsupported, WeftError
from weft.ir.module import Module
from weft.ir.read import read_module
from weft.jax.patches.caching import NOT_STORED
from weft.jax.programs.compiling import Executable, asked_in
from weft.jax.programs.dumping import dump
from weft.jax.versions import makers
from weft.ops import BY_NAME
from weft.pipeline import optimized_program

MAGIC = b"weft-executable-2"


def serialized(executable: Executable) -> bytes:
    """A compiled program as bytes."""
    if executable.local.callbacks:
        raise Unsupported(
            f"{executable.name} {NOT_STORED}",
            help="leave out callbacks and debug prints, or compile it where it runs",
        )
    optimized = executable.module.text(locations=True).encode()
    parts = (executable.options, optimized)
    told = {"made_by": makers(), "fingerprint": executable.fingerprint.decode()}
    head = json.dumps(told | {"sizes": [len(part) for part in parts]})
    rest = b"\n".join([head.encode(), b"".join(parts)])
    return MAGIC + b" " + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def restored(data: bytes, options: bytes | None) -> Executable:
    """A compiled program from its bytes, perhaps with other options for where it runs."""
    line, _, rest = data.partition(b"\n")
    magic, _, checksum = line.partition(b" ")
    if magic != MAGIC:
        raise WeftError(
            "these bytes are no program that Weft has stored",
            help="give what serialize gave, on JAX_PLATFORMS=weft",
        )
    if checksum != hashlib.sha256(rest).hexdigest().encode():
        raise WeftError("a stored program is damaged", help="compile and store it anew")
    head, _, body = rest.partition(b"\n")
    told = json.loads(head)
    _check_makers(told["made_by"])
    own, optimized = _parts(body, told["sizes"])
    asked = asked_in(options or own)
    how = asked.options
    module = _read(optimized)
    program = optimized_program(
        module,
        target=how.target,
        fold_sums=how.fold_sums,
        tune=how.tune,
        excess_precision=how.excess_precision,
    )
    stored = told["fingerprint"].encode()
    made = Executable(optimized, options or own, asked, program, stored)
    if how.dump is not None:
        dump(how.dump, made, None, program.stages)
    return made


def _check_makers(found: dict[str, str]) -> None:
    if found != makers():
        versions = " and ".join([f"{name} {version}" for name, version in found.items()])
        raise WeftError(
            f"a stored program was made by {versions}",
            help="compile it anew: programs are read by the versions that have written them",
        )


def _parts(body: bytes, sizes: list[int]) -> list[bytes]:
    found = []
    for size in sizes:
        found.append(body[:size])
        body = body[size:]
    return found


def _read(text: bytes) -> Module:
    """The optimized program, as it was written."""
    return absorb_composites(read_module(read_in_process(text), BY_NAME))
