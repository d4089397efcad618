"""Groups of large regions, remembered on disk."""

from __future__ import annotations

import json
import random
import warnings
import zlib

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import weft
from weft.cache.store import the_store
from weft.emit.llvm import texts
from weft.errors import WeftError, WeftWarning
from weft.kernels.text import kernel_text
from weft.run.parts import parts_of
from weft.tile.fusion import groups, recall

LAYERS = 4


def program(x, w, index):
    """Products, reductions, a sort and a gather, often enough to be a large region."""
    for _ in range(LAYERS):
        x = jnp.tanh(x @ w) + x.sum(0)
        x = x / jnp.sqrt((x * x).mean(-1, keepdims=True))
        x = jnp.sort(x, -1)[index % 3]
    return x


ARGUMENTS = [
    np.random.default_rng(0).standard_normal((8, 16)).astype("f"),
    np.random.default_rng(1).standard_normal((16, 16)).astype("f"),
    np.arange(8, dtype=np.int32),
]


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(groups, "LARGE", 20)
    monkeypatch.setattr(texts, "TEXTS", {})


def compiled():
    return weft.compile(program, *ARGUMENTS)


def kernels(made):
    return [kernel_text(p.group.kernel) for p in parts_of(made.program.local) if p.group]


def forbid(monkeypatch, *names):
    """Make functions fail that a program from the cache does not need."""

    def fail(*args, **kwargs):
        raise AssertionError("not from the cache")

    for room, name in names:
        monkeypatch.setattr(room, name, fail)


def entry(kind):
    (found,) = [e for e in the_store().entries() if e.record.key.kind == kind]
    return found


def test_groups_and_texts_are_found_again(monkeypatch):
    first = compiled()
    expected = first(*ARGUMENTS)
    texts.TEXTS.clear()
    forbid(monkeypatch, (groups, "fuse"), (texts, "emitted_for"))
    second = compiled()
    assert kernels(first) == kernels(second)
    assert any("alone" in text for text in kernels(second))
    np.testing.assert_array_equal(np.asarray(expected), np.asarray(second(*ARGUMENTS)))


def test_without_the_texts_kernels_are_emitted_again(monkeypatch):
    expected = compiled()(*ARGUMENTS)
    the_store().clear("texts")
    texts.TEXTS.clear()
    forbid(monkeypatch, (groups, "fuse"))
    np.testing.assert_array_equal(np.asarray(expected), np.asarray(compiled()(*ARGUMENTS)))


def test_regions_that_differ_in_the_type_of_an_outer_value_have_entries_of_their_own():
    def sliced(x, at):
        x = lax.dynamic_slice_in_dim(x, at, 8)  # whose unsigned index needs no size
        for n in range(12):
            x = jnp.tanh(x) * n
        return x

    for rows in (32, 128):
        x = np.arange(rows * 2, dtype="f").reshape(rows, 2) / rows
        with warnings.catch_warnings():
            warnings.simplefilter("error", WeftWarning)  # no entry is taken for damaged
            made = weft.compile(sliced, x, np.uint32(3))
        np.testing.assert_allclose(made(x, np.uint32(3)), sliced(x, 3), rtol=1e-5)
    assert len(list(the_store().entries("groups"))) == 2


def saved():
    """The data of the groups, the region that they are of, and its sizes."""
    taken = []

    def restored(*args):
        taken.append(args)
        return recall.restored(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "restored", restored)
        compiled()
        compiled()
    return taken[0]


def test_entries_that_fit_another_program_are_refused():
    data, *region = saved()
    content = json.loads(zlib.decompress(data))
    group = next(n for n, row in enumerate(content["groups"]) if row[1] is not None)
    text = content["kernels"][0]

    def changed(**fields):
        return zlib.compress(json.dumps({**content, **fields}).encode())

    def row(*fields):
        rows = [*content["groups"]]
        rows[group] = fields
        return changed(groups=rows)

    nodes, index, inputs, outputs = content["groups"][group]
    assert recall.restored(changed(), *region)
    for bad in (
        b"",
        data[:-9],
        changed(kernels=[]),
        changed(kernels=[text.replace("f32[", "f32[9,"), *content["kernels"][1:]]),
        changed(kernels=[text[:40], *content["kernels"][1:]]),
        changed(groups=7),
        row([*nodes, 99999], index, inputs, outputs),
        row(nodes, 99999, inputs, outputs),
        row(nodes, index, inputs[1:], outputs),
        row(nodes, index, inputs, outputs * 2),
        row(nodes, index, [99999 for _ in inputs], outputs),
        row(nodes, index),
        zlib.compress(b"[]"),
    ):
        with pytest.raises(WeftError):
            recall.restored(bad, *region)


def test_random_changes_are_refused_or_fit():
    """Whatever numbers an entry has: a kernel gets buffers of the sizes that it expects."""
    data, *region = saved()
    text = zlib.decompress(data).decode()
    rng = random.Random(0)
    refused = 0
    for _ in range(150):
        at = rng.randrange(len(text))
        other = text[:at] + rng.choice('0123456789[],":n-') + text[at + 1 :]
        try:
            groups = recall.restored(zlib.compress(other.encode()), *region)
        except WeftError:
            refused += 1
            continue
        for group in groups:
            if group.kernel is not None:
                values = (*group.inputs, *group.outputs)
                for value, operand in zip(values, group.kernel.operands, strict=True):
                    assert value.type.dtype is operand.dtype
                    assert value.type.size == operand.size  # one device
    assert refused > 50


def test_an_entry_that_is_refused_is_made_again():
    expected = compiled()(*ARGUMENTS)
    store, key = the_store(), entry("groups").record.key
    store.put(key, zlib.compress(b'{"kernels": ["import os"], "values": [], "groups": []}'))
    with pytest.warns(WeftWarning, match="found damage in its cache"):
        made = compiled()
    np.testing.assert_array_equal(np.asarray(expected), np.asarray(made(*ARGUMENTS)))
    assert b"import os" not in zlib.decompress(store.get(key))


def test_texts_that_cannot_be_read_are_emitted_again():
    expected = compiled()(*ARGUMENTS)
    store, key = the_store(), entry("texts").record.key
    for data in (b"nothing", zlib.compress(b"[]"), zlib.compress(b"[[1, 2]]")):
        store.put(key, data)
        texts.TEXTS.clear()
        store._said.clear()
        with pytest.warns(WeftWarning, match="found damage in its cache"):
            made = compiled()
        np.testing.assert_array_equal(np.asarray(expected), np.asarray(made(*ARGUMENTS)))
