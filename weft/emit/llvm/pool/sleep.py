"""The text of how threads of the pool sleep and are woken: futexes, or condition variables."""

from __future__ import annotations

_FUTEX = {"x86_64": 202, "aarch64": 98}  # the number of Linux's system call


def sleep_text(triple: str, futex: bool | None = None) -> str:
    """`sleep`, `wake` and `prepare`, with futexes where the system has them or as it is said."""
    architecture = triple.partition("-")[0]
    if futex is None:
        futex = "linux" in triple and architecture in _FUTEX
    return _futexes(_FUTEX[architecture]) if futex else _CONDITIONS


def _futexes(number: int) -> str:
    call = f"call i64 (i64, ...) @syscall(i64 {number}, ptr"
    return f"""
declare i64 @syscall(i64, ...)

; Sleep while the i32 at %word is %value.
define internal void @sleep(ptr %pool, ptr %word, i32 %value, i64 %which) {{
  %r = {call} %word, i32 128, i32 %value, ptr null, ptr null, i32 0)
  ret void
}}

; Wake so many sleepers at %word.
define internal void @wake(ptr %pool, ptr %word, i32 %count, i64 %which) {{
  %r = {call} %word, i32 129, i32 %count, ptr null, ptr null, i32 0)
  ret void
}}

define internal void @prepare(ptr %pool) {{
  ret void
}}
"""


_CONDITIONS = """
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)

; Sleep while the i32 at %word is %value; %which is where the condition variable is.
define internal void @sleep(ptr %pool, ptr %word, i32 %value, i64 %which) {
  %mutex = getelementptr i8, ptr %pool, i64 1024
  %condition = getelementptr i8, ptr %pool, i64 %which
  %l = call i32 @pthread_mutex_lock(ptr %mutex)
  br label %look
look:
  %now = load atomic i32, ptr %word seq_cst, align 4
  %same = icmp eq i32 %now, %value
  br i1 %same, label %wait, label %out
wait:
  %w = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %look
out:
  %u = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}

; Wake all sleepers: the lock orders this after the look of one that is about to sleep.
define internal void @wake(ptr %pool, ptr %word, i32 %count, i64 %which) {
  %mutex = getelementptr i8, ptr %pool, i64 1024
  %condition = getelementptr i8, ptr %pool, i64 %which
  %l = call i32 @pthread_mutex_lock(ptr %mutex)
  %b = call i32 @pthread_cond_broadcast(ptr %condition)
  %u = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}

define internal void @prepare(ptr %pool) {
  %mutex = getelementptr i8, ptr %pool, i64 1024
  %first = getelementptr i8, ptr %pool, i64 1280
  %second = getelementptr i8, ptr %pool, i64 1536
  %m = call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %f = call i32 @pthread_cond_init(ptr %first, ptr null)
  %s = call i32 @pthread_cond_init(ptr %second, ptr null)
  ret void
}
"""
