"""Executables: a tiled program with its memory plan, as data to save, send and run."""

from __future__ import annotations

from collections.abc import Mapping

from weft.executable.items import Launch, Tiled, all_items
from weft.executable.memory import MemoryUse, memory_use
from weft.executable.plan import Plan
from weft.executable.text import TiledText, emitted_text, tiled_text
from weft.kernels.group import AnyKernel
from weft.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Executable:
    """A tiled program: items over slots, the memory plan, and kernel texts."""

    tiled: Tiled
    plan: Plan
    target: str  # the target whose limits and schedules its kernels use
    texts: Mapping[str, str] | None = None  # kernel texts by name, once emitted

    def kernels(self) -> list[AnyKernel]:
        """The distinct kernels, in the order of their first launches."""
        items = [item for item in all_items(self.tiled.block) if isinstance(item, Launch)]
        return [*dict.fromkeys([item.kernel for item in items])]

    def memory(self) -> MemoryUse:
        """The memory use of one device in a run, known statically."""
        return memory_use(self.tiled, self.plan)

    def text(self, *, locations: bool = True) -> TiledText:
        """The program's text, and the constants stored next to it."""
        return tiled_text(self.tiled, self.plan, locations=locations)

    def emitted_text(self, *, locations: bool = True) -> str:
        """The program's text followed by its kernels' emitted texts."""
        assert self.texts is not None, "the executable is emitted"
        return emitted_text(self.text(locations=locations).text, self.target, self.texts)
