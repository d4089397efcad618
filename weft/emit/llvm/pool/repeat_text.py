"""The text of a loop: commands that run again and again until a test says no.

After every round, values that are carried change places. What says so is an array of i64: how many
values there are, and for each of them

    levels, buffers  for how many rounds it is read, and how many places it is written to by turns
    next             the place that the next round writes to, by number
    now              for each level, where what is read there is: on level 1 what was on level 0
                     a round before, and so on
    places           where it is written to
    counts           how many operands read it on each level, and how many write it
    operands         where the pointers to these are, in the same order
"""

from __future__ import annotations

REPEAT = """
; Run %test, and while the i8 at %verdict is not 0 then, %work; how many rounds there were, or -1 if
; there was no memory. After %limit rounds the test is left to the next call.
define i64 @repeat(
    ptr %run, ptr %pool, ptr %test, ptr %work, ptr %verdict, ptr %moves, i64 %limit) {
entry:
  br label %head
head:
  %n = phi i64 [0, %entry], [%following, %moved]
  %tested = call i32 %run(ptr %pool, ptr %test)
  %untested = icmp ne i32 %tested, 0
  br i1 %untested, label %fail, label %ask
ask:
  %says = load i8, ptr %verdict
  %no = icmp eq i8 %says, 0
  br i1 %no, label %out, label %go
go:
  %worked = call i32 %run(ptr %pool, ptr %work)
  %stuck = icmp ne i32 %worked, 0
  br i1 %stuck, label %fail, label %move
move:
  %count = load i64, ptr %moves
  %first = getelementptr i64, ptr %moves, i64 1
  br label %values
values:
  %value = phi i64 [0, %move], [%value_after, %one]
  %at = phi ptr [%first, %move], [%at_after, %one]
  %more = icmp slt i64 %value, %count
  br i1 %more, label %one, label %moved
one:
  %at_after = call ptr @move(ptr %at)
  %value_after = add i64 %value, 1
  br label %values
moved:
  %following = add i64 %n, 1
  %again = icmp slt i64 %following, %limit
  br i1 %again, label %head, label %stop
out:
  ret i64 %n
stop:
  ret i64 %following
fail:
  ret i64 -1
}

; Let one value change places; where what is said of the next one begins.
define internal ptr @move(ptr %at) {
entry:
  %at_buffers = getelementptr i64, ptr %at, i64 1
  %at_next = getelementptr i64, ptr %at, i64 2
  %now = getelementptr i64, ptr %at, i64 3
  %levels = load i64, ptr %at
  %buffers = load i64, ptr %at_buffers
  %next = load i64, ptr %at_next
  %places = getelementptr i64, ptr %now, i64 %levels
  %counts = getelementptr i64, ptr %places, i64 %buffers
  %groups = add i64 %levels, 1
  %operands = getelementptr i64, ptr %counts, i64 %groups
  %at_written = getelementptr i64, ptr %places, i64 %next
  %written = load i64, ptr %at_written
  %deepest = sub i64 %levels, 1
  br label %shift
shift:
  %level = phi i64 [%deepest, %entry], [%above, %down]
  %deep = icmp sgt i64 %level, 0
  br i1 %deep, label %down, label %top
down:
  %above = sub i64 %level, 1
  %at_above = getelementptr i64, ptr %now, i64 %above
  %at_level = getelementptr i64, ptr %now, i64 %level
  %sinks = load i64, ptr %at_above
  store i64 %sinks, ptr %at_level
  br label %shift
top:
  store i64 %written, ptr %now
  %one_more = add i64 %next, 1
  %over = icmp eq i64 %one_more, %buffers
  %then = select i1 %over, i64 0, i64 %one_more
  store i64 %then, ptr %at_next
  %at_then = getelementptr i64, ptr %places, i64 %then
  %new = load i64, ptr %at_then
  br label %group
group:
  %number = phi i64 [0, %top], [%number_after, %done]
  %first = phi ptr [%operands, %top], [%first_after, %done]
  %left = icmp slt i64 %number, %groups
  br i1 %left, label %begin, label %out
begin:
  %is_read = icmp slt i64 %number, %levels
  %at_held = getelementptr i64, ptr %now, i64 %number
  %held = load i64, ptr %at_held
  %address = select i1 %is_read, i64 %held, i64 %new
  %at_count = getelementptr i64, ptr %counts, i64 %number
  %count = load i64, ptr %at_count
  br label %each
each:
  %operand = phi i64 [0, %begin], [%operand_after, %set]
  %some = icmp slt i64 %operand, %count
  br i1 %some, label %set, label %done
set:
  %at_place = getelementptr ptr, ptr %first, i64 %operand
  %place = load ptr, ptr %at_place
  store i64 %address, ptr %place
  %operand_after = add i64 %operand, 1
  br label %each
done:
  %number_after = add i64 %number, 1
  %first_after = getelementptr i64, ptr %first, i64 %count
  br label %group
out:
  ret ptr %first
}
"""
