"""The text of a call: commands that run on the stacks of two tuples, the given and the made ones.

What says how is an array of i64

    run, commands  what runs them, and where they are
    type           the type of stacks
    counts         how many stacks are given, and how many are made

and for each stack, the given ones first,

    kind           the object that its kind has to be
    places         how many operands it is
    operands       where the pointers to it are
"""

from __future__ import annotations

from weft.array.references import Offsets


def call_text(at: Offsets) -> str:
    """The function, for a Python that keeps things there."""
    return f"""
; Run commands; 0, or 1 if there was no memory, or 2 if a given stack does not fit.
define i32 @call(ptr %pool, ptr %said, ptr %given, ptr %made) {{
entry:
  %at_commands = getelementptr i64, ptr %said, i64 1
  %at_type = getelementptr i64, ptr %said, i64 2
  %at_given = getelementptr i64, ptr %said, i64 3
  %at_made = getelementptr i64, ptr %said, i64 4
  %first = getelementptr i64, ptr %said, i64 5
  %type = load i64, ptr %at_type
  %given_count = load i64, ptr %at_given
  %then = call ptr @place(ptr %given, i64 %given_count, i64 %type, ptr %first)
  %unfit = icmp eq ptr %then, null
  br i1 %unfit, label %fail, label %put
put:
  %made_count = load i64, ptr %at_made
  %end = call ptr @place(ptr %made, i64 %made_count, i64 %type, ptr %then)
  %misfit = icmp eq ptr %end, null
  br i1 %misfit, label %fail, label %go
go:
  %run = load ptr, ptr %said
  %commands = load ptr, ptr %at_commands
  %failed = call i32 %run(ptr %pool, ptr %commands)
  ret i32 %failed
fail:
  ret i32 2
}}

; Write where the elements of stacks are; where what is said of them ends, or null if one is wrong.
define internal ptr @place(ptr %tuple, i64 %count, i64 %stack, ptr %said) {{
entry:
  %items = getelementptr i8, ptr %tuple, i64 {at.items}
  br label %head
head:
  %n = phi i64 [0, %entry], [%next, %done]
  %at = phi ptr [%said, %entry], [%at_end, %done]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %look, label %out
look:
  %at_item = getelementptr ptr, ptr %items, i64 %n
  %item = load ptr, ptr %at_item
  %at_type = getelementptr i8, ptr %item, i64 {at.type}
  %type = load i64, ptr %at_type
  %is_stack = icmp eq i64 %type, %stack
  br i1 %is_stack, label %ask, label %wrong
ask:
  %at_kind = getelementptr i8, ptr %item, i64 {at.kind}
  %kind = load i64, ptr %at_kind
  %wanted = load i64, ptr %at
  %fits = icmp eq i64 %kind, %wanted
  br i1 %fits, label %take, label %wrong
take:
  %at_data = getelementptr i8, ptr %item, i64 {at.data}
  %data = load ptr, ptr %at_data
  %at_elements = getelementptr i8, ptr %data, i64 {at.elements}
  %elements = load i64, ptr %at_elements
  %at_places = getelementptr i64, ptr %at, i64 1
  %places = load i64, ptr %at_places
  %operands = getelementptr i64, ptr %at, i64 2
  %at_end = getelementptr i64, ptr %operands, i64 %places
  br label %each
each:
  %p = phi i64 [0, %take], [%following, %write]
  %left = icmp slt i64 %p, %places
  br i1 %left, label %write, label %done
write:
  %at_operand = getelementptr ptr, ptr %operands, i64 %p
  %operand = load ptr, ptr %at_operand
  store i64 %elements, ptr %operand
  %following = add i64 %p, 1
  br label %each
done:
  %next = add i64 %n, 1
  br label %head
out:
  ret ptr %at
wrong:
  ret ptr null
}}
"""
