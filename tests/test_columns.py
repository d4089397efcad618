"""Tables fit their width, keep numbers whole, and lose nothing without a width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.columns import Column, cut, table_lines, table_text

COLUMNS = (Column("op"), Column("bytes", right=True), Column("line", fit="cut", least=6))
ROWS = [("all_gather", "23.2 KiB", "llama.py:37  q, k, v = heads(x)"), ("in all", "1 B", "")]

words = st.text("abc /", max_size=40)


def test_a_table_is_as_wide_as_it_needs_to_be() -> None:
    assert table_text(COLUMNS, ROWS).splitlines() == [
        "op             bytes  line",
        "all_gather  23.2 KiB  llama.py:37  q, k, v = heads(x)",
        "in all           1 B",
    ]


def test_the_end_of_a_long_text_is_cut() -> None:
    assert table_text(COLUMNS, ROWS, 40).splitlines()[1] == (
        "all_gather  23.2 KiB  llama.py:37  q, k…"
    )


def test_whole_columns_are_never_cut() -> None:
    assert table_text(COLUMNS, ROWS, 10).splitlines()[1] == "all_gather  23.2 KiB  llama…"


def test_long_texts_wrap_below_each_other() -> None:
    columns = (Column(), Column(fit="wrap", least=8))
    lines = [*table_lines(columns, [("knob", "what it is for")], 14)]
    assert [*map(str, lines)] == ["knob  what it", "      is for"]
    assert [(line.row, line.nth) for line in lines] == [(0, 0), (0, 1)]


def test_the_widest_column_gives_way_first() -> None:
    columns = (Column(fit="cut", least=4), Column(fit="cut", least=4))
    assert table_text(columns, [("a" * 12, "b" * 6)], 16) == f"{'a' * 7}…  {'b' * 6}"


@given(st.lists(st.tuples(words, st.integers(0, 10**12), words), max_size=5), st.integers(0, 100))
def test_no_line_is_too_wide_and_no_number_is_lost(
    rows: list[tuple[str, int, str]], width: int
) -> None:
    columns = (Column("a", fit="cut", least=4), Column("n", right=True), Column("z", fit="wrap"))
    shown = [(a, f"{n}", z) for a, n, z in rows]
    text = table_text(columns, shown, width)
    least = 4 + 2 + max([1, *[len(n) for _, n, _ in shown]]) + 2 + 12
    assert max(map(len, text.splitlines()), default=0) <= max(width, least)
    assert all(n in text for _, n, _ in shown)
    assert all(line == line.rstrip() for line in text.splitlines())


@given(words, st.integers(1, 50))
def test_what_is_cut_is_seen(text: str, width: int) -> None:
    shown = cut(text, width)
    assert shown == text if len(text) <= width else len(shown) == width and shown[-1] == "…"
