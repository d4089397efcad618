"""Checksums of texts, for tables: what another order, constant or choice changes, and no size."""

from __future__ import annotations

import re
import zlib

# Tables of bytes in LLVM's text are left out: of roots of unity the last bits are a machine's.
TABLES = re.compile(r'c"[^"]*"')


def checksum(*texts: str) -> str:
    """Eight digits for each text."""
    return " ".join([f"{zlib.crc32(TABLES.sub('', text).encode()):08x}" for text in texts])
