"""Executables that were saved, ready to be called where they were not compiled."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from weft import __version__
from weft.emit.numpy import host_of
from weft.errors import WeftError
from weft.executable import call
from weft.executable.container import open_container
from weft.executable.executable import Executable
from weft.executable.files import read
from weft.executable.memory import MemoryUse
from weft.executable.process import Process
from weft.executable.signature import Signature
from weft.mesh import Mesh
from weft.run import LocalProgram, run
from weft.target import Target
from weft.targets import target_named


class Loaded:
    """A program of a file: call it as the function that it was compiled from."""

    def __init__(self, signature: Signature, made: Executable, program: LocalProgram) -> None:
        self.signature, self.executable, self.program = signature, made, program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays, scalars and nested dicts, lists and tuples of them."""
        arrays = call.arguments(self.signature, args, kwargs)
        return call.results(self.signature, run(self.program, *arrays))

    @property
    def mesh(self) -> Mesh:
        """The devices that it runs on."""
        return self.signature.mesh

    def memory(self) -> MemoryUse:
        """The bytes that one run holds of one device."""
        return self.program.memory_of_one()

    def text(self, *, locations: bool = False) -> str:
        """The tiled program."""
        return self.executable.text(locations=locations).text

    def __repr__(self) -> str:
        return f"<weft.load: {self.signature.name} on {self.mesh.size} devices>"


def load(path: str | os.PathLike[str] | bytes, *, process: Process | None = None) -> Loaded:
    """The executable of a file that `Compiled.save` wrote, or of its bytes.

    No code of the file is run: its kernels are verified, and this installation emits them. What was
    emitted before is taken from the user's cache. A program whose devices are in several processes
    is told by `process` which one this is, and what reaches the others.
    """
    container = open_container(path)
    signature, made = container.signature(), read(container)
    target, kernels = _target(made), made.kernels()
    name = hashlib.sha256(container.read("tiled")).hexdigest()
    if target is not None and target.identity is not None:
        target.recall(kernels, name)
    program = LocalProgram(made.tiled, made.plan, host_of(process), target)
    if target is not None and target.identity is not None:
        target.remember(kernels, name)
    return Loaded(signature, made, program)


def _target(made: Executable) -> Target | None:
    """The target that an executable is for, if it takes its kernels."""
    target = target_named(made.target)
    for kernel in made.kernels():
        reason = "numpy has no kernels" if target is None else target.takes(kernel)
        if reason is not None:
            raise WeftError(
                f"the {made.target} target of weft {__version__} does not take the kernel "
                f"{kernel.name}: {reason}",
                help="compile the program again with this version of weft",
            )
    return target
