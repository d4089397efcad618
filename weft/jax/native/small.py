"""What native code needs to do a slot's work without Python: when it may, words and memory."""

from __future__ import annotations

from weft.jax.native.bridge import ENDS, word
from weft.jax.native.records import BUFFER, FIELDS, at

DONE, FAILED = 1, 2  # what comes of a try; 0: Python has to be asked
_LITTLE = 256  # records that may wait for Python


def quickly(slot: str, known: str) -> str:
    """A slot that is tried in native code; Python is asked where it cannot be done there.

    `known` is code that says at `%known` whether it is worth a try. It is tried by
    `@try_<slot>`, which answers that all is done, that there was no memory, or else 0.
    """
    return f"""
define ptr @{slot}(ptr %args) {{
entry:
  %may = call i1 @may_try()
  br i1 %may, label %look, label %ask
look:{known}
  br i1 %known, label %try, label %ask
try:
  %lock = call i32 @PyGILState_Ensure()
  %came = call i64 @try_{slot}(ptr %args)
  call void @PyGILState_Release(i32 %lock)
  switch i64 %came, label %ask [i64 {DONE}, label %done
                                i64 {FAILED}, label %failed]
done:
  ret ptr null
failed:
  %why = call ptr @kept(i64 {word("failed")})
  ret ptr %why
ask:
  %answer = call ptr @ask_{slot}(ptr %args)
  ret ptr %answer
}}"""


SMALL = f"""
declare ptr @aligned_alloc(i64, i64)

; Whether Python's lock can be had: the process neither ends nor was forked.
define internal i1 @may_try() {{
entry:
  %closed = call ptr @kept(i64 {word("closed")})
  %open = icmp eq ptr %closed, null
  br i1 %open, label %lives, label %no
lives:
  %there = call i32 @Py_IsInitialized()
  %ends = call i32 @{ENDS}()
  %is_there = icmp ne i32 %there, 0
  %stays = icmp eq i32 %ends, 0
  %can = and i1 %is_there, %stays
  %ending = call ptr @kept(i64 {word("ending")})
  %goes_on = icmp eq ptr %ending, null
  %may = and i1 %can, %goes_on
  ret i1 %may
no:
  ret i1 0
}}

define internal i64 @word(ptr %record, i64 %number) {{
  %at = getelementptr i64, ptr %record, i64 %number
  %found = load i64, ptr %at
  ret i64 %found
}}

define internal ptr @pointer(ptr %record, i64 %number) {{
  %at = getelementptr ptr, ptr %record, i64 %number
  %found = load ptr, ptr %at
  ret ptr %found
}}

define internal void @set(ptr %record, i64 %number, i64 %value) {{
  %at = getelementptr i64, ptr %record, i64 %number
  store i64 %value, ptr %at
  ret void
}}

; Memory that vectors can be loaded from, null if there is none.
define internal ptr @block(i64 %nbytes) {{
  %up = add i64 %nbytes, 127
  %size = and i64 %up, -64
  %made = call ptr @aligned_alloc(i64 64, i64 %size)
  ret ptr %made
}}

; Take back all that is gone and that only native code holds, and have Python asked soon to take
; back the rest; whether that is little.
define internal i1 @sweep() {{
entry:
  %list = atomicrmw xchg ptr @state, ptr null acquire, align 8
  br label %loop
loop:
  %record = phi ptr [%list, %entry], [%next, %after]
  %left = phi i64 [0, %entry], [%left_now, %after]
  %none = icmp eq ptr %record, null
  br i1 %none, label %done, label %one
one:
  %next = load ptr, ptr %record
  %what = call i64 @word(ptr %record, i64 {at("record", "what") // 8})
  %is_buffer = icmp eq i64 %what, {BUFFER}
  br i1 %is_buffer, label %leave, label %keep
leave:
  %family = call ptr @pointer(ptr %record, i64 {FIELDS["buffer"]["family"]})
  call void @give(ptr %record)
  %at_live = getelementptr i64, ptr %family, i64 {FIELDS["family"]["live"]}
  %live = atomicrmw sub ptr %at_live, i64 1 acq_rel, align 8
  %is_last = icmp eq i64 %live, 1
  br i1 %is_last, label %last, label %after
last:
  %native = call i64 @word(ptr %family, i64 {FIELDS["family"]["native"]})
  %is_native = icmp ne i64 %native, 0
  br i1 %is_native, label %free, label %keep
free:
  %nothing = call ptr @finish(ptr %family)
  br label %after
keep:
  %kept = phi ptr [%record, %one], [%family, %last]
  call void @push(ptr %kept)
  %more = add i64 %left, 1
  br label %after
after:
  %left_now = phi i64 [%left, %leave], [%left, %free], [%more, %keep]
  br label %loop
done:
  %is_clean = icmp eq i64 %left, 0
  br i1 %is_clean, label %yes, label %some
some:
  %is_little = icmp sle i64 %left, {_LITTLE}
  br i1 %is_little, label %soon, label %no
soon:
  call void @drain_soon()
  br label %yes
yes:
  ret i1 1
no:
  ret i1 0
}}
"""
