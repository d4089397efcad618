"""What handles point to: records of 192 bytes that native code reads without asking Python.

Every handle that JAX holds is the address of a record. Its first word is 0 while it is in use (JAX
looks for a table of functions there); records that were given up are chained by it. The second says
what the record is. Buffers of one value, a piece on each device, have a family in common, which
says what they have in common.
"""

from __future__ import annotations

import ctypes
from typing import Any

SIZE = 192  # bytes
MOST_DIMS = 7  # whose sizes have room in a family; more lie elsewhere

STATIC, BUFFER, ERROR, LENT, EVENT, EXECUTABLE, FAMILY = range(7)
COUNTED = EVENT  # from here on records may be held several times
PENDING, READY, FAILED = range(3)

# The word at which each field begins.
FIELDS: dict[str, dict[str, int]] = {
    "record": {"next": 0, "what": 1, "live": 3},  # how often it is held, where that is counted
    "buffer": {"family": 2, "place": 3, "device": 4, "memory": 5, "deleted": 6},
    "family": {
        "state": 2,
        "live": 3,  # by its buffers, by events, and while it is pending
        "type": 4,
        "rank": 5,
        "dims": 6,
        "nbytes": 7,
        "order": 15,  # minor to major, as JAX writes layouts
        "error": 16,
        "waiting": 17,
        "data": 18,  # where the pieces are, if that is known, and how far they are from each other
        "step": 19,
        "kind": 20,  # of the elements there, as programs name it; 0 if they may not be read there
        "own": 21,  # memory that nobody but this record holds
        "lent": 22,  # whether others may read the memory
        "native": 23,  # whether Python does not know of it
    },  # 8..14 are the sizes, where there is room for them
    "layout": {"text": -2, "text_size": -1},  # its text is before its dims, minor to major
    "event": {"state": 2, "error": 16, "waiting": 17},  # as a family, which is an event, too
    "error": {"code": 2, "message": 3, "message_size": 4},
    "executable": {
        "deleted": 2,
        "replicas": 4,
        "partitions": 5,
        "outputs": 6,
        "name": 7,
        "name_size": 8,
        "code_bytes": 9,
        "executable": 10,  # what JAX is given that asks for the executable behind a loaded one
        "devices": 11,
        "device_count": 12,
        "logical_ids": 13,
        "assignment": 14,
        "assignment_size": 15,
        "types": 16,
        "dims": 17,
        "ranks": 18,
        "kinds": 19,
        "kind_sizes": 20,
        "options": 21,
        "options_size": 22,
        "recipe": 23,  # how it is called without Python, if it can be
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


RecordWords = ctypes.c_int64 * (SIZE // 8)


def words(address: int) -> Any:
    """A record as a list of words."""
    return RecordWords.from_address(address)
