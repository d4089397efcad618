"""What the figures of the code may not get worse in: names, files, folders, import knots."""

from __future__ import annotations

from collections import Counter

from tests.figures import (
    DIALECT,
    ROOT,
    bare_functions,
    docstrings,
    import_graph,
    knots,
    shared_names,
    sources,
    type_names,
)

FILES = sources(ROOT)
# Names with two meanings. A name may leave this list, and none may come.
SHARED = {"Array", "Attention", "Reduce"}


def test_a_type_name_has_one_meaning():
    several = shared_names(FILES)
    new = [f"{name}: {', '.join(several[name])}" for name in sorted(several.keys() - SHARED)]
    assert not new, "defined in several files; give each a name of its own:\n" + "\n".join(new)
    gone = sorted(SHARED - several.keys())
    assert not gone, f"defined once by now; take them out of SHARED: {', '.join(gone)}"
    assert len(SHARED) <= 3


def test_what_counts_as_a_type_name():
    source = """
class Seen: ...
Alias = tuple[int, ...]
Told: TypeAlias = int
Made = pointwise("stablehlo.made")
T = TypeVar("T")
TABLE = {}
plain = 1
"""
    assert [*type_names(source)] == ["Seen", "Alias", "Told", "Made"]


def test_folders_have_rooms():
    counts = Counter(file.rpartition("/")[0] for file in FILES)
    assert not [f"{folder}: {count} files" for folder, count in counts.items() if count > 25]


def test_files_are_short():
    lengths = {file: source.count("\n") for file, source in FILES.items()}
    assert not [f"{file}: {count} lines" for file, count in lengths.items() if count > 500]


def test_import_knots_are_few():
    tied = knots(import_graph(FILES))
    assert not [sorted(knot) for knot in tied if len(knot) > 2]
    assert sum(map(len, tied)) <= 2  # `str` of a module needs the writer, which knows modules
    partition = import_graph({f: s for f, s in FILES.items() if f.startswith("weft/partition/")})
    assert not knots(partition)


def test_a_knot_is_found():
    assert knots({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [{"b", "c"}]


def test_docstrings_name_things():
    texts = [(file, text) for file, source in FILES.items() for text in docstrings(source) if text]
    found = [f"{file}: {text[:70]!r}" for file, text in texts if DIALECT.search(text)]
    assert not found, "clauses in place of nouns:\n" + "\n".join(found)


def test_functions_are_not_bare_participles():
    found = [f"{file}: {name}" for file, source in FILES.items() for name in bare_functions(source)]
    assert not found, "name the thing or the action:\n" + "\n".join(found)
