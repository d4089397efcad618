"""Linking: objects become functions in this process that can be called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from weft.emit.llvm.machine_code import binding, host, target_machine


class Linked:
    """Objects in memory; their functions live as long as this does."""

    def __init__(self, objects: Iterable[bytes]) -> None:
        llvm = binding()
        empty = llvm.parse_assembly("")
        self._engine: Any = llvm.create_mcjit_compiler(empty, target_machine(host()))
        for code in objects:
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def addresses(self, symbols: Sequence[str]) -> tuple[int, ...]:
        """Where functions begin."""
        found = tuple(self._engine.get_function_address(symbol) for symbol in symbols)
        assert all(found), f"a function is missing of {symbols}"
        return found
