"""Calls in native code: a small program runs on small arrays, and Python hears nothing of it.

What it takes to call Python is many times what such a program takes. So native code does the whole
call where it knows enough: the executable has a recipe (see `weft.jax.programs.recipes`), and the
families of all arguments say where their elements are and of which kind these are. Else Python is
asked. Python's lock is held, as by whoever else takes or gives back records; a donated argument
is marked as deleted before it is asked whether somebody outside reads it, as whoever lends it does
these two things in the other order.
"""

from __future__ import annotations

from weft.jax.abi import Api
from weft.jax.native.bridge import word
from weft.jax.native.records import FIELDS, SIZE
from weft.jax.native.small import DONE, FAILED, quickly

SLOT = "LoadedExecutable_Execute"

# The words of a recipe. The arguments and then the results follow, each with how many operands it
# is and where these are.
RECIPE = {
    "run": 0,  # the function that runs commands, and what it is given
    "pool": 1,
    "commands": 2,
    "devices": 3,
    "arguments": 4,
    "results": 5,
    "templates": 6,  # the families of the results, the devices they are on and in which memories
    "on": 7,
    "inside": 8,
    "blocks": 9,  # room for the addresses of the results
    "donates": 10,
}
FIRST = 11  # where the arguments begin
ARGUMENT = {"kind": 0, "donated": 1, "operands": 2}
RESULT = {"nbytes": 0, "over": 1, "operands": 2}  # over: the argument whose memory it takes, or -1

_FAMILY = FIELDS["family"]


def calls(api: Api) -> str:
    """The slot that runs programs."""
    return "\n".join([_CHECKS, _MEMORY, _HAND_OUT, _call(api), quickly(SLOT, _asked_for(api))])


def _asked_for(api: Api) -> str:
    """Code that says at `%known` whether the executable has a recipe."""
    return f"""
  %executable = call ptr @pointer(ptr %args, i64 {api.offset(SLOT, "executable")[0] // 8})
  %recipe = call i64 @word(ptr %executable, i64 {FIELDS["executable"]["recipe"]})
  %known = icmp ne i64 %recipe, 0"""


