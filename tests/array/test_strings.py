"""String arrays, as IFRT documents them: put, read, copy, disassemble, delete; never computed."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import Mesh, P
from weft.array.addressable import addressable_along
from weft.array.strings import STRINGS, StringArray, put_strings
from weft.errors import WeftError
from weft.mesh import as_sharding

WORDS = np.array([["a", "bcd", "é"], ["", "a string of more than sixteen bytes", "\0x"]])
MESH = Mesh(x=2, y=2)


@pytest.mark.parametrize("kind", ["strings", "unicode", "objects", "lists"])
@pytest.mark.parametrize("spec", [P(), P("x"), P("x", "y"), P(None, ("x", "y"))])
def test_strings_are_split_and_read_back(kind: str, spec: P):
    given = {"strings": WORDS.astype(STRINGS), "objects": WORDS.astype(object)}.get(kind, WORDS)
    held = weft.put(given.tolist() if kind == "lists" else given, spec, MESH)
    assert type(held) is StringArray and held.dtype == STRINGS and held.shape == (2, 3)
    np.testing.assert_array_equal(np.asarray(held), WORDS.astype(STRINGS))
    assert held.tolist() == WORDS.tolist() and held[1, 1] == WORDS[1, 1]
    shards = held.addressable_shards
    assert [shard.device.id for shard in shards] == [0, 1, 2, 3]
    numbers = weft.put(np.arange(6).reshape(2, 3), spec, MESH)
    assert [s.index for s in shards] == [s.index for s in numbers.addressable_shards]
    for shard in shards:
        np.testing.assert_array_equal(shard.data, WORDS[shard.index].astype(STRINGS))


def test_strings_of_every_rank_and_size():
    assert weft.put("word").item() == "word" and weft.put("word").shape == ()
    empty = weft.put(np.empty((0, 3), STRINGS), P("x"), MESH)
    assert np.asarray(empty).shape == (0, 3) and empty.size == 0
    assert weft.put(["a"], P("x"), MESH).tolist() == ["a"]
    assert weft.put(np.asfortranarray(WORDS), P("y"), MESH).tolist() == WORDS.tolist()


def test_the_callers_array_may_change():
    mine = WORDS.astype(STRINGS)
    held, again = weft.put(mine, P("x"), MESH), weft.put(mine)
    mine[:] = "other"
    assert held.tolist() == again.tolist() == WORDS.tolist()
    with pytest.raises(ValueError, match="read-only"):
        held.numpy()[0, 0] = "x"
    with pytest.raises(ValueError, match="read-only"):
        again.addressable_shards[0].data[0, 0] = "x"


def test_another_sharding_and_copies():
    held = weft.put(WORDS, P("x"), MESH)
    moved, copy = weft.put(held, P("y")), held.copy()
    assert moved.mesh == MESH and moved.tolist() == WORDS.tolist() == copy.tolist()
    assert moved.addressable_shards[1].index[0] == slice(1, 2)
    assert weft.put(held, P("z"), Mesh(z=3)).mesh == Mesh(z=3)
    held.delete()
    held.delete()
    assert held.is_deleted and not copy.is_deleted and "deleted" in repr(held)
    for use in (held.numpy, held.copy, held.wait, lambda: held.addressable_shards, held.tolist):
        with pytest.raises(WeftError, match="was deleted"):
            use()
    with pytest.raises(WeftError, match="was deleted"):
        weft.put(held, P())
    assert copy.tolist() == WORDS.tolist()


def test_strings_are_not_computed_with():
    held, numbers = weft.put(WORDS, P("x"), MESH), weft.put(np.ones((2, 3), np.float32))
    for use in (
        lambda: held + "a",
        lambda: "a" + held,
        lambda: held == held,
        lambda: np.add(held, held),
        lambda: numbers + held,
        lambda: weft.compile(lambda x: x)(held),
        lambda: weft.compile(lambda x: x, held),
    ):
        with pytest.raises(WeftError, match="cannot be computed with"):
            use()
    with pytest.raises(WeftError, match="no fixed size"):
        held.nbytes  # noqa: B018
    with pytest.raises(BufferError, match="no strings"):
        np.from_dlpack(held)
    with pytest.raises(WeftError, match="memory of 'cpu'"):
        weft.put(WORDS, device="cpu")


@pytest.mark.parametrize("given", [[1.0, "a"], ["a", 1], np.array(["a", None], object), [b"a"]])
def test_what_holds_more_than_strings(given: object):
    with pytest.raises(WeftError):
        weft.put(given)


def test_missing_strings():
    given = np.array(["a", np.nan], np.dtypes.StringDType(na_object=np.nan))
    with pytest.raises(WeftError, match="missing strings"):
        weft.put(given)
    assert weft.put(given[:1]).tolist() == ["a"]


def test_strings_of_several_processes():
    """Each process has its own shards, and cannot read the rest."""
    sharding = as_sharding(P("x"), 2, MESH)
    here = addressable_along(MESH, ["y"], 2)
    held = put_strings(WORDS.astype(STRINGS), sharding, MESH, here)
    assert not held.is_fully_addressable and [d.id for d in held.addressable_devices] == [2, 3]
    assert [s.data.tolist() for s in held.addressable_shards] == [WORDS[1:].tolist()] * 2
    with pytest.raises(WeftError, match="process 1 has 2 of 4 devices"):
        held.numpy()
    whole = put_strings(WORDS.astype(STRINGS), as_sharding(P(), 2, MESH), MESH, here)
    assert whole.tolist() == WORDS.tolist()
