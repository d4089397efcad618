"""Linking: objects become callable functions in this process."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from weft.emit.llvm.jit.processor import binding, host, target_machine
from weft.errors import WeftError

_SYMBOL_TABLE = 2  # ELF section type


class Linked:
    """Linked objects; keeps their functions alive."""

    def __init__(self, objects: Iterable[bytes]) -> None:
        llvm = binding()
        # MCJIT wants a module; objects, which are compiled elsewhere and cached, are added to it.
        empty = llvm.parse_assembly("")
        self._engine: Any = llvm.create_mcjit_compiler(empty, target_machine(host()))
        for code in objects:
            if b"weft.lapack" in code:
                from weft.emit.llvm.jit.lapack import define_routines  # looks for libraries

                define_routines(code)
            _check_symbols(code)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def addresses(self, symbols: Sequence[str]) -> tuple[int, ...]:
        """The addresses of functions."""
        found = tuple(self._engine.get_function_address(symbol) for symbol in symbols)
        assert all(found), f"a symbol is missing of {symbols}"
        return found


def _check_symbols(code: bytes) -> None:
    """Raise for undefined symbols: LLVM would call address 0."""
    for name in undefined_symbols(code):
        if binding().address_of_symbol(name) is None:
            raise WeftError(
                f"a kernel calls {name}, which is not defined in this process",
                help="this is a bug in weft, or the processor lacks a feature of the kernel",
            )


def undefined_symbols(code: bytes) -> Iterator[str]:
    """The undefined symbols of a 64-bit ELF object; empty for other formats."""
    # Magic, 64 bits, little-endian. Mach-O and COFF objects are not checked.
    if code[:6] != b"\x7fELF\x02\x01":
        return
    # e_shoff at 40, e_shentsize and e_shnum at 58 (ELF-64 header).
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
            # SHN_UNDEF: defined elsewhere; the first symbol is a null entry without a name.
            if section == 0 and name:
                yield code[names + name : code.index(b"\0", names + name)].decode()
