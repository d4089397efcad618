"""Encoding and decoding of the few protocol buffers in PJRT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_FIXED = {1: 8, 5: 4}  # byte sizes of fixed-width wire types


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A varint, and its end."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: numbers, with integers or bytes."""
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        if size := _FIXED.get(tag & 7):
            yield tag >> 3, data[at : at + size]
            at += size
            continue
        value, at = _number(data, at)
        if tag & 7 == 2:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            yield tag >> 3, value


def _varint(number: int) -> bytes:
    encoding = bytearray()
    while number > 127:
        encoding.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoding, number])


def field(number: int, value: int | bytes) -> bytes:
    """Encode a field."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def packed(numbers: Sequence[int]) -> bytes:
    """Encode packed varints."""
    return b"".join([_varint(number) for number in numbers])


def device_numbers(assignment: bytes) -> tuple[int, ...]:
    """The devices of a DeviceAssignmentProto, replica by replica."""
    columns: list[list[int]] = []
    for number, value in fields(assignment):
        if number == 3 and isinstance(value, bytes):
            columns.append([*_listed(value)])
    return tuple(n for row in zip(*columns, strict=True) for n in row)


def _listed(data: bytes) -> Iterator[int]:
    for _, value in fields(data):
        if isinstance(value, int):
            yield value
            continue
        at = 0
        while at < len(value):
            found, at = _number(value, at)
            yield found


def device_assignment(devices: Sequence[int], replicas: int, partitions: int) -> bytes:
    """A DeviceAssignmentProto of devices, replica by replica."""
    made = field(1, replicas) + field(2, partitions)
    for column in range(partitions):
        made += field(3, field(1, packed(devices[column::partitions])))
    return made
