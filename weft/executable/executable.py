"""An executable: a tiled program with its memory, as data that is saved, sent and run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.executable.items import Launch, Tiled, all_items
from weft.executable.memory import MemoryUse, memory_use
from weft.executable.plan import Plan
from weft.executable.text import TiledText, emitted_text, tiled_text
from weft.kernels.group import Launch as Kernel


@dataclass(frozen=True, slots=True, eq=False)
class Executable:
    """What a program becomes: items over slots, their memory, and the text of kernels."""

    tiled: Tiled
    plan: Plan
    target: str  # the name of the target whose limits and schedules its kernels have
    texts: Mapping[str, str] | None = None  # of kernels, by name, once they are emitted

    def kernels(self) -> list[Kernel]:
        """The distinct kernels, in the order of their first launches."""
        items = [item for item in all_items(self.tiled.block) if isinstance(item, Launch)]
        return [*dict.fromkeys([item.kernel for item in items])]

    def memory(self) -> MemoryUse:
        """What one device holds in a run, before anything runs."""
        return memory_use(self.tiled, self.plan)

    def text(self, *, locations: bool = True) -> TiledText:
        """The program as text, and the constants that are kept beside it."""
        return tiled_text(self.tiled, self.plan, locations=locations)

    def emitted_text(self, *, locations: bool = True) -> str:
        """The text with those that its kernels have become."""
        assert self.texts is not None, "it was emitted"
        return emitted_text(self.text(locations=locations).text, self.target, self.texts)