def _call(api: Api) -> str:
    def given(name: str) -> int:
        return api.offset(SLOT, name)[0] // 8

    options = api.structs["ExecuteOptions"]
    kept = options.num_non_donatable_input_indices.offset // 8
    return f"""
define internal i64 @try_{SLOT}(ptr %args) {{
entry:
  %executable = call ptr @pointer(ptr %args, i64 {given("executable")})
  %recipe = call ptr @pointer(ptr %executable, i64 {FIELDS["executable"]["recipe"]})
  %lists = call ptr @pointer(ptr %args, i64 {given("argument_lists")})
  %outputs = call ptr @pointer(ptr %args, i64 {given("output_lists")})
  %devices = call i64 @word(ptr %recipe, i64 {RECIPE["devices"]})
  %given_devices = call i64 @word(ptr %args, i64 {given("num_devices")})
  %same_devices = icmp eq i64 %devices, %given_devices
  %arguments = call i64 @word(ptr %recipe, i64 {RECIPE["arguments"]})
  %given_arguments = call i64 @word(ptr %args, i64 {given("num_args")})
  %same_arguments = icmp eq i64 %arguments, %given_arguments
  %on = call ptr @pointer(ptr %recipe, i64 {RECIPE["on"]})
  %first_device = load ptr, ptr %on
  %asked_device = call ptr @pointer(ptr %args, i64 {given("execute_device")})
  %any_device = icmp eq ptr %asked_device, null
  %that_device = icmp eq ptr %asked_device, %first_device
  %same_device = or i1 %any_device, %that_device
  %same_counts = and i1 %same_devices, %same_arguments
  %same = and i1 %same_counts, %same_device
  br i1 %same, label %donating, label %no
donating:
  %donates = call i64 @word(ptr %recipe, i64 {RECIPE["donates"]})
  %gives = icmp ne i64 %donates, 0
  br i1 %gives, label %ask_options, label %clean
ask_options:
  %options = call ptr @pointer(ptr %args, i64 {given("options")})
  %kept = call i64 @word(ptr %options, i64 {kept})
  %keeps = icmp ne i64 %kept, 0
  br i1 %keeps, label %no, label %clean
clean:
  %is_clean = call i1 @sweep()
  br i1 %is_clean, label %count, label %no
count:
  %results = call i64 @word(ptr %recipe, i64 {RECIPE["results"]})
  %per = add i64 %devices, 1
  %need = mul i64 %per, %results
  %at_count = getelementptr i8, ptr @state, i64 {word("count")}
  %have = load i64, ptr %at_count
  %enough = icmp sge i64 %have, %need
  br i1 %enough, label %check, label %no
check:
  %first = getelementptr i64, ptr %recipe, i64 {FIRST}
  %entries = call ptr @place_arguments(ptr %first, i64 %arguments, ptr %lists, i64 %devices)
  %unfit = icmp eq ptr %entries, null
  br i1 %unfit, label %no, label %mark
mark:
  call void @mark_donated(ptr %first, i64 %arguments, ptr %lists, i64 %devices, i64 1)
  %blocks = call ptr @pointer(ptr %recipe, i64 {RECIPE["blocks"]})
  %got = call i64 @place_results(ptr %entries, i64 %results, ptr %blocks, ptr %lists)
  %all = icmp eq i64 %got, %results
  br i1 %all, label %run, label %back
back:
  call void @settle_blocks(ptr %entries, i64 %got, ptr %blocks, ptr %lists, i1 0)
  call void @mark_donated(ptr %first, i64 %arguments, ptr %lists, i64 %devices, i64 0)
  br label %no
run:
  %function = call ptr @pointer(ptr %recipe, i64 {RECIPE["run"]})
  %pool = call ptr @pointer(ptr %recipe, i64 {RECIPE["pool"]})
  %commands = call ptr @pointer(ptr %recipe, i64 {RECIPE["commands"]})
  %failed = call i32 %function(ptr %pool, ptr %commands)
  %is_failed = icmp ne i32 %failed, 0
  br i1 %is_failed, label %lost, label %give
lost:
  call void @settle_blocks(ptr %entries, i64 %results, ptr %blocks, ptr %lists, i1 0)
  ret i64 {FAILED}
give:
  call void @settle_blocks(ptr %entries, i64 %results, ptr %blocks, ptr %lists, i1 1)
  call void @hand_out(ptr %recipe, ptr %blocks, ptr %outputs)
  %events = call ptr @pointer(ptr %args, i64 {given("device_complete_events")})
  %no_events = icmp eq ptr %events, null
  br i1 %no_events, label %done, label %tell
tell:
  %d = phi i64 [0, %give], [%d_next, %tell]
  %ready = call ptr @kept(i64 {word("ready")})
  %into = getelementptr ptr, ptr %events, i64 %d
  store ptr %ready, ptr %into
  %d_next = add i64 %d, 1
  %more = icmp slt i64 %d_next, %devices
  br i1 %more, label %tell, label %done
done:
  ret i64 {DONE}
no:
  ret i64 0
}}"""


