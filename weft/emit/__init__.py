"""Emit: an executable's kernels as text of a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.records import dataclass

if TYPE_CHECKING:
    from weft.executable.executable import Executable
    from weft.kernels.group import AnyKernel
    from weft.target import Target


def emit(executable: Executable, target: Target) -> Executable:
    """The executable with the emitted text of each kernel, by the kernel's name."""
    from weft.executable.text import kernel_names  # not needed by programs that only run

    names = kernel_names(executable.tiled)
    return replace(executable, texts=_Texts(target, {name: k for k, name in names.items()}))


@dataclass(frozen=True, slots=True)
class _Texts(Mapping[str, str]):
    """Emitted texts, produced on access: a program may have megabytes of them."""

    target: Target
    kernels: Mapping[str, AnyKernel]

    def __getitem__(self, name: str) -> str:
        return self.target.text(self.kernels[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)


__all__ = ["emit"]
