"""What handles point to: records of 128 bytes that native code reads without asking Python.

Every handle that JAX holds is the address of a record. Its first word is 0 while it is in use (JAX
looks for a table of functions there); records that were given up are chained by it. The second says
what the record is. Buffers of one value, a piece on each device, have a family in common, which
says what they have in common.
"""

from __future__ import annotations

import ctypes
from typing import Any

SIZE = 128  # bytes
MOST_DIMS = 7  # whose sizes have room in a family; more lie elsewhere

STATIC, BUFFER, EVENT, EXECUTABLE, ERROR, FAMILY = range(6)
PENDING, READY, FAILED = range(3)

# The word at which each field begins.
FIELDS: dict[str, dict[str, int]] = {
    "record": {"next": 0, "what": 1},
    "buffer": {"family": 2, "place": 3, "device": 4, "memory": 5, "deleted": 6},
    "family": {
        "state": 2,
        "live": 3,  # its buffers that JAX holds
        "type": 4,
        "rank": 5,
        "dims": 6,
        "nbytes": 7,
        "order": 15,  # minor to major, as JAX writes layouts
    },  # 8..14 are the sizes, where there is room for them
    "event": {"state": 2},
    "error": {"code": 2, "message": 3, "message_size": 4},
    "executable": {
        "deleted": 2,
        "replicas": 3,
        "partitions": 4,
        "outputs": 5,
        "name": 6,
        "name_size": 7,
        "code_bytes": 8,
    },
    "client": {
        "platform": 2,
        "platform_size": 3,
        "version": 4,
        "version_size": 5,
        "devices": 6,
        "device_count": 7,
        "memories": 8,
        "memory_count": 9,
        "topology": 10,
        "descriptions": 11,
    },
    "device": {
        "id": 2,
        "text": 3,
        "text_size": 4,
        "kind": 5,
        "kind_size": 6,
        "memories": 7,
        "memory_count": 8,
        "memory": 9,
        "self": 10,
    },
    "memory": {
        "id": 2,
        "kind": 3,
        "kind_size": 4,
        "kind_id": 5,
        "text": 6,
        "text_size": 7,
        "devices": 8,
        "device_count": 9,
    },
}


def at(record: str, field: str) -> int:
    """Where a field of a record lies, in bytes."""
    found = FIELDS[record].get(field)
    return 8 * (FIELDS["record"][field] if found is None else found)


Words = ctypes.c_int64 * (SIZE // 8)


def words(address: int) -> Any:
    """A record as a list of words."""
    return Words.from_address(address)
