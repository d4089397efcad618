"""Emit: the kernels of an executable become text of a target."""

from dataclasses import replace

from weft.executable.executable import Executable
from weft.executable.text import kernel_names
from weft.target import Target


def emit(executable: Executable, target: Target | None) -> Executable:
    """The executable with the text that each of its kernels becomes, by the kernel's name."""
    if target is None:  # numpy, node by node
        return replace(executable, texts={})
    names = kernel_names(executable.tiled)
    return replace(executable, texts={name: target.text(k) for k, name in names.items()})


__all__ = ["emit"]
