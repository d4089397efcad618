"""Memory that is lent to other libraries, in native code: they give it back whenever they want."""

from __future__ import annotations

from weft.jax.native.record_code import destroy
from weft.jax.native.records import LentRecord
from weft.native.function import native
from weft.native.memory import Pointer
from weft.native.python_api import PyCapsule_GetPointer, PyCapsule_IsValid

PLAIN, VERSIONED = b"dltensor\0", b"dltensor_versioned\0"
LENT_AT = LentRecord.given.offset  # bytes of a record before what others are given


@native
def take_back(lent: Pointer) -> None:
    """Another library no longer reads what was lent to it; any thread may say so."""
    destroy(LentRecord(lent.plus(-LENT_AT)))


@native
def drop_capsule(capsule: Pointer) -> None:
    """A capsule is gone: what is in it goes back, unless it was taken out."""
    if PyCapsule_IsValid(capsule, PLAIN) != 0:
        take_back(PyCapsule_GetPointer(capsule, PLAIN))
    elif PyCapsule_IsValid(capsule, VERSIONED) != 0:
        take_back(PyCapsule_GetPointer(capsule, VERSIONED))
