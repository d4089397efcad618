"""The state that the plugin's native functions share."""

from __future__ import annotations

from weft.jax.native.records import ArrayRecord, ErrorRecord, EventRecord, HandleRecord
from weft.native.memory import Items, Member, Pointer, Struct, inline

KEPT = 16  # blocks


class KeptBlock(Struct):
    """Memory that is kept for an array of so many bytes; 0: there is none."""

    memory: Member[Pointer]
    nbytes: Member[int]


class PluginState(Struct):
    """One record for all; slots that Python fills follow."""

    gone: Member[HandleRecord]  # the list of records that JAX has destroyed
    free: Member[HandleRecord]  # the list of those that can be used, and how many they are
    count: Member[int]
    closed: Member[ErrorRecord]  # the error returned in a forked child
    ready: Member[EventRecord]  # an event that is always ready
    interrupted: Member[ErrorRecord]  # errors returned where Python returns none
    failed: Member[ErrorRecord]
    ended: Member[ErrorRecord]
    interrupt: Member[Pointer]  # Python's KeyboardInterrupt
    drain: Member[Pointer]  # the Python function that releases destroyed records
    soon: Member[int]  # whether it is to be called soon
    attributes: Member[Pointer]  # the plugin's attributes, for JAX
    attribute_count: Member[int]
    main: Member[Pointer]  # the main thread, and how often it is inside of a bridge
    depth: Member[int]
    remembered: Member[int]  # whether signals came there, which are to be handled
    others: Member[int]  # whether other threads have come
    ending: Member[Pointer]  # when the process ends: says whether they are to park
    parked: Member[int]  # number of parked threads
    templates: Member[Items[ArrayRecord]]  # of small arrays: by a hash of their type and sizes
    asked: Member[ArrayRecord]  # the list of enqueued arrays whose readiness JAX has asked for
    wake: Member[int]  # the pipe that wakes the thread that watches them; 0 if there is none
    aliasing: Member[int]  # whether arrays of the host are taken over as they are
    guarded: Member[int]  # whether JAX is to see what comes from devices to the host
    act: Member[Pointer]  # the Python function that handles pending signals
    exhausted: Member[Pointer]  # what Python raises for want of stack or memory
    raised: Member[Pointer]  # what else it has raised before a first line: type, value and trace
    raised_value: Member[Pointer]
    raised_trace: Member[Pointer]
    kept: Member[KeptBlock] = inline(KeptBlock, KEPT)
    turn: Member[int]  # the block that is evicted next
    thunks: Member[Items[Pointer]] = inline(int, 0)  # the Python functions that bridges call


SYMBOL = "state"
state = PluginState.static(SYMBOL)
THUNKS = PluginState.thunks.word
