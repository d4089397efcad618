"""The door's native functions do as machine code what they do as Python; and under threads."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.jax.native.native_sides import Side, array_record, machine_code
from weft.jax.native.arrivals import (
    ENTRIES,
    ArriveArgs,
    is_dense,
    place_in_table,
)
from weft.jax.native.blocks import block, release
from weft.jax.native.calls import ExecuteArgs, ExecuteOptions
from weft.jax.native.events import CLOSED, OnReadyArgs, on_ready, settle
from weft.jax.native.fast_path import DONE
from weft.jax.native.fast_path import FAILED as GAVE_UP
from weft.jax.native.records import (
    ARRAY,
    BUFFER,
    ERROR,
    EVENT,
    EXECUTABLE,
    FAILED,
    LENT,
    READY,
    STATIC,
    ArgumentPlan,
    ArrayRecord,
    BufferRecord,
    CallDescriptor,
    DeviceRecord,
    EventRecord,
    ExecutableRecord,
    HandleRecord,
    MemoryRecord,
    ReadyCallback,
    ResultPlan,
    words,
)
from weft.native.libc import malloc
from weft.native.memory import Items, Pointer, address, function_type
from weft.native.python_api import Py_AddPendingCall

RECORDS = 24


@pytest.fixture(autouse=True)
def nothing_pending():
    """In Python nobody is asked to drain soon; machine code asks, and has no Python function."""
    with Py_AddPendingCall.replaced(lambda function, given: 0):
        yield


def templates(native: int, nbytes: int) -> Any:
    line = ArrayRecord.words(what=ARRAY, state=READY, type=11, rank=2, nbytes=nbytes, native=native)
    return (ctypes.c_int64 * (2 * len(line)))(*line, *line)


# Records: any sequence of what happens to them leaves the same memory on both sides.

steps = st.lists(
    st.tuples(
        st.sampled_from(
            "fresh single spread destroy destroy drain sweep hide disown drop columns".split()
        ),
        st.integers(0, 7),
        st.integers(0, 3),
    ),
    max_size=25,
)


class Both:
    """The two sides, in step."""

    def __init__(self) -> None:
        self.sides = [Side(native, RECORDS) for native in (True, False)]
        self.kept: list[Any] = []
        self.held: list[str] = []
        self.buffers: list[str] = []
        self.compare()

    def call(self, name: str, *args: Any) -> Any:
        one, other = (side.call(name, *args) for side in self.sides)
        assert one == other, name
        return one

    def compare(self) -> None:
        one, other = (side.words() for side in self.sides)
        assert one == other
        for side in self.sides:
            free, gone = side.listed(side.state.free), side.listed(side.state.gone)
            assert len(free) == side.state.count and not {*free} & {*gone}
            assert not ({*free} | {*gone}) & {*self.held, *self.buffers}

    def step(self, what: str, n: int, k: int) -> None:
        getattr(self, what)(n, k)
        self.compare()

    def fresh(self, n: int, k: int) -> None:
        made = self.call("fresh", (STATIC, ERROR, LENT, EVENT, EXECUTABLE)[n % 5])
        self.held += [made] if made else []

    def single(self, n: int, k: int) -> None:
        held = templates(native=k % 2, nbytes=1 << (20 if n == 0 else 4))
        at = ArrayRecord(ctypes.addressof(held))
        made = self.call("single", at, DeviceRecord(64), MemoryRecord(128))
        self.buffers += [made] if made else []

    def spread(self, n: int, k: int) -> None:
        devices, results = n % 3 + 1, k % 2 + 1
        held = templates(native=0, nbytes=16)
        found = []
        for side in self.sides:
            rows = [(ctypes.c_size_t * results)() for _ in range(devices)]
            lists = (ctypes.c_size_t * devices)(*map(ctypes.addressof, rows))
            on, inside = (ctypes.c_size_t * devices)(*range(devices)), (ctypes.c_size_t * 8)()
            out = (ctypes.c_size_t * results)()
            given = [Pointer(ctypes.addressof(one)) for one in (on, inside, out)]
            at = ArrayRecord(ctypes.addressof(held))
            done = side.call(
                "spread", Pointer(ctypes.addressof(lists)), devices, results, at, *given
            )
            found.append(
                (done, [side.name(b) for row in rows for b in row], [*map(side.name, out)])
            )
        assert found[0] == found[1]
        self.buffers += found[0][1] if found[0][0] else []

    def destroy(self, n: int, k: int) -> None:
        pile = self.buffers if k or not self.held else self.held
        if pile:
            gone = pile.pop(n % len(pile))
            self.call("destroy", gone)
            if pile is self.held and words(address(self.sides[0].at(gone)))[1] == STATIC:
                self.held.append(gone)  # that stays

    def drain(self, n: int, k: int) -> None:
        found = []
        for side in self.sides:
            out = (ctypes.c_size_t * 8)()
            count = side.call("drain", Items[HandleRecord](ctypes.addressof(out)), n + 1)
            found.append([side.name(one) for one in out[:count]])
        assert found[0] == found[1]
        for record in found[0]:
            self.call("finish", record)

    def sweep(self, n: int, k: int) -> None:
        self.call("sweep")

    def hide(self, n: int, k: int) -> None:
        self._on_array("hide", n)

    def disown(self, n: int, k: int) -> None:
        self._on_array("disown", n)

    def _on_array(self, name: str, n: int) -> None:
        if self.buffers:
            record = self.sides[0].name(
                array_record(self.sides[0], self.buffers[n % len(self.buffers)])
            )
            self.call(name, record)

    def drop(self, n: int, k: int) -> None:
        if self.buffers:
            for side in self.sides:
                lists = self.lists(side, [self.buffers[n % len(self.buffers)]])
                side.call("drop", lists, 1, 0)

    def columns(self, n: int, k: int) -> None:
        count = len(self.buffers) // 2
        found = []
        for side in self.sides:
            out = (ctypes.c_size_t * max(1, count))()
            lists = self.lists(side, self.buffers[:count], self.buffers[count : 2 * count])
            side.call("columns", lists, 2, count, Items[ArrayRecord](ctypes.addressof(out)))
            found.append([side.name(one) for one in out])
        assert found[0] == found[1]

    def lists(self, side: Side, *rows: list[str]) -> Pointer:
        held = [
            (ctypes.c_size_t * max(1, len(row)))(*[address(side.at(b)) for b in row])
            for row in rows
        ]
        lists = (ctypes.c_size_t * len(held))(*map(ctypes.addressof, held))
        self.kept += [held, lists]
        return Pointer(ctypes.addressof(lists))


@settings(max_examples=30)
@given(steps)
def test_records_are_the_same_on_both_sides(sequence):
    both = Both()
    for step in sequence:
        both.step(*step)


def test_records_that_threads_destroy_come_back_once():
    code, rounds, threads = machine_code(), 50, 4
    side = Side(True, threads * rounds)
    out = (ctypes.c_size_t * 8)()
    records = [code.fresh(LENT) for _ in range(threads * rounds)]
    start = threading.Barrier(threads + 1)

    def destroy(mine: list[Any]) -> None:
        start.wait()
        for record in mine:
            code.destroy(record)

    workers = [
        threading.Thread(target=destroy, args=(records[n::threads],)) for n in range(threads)
    ]
    for worker in workers:
        worker.start()
    start.wait()
    found: list[int] = []
    while len(found) < len(records):
        count = code.drain(Items[HandleRecord](ctypes.addressof(out)), len(out))
        found += out[:count]
    for worker in workers:
        worker.join()
    assert sorted(found) == sorted(address(r) for r in records) and not side.state.gone


# Events


def waiting(event: EventRecord, callback: Any, given: int) -> OnReadyArgs:
    args = OnReadyArgs.new()
    args.event, args.user_arg = event, Pointer(given)
    at = ctypes.cast(callback, ctypes.c_void_p).value or 0
    ctypes.c_size_t.from_address(address(OnReadyArgs.callback.of(args))).value = at
    return args


@pytest.mark.parametrize("native", [True, False], ids=["machine code", "Python"])
def test_callbacks_are_called_once_under_threads(native):
    code = machine_code()
    told, done = (code.on_ready, code.settle) if native else (on_ready, settle)
    for error in (0, 77):
        side = Side(native, 4)
        event = EventRecord(side.at(side.call("fresh", EVENT)))
        seen: list[tuple[int, int]] = []
        callback = function_type(ReadyCallback)(lambda e, g, seen=seen: seen.append((e, g)))
        start = threading.Barrier(4)

        def wait(first: int, start=start, event=event, callback=callback) -> None:
            start.wait()
            for n in range(50):
                told(waiting(event, callback, first + n))

        event.live += 1  # who settles it holds it
        threads = [threading.Thread(target=wait, args=(1000 * n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        start.wait()
        done(event, FAILED if error else READY, Pointer(error))
        for thread in threads:
            thread.join()
        expected = [1000 * k + n for k in range(3) for n in range(50)]
        assert sorted(g or 0 for _, g in seen) == expected
        assert {e or 0 for e, _ in seen} == {error} and event.live == 1
        assert event.state == (FAILED if error else READY) and address(event.waiting) == 1


def test_an_event_that_is_settled_meanwhile():
    """Between the look at the list and the push onto it: the callback is called at once."""
    side = Side(False, 4)
    event = EventRecord(side.at(side.call("fresh", EVENT)))
    event.live += 1
    seen: list[int] = []
    callback = function_type(ReadyCallback)(lambda e, g: seen.append(g))
    real = malloc.python

    def settle_first(nbytes: int) -> Pointer:
        settle(event, READY, Pointer(0))
        return real(nbytes)

    with malloc.replaced(settle_first):
        on_ready(waiting(event, callback, 5))
    assert seen == [5] and address(event.waiting) == CLOSED


# Arrays from the host


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_strides_of_dense_arrays(shape, data):
    array = np.zeros(shape, np.float32)
    if shape and data.draw(st.booleans()):
        array = array.T if len(shape) > 1 else np.zeros([2 * n for n in shape], np.float32)[::2]
    sizes = (ctypes.c_int64 * 8)(*array.shape)
    strides = (ctypes.c_int64 * 8)(*array.strides)
    given = [Items[int](ctypes.addressof(one)) for one in (sizes, strides)]
    found = [f(*given, array.ndim, array.nbytes) for f in (machine_code().is_dense, is_dense)]
    assert found == [array.flags.c_contiguous] * 2


@settings(max_examples=20)
@given(
    shape=st.lists(st.integers(1, 4), max_size=3),
    known=st.booleans(),
    by_memory=st.booleans(),
    transposed=st.booleans(),
    count=st.integers(0, 3),
)
def test_arrays_arrive(shape, known, by_memory, transposed, count):
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    found = []
    for native in (True, False):
        side, kept = Side(native, count + 2), []
        device, memory = (side.at(side.call("fresh", STATIC)) for _ in range(2))
        DeviceRecord(device).memory = MemoryRecord(memory)
        devices = (ctypes.c_size_t * 1)(address(device))
        MemoryRecord(memory).devices = Items[DeviceRecord](ctypes.addressof(devices))
        line = ArrayRecord.words(what=ARRAY, type=11, rank=len(shape), nbytes=array.nbytes)
        line[ArrayRecord.sizes.word :][: len(shape)] = shape
        line[ArrayRecord.sizes.word : ArrayRecord.sizes.word + len(shape)] = shape
        template, table = (ctypes.c_int64 * len(line))(*line), (ctypes.c_size_t * ENTRIES)()
        if known:
            table[place_in_table(11, shape)] = ctypes.addressof(template)
        side.state.templates = Items[ArrayRecord](ctypes.addressof(table))
        side.state.ready = EventRecord(4096)
        args, sizes = ArriveArgs.new(), (ctypes.c_int64 * 8)(*shape)
        steps = array.T.strides if transposed else array.strides
        strides = (ctypes.c_int64 * 8)(*steps)
        args.data, args.type, args.num_dims = Pointer(array.ctypes.data), 11, len(shape)
        args.dims = Items[int](ctypes.addressof(sizes))
        args.byte_strides, args.num_byte_strides = Items[int](ctypes.addressof(strides)), len(shape)
        args.device, args.memory = DeviceRecord(device), MemoryRecord(memory if by_memory else 0)
        done = side.call("arrive", args)
        made = None
        if done:
            buffer = args.buffer
            record = buffer.array
            made = ctypes.string_at(address(record.own), array.nbytes)
            assert made == array.tobytes() and record.data == address(record.own)
            assert buffer.device == DeviceRecord(device) and buffer.memory == MemoryRecord(memory)
            assert address(args.done_with_host_buffer) == 4096
            assert [record.dims[n] for n in range(len(shape))] == shape
        dense = len(shape) < 1 or steps == array.strides or max(shape) == 1 or _same(array, steps)
        assert bool(done) == (known and count >= 2 and dense)
        found.append((done, made, side.words()))
        kept += [table, template]
    assert found[0] == found[1]


def _same(array: Any, steps: tuple[int, ...]) -> bool:
    """Whether strides differ only where a size is 1."""
    pairs = zip(array.shape, steps, array.strides, strict=True)
    return all(size == 1 or one == other for size, one, other in pairs)


# Calls


COPY = 3  # a result that is a copy of the first argument; smaller numbers are of donors


class Call:
    """A call descriptor of a program that adds its arguments, and a call of it, on one side."""

    def __init__(self, native: bool, case: dict[str, Any]) -> None:
        devices, self.arguments, self.results = case["devices"], case["arguments"], case["results"]
        self.side = side = Side(native, case["records"] + 1 + (devices + 1) * len(self.arguments))
        self.devices, self.kept = devices, list[Any]()
        is_kept = bool(self.arguments) and not (self.arguments[0][2] and 0 in self.results)
        self.copies = [n for n, over in enumerate(self.results) if over == COPY and is_kept]
        self.on = self.array([16 * n for n in range(devices)])
        self.operands = (ctypes.c_size_t * 16)()
        self.source = ctypes.addressof(self.operands) + 8 * 15
        self.failing = case["fails"]
        self.fill(case)
        made, descriptor = self.descriptor(case)
        executable = ExecutableRecord(side.at(side.call("fresh", EXECUTABLE)))
        executable.descriptor = CallDescriptor(ctypes.addressof(made))
        self.args = ExecuteArgs.new()
        self.args.executable = executable
        self.args.num_devices = devices + (case["wrong"] == "devices")
        self.args.num_args = len(self.arguments) + (case["wrong"] == "arguments")
        self.args.execute_device = DeviceRecord(32 if case["wrong"] == "device" else 0)
        options = ExecuteOptions.new()
        options.num_non_donatable_input_indices = int(case["wrong"] == "options")
        self.args.options = options
        self.kept += [made, descriptor, options]
        self.args.argument_lists = Items[Any](self.lists(self.buffers))
        outputs = [[0] * max(1, len(self.results)) for _ in range(devices)]
        self.outputs = self.lists(outputs)
        self.args.output_lists = Items[Any](self.outputs)
        self.events = (ctypes.c_size_t * devices)()
        self.args.device_complete_events = Items[Any](ctypes.addressof(self.events))
        side.state.ready = EventRecord(4096)

    def array(self, numbers: list[int]) -> int:
        held = (ctypes.c_size_t * max(1, len(numbers)))(*numbers)
        self.kept.append(held)
        return ctypes.addressof(held)

    def lists(self, rows: list[list[int]]) -> int:
        return self.array([self.array(row) for row in rows])

    def fill(self, case: dict[str, Any]) -> None:
        """Array records of the arguments, with a buffer on every device."""
        side, self.buffers = self.side, [list[int]() for _ in range(self.devices)]
        for n, (kind, own, _, lent, broken) in enumerate(self.arguments):
            record = ArrayRecord(side.at(side.call("fresh", ARRAY)))
            memory = address(malloc(64))
            ctypes.c_int64.from_address(memory).value = 10 * (n + 1)
            record.kind, record.data, record.lent = kind + (broken == "kind"), memory, int(lent)
            record.own = Pointer(memory if own else 0)
            side.names[memory] = f"argument {n}"
            for d in range(self.devices):
                buffer = BufferRecord(side.at(side.call("fresh", BUFFER)))
                buffer.array, buffer.place = record, d
                buffer.deleted = int(broken == "deleted" and d == self.devices - 1)
                self.buffers[d].append(address(buffer))
        if case["wrong"] == "twice" and len(self.arguments) > 1:
            for row in self.buffers:
                row[1] = row[0]

    def descriptor(self, case: dict[str, Any]) -> tuple[Any, Any]:
        at = ctypes.addressof(self.operands)
        line = ArrayRecord.words(what=ARRAY, state=READY, nbytes=8, kind=5, native=1)
        templates = (ctypes.c_int64 * (len(line) * max(1, len(self.results))))(
            *line * len(self.results)
        )
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_size_t, ctypes.c_size_t)
        self.kernel = kind(self.run)
        cells = len(self.results) * self.devices
        said = CallDescriptor.words(
            run=ctypes.cast(self.kernel, ctypes.c_void_p).value or 0,
            commands=1,
            devices=self.devices,
            arguments=len(self.arguments),
            results=len(self.results),
            templates=ctypes.addressof(templates),
            on=self.on,
            inside=self.array([48] * cells),
            blocks=self.array([0] * len(self.results)),
            donates=int(any(donated for _, _, donated, *_ in self.arguments)),
        )
        for n, (kind_number, _, donated, *_) in enumerate(self.arguments):
            operands = [at + 8 * n, *([self.source] if self.copies and n == 0 else [])]
            count = len(operands)
            plan = ArgumentPlan.words(count=count, kind=kind_number, donated=int(donated))
            said += [*plan, *operands]
        for n, over in enumerate(self.results):
            donor = over if over < len(self.arguments) and self.arguments[over][2] else -1
            source = self.source if n in self.copies else 0
            plan = ResultPlan.words(count=1, nbytes=8, over=donor, source=source)
            said += [*plan, at + 8 * (len(self.arguments) + n)]
        return (ctypes.c_int64 * len(said))(*said), templates

    def run(self, pool: int, commands: int) -> int:
        read, count = ctypes.c_int64.from_address, len(self.arguments)
        total = sum(read(at).value for at in self.operands[:count])
        for n in range(len(self.results)):
            if n not in self.copies:
                read(self.operands[count + n]).value = total + n
        return int(self.failing)

    def made(self) -> list[int]:
        """What the results are."""
        first = Items[Items[BufferRecord]](self.outputs)[0]
        records = [first[n].array for n in range(len(self.results))]
        return [ctypes.c_int64.from_address(record.data).value for record in records]


arguments = st.tuples(
    st.integers(1, 3),  # kind
    st.booleans(),  # whether native code has the memory
    st.booleans(),  # donated
    st.booleans(),  # lent
    st.sampled_from([""] * 8 + ["kind", "deleted"]),
)
cases = st.fixed_dictionaries(
    {
        "devices": st.integers(1, 2),
        "arguments": st.lists(arguments, max_size=3),
        "results": st.lists(st.integers(0, COPY), max_size=2, unique=True),
        "records": st.sampled_from([9, 9, 9, 2, 0]),
        "fails": st.sampled_from([False] * 5 + [True]),
        "wrong": st.sampled_from([""] * 8 + "devices arguments device options twice".split()),
    }
)


USUAL = {"devices": 1, "results": [0], "records": 9, "fails": False, "wrong": ""}


@settings(max_examples=60)
@example(USUAL | {"arguments": [(1, True, True, False, "")]})  # the result takes its memory
@example(USUAL | {"arguments": [(1, True, True, True, "")]})  # which another library reads
@example(USUAL | {"arguments": [(1, False, True, False, "")]})  # which is Python's
@example(USUAL | {"arguments": [(1, True, True, False, "")], "results": [COPY, 1]})
@given(cases)
def test_calls_without_python(case):
    calls = [Call(native, case) for native in (True, False)]
    done = [call.side.call("execute", call.args) for call in calls]
    assert done[0] == done[1]
    seen = [[*call.side.words(), *call.events] for call in calls]
    # Call descriptors and kernels are memory of either side, at an address that means nothing.
    assert seen[0] == seen[1]
    given = case["arguments"]
    donates = any(donated for _, _, donated, *_ in given)
    broken = any(fault for *_, fault in given)
    few = case["records"] < (case["devices"] + 1) * len(case["results"])
    wrong = {"devices", "arguments", "device"} | ({"options"} if donates else set())
    if broken or few or case["wrong"] in wrong:
        assert done[0] == 0
    elif case["wrong"] != "twice":
        assert done[0] == (GAVE_UP if case["fails"] else DONE)
    if done[0] == DONE and case["wrong"] != "twice":
        total = sum(10 * (n + 1) for n in range(len(given)))
        for call in calls:
            made = [10 if n in call.copies else total + n for n in range(len(case["results"]))]
            assert call.made() == made
            assert [*call.events] == [4096] * case["devices"]
    for call in calls:
        for n, (_, own, donated, lent, _) in enumerate(given):
            record = BufferRecord(call.buffers[0][n]).array
            if case["wrong"] == "twice":
                continue
            taken = done[0] == DONE and own and donated and not lent and n in case["results"]
            assert (address(record.own) == 0) == (taken or not own)
            is_deleted = all(BufferRecord(row[n]).deleted for row in call.buffers)
            if done[0] == DONE:
                assert is_deleted == donated


@pytest.mark.parametrize("native", [False, True])
def test_large_blocks_are_kept_for_arrays_of_their_size(native: bool):
    Side(native, 0)  # clears the state
    take, give = (machine_code().block, machine_code().release) if native else (block, release)
    sizes = [1 << 16, (1 << 16) + 64, 1 << 20, 1 << 22]
    held = {size: take(size) for size in sizes}
    assert all(address(memory) % 64 == 0 for memory in held.values())
    for size, memory in held.items():
        give(memory, size)
    assert take((1 << 20) - 4) not in held.values()
    for size in reversed(sizes):
        assert take(size) == held[size] and take(size) != held[size]
    for size in (0, 100, (1 << 16) - 1, (1 << 22) + 1):
        give(take(size), size)  # freed
    give(Pointer(0), 1 << 16)
    for _ in range(40):  # all but the latest are freed
        give(take(1 << 18), 0)
        give(malloc(1 << 17), 1 << 17)
    for _ in range(16):
        take(1 << 17)