_CHECKS = f"""
; The buffer of an argument on a device.
define internal ptr @buffer_at(ptr %lists, i64 %device, i64 %argument) {{
  %at_list = getelementptr ptr, ptr %lists, i64 %device
  %list = load ptr, ptr %at_list
  %at_buffer = getelementptr ptr, ptr %list, i64 %argument
  %buffer = load ptr, ptr %at_buffer
  ret ptr %buffer
}}

; The family of an argument, whose buffer on the first device this is.
define internal ptr @family_at(ptr %lists, i64 %argument) {{
  %buffer = call ptr @buffer_at(ptr %lists, i64 0, i64 %argument)
  %family = call ptr @pointer(ptr %buffer, i64 {FIELDS["buffer"]["family"]})
  ret ptr %family
}}

; Where the argument or the result after another begins.
define internal ptr @behind(ptr %said) {{
  %operands = call i64 @word(ptr %said, i64 {ARGUMENT["operands"]})
  %words = add i64 %operands, {ARGUMENT["operands"] + 1}
  %end = getelementptr i64, ptr %said, i64 %words
  ret ptr %end
}}

; Write an address to all operands of an argument or a result; where the next one begins.
define internal ptr @place(ptr %said, i64 %address) {{
entry:
  %count = call i64 @word(ptr %said, i64 {ARGUMENT["operands"]})
  %operands = getelementptr i64, ptr %said, i64 {ARGUMENT["operands"] + 1}
  br label %head
head:
  %n = phi i64 [0, %entry], [%next, %one]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %one, label %done
one:
  %at = getelementptr ptr, ptr %operands, i64 %n
  %operand = load ptr, ptr %at
  store i64 %address, ptr %operand
  %next = add i64 %n, 1
  br label %head
done:
  %end = getelementptr i64, ptr %operands, i64 %count
  ret ptr %end
}}

; Whether all buffers of an argument are of the family of the first, in order, and not deleted.
define internal i1 @is_whole(ptr %lists, i64 %argument, i64 %devices, ptr %family) {{
entry:
  br label %device
device:
  %d = phi i64 [0, %entry], [%next, %device]
  %buffer = call ptr @buffer_at(ptr %lists, i64 %d, i64 %argument)
  %its = call ptr @pointer(ptr %buffer, i64 {FIELDS["buffer"]["family"]})
  %place = call i64 @word(ptr %buffer, i64 {FIELDS["buffer"]["place"]})
  %deleted = call i64 @word(ptr %buffer, i64 {FIELDS["buffer"]["deleted"]})
  %same = icmp eq ptr %its, %family
  %here = icmp eq i64 %place, %d
  %there = icmp eq i64 %deleted, 0
  %in_order = and i1 %same, %here
  %fits = and i1 %in_order, %there
  %next = add i64 %d, 1
  %more = icmp slt i64 %next, %devices
  %goes_on = and i1 %fits, %more
  br i1 %goes_on, label %device, label %done
done:
  ret i1 %fits
}}

; Whether an argument is passed once only.
define internal i1 @is_alone(ptr %lists, i64 %argument, i64 %arguments, ptr %family) {{
entry:
  br label %head
head:
  %n = phi i64 [0, %entry], [%next, %one]
  %count = phi i64 [0, %entry], [%counted, %one]
  %more = icmp slt i64 %n, %arguments
  br i1 %more, label %one, label %done
one:
  %other = call ptr @family_at(ptr %lists, i64 %n)
  %same = icmp eq ptr %other, %family
  %is = zext i1 %same to i64
  %counted = add i64 %count, %is
  %next = add i64 %n, 1
  br label %head
done:
  %alone = icmp eq i64 %count, 1
  ret i1 %alone
}}

; Say where the arguments are; where the results begin, or null if one is not known or unfit.
define internal ptr @place_arguments(ptr %first, i64 %arguments, ptr %lists, i64 %devices) {{
entry:
  br label %head
head:
  %n = phi i64 [0, %entry], [%next, %put]
  %at = phi ptr [%first, %entry], [%end, %put]
  %more = icmp slt i64 %n, %arguments
  br i1 %more, label %look, label %done
look:
  %family = call ptr @family_at(ptr %lists, i64 %n)
  %kind = call i64 @word(ptr %family, i64 {_FAMILY["kind"]})
  %wanted = call i64 @word(ptr %at, i64 {ARGUMENT["kind"]})
  %fits = icmp eq i64 %kind, %wanted
  br i1 %fits, label %whole, label %no
whole:
  %is_whole = call i1 @is_whole(ptr %lists, i64 %n, i64 %devices, ptr %family)
  br i1 %is_whole, label %given, label %no
given:
  %donated = call i64 @word(ptr %at, i64 {ARGUMENT["donated"]})
  %is_donated = icmp ne i64 %donated, 0
  br i1 %is_donated, label %once, label %put
once:
  %alone = call i1 @is_alone(ptr %lists, i64 %n, i64 %arguments, ptr %family)
  br i1 %alone, label %put, label %no
put:
  %data = call i64 @word(ptr %family, i64 {_FAMILY["data"]})
  %end = call ptr @place(ptr %at, i64 %data)
  %next = add i64 %n, 1
  br label %head
done:
  ret ptr %at
no:
  ret ptr null
}}

; Say of all donated arguments whether they are deleted.
define internal void @mark_donated(ptr %first, i64 %arguments, ptr %lists, i64 %devices,
                                   i64 %deleted) {{
entry:
  br label %head
head:
  %n = phi i64 [0, %entry], [%next, %after]
  %at = phi ptr [%first, %entry], [%end, %after]
  %more = icmp slt i64 %n, %arguments
  br i1 %more, label %look, label %done
look:
  %donated = call i64 @word(ptr %at, i64 {ARGUMENT["donated"]})
  %end = call ptr @behind(ptr %at)
  %is = icmp ne i64 %donated, 0
  br i1 %is, label %device, label %after
device:
  %d = phi i64 [0, %look], [%d_next, %device]
  %buffer = call ptr @buffer_at(ptr %lists, i64 %d, i64 %n)
  %at_deleted = getelementptr i64, ptr %buffer, i64 {FIELDS["buffer"]["deleted"]}
  store atomic i64 %deleted, ptr %at_deleted seq_cst, align 8
  %d_next = add i64 %d, 1
  %d_more = icmp slt i64 %d_next, %devices
  br i1 %d_more, label %device, label %after
after:
  %next = add i64 %n, 1
  br label %head
done:
  ret void
}}"""

