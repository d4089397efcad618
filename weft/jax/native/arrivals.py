"""Arrays from the host in native code: small ones are copied, and Python hears nothing of it.

A table has templates of families, by a hash of the type and the sizes; Python enters those of the
arrays that it is asked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from weft.jax.abi import Api
from weft.jax.native.bridge import word
from weft.jax.native.records import FIELDS, MOST_DIMS
from weft.jax.native.small import DONE, quickly

SLOT = "Client_BufferFromHostBuffer"
SMALL_ARRIVAL = 1 << 14  # bytes from which it pays to look whether they are on a device already
ENTRIES = 1 << 10  # of the table
TEMPLATES = (ctypes.c_size_t * ENTRIES)()  # the table, which native code looks into
_FACTOR = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio
_SHIFT = 54  # what is left are the 10 bits of a place

_FAMILY = FIELDS["family"]
_SIZES = 8  # the word of a family where its sizes begin


def place_in_table(type: int, sizes: Sequence[int]) -> int:
    """Where the template of a type and sizes is."""
    found = type
    for size in sizes:
        found = (found * 31 + size) % (1 << 64)
    return (found * _FACTOR % (1 << 64)) >> _SHIFT


def arrivals(api: Api) -> str:
    """The slot that takes arrays of the host."""
    return "\n".join([_TEXT, _arrive(api), quickly(SLOT, _asked_for(api))])


def _asked_for(api: Api) -> str:
    """Code that says at `%known` whether the template may be in the table."""
    dims, layout = (api.offset(SLOT, name)[0] // 8 for name in ("num_dims", "device_layout"))
    return f"""
  %aliasing = call ptr @kept(i64 {word("aliasing")})
  %copies = icmp eq ptr %aliasing, null
  %rank = call i64 @word(ptr %args, i64 {dims})
  %few = icmp ule i64 %rank, {MOST_DIMS}
  %layout = call i64 @word(ptr %args, i64 {layout})
  %plain = icmp eq i64 %layout, 0
  %simple = and i1 %copies, %few
  %known = and i1 %simple, %plain"""


def _arrive(api: Api) -> str:
    def given(name: str) -> int:
        return api.offset(SLOT, name)[0] // 8

    device, memory = FIELDS["device"], FIELDS["memory"]
    return f"""
