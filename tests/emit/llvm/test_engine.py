"""Loading: texts become functions, once each, from the cache or compiled, one or many at a time."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from tests.emit.llvm.small_kernels import affine, count, reversed_through_shared
from weft.cache.store import the_store
from weft.emit.llvm.emitted import Emitted, Phase, symbol
from weft.emit.llvm.jit import engine
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.jit.linking import undefined_symbols
from weft.emit.llvm.jit.machine_code import assembly, compile_text, optimized
from weft.emit.llvm.jit.matrix_tiles import tiles_permitted
from weft.emit.llvm.jit.processor import Processor, host
from weft.emit.llvm.pool.commands import CommandList
from weft.errors import Unsupported, WeftError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def ran(loaded, values):
    x = np.resize(np.asarray(values, np.int64), loaded.phases[0].tasks)
    y = np.zeros_like(x)
    commands = CommandList()
    commands.kernel(loaded, [x.ctypes.data, y.ctypes.data])
    commands.run()
    return y


def test_the_example_of_the_docstring():
    example = textwrap.dedent(
        engine.__doc__.split("native call:\n\n")[1].split("\n\n`pointers`")[0]
    )
    kernels = [affine(4, times=2)]
    x, y, other = np.arange(4), np.zeros(4, int), np.full(4, 7)
    scope = {"load": load, "CommandList": CommandList, "emit": lambda k: k, "kernels": kernels}
    exec(example.split("commands.pointers")[0], scope | {"x": x, "y": y})
    assert y.tolist() == x.tolist()  # the copy came after the kernel
    exec(example, scope | {"x": x, "y": y, "other": other})
    assert y.tolist() == x.tolist()


def test_kernels_of_one_name_do_not_meet():
    """Texts with the same function names are linked together."""
    loaded = load([affine(5, plus=n) for n in range(20)])
    for n, kernel in enumerate(loaded):
        assert ran(kernel, range(5)).tolist() == [i + n for i in range(5)]


def test_equal_texts_are_compiled_once(cache):
    first = load([affine(5), affine(9, 3), affine(5)])
    assert len(list(the_store().entries())) == 1 + _pool_entries()
    again = load([affine(5)])
    assert again[0].phases == first[0].phases == first[2].phases
    assert first[1].phases[0].address == first[0].phases[0].address
    assert (first[1].phases[0].tasks, first[1].phases[0].chunk) == (9, 3)
    page = the_store().ledger.page()
    assert page.misses["kernel"] - _pool_entries() == 1 and page.hits["kernel"] == 0


def _pool_entries():
    """The pool's own text is in the cache where a test was the first to use it."""
    return sum(entry.record.key.name == "pool" for entry in the_store().entries())


def test_code_lives_as_long_as_it_is_held():
    (loaded,) = load([affine(3, plus=41)])
    commands = CommandList()
    x, y = np.arange(3), np.zeros(3, int)
    commands.kernel(loaded, [x.ctypes.data, y.ctypes.data])
    del loaded
    gc.collect()
    commands.run()
    assert y.tolist() == [41, 42, 43]
    before = set(engine._LINKED)
    del commands
    gc.collect()
    assert affine(3, plus=41).text in before
    assert affine(3, plus=41).text not in set(engine._LINKED)


def test_phases_run_one_after_another():
    (loaded,) = load([reversed_through_shared(1000, 7)])
    assert ran(loaded, range(1000)).tolist() == list(range(1000))[::-1]


def test_a_kernel_that_writes_nothing():
    (loaded,) = load([Emitted("", ())])
    commands = CommandList()
    commands.kernel(loaded, [])
    commands.run()
    assert load([]) == []


def test_what_is_cached_is_not_compiled(monkeypatch):
    texts = [affine(5, plus=n) for n in range(3)]
    load(texts)
    gc.collect()  # nothing is linked any more
    monkeypatch.setattr("weft.emit.llvm.jit.compiling._object", None)
    for n, kernel in enumerate(load(texts)):
        assert ran(kernel, [1]).tolist() == [1 + n] * 5
    with pytest.raises(TypeError):
        load([affine(5, plus=77)])


def test_progress_is_told():
    told: list[tuple[int, int]] = []
    texts = [affine(5, plus=n) for n in range(100, 104)]
    load(texts[:2])
    gc.collect()
    load(texts, lambda done, total: told.append((done, total)))
    assert told == [(2, 4), (3, 4), (4, 4)]


def test_many_are_compiled_by_threads(monkeypatch):
    monkeypatch.setattr("weft.emit.llvm.jit.compiling._WORTH_THREADS", 0)
    monkeypatch.setenv("WEFT_THREADS", "3")
    told: list[int] = []
    loaded = load([affine(5, plus=n) for n in range(30)], lambda done, _: told.append(done))
    assert told == list(range(1, 31))
    for n, kernel in enumerate(loaded):
        assert ran(kernel, [7]).tolist() == [7 + n] * 5


