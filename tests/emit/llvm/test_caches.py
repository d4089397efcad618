"""Cache sizes of machines, and kernels that are fitted to them."""

from __future__ import annotations

import platform
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.emit.llvm.launching import check
from tests.kernels.building import Building
from tests.kernels.chains import CHAINS
from weft.emit.llvm.emit import emit
from weft.emit.llvm.jit import caches
from weft.emit.llvm.jit.caches import Caches, caches_here
from weft.emit.llvm.jit.processor import host
from weft.emit.llvm.loops.emit import loop_plans
from weft.emit.llvm.product.blocking.blocking import chip_of
from weft.ir.types import BF16, F32

KIB, MIB = 1 << 10, 1 << 20


def cores(folder: Path, *levels: tuple[str, int, str, str]) -> None:
    """Files as Linux has them: type, level, size, and the hardware threads that share it."""
    for n, values in enumerate(levels):
        (folder / f"index{n}").mkdir()
        for name, value in zip(("type", "level", "size", "shared_cpu_list"), values, strict=True):
            (folder / f"index{n}" / name).write_text(f"{value}\n")


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([], Caches()),
        (
            [
                ("Data", 1, "48K", "0-1"),
                ("Instruction", 1, "64K", "0-1"),
                ("Unified", 2, "2048K", "0-1"),
                ("Unified", 3, "38912K", "0-31"),
            ],
            Caches(48 * KIB, 2 * MIB, 38 * MIB),
        ),
        # Four cores share an L2, threads of other cores are listed apart, and there is no L3.
        (
            [("Data", 1, "64K", "0"), ("Unified", 2, "4096K", "0-1,4,6")],
            Caches(64 * KIB, MIB, 4 * MIB),
        ),
        ([("Unified", 3, "393216K", "0-7")], Caches(last=64 * MIB)),
        ([("Data", 1, "odd", "0"), ("Unified", 2, "1024K", "")], Caches(l2=MIB, last=MIB)),
    ],
)
@pytest.mark.skipif(sys.platform == "darwin", reason="the files are Linux's")
def test_sizes_that_linux_tells(
    levels: list[tuple[str, int, str, str]],
    expected: Caches,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    cores(tmp_path, *levels)
    monkeypatch.setattr(caches, "_LINUX", tmp_path)
    assert caches_here() == expected


def test_sizes_that_macos_tells(monkeypatch: pytest.MonkeyPatch):
    told = {
        "hw.perflevel0.l1dcachesize": 128 * KIB,
        "hw.perflevel0.l2cachesize": 16 * MIB,
        "hw.l2cachesize": 4 * MIB,
        "hw.perflevel0.cpusperl2": 4,
    }
    monkeypatch.setattr(caches.sys, "platform", "darwin")
    monkeypatch.setattr(caches, "_sysctl", lambda name: told.get(name, 0))
    assert caches_here() == Caches(128 * KIB, 4 * MIB, 16 * MIB)


def test_a_chip_has_the_caches_of_its_processor():
    chip = chip_of(replace(host(), caches=Caches(1 * KIB, 3 * KIB, 7 * KIB)))
    assert (chip.l1_bytes, chip.l2_bytes) == (KIB, 3 * KIB)


def test_what_exceeds_the_last_cache_is_streamed():
    b = Building(i=1 << 16)
    b.write("i", b.read("i"))
    kernel = b.kernel()
    near, far = (replace(host(), caches=Caches(last=n)) for n in (1 << 19, 1 << 18))
    assert not loop_plans(kernel, near)[0].streams
    assert loop_plans(kernel, far)[0].streams


def test_operands_beyond_l2_are_prefetched():
    kernel = CHAINS["softmax"](64, 256, F32).kernel()
    near, far = (replace(host(), caches=Caches(l2=n)) for n in (1 << 17, 1 << 16))
    assert "prefetch" not in emit(kernel, near).text
    assert "prefetch" in emit(kernel, far).text


@pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86 instructions")
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rotary"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_chains_for_tiny_caches(name: str, dtype):
    b = CHAINS[name](9, 400, dtype)
    tiny = replace(host(), caches=Caches(2 * KIB, 4 * KIB, 16 * KIB))
    check(b.kernel(), b.arrays(), 400, tiny)