define i64 @try_{SLOT}(ptr %args) {{
entry:
  %at_type = getelementptr i8, ptr %args, i64 {api.offset(SLOT, "type")[0]}
  %type = load i32, ptr %at_type
  %kind = zext i32 %type to i64
  %rank = call i64 @word(ptr %args, i64 {given("num_dims")})
  %sizes = call ptr @pointer(ptr %args, i64 {given("dims")})
  %template = call ptr @template_of(i64 %kind, i64 %rank, ptr %sizes)
  %unknown = icmp eq ptr %template, null
  br i1 %unknown, label %no, label %found
found:
  %nbytes = call i64 @word(ptr %template, i64 {_FAMILY["nbytes"]})
  %stride_count = call i64 @word(ptr %args, i64 {given("num_byte_strides")})
  %has_strides = icmp ne i64 %stride_count, 0
  br i1 %has_strides, label %compare, label %clean
compare:
  %strides = call ptr @pointer(ptr %args, i64 {given("byte_strides")})
  %dense = call i1 @is_dense(ptr %sizes, ptr %strides, i64 %rank, i64 %nbytes)
  br i1 %dense, label %clean, label %no
clean:
  %is_clean = call i1 @sweep()
  %at_count = getelementptr i8, ptr @state, i64 {word("count")}
  %have = load i64, ptr %at_count
  %enough = icmp sge i64 %have, 2
  %can = and i1 %is_clean, %enough
  br i1 %can, label %where, label %no
where:
  %memory_asked = call ptr @pointer(ptr %args, i64 {given("memory")})
  %by_device = icmp eq ptr %memory_asked, null
  br i1 %by_device, label %on_device, label %in_memory
on_device:
  %device_asked = call ptr @pointer(ptr %args, i64 {given("device")})
  %its_memory = call ptr @pointer(ptr %device_asked, i64 {device["memory"]})
  br label %copy
in_memory:
  %devices = call ptr @pointer(ptr %memory_asked, i64 {memory["devices"]})
  %its_device = load ptr, ptr %devices
  br label %copy
copy:
  %device = phi ptr [%device_asked, %on_device], [%its_device, %in_memory]
  %memory = phi ptr [%its_memory, %on_device], [%memory_asked, %in_memory]
  %block = call ptr @block(i64 %nbytes)
  %none = icmp eq ptr %block, null
  br i1 %none, label %no, label %make
make:
  %data = call ptr @pointer(ptr %args, i64 {given("data")})
  call void @llvm.memcpy.p0.p0.i64(ptr %block, ptr %data, i64 %nbytes, i1 0)
  %family = call ptr @family_of(ptr %template, i64 1)
  %address = ptrtoint ptr %block to i64
  call void @set(ptr %family, i64 {_FAMILY["own"]}, i64 %address)
  call void @set(ptr %family, i64 {_FAMILY["data"]}, i64 %address)
  %buffer = call ptr @buffer_of(ptr %family, i64 0, ptr %device, ptr %memory)
  %made = ptrtoint ptr %buffer to i64
  call void @set(ptr %args, i64 {given("buffer")}, i64 %made)
  %ready = call ptr @kept(i64 {word("ready")})
  %told = ptrtoint ptr %ready to i64
  call void @set(ptr %args, i64 {given("done_with_host_buffer")}, i64 %told)
  ret i64 {DONE}
no:
  ret i64 0
}}"""


_TEXT = f"""
; The template of a type and sizes, null if it is not in the table.
define internal ptr @template_of(i64 %type, i64 %rank, ptr %sizes) {{
entry:
  br label %mix
mix:
  %n = phi i64 [0, %entry], [%next, %more]
  %hash = phi i64 [%type, %entry], [%mixed, %more]
  %is = icmp slt i64 %n, %rank
  br i1 %is, label %more, label %find
more:
  %size = call i64 @word(ptr %sizes, i64 %n)
  %times = mul i64 %hash, 31
  %mixed = add i64 %times, %size
  %next = add i64 %n, 1
  br label %mix
find:
  %table = call ptr @kept(i64 {word("templates")})
  %spread = mul i64 %hash, {_FACTOR - (1 << 64)}
  %place = lshr i64 %spread, {_SHIFT}
  %template = call ptr @pointer(ptr %table, i64 %place)
  %none = icmp eq ptr %template, null
  br i1 %none, label %no, label %compare
compare:
  %its_type = call i64 @word(ptr %template, i64 {_FAMILY["type"]})
  %its_rank = call i64 @word(ptr %template, i64 {_FAMILY["rank"]})
  %same_type = icmp eq i64 %its_type, %type
  %same_rank = icmp eq i64 %its_rank, %rank
  %same = and i1 %same_type, %same_rank
  br i1 %same, label %each, label %no
each:
  %d = phi i64 [0, %compare], [%d_next, %one]
  %left = icmp slt i64 %d, %rank
  br i1 %left, label %one, label %yes
one:
  %at = add i64 %d, {_SIZES}
  %its_size = call i64 @word(ptr %template, i64 %at)
  %wanted = call i64 @word(ptr %sizes, i64 %d)
  %equal = icmp eq i64 %its_size, %wanted
  %d_next = add i64 %d, 1
  br i1 %equal, label %each, label %no
yes:
  ret ptr %template
no:
  ret ptr null
}}

; Whether elements lie one after another; their bytes over the sizes, from the first to the last,
; are what the strides have to be.
define internal i1 @is_dense(ptr %sizes, ptr %strides, i64 %rank, i64 %nbytes) {{
entry:
  br label %each
each:
  %n = phi i64 [0, %entry], [%next, %one]
  %bytes = phi i64 [%nbytes, %entry], [%step, %one]
  %more = icmp slt i64 %n, %rank
  br i1 %more, label %one, label %yes
one:
  %size = call i64 @word(ptr %sizes, i64 %n)
  %stride = call i64 @word(ptr %strides, i64 %n)
  %step = udiv i64 %bytes, %size
  %fits = icmp eq i64 %step, %stride
  %single = icmp eq i64 %size, 1
  %fine = or i1 %fits, %single
  %next = add i64 %n, 1
  br i1 %fine, label %each, label %no
yes:
  ret i1 1
no:
  ret i1 0
}}"""
