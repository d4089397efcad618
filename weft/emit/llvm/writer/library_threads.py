"""Libraries with threads of their own: kernels limit them to one, which ours would compete with.

The thread count of a library is the process's: the first of several runs saves it and sets it to
one, and the last one restores it. `symbols` are those of `get`, `set` and the state of both, `use`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import function


def one_thread(symbols: dict[str, str], name: str) -> Writer:
    """The first run saves the library's thread count, and sets it to one."""
    code = function(name)
    with _locked(code, symbols) as (users, saved):
        before = code.let(f"load i64, ptr {users}, align 8")
        code.do(f"store i64 {code.let(f'add i64 {before}, 1')}, ptr {users}, align 8")
        with code.when(code.let(f"icmp eq i64 {before}, 0")):
            count = code.let(f"sext i32 {code.call('i32', symbols['get'])} to i64")
            code.do(f"store i64 {count}, ptr {saved}, align 8")
            _set_threads(code, symbols, "1")
    return code


def threads_again(symbols: dict[str, str], name: str) -> Writer:
    """The last run restores the library's thread count."""
    code = function(name)
    with _locked(code, symbols) as (users, saved):
        after = code.let(f"sub i64 {code.let(f'load i64, ptr {users}, align 8')}, 1")
        code.do(f"store i64 {after}, ptr {users}, align 8")
        with code.when(code.let(f"icmp eq i64 {after}, 0")):
            count = code.let(f"load i64, ptr {saved}, align 8")
            _set_threads(code, symbols, code.let(f"trunc i64 {count} to i32"))
    return code


@contextmanager
def _locked(code: Writer, symbols: dict[str, str]) -> Iterator[tuple[str, str]]:
    """A spin lock around the library's state: the addresses of its users and of its count."""
    use = f"@{symbols['use']}"
    # The lock, the number of runs inside, and the saved thread count.
    code.declare(f"{use} = external global [3 x i64]")
    again, held = code.fresh("again"), code.fresh("held")
    code.do(f"br label %{again}")
    code.start(again)
    pair = code.let(f"cmpxchg ptr {use}, i64 0, i64 1 acquire monotonic, align 8")
    code.do(
        f"br i1 {code.let(f'extractvalue {{i64, i1}} {pair}, 1')}, label %{held}, label %{again}"
    )
    code.start(held)
    users, saved = (code.let(f"getelementptr i64, ptr {use}, i64 {n}") for n in (1, 2))
    yield users, saved
    code.do(f"store atomic i64 0, ptr {use} release, align 8")


def _set_threads(code: Writer, symbols: dict[str, str], count: str) -> None:
    code.declare(f"declare void @{symbols['set']}(i32)")
    code.do(f"call void @{symbols['set']}(i32 {count})")
