"""Small kernels written by hand, for tests of the engine."""

from __future__ import annotations

from weft.emit.llvm.emitted import Emitted, Phase

_LOOP = """
define void @{name}(ptr %operands, ptr %scratch, i64 %begin, i64 %end) {{
entry:
  %x = load ptr, ptr %operands
  %next = getelementptr ptr, ptr %operands, i64 1
  %y = load ptr, ptr %next
  br label %head
head:
  %i = phi i64 [%begin, %entry], [%j, %head]
  %from = getelementptr i64, ptr %x, i64 %i
  %to = getelementptr i64, ptr %y, i64 %i
{body}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %end
  br i1 %more, label %head, label %out
out:
  ret void
}}
"""

_AFFINE = """
  %v = load i64, ptr %from
  %m = mul i64 %v, {times}
  %w = add i64 %m, {plus}
  store i64 %w, ptr %to"""

# Adds to what is there: a task that ran twice or never shows.
_COUNT = """
  %v = load i64, ptr %to
  %w = add i64 %v, 1
  store i64 %w, ptr %to"""

_THROUGH_SCRATCH = """
  %v = load i64, ptr %from
  %last = getelementptr i64, ptr %scratch, i64 {last}
  store volatile i64 %v, ptr %scratch
  store volatile i64 %v, ptr %last
  %a = load volatile i64, ptr %scratch
  %b = load volatile i64, ptr %last
  %w = add i64 %a, %b
  store i64 %w, ptr %to"""


def affine(tasks: int, chunk: int = 1, *, times: int = 1, plus: int = 0) -> Emitted:
    """y[i] = x[i] * times + plus, of i64, an element a task."""
    body = _AFFINE.format(times=times, plus=plus)
    return Emitted(_LOOP.format(name="affine", body=body), (Phase("affine", tasks, chunk),))


def count(tasks: int, chunk: int = 1) -> Emitted:
    """y[i] += 1 (x is not read)."""
    return Emitted(_LOOP.format(name="count", body=_COUNT), (Phase("count", tasks, chunk),))


def doubled_through_scratch(tasks: int, chunk: int, scratch: int) -> Emitted:
    """y[i] = 2 * x[i], with the first and the last word of a thread's own scratch."""
    body = _THROUGH_SCRATCH.format(last=scratch // 8 - 1)
    text = _LOOP.format(name="doubled", body=body)
    return Emitted(text, (Phase("doubled", tasks, chunk),), scratch)


def reversed_through_shared(tasks: int, chunk: int) -> Emitted:
    """y[i] = x[tasks - 1 - i]: one phase writes bytes that all share, the next one reads them."""
    first = _LOOP.format(
        name="fill",
        body="""
  %at_shared = getelementptr ptr, ptr %operands, i64 2
  %shared = load ptr, ptr %at_shared
  %v = load i64, ptr %from
  %there = getelementptr i64, ptr %shared, i64 %i
  store i64 %v, ptr %there""",
    )
    second = _LOOP.format(
        name="drain",
        body=f"""
  %at_shared = getelementptr ptr, ptr %operands, i64 2
  %shared = load ptr, ptr %at_shared
  %back = sub i64 {tasks - 1}, %i
  %there = getelementptr i64, ptr %shared, i64 %back
  %v = load i64, ptr %there
  store i64 %v, ptr %to""",
    )
    phases = (Phase("fill", tasks, chunk), Phase("drain", tasks, chunk))
    return Emitted(first + second, phases, shared=8 * tasks)
