"""Records in native code: taken, given back, found in the arguments of a call and made for results.

What is destroyed goes onto a list, whoever destroys it and whenever; all else is done with Python's
lock held.
"""

from __future__ import annotations

from weft.jax.native.bridge import word
from weft.jax.native.records import BUFFER, COUNTED, EVENT, FAMILY, SIZE, STATIC, at

LARGE = 1 << 20  # bytes of a piece from which Python is asked to let go of it soon

HELPERS = (
    *("home", "push", "destroy", "drain", "fresh", "give", "finish", "settle"),
    *("columns", "single", "spread", "drop", "hide", "disown"),
    *("nothing", "take_back", "drop_capsule"),
)

RECORDS = f"""
; Where the state is.
define ptr @home() {{
  ret ptr @state
}}

; What is called to free what stays for ever.
define void @nothing(ptr %given) {{
  ret void
}}

; Put a record onto the list of those that are gone; any thread may.
define void @push(ptr %record) {{
entry:
  br label %again
again:
  %head = load atomic ptr, ptr @state monotonic, align 8
  store ptr %head, ptr %record
  %swap = cmpxchg ptr @state, ptr %head, ptr %record release monotonic
  %ok = extractvalue {{ ptr, i1 }} %swap, 1
  br i1 %ok, label %done, label %again
done:
  ret void
}}

; JAX, or whoever else held it, lets go of a record; any thread may.
define void @destroy(ptr %record) {{
entry:
  %none = icmp eq ptr %record, null
  br i1 %none, label %done, label %look
look:
  %at_what = getelementptr i8, ptr %record, i64 {at("record", "what")}
  %what = load i64, ptr %at_what
  %static = icmp eq i64 %what, {STATIC}
  br i1 %static, label %done, label %sort
sort:
  %is_buffer = icmp eq i64 %what, {BUFFER}
  br i1 %is_buffer, label %buffer, label %other
buffer:
  %at_family = getelementptr i8, ptr %record, i64 {at("buffer", "family")}
  %family = load ptr, ptr %at_family
  %at_nbytes = getelementptr i8, ptr %family, i64 {at("family", "nbytes")}
  %nbytes = load i64, ptr %at_nbytes
  br label %push
other:
  %is_counted = icmp sge i64 %what, {COUNTED}
  br i1 %is_counted, label %less, label %push
less:
  %at_live = getelementptr i8, ptr %record, i64 {at("record", "live")}
  %live = atomicrmw sub ptr %at_live, i64 1 acq_rel, align 8
  %is_last = icmp eq i64 %live, 1
  br i1 %is_last, label %push, label %done
push:
  %size = phi i64 [%nbytes, %buffer], [0, %other], [0, %less]
  call void @push(ptr %record)
  %is_large = icmp sge i64 %size, {LARGE}
  br i1 %is_large, label %soon, label %done
soon:
  call void @drain_soon()
  br label %done
done:
  ret void
}}

; A record that is free, null if there is none; only with Python's lock, as all below.
define ptr @take() {{
entry:
  %at_free = getelementptr i8, ptr @state, i64 {word("free")}
  %free = load ptr, ptr %at_free
  %none = icmp eq ptr %free, null
  br i1 %none, label %done, label %some
some:
  %next = load ptr, ptr %free
  store ptr %next, ptr %at_free
  %at_count = getelementptr i8, ptr @state, i64 {word("count")}
  %count = load i64, ptr %at_count
  %less = sub i64 %count, 1
  store i64 %less, ptr %at_count
  store ptr null, ptr %free
  br label %done
done:
  ret ptr %free
}}

define void @give(ptr %record) {{
  %at_free = getelementptr i8, ptr @state, i64 {word("free")}
  %free = load ptr, ptr %at_free
  store ptr %free, ptr %record
  store ptr %record, ptr %at_free
  %at_count = getelementptr i8, ptr @state, i64 {word("count")}
  %count = load i64, ptr %at_count
  %more = add i64 %count, 1
  store i64 %more, ptr %at_count
  ret void
}}

; A record of a kind, zeroed else, held once; null if there is none.
define ptr @fresh(i64 %what) {{
entry:
  %record = call ptr @take()
  %none = icmp eq ptr %record, null
  br i1 %none, label %end, label %fill
fill:
  call void @llvm.memset.p0.i64(ptr %record, i8 0, i64 {SIZE}, i1 0)
  %at_what = getelementptr i8, ptr %record, i64 {at("record", "what")}
  store i64 %what, ptr %at_what
  %is_counted = icmp sge i64 %what, {COUNTED}
  %once = zext i1 %is_counted to i64
  %at_live = getelementptr i8, ptr %record, i64 {at("record", "live")}
  store i64 %once, ptr %at_live
  br label %end
end:
  ret ptr %record
}}

; Take a record back whose Python object is gone; the error that an event had, else null.
define ptr @finish(ptr %record) {{
entry:
  %at_what = getelementptr i8, ptr %record, i64 {at("record", "what")}
  %what = load i64, ptr %at_what
  %is_event = icmp eq i64 %what, {EVENT}
  %is_family = icmp eq i64 %what, {FAMILY}
  %is = or i1 %is_event, %is_family
  %at_error = getelementptr i8, ptr %record, i64 {at("event", "error")}
  %kept = load ptr, ptr %at_error
  %error = select i1 %is, ptr %kept, ptr null
  br i1 %is_family, label %family, label %end
family:
  %at_own = getelementptr i8, ptr %record, i64 {at("family", "own")}
  %own = load ptr, ptr %at_own
  call void @free(ptr %own)
  br label %end
end:
  call void @give(ptr %record)
  ret ptr %error
}}

; Take back all buffers that are gone; write down the families that have none left, and whatever
; else is gone. At most %room of these; how many there were.
define i64 @drain(ptr %out, i64 %room) {{
entry:
  %list = atomicrmw xchg ptr @state, ptr null acquire, align 8
  br label %loop
loop:
  %record = phi ptr [%list, %entry], [%next, %buffer], [%next, %other], [%next, %last]
  %n = phi i64 [0, %entry], [%n, %buffer], [%more, %other], [%more_last, %last]
  %none = icmp eq ptr %record, null
  br i1 %none, label %done, label %test
test:
  %full = icmp sge i64 %n, %room
  br i1 %full, label %back, label %one
one:
  %next = load ptr, ptr %record
  %at_what = getelementptr i8, ptr %record, i64 {at("record", "what")}
  %what = load i64, ptr %at_what
  %is_buffer = icmp eq i64 %what, {BUFFER}
  br i1 %is_buffer, label %leave, label %other
leave:
  %at_family = getelementptr i8, ptr %record, i64 {at("buffer", "family")}
  %family = load ptr, ptr %at_family
  %at_live = getelementptr i8, ptr %family, i64 {at("record", "live")}
  %live = atomicrmw sub ptr %at_live, i64 1 acq_rel, align 8
  call void @give(ptr %record)
  %is_last = icmp eq i64 %live, 1
  br i1 %is_last, label %last, label %buffer
buffer:
  br label %loop
last:
  %into_last = getelementptr ptr, ptr %out, i64 %n
  store ptr %family, ptr %into_last
  %more_last = add i64 %n, 1
  br label %loop
other:
  store ptr null, ptr %record
  %into = getelementptr ptr, ptr %out, i64 %n
  store ptr %record, ptr %into
  %more = add i64 %n, 1
  br label %loop
back:
  %rest = load ptr, ptr %record
  call void @push(ptr %record)
  %was_last = icmp eq ptr %rest, null
  br i1 %was_last, label %done, label %again
again:
  br label %back_loop
back_loop:
  %each = phi ptr [%rest, %again], [%following, %back_loop]
  %following = load ptr, ptr %each
  call void @push(ptr %each)
  %end = icmp eq ptr %following, null
  br i1 %end, label %done, label %back_loop
done:
  ret i64 %n
}}

; For each argument the family whose buffers, in the order of devices, were passed; 0 where they are
; of several families or in another order, and 1 where one is deleted.
define void @columns(ptr %lists, i64 %devices, i64 %arguments, ptr %out) {{
entry:
  br label %argument
argument:
  %j = phi i64 [0, %entry], [%j_next, %write]
  %j_end = icmp sge i64 %j, %arguments
  br i1 %j_end, label %done, label %first
first:
  %list0 = load ptr, ptr %lists
  %at0 = getelementptr ptr, ptr %list0, i64 %j
  %buffer0 = load ptr, ptr %at0
  %at_family0 = getelementptr i8, ptr %buffer0, i64 {at("buffer", "family")}
  %family0 = load ptr, ptr %at_family0
  br label %device
device:
  %d = phi i64 [0, %first], [%d_next, %keep]
  %kept = phi ptr [%family0, %first], [%chosen, %keep]
  %d_end = icmp sge i64 %d, %devices
  br i1 %d_end, label %write, label %look
look:
  %at_list = getelementptr ptr, ptr %lists, i64 %d
  %list = load ptr, ptr %at_list
  %at_buffer = getelementptr ptr, ptr %list, i64 %j
  %buffer = load ptr, ptr %at_buffer
  %at_deleted = getelementptr i8, ptr %buffer, i64 {at("buffer", "deleted")}
  %deleted = load i64, ptr %at_deleted
  %is_deleted = icmp ne i64 %deleted, 0
  br i1 %is_deleted, label %gone, label %keep
keep:
  %at_family = getelementptr i8, ptr %buffer, i64 {at("buffer", "family")}
  %family = load ptr, ptr %at_family
  %at_place = getelementptr i8, ptr %buffer, i64 {at("buffer", "place")}
  %place = load i64, ptr %at_place
  %same = icmp eq ptr %family, %family0
  %here = icmp eq i64 %place, %d
  %fits = and i1 %same, %here
  %chosen = select i1 %fits, ptr %kept, ptr null
  %d_next = add i64 %d, 1
  br label %device
gone:
  br label %write
write:
  %found = phi ptr [%kept, %device], [inttoptr (i64 1 to ptr), %gone]
  %into = getelementptr ptr, ptr %out, i64 %j
  store ptr %found, ptr %into
  %j_next = add i64 %j, 1
  br label %argument
done:
  ret void
}}

; A family, a copy of the template.
define internal ptr @family_of(ptr %template, i64 %live) {{
  %family = call ptr @take()
  call void @llvm.memcpy.p0.p0.i64(ptr %family, ptr %template, i64 {SIZE}, i1 0)
  %at_live = getelementptr i8, ptr %family, i64 {at("record", "live")}
  store i64 %live, ptr %at_live
  %at_dims = getelementptr i8, ptr %family, i64 {at("family", "dims")}
  %dims = load i64, ptr %at_dims
  %inline = icmp eq i64 %dims, 0
  %own = getelementptr i8, ptr %family, i64 64
  %own_word = ptrtoint ptr %own to i64
  %dims_at = select i1 %inline, i64 %own_word, i64 %dims
  store i64 %dims_at, ptr %at_dims
  ret ptr %family
}}

; A buffer of a family.
define internal ptr @buffer_of(ptr %family, i64 %place, ptr %device, ptr %memory) {{
  %buffer = call ptr @take()
  %at_what = getelementptr i8, ptr %buffer, i64 {at("record", "what")}
  store i64 {BUFFER}, ptr %at_what
  %at_family = getelementptr i8, ptr %buffer, i64 {at("buffer", "family")}
  store ptr %family, ptr %at_family
  %at_place = getelementptr i8, ptr %buffer, i64 {at("buffer", "place")}
  store i64 %place, ptr %at_place
  %at_device = getelementptr i8, ptr %buffer, i64 {at("buffer", "device")}
  store ptr %device, ptr %at_device
  %at_memory = getelementptr i8, ptr %buffer, i64 {at("buffer", "memory")}
  store ptr %memory, ptr %at_memory
  %at_deleted = getelementptr i8, ptr %buffer, i64 {at("buffer", "deleted")}
  store i64 0, ptr %at_deleted
  ret ptr %buffer
}}

; A family of one buffer, which is given; null if records lack.
define ptr @single(ptr %template, ptr %device, ptr %memory) {{
entry:
  %at_count = getelementptr i8, ptr @state, i64 {word("count")}
  %count = load i64, ptr %at_count
  %enough = icmp sge i64 %count, 2
  br i1 %enough, label %make, label %lack
lack:
  ret ptr null
make:
  %family = call ptr @family_of(ptr %template, i64 1)
  %buffer = call ptr @buffer_of(ptr %family, i64 0, ptr %device, ptr %memory)
  ret ptr %buffer
}}

; New families, copies of the templates, and a buffer of each on every device; 0 if records lack.
define i64 @spread(ptr %lists, i64 %devices, i64 %results, ptr %templates, ptr %on, ptr %in,
                   ptr %out) {{
entry:
  %per = add i64 %devices, 1
  %need = mul i64 %per, %results
  %at_count = getelementptr i8, ptr @state, i64 {word("count")}
  %count = load i64, ptr %at_count
  %enough = icmp sge i64 %count, %need
  br i1 %enough, label %result, label %lack
lack:
  ret i64 0
result:
  %o = phi i64 [0, %entry], [%o_next, %device]
  %o_end = icmp sge i64 %o, %results
  br i1 %o_end, label %done, label %family
family:
  %skip = mul i64 %o, {SIZE}
  %template = getelementptr i8, ptr %templates, i64 %skip
  %family_at = call ptr @family_of(ptr %template, i64 %devices)
  %into = getelementptr ptr, ptr %out, i64 %o
  store ptr %family_at, ptr %into
  %o_next = add i64 %o, 1
  br label %device
device:
  %d = phi i64 [0, %family], [%d_next, %fill]
  %d_end = icmp sge i64 %d, %devices
  br i1 %d_end, label %result, label %fill
fill:
  %from_on = getelementptr ptr, ptr %on, i64 %d
  %device_at = load ptr, ptr %from_on
  %row = mul i64 %o, %devices
  %cell = add i64 %row, %d
  %from_in = getelementptr ptr, ptr %in, i64 %cell
  %memory_at = load ptr, ptr %from_in
  %buffer = call ptr @buffer_of(ptr %family_at, i64 %d, ptr %device_at, ptr %memory_at)
  %at_list = getelementptr ptr, ptr %lists, i64 %d
  %list = load ptr, ptr %at_list
  %into_list = getelementptr ptr, ptr %list, i64 %o
  store ptr %buffer, ptr %into_list
  %d_next = add i64 %d, 1
  br label %device
done:
  ret i64 1
}}

; Mark the buffers of an argument as deleted. The fence is for whoever asks next whether they are
; lent, in Python: on ARM a plain load may overtake even a seq_cst store.
define void @drop(ptr %lists, i64 %devices, i64 %argument) {{
entry:
  br label %device
device:
  %d = phi i64 [0, %entry], [%d_next, %one]
  %d_end = icmp sge i64 %d, %devices
  br i1 %d_end, label %done, label %one
one:
  %at_list = getelementptr ptr, ptr %lists, i64 %d
  %list = load ptr, ptr %at_list
  %at_buffer = getelementptr ptr, ptr %list, i64 %argument
  %buffer = load ptr, ptr %at_buffer
  %at_deleted = getelementptr i8, ptr %buffer, i64 {at("buffer", "deleted")}
  store atomic i64 1, ptr %at_deleted seq_cst, align 8
  %d_next = add i64 %d, 1
  br label %device
done:
  fence seq_cst
  ret void
}}

; Forget where the elements of a family are. Whoever lends them marks them as lent before it looks.
define void @hide(ptr %family) {{
  %at_data = getelementptr i8, ptr %family, i64 {at("family", "data")}
  store atomic i64 0, ptr %at_data seq_cst, align 8
  %at_kind = getelementptr i8, ptr %family, i64 {at("family", "kind")}
  store i64 0, ptr %at_kind
  fence seq_cst
  ret void
}}

; Where the memory is of a family that Python did not know of, and that Python holds from now on;
; null if it has none. A donated argument's memory is a result's or Python's: in one step.
define ptr @disown(ptr %family) {{
  %at_own = getelementptr i8, ptr %family, i64 {at("family", "own")}
  %own = load ptr, ptr %at_own
  store ptr null, ptr %at_own
  %at_native = getelementptr i8, ptr %family, i64 {at("family", "native")}
  store i64 0, ptr %at_native
  ret ptr %own
}}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""
