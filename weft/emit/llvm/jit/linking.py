"""Linking: objects become functions in this process that can be called."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from weft.emit.llvm.jit.processor import binding, host, target_machine
from weft.errors import WeftError

_SYMBOL_TABLE = 2  # the type of a section of an ELF file


class Linked:
    """Objects in memory; their functions live as long as this does."""

    def __init__(self, objects: Iterable[bytes]) -> None:
        llvm = binding()
        empty = llvm.parse_assembly("")
        self._engine: Any = llvm.create_mcjit_compiler(empty, target_machine(host()))
        for code in objects:
            _check_symbols(code)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def addresses(self, symbols: Sequence[str]) -> tuple[int, ...]:
        """Where functions begin."""
        found = tuple(self._engine.get_function_address(symbol) for symbol in symbols)
        assert all(found), f"a function is missing of {symbols}"
        return found


def _check_symbols(code: bytes) -> None:
    """Refuse an object that calls what is not in this process: LLVM would call address 0."""
    for name in undefined_symbols(code):
        if binding().address_of_symbol(name) is None:
            raise WeftError(
                f"a kernel calls {name}, which is not in this process",
                help="this is a bug in weft, or the processor lacks what the kernel was made for",
            )


def undefined_symbols(code: bytes) -> Iterator[str]:
    """The symbols that a 64-bit ELF object does not define; of other formats nothing is known."""
    if code[:6] != b"\x7fELF\x02\x01":
        return
    (table,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQII", code, table + n * size) for n in range(count)]
    for _, kind, _, _, begin, length, strings, _ in sections:
        if kind != _SYMBOL_TABLE:
            continue
        names = sections[strings][4]
        for name, _, _, section, _, _ in struct.iter_unpack(
            "<IBBHQQ", code[begin : begin + length]
        ):
            if section == 0 and name:
                yield code[names + name : code.index(b"\0", names + name)].decode()
