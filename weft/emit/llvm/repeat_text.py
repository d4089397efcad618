"""The text of a loop: commands that run again and again until a test says no.

After every round, values that are made in turns change places. What says so is an array of i64: how
many values there are, and for each of them

    now, next       where the round has written it, and where the next one shall
    reads, writes   how many operands are to read it, and how many to write it
    operands        where the pointers to these are, those that read first
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
  %value = phi i64 [0, %move], [%value_after, %written]
  %at = phi ptr [%first, %move], [%at_after, %written]
  %more = icmp slt i64 %value, %count
  br i1 %more, label %one, label %moved
one:
  %at_next = getelementptr i64, ptr %at, i64 1
  %at_reads = getelementptr i64, ptr %at, i64 2
  %at_writes = getelementptr i64, ptr %at, i64 3
  %operands = getelementptr i64, ptr %at, i64 4
  %now = load i64, ptr %at
  %next = load i64, ptr %at_next
  %reads = load i64, ptr %at_reads
  %writes = load i64, ptr %at_writes
  store i64 %next, ptr %at
  store i64 %now, ptr %at_next
  %all = add i64 %reads, %writes
  br label %each
each:
  %operand = phi i64 [0, %one], [%operand_after, %set]
  %left = icmp slt i64 %operand, %all
  br i1 %left, label %set, label %written
set:
  %is_read = icmp slt i64 %operand, %reads
  %address = select i1 %is_read, i64 %now, i64 %next
  %at_place = getelementptr ptr, ptr %operands, i64 %operand
  %place = load ptr, ptr %at_place
  store i64 %address, ptr %place
  %operand_after = add i64 %operand, 1
  br label %each
written:
  %value_after = add i64 %value, 1
  %at_after = getelementptr i64, ptr %operands, i64 %all
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
"""