@pytest.mark.parametrize("threads", [1, 3])
def test_a_text_that_llvm_refuses(monkeypatch, threads):
    monkeypatch.setattr("weft.emit.llvm.jit.compiling._WORTH_THREADS", 0)
    monkeypatch.setenv("WEFT_THREADS", str(threads))
    wrong = Emitted("define void @f() {\n  ret i32 7\n}\n", (Phase("f", 1),))
    with pytest.raises(WeftError, match="LLVM rejects the text of a kernel"):
        load([affine(5, plus=1000), wrong, affine(5, plus=1001)])
    assert ran(load([affine(5, plus=1000)])[0], [1]).tolist() == [1001] * 5


def test_a_function_that_is_nowhere():
    """It is refused where the object's format is known; elsewhere the call would crash."""
    declared = "declare void @nowhere_at_all()\n"
    text = declared + affine(1).text.replace("ret void", "call void @nowhere_at_all()\n  ret void")
    if "linux" not in host().triple:
        pytest.skip("objects are of another format")
    with pytest.raises(
        WeftError, match="a kernel calls nowhere_at_all, which is not defined in this"
    ):
        load([Emitted(text, (Phase("affine", 1),))])


def test_undefined_symbols_of_objects():
    text = "declare double @fmod(double, double)\ndeclare double @sin(double)\n"
    text += (
        "define double @f(double %x) {\n  %y = call double @sin(double %x)\n  ret double %y\n}\n"
    )
    linux = Processor("x86_64-unknown-linux-gnu", "x86-64")
    assert list(undefined_symbols(compile_text(text, linux))) == ["sin"]
    assert list(undefined_symbols(b"\xcf\xfa\xed\xfe")) == []


def test_threads_load_at_the_same_time():
    """Several Python threads load the same and other texts."""
    script = """
    import threading
    import numpy as np
    from tests.emit.llvm.small_kernels import affine
    from tests.emit.llvm.test_engine import ran
    from weft.emit.llvm.jit.engine import load

    wrong = []
    def work(seed):
        for n in range(8):
            for plus, kernel in enumerate(load([affine(4, plus=p) for p in range(seed % 3 + 1)])):
                if ran(kernel, [1, 2, 3, 4]).tolist() != [1 + plus, 2 + plus, 3 + plus, 4 + plus]:
                    wrong.append((seed, n))
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert not wrong
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=120)
    assert done.returncode == 0


# Machine code


def test_the_host_uses_whole_vectors_and_no_tiles_unasked():
    if not tiles_permitted():
        assert not any(f.startswith("+amx") for f in host().features.split(","))
    if host().has("avx512f"):
        assert "-prefer-256-bit" in host().features
        assert not host().has("avx512") and host().has("avx2")


WIDE = """
define void @f(ptr %x) {
  %a = load <16 x float>, ptr %x, align 4
  %b = fadd <16 x float> %a, %a
  store <16 x float> %b, ptr %x, align 4
  ret void
}
"""


@pytest.mark.parametrize(
    ("processor", "registers"),
    [
        (Processor("x86_64-unknown-linux-gnu", "x86-64-v4", "-prefer-256-bit"), "zmm"),
        (Processor("x86_64-unknown-linux-gnu", "haswell"), "ymm"),
        (Processor("x86_64-unknown-linux-gnu", "x86-64"), "xmm"),
        (Processor("aarch64-unknown-linux-gnu", "generic"), r"fadd\s+v\d+.4s"),
        (Processor("arm64-apple-macosx14.0.0", "apple-m1"), r"fadd\.4s"),
    ],
    ids=lambda p: p.cpu if isinstance(p, Processor) else "",
)
def test_assembly_for_any_processor(processor, registers):
    try:
        text = assembly(WIDE, processor)
    except Unsupported:
        pytest.skip("this LLVM has no such target")
    assert re.search(registers, text)
    assert compile_text(WIDE, processor)


def test_an_unknown_processor_is_refused():
    with pytest.raises(Unsupported, match="no target pdp11-none-none"):
        assembly(WIDE, Processor("pdp11-none-none"))


def test_optimized_text_is_text():
    through_memory = """
    define i64 @f(i64 %x) {
      %a = alloca i64
      store i64 %x, ptr %a
      %b = load i64, ptr %a
      ret i64 %b
    }
    """
    text = optimized(through_memory)
    assert "define i64 @f(i64" in text and "alloca" not in text


def test_helpers_are_inlined_where_they_say_so():
    text = """
    define internal i64 @helper(i64 %x) alwaysinline {
      %y = add i64 %x, 5
      ret i64 %y
    }
    define i64 @f(i64 %x) {
      %y = call i64 @helper(i64 %x)
      ret i64 %y
    }
    """
    assert "call" not in optimized(text)


def test_objects_are_the_same_every_time():
    text = count(5).text
    assert compile_text(text) == compile_text(text)
    assert symbol("f", "a") != symbol("f", "b")