_MEMORY = f"""
; The memory of the argument that a result is written over; null if there is no such argument, if
; its memory is Python's, or if somebody else reads it.
define internal ptr @donor(ptr %said, ptr %lists) {{
entry:
  %over = call i64 @word(ptr %said, i64 {RESULT["over"]})
  %none = icmp slt i64 %over, 0
  br i1 %none, label %no, label %look
look:
  %family = call ptr @family_at(ptr %lists, i64 %over)
  %at_lent = getelementptr i64, ptr %family, i64 {_FAMILY["lent"]}
  %lent = load atomic i64, ptr %at_lent seq_cst, align 8
  %free = icmp eq i64 %lent, 0
  %own = call ptr @pointer(ptr %family, i64 {_FAMILY["own"]})
  %found = select i1 %free, ptr %own, ptr null
  ret ptr %found
no:
  ret ptr null
}}

; Find memory for the results and say where it is; for how many there is.
define internal i64 @place_results(ptr %first, i64 %results, ptr %blocks, ptr %lists) {{
entry:
  br label %head
head:
  %n = phi i64 [0, %entry], [%next, %put]
  %at = phi ptr [%first, %entry], [%end, %put]
  %more = icmp slt i64 %n, %results
  br i1 %more, label %look, label %done
look:
  %donor = call ptr @donor(ptr %at, ptr %lists)
  %has = icmp ne ptr %donor, null
  br i1 %has, label %put, label %fresh
fresh:
  %nbytes = call i64 @word(ptr %at, i64 {RESULT["nbytes"]})
  %made = call ptr @block(i64 %nbytes)
  %none = icmp eq ptr %made, null
  br i1 %none, label %done, label %put
put:
  %block = phi ptr [%donor, %look], [%made, %fresh]
  %into = getelementptr ptr, ptr %blocks, i64 %n
  store ptr %block, ptr %into
  %address = ptrtoint ptr %block to i64
  %end = call ptr @place(ptr %at, i64 %address)
  %next = add i64 %n, 1
  br label %head
done:
  ret i64 %n
}}

; The argument whose memory a result was given, null if it has its own.
define internal ptr @owner(ptr %said, ptr %lists, ptr %block) {{
entry:
  %over = call i64 @word(ptr %said, i64 {RESULT["over"]})
  %none = icmp slt i64 %over, 0
  br i1 %none, label %no, label %look
look:
  %family = call ptr @family_at(ptr %lists, i64 %over)
  %own = call ptr @pointer(ptr %family, i64 {_FAMILY["own"]})
  %is = icmp eq ptr %own, %block
  br i1 %is, label %yes, label %no
yes:
  ret ptr %family
no:
  ret ptr null
}}

; What becomes of the memory that was found for results: if they are there, the arguments that it
; was taken from have it no longer; if they are not, what is new goes back.
define internal void @settle_blocks(ptr %first, i64 %results, ptr %blocks, ptr %lists, i1 %there) {{
entry:
  br label %head
head:
  %n = phi i64 [0, %entry], [%next, %after]
  %at = phi ptr [%first, %entry], [%end, %after]
  %more = icmp slt i64 %n, %results
  br i1 %more, label %look, label %done
look:
  %end = call ptr @behind(ptr %at)
  %from = getelementptr ptr, ptr %blocks, i64 %n
  %block = load ptr, ptr %from
  %owner = call ptr @owner(ptr %at, ptr %lists, ptr %block)
  %is_new = icmp eq ptr %owner, null
  %kept = icmp eq i1 %is_new, %there
  br i1 %kept, label %after, label %change
change:
  br i1 %there, label %take, label %free
take:
  call void @set(ptr %owner, i64 {_FAMILY["own"]}, i64 0)
  call void @set(ptr %owner, i64 {_FAMILY["data"]}, i64 0)
  call void @set(ptr %owner, i64 {_FAMILY["kind"]}, i64 0)
  br label %after
free:
  call void @free(ptr %block)
  br label %after
after:
  %next = add i64 %n, 1
  br label %head
done:
  ret void
}}"""

