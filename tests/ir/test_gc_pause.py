"""The garbage collector while programs are built and modules are imported."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from weft.ir import gc_pause
from weft.ir.gc_pause import building, importing, without_gc


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """A collector that is on, and that has frozen nothing."""
    assert gc.isenabled() and not gc.get_freeze_count()
    yield
    gc.unfreeze()
    gc.enable()


def is_old(given: object) -> bool:
    return any(given is other for other in gc.get_objects(generation=2))


def test_a_paused_collector_goes_on_as_it_was() -> None:
    with without_gc():
        assert not gc.isenabled()
        with without_gc():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_imported_objects_are_old() -> None:
    with importing():
        made = [object()]
        assert not gc.isenabled() and not is_old(made)
    assert gc.isenabled() and is_old(made) and not gc.get_freeze_count()


def test_what_was_built_is_old() -> None:
    with building():
        with without_gc(), building():
            inner = [object()]
        made = [object()]
        assert not gc.isenabled() and not is_old(made)
    assert gc.isenabled() and is_old(made) and is_old(inner)


def test_garbage_among_what_was_built_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    with building():
        seen = weakref.ref(Cycle())
    assert seen() is not None
    monkeypatch.setattr(gc_pause._Promoted, "limit", 0)
    with building():
        pass
    assert seen() is None and gc_pause._Promoted.limit > 0


def test_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with importing():
        made = [object()]
    assert gc.get_freeze_count() == count and not is_old(made)


def test_a_collection_by_others_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_pause._Promoted, "count", 0)
    with building():
        made = [[] for _ in range(1000)]
    assert gc_pause._Promoted.count >= len(made)
    gc.collect()
    with building():
        pass
    assert gc_pause._Promoted.count < len(made)
