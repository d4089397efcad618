"""Placement: buffers that are in use at the same time never overlap, and little is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.array.place_buffers import Span, most_alive, place


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(-1, 20), st.integers(0, 8)), max_size=30)
)
def test_places_never_overlap(drawn: list[tuple[int, int, int]]):
    spans = [Span(size, begin, begin + more) for size, begin, more in drawn]
    offsets, height = place(spans)
    assert height >= most_alive(spans)
    for n, (one, low) in enumerate(zip(spans, offsets, strict=True)):
        assert low % 64 == 0 and low + one.size <= height
        for other, lower in list(zip(spans, offsets, strict=True))[n + 1 :]:
            if one.begin <= other.end and other.begin <= one.end:
                assert low + one.size <= lower or lower + other.size <= low


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2)), max_size=5))
def test_small_programs_are_placed_nearly_as_low_as_can_be(drawn: list[tuple[int, int, int]]):
    spans = [Span(64 * size, begin, begin + more) for size, begin, more in drawn]
    _, height = place(spans)
    assert height <= 1.34 * lowest(spans, most_alive(spans))


def lowest(spans: list[Span], least: int) -> int:
    """The lowest height of all placements, by trying all of them."""
    height = least
    while not _can(spans, (), height):
        height += 64
    return max(height, 1)


def _can(spans: list[Span], offsets: tuple[int, ...], height: int) -> bool:
    if len(offsets) == len(spans):
        return True
    span = spans[len(offsets)]
    for offset in range(0, height - span.size + 1, 64):
        free = all(
            offset + span.size <= low
            or low + other.size <= offset
            or span.end < other.begin
            or other.end < span.begin
            for other, low in zip(spans, offsets, strict=False)
        )
        if free and _can(spans, (*offsets, offset), height):
            return True
    return False