_HAND_OUT = f"""
; Families of the results, each with a buffer on every device.
define internal void @hand_out(ptr %recipe, ptr %blocks, ptr %outputs) {{
entry:
  %devices = call i64 @word(ptr %recipe, i64 {RECIPE["devices"]})
  %results = call i64 @word(ptr %recipe, i64 {RECIPE["results"]})
  %templates = call ptr @pointer(ptr %recipe, i64 {RECIPE["templates"]})
  %on = call ptr @pointer(ptr %recipe, i64 {RECIPE["on"]})
  %inside = call ptr @pointer(ptr %recipe, i64 {RECIPE["inside"]})
  br label %result
result:
  %o = phi i64 [0, %entry], [%o_next, %device]
  %more = icmp slt i64 %o, %results
  br i1 %more, label %family, label %done
family:
  %skip = mul i64 %o, {SIZE}
  %template = getelementptr i8, ptr %templates, i64 %skip
  %made = call ptr @family_of(ptr %template, i64 %devices)
  %from = getelementptr i64, ptr %blocks, i64 %o
  %block = load i64, ptr %from
  call void @set(ptr %made, i64 {_FAMILY["own"]}, i64 %block)
  call void @set(ptr %made, i64 {_FAMILY["data"]}, i64 %block)
  %row = mul i64 %o, %devices
  %o_next = add i64 %o, 1
  br label %device
device:
  %d = phi i64 [0, %family], [%d_next, %device]
  %from_on = getelementptr ptr, ptr %on, i64 %d
  %device_at = load ptr, ptr %from_on
  %cell = add i64 %row, %d
  %from_inside = getelementptr ptr, ptr %inside, i64 %cell
  %memory_at = load ptr, ptr %from_inside
  %buffer = call ptr @buffer_of(ptr %made, i64 %d, ptr %device_at, ptr %memory_at)
  %at_list = getelementptr ptr, ptr %outputs, i64 %d
  %list = load ptr, ptr %at_list
  %into = getelementptr ptr, ptr %list, i64 %o
  store ptr %buffer, ptr %into
  %d_next = add i64 %d, 1
  %d_more = icmp slt i64 %d_next, %devices
  br i1 %d_more, label %device, label %result
done:
  ret void
}}"""
