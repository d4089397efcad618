"""The text of the thread pool: workers that sleep, and a loop over an array of commands.

All state is in two pieces of memory that the caller owns. The pool, in lines of 128 bytes:

    0     epoch       counts the launches; workers wait for it to change
    256   done        chunks that are finished
    384   a launch    function, operands, tasks, chunk, chunks, scratch
    512   sleepers    workers that wait in the kernel of the system
    640   waiting     whether the caller waits there
    768   quit        whether workers shall end
    896   spins       rounds to spin before going to sleep
    904   failed      whether a thread had no memory for its scratch
    912   threads     where the threads are
    920   alone       whether the caller's thread is the only one
    928   ranges      how many there are
    1024  a mutex, 1280 and 1536 two condition variables, where there are no futexes
    1792  busy        nanoseconds that threads have spent on the chunks of launches
    1800  ended       when the last commands had run
    1808  streak      what `busy` came to, in commands that followed close upon each other
    2048  ranges      128 bytes each: chunks that nobody has claimed yet (below 0 when late workers
                      ask), and the number after its last chunk

and 128 bytes a thread, the caller's first: pool, scratch, its size, the system's handle, its range.

The chunks of a launch are cut into ranges. A thread begins with a range of its own, so that it
finds in its caches what it wrote in the launch before, and helps with the others then. A chunk is
claimed by counting its range down, and only then is the launch read: it stays as it is until all
claimed chunks are done, so a late worker gets nothing or a chunk of the launch that stands there.
"""

from __future__ import annotations

from weft.emit.llvm.pool.pool_commands import COMMANDS
from weft.emit.llvm.pool.sleep import sleep_text

MOST_RANGES = 16
POOL_BYTES = 2048 + 128 * MOST_RANGES
THREAD_BYTES = 128
SPINS_AT = 896
_CLOCK, _DARWINS_CLOCK = 1, 6  # the numbers of clocks that only go forward

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
    "arm64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
}


def pool_text(triple: str, *, futex: bool | None = None) -> str:
    """The module: `start`, `run`, `stop` and `copy`; `futex` says how to sleep."""
    architecture = triple.partition("-")[0]
    declared, pause = _PAUSE.get(architecture, ("", ""))
    threads = _THREADS.replace("PAUSE", pause).replace("MOST_RANGES", str(MOST_RANGES))
    clock = _DARWINS_CLOCK if "apple" in triple else _CLOCK
    threads = threads.replace("CLOCK", str(clock))
    return "\n".join([declared, sleep_text(triple, futex), threads, COMMANDS])


_THREADS = """
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(ptr, ptr)
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare i32 @llvm.smin.i32(i32, i32)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i32 @clock_gettime(i32, ptr)

; Nanoseconds since some time.
define internal i64 @now() {
  %time = alloca [2 x i64]
  %error = call i32 @clock_gettime(i32 CLOCK, ptr %time)
  %at_rest = getelementptr i64, ptr %time, i64 1
  %seconds = load i64, ptr %time
  %rest = load i64, ptr %at_rest
  %whole = mul i64 %seconds, 1000000000
  %all = add i64 %whole, %rest
  ret i64 %all
}

; The scratch of a thread, of at least %need bytes; null if there is no memory.
define internal ptr @scratch(ptr %thread, i64 %need) {
entry:
  %at = getelementptr i8, ptr %thread, i64 8
  %at_size = getelementptr i8, ptr %thread, i64 16
  %old = load ptr, ptr %at
  %size = load i64, ptr %at_size
  %enough = icmp ule i64 %need, %size
  br i1 %enough, label %have, label %grow
have:
  ret ptr %old
grow:
  store ptr null, ptr %at
  store i64 0, ptr %at_size
  call void @free(ptr %old)
  %more = add i64 %need, 4095
  %round = and i64 %more, -4096
  %error = call i32 @posix_memalign(ptr %at, i64 64, i64 %round)
  %bad = icmp ne i32 %error, 0
  br i1 %bad, label %none, label %made
made:
  store i64 %round, ptr %at_size
  %new = load ptr, ptr %at
  ret ptr %new
none:
  %pool = load ptr, ptr %thread
  %failed = getelementptr i8, ptr %pool, i64 904
  store atomic i32 1, ptr %failed seq_cst, align 4
  ret ptr null
}

; Free the scratch of a thread.
define internal void @drop(ptr %thread) {
  %at = getelementptr i8, ptr %thread, i64 8
  %at_size = getelementptr i8, ptr %thread, i64 16
  %memory = load ptr, ptr %at
  store ptr null, ptr %at
  store i64 0, ptr %at_size
  call void @free(ptr %memory)
  ret void
}

; Run chunks of the launch until none is left: of the thread's own range, then of the others.
define internal void @work(ptr %pool, ptr %thread) {
entry:
  %at_done = getelementptr i8, ptr %pool, i64 256
  %at_function = getelementptr i8, ptr %pool, i64 384
  %at_operands = getelementptr i8, ptr %pool, i64 392
  %at_tasks = getelementptr i8, ptr %pool, i64 400
  %at_chunk = getelementptr i8, ptr %pool, i64 408
  %at_chunks = getelementptr i8, ptr %pool, i64 416
  %at_scratch = getelementptr i8, ptr %pool, i64 424
  %at_ranges = getelementptr i8, ptr %pool, i64 928
  %ranges = load i64, ptr %at_ranges
  %first_range = getelementptr i8, ptr %pool, i64 2048
  %at_own = getelementptr i8, ptr %thread, i64 32
  %own = load i64, ptr %at_own
  br label %range
range:
  %number = phi i64 [%own, %entry], [%following, %next_range]
  %tried = phi i64 [0, %entry], [%tries, %next_range]
  %count = phi i32 [0, %entry], [%counted, %next_range]
  %scratch = phi ptr [null, %entry], [%kept, %next_range]
  %since = phi i64 [0, %entry], [%begun, %next_range]
  %offset = mul i64 %number, 128
  %at_left = getelementptr i8, ptr %first_range, i64 %offset
  %at_end = getelementptr i8, ptr %at_left, i64 8
  br label %look
look:
  %counted = phi i32 [%count, %range], [%one_more, %after]
  %kept = phi ptr [%scratch, %range], [%memory, %after]
  %begun = phi i64 [%since, %range], [%started, %after]
  %left = load atomic i64, ptr %at_left monotonic, align 8
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %try, label %next_range
try:
  %claim = atomicrmw sub ptr %at_left, i64 1 seq_cst
  %got = icmp sgt i64 %claim, 0
  br i1 %got, label %claimed, label %next_range
claimed:
  %need = load i64, ptr %at_scratch
  %is_first = icmp eq i32 %counted, 0
  br i1 %is_first, label %prepare, label %run
prepare:
  %start = call i64 @now()
  %grown = call ptr @scratch(ptr %thread, i64 %need)
  br label %run
run:
  %memory = phi ptr [%kept, %claimed], [%grown, %prepare]
  %started = phi i64 [%begun, %claimed], [%start, %prepare]
  %missing = icmp eq ptr %memory, null
  %needed = icmp ne i64 %need, 0
  %skip = and i1 %missing, %needed
  br i1 %skip, label %after, label %do
do:
  %function = load ptr, ptr %at_function
  %operands = load ptr, ptr %at_operands
  %tasks = load i64, ptr %at_tasks
  %chunk = load i64, ptr %at_chunk
  %end = load i64, ptr %at_end
  %index = sub i64 %end, %claim
  %low = mul i64 %index, %chunk
  %up = add i64 %low, %chunk
  %high = call i64 @llvm.smin.i64(i64 %up, i64 %tasks)
  call void %function(ptr %operands, ptr %memory, i64 %low, i64 %high)
  br label %after
after:
  %one_more = add i32 %counted, 1
  br label %look
next_range:
  %tries = add i64 %tried, 1
  %up_one = add i64 %number, 1
  %wraps = icmp eq i64 %up_one, %ranges
  %following = select i1 %wraps, i64 0, i64 %up_one
  %on = icmp slt i64 %tries, %ranges
  br i1 %on, label %range, label %finish
finish:
  %none = icmp eq i32 %counted, 0
  br i1 %none, label %out, label %report
report:
  %stop = call i64 @now()
  %took = sub i64 %stop, %begun
  %at_busy = getelementptr i8, ptr %pool, i64 1792
  %busy = atomicrmw add ptr %at_busy, i64 %took seq_cst
  %chunks = load i64, ptr %at_chunks
  %before = atomicrmw add ptr %at_done, i32 %counted seq_cst
  %now = add i32 %before, %counted
  %all = trunc i64 %chunks to i32
  %last = icmp eq i32 %now, %all
  br i1 %last, label %tell, label %out
tell:
  %at_waiting = getelementptr i8, ptr %pool, i64 640
  %waiting = load atomic i32, ptr %at_waiting seq_cst, align 4
  %asleep = icmp ne i32 %waiting, 0
  br i1 %asleep, label %wake, label %out
wake:
  call void @wake(ptr %pool, ptr %at_done, i32 1, i64 1536)
  br label %out
out:
  ret void
}

; What a worker does all its life.
define internal ptr @worker(ptr %thread) {
entry:
  %pool = load ptr, ptr %thread
  %at_sleepers = getelementptr i8, ptr %pool, i64 512
  %at_quit = getelementptr i8, ptr %pool, i64 768
  %at_spins = getelementptr i8, ptr %pool, i64 896
  %spins = load i64, ptr %at_spins
  br label %top
top:
  %last = phi i32 [0, %entry], [%epoch, %launch]
  br label %spin
spin:
  %n = phi i64 [0, %top], [%m, %pause]
  %seen = load atomic i32, ptr %pool seq_cst, align 4
  %changed = icmp ne i32 %seen, %last
  br i1 %changed, label %go, label %pause
pause:
  PAUSE
  %m = add i64 %n, 1
  %again = icmp slt i64 %m, %spins
  br i1 %again, label %spin, label %rest
rest:
  %s = atomicrmw add ptr %at_sleepers, i32 1 seq_cst
  call void @sleep(ptr %pool, ptr %pool, i32 %last, i64 1280)
  %t = atomicrmw sub ptr %at_sleepers, i32 1 seq_cst
  %woken = load atomic i32, ptr %pool seq_cst, align 4
  %real = icmp ne i32 %woken, %last
  br i1 %real, label %go, label %rest
go:
  %epoch = phi i32 [%seen, %spin], [%woken, %rest]
  %quit = load atomic i32, ptr %at_quit seq_cst, align 4
  %ends = icmp ne i32 %quit, 0
  br i1 %ends, label %end, label %launch
launch:
  call void @work(ptr %pool, ptr %thread)
  br label %top
end:
  ret ptr null
}

; Start workers 1..count-1; how many threads there are then.
define i64 @start(ptr %pool, ptr %threads, i64 %count) {
entry:
  call void @prepare(ptr %pool)
  store ptr %pool, ptr %threads
  %at_threads = getelementptr i8, ptr %pool, i64 912
  store ptr %threads, ptr %at_threads
  %at_ranges = getelementptr i8, ptr %pool, i64 928
  %ranges = call i64 @llvm.smin.i64(i64 %count, i64 MOST_RANGES)
  store i64 %ranges, ptr %at_ranges
  br label %head
head:
  %n = phi i64 [1, %entry], [%next, %made]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %make, label %out
make:
  %offset = mul i64 %n, 128
  %thread = getelementptr i8, ptr %threads, i64 %offset
  store ptr %pool, ptr %thread
  %at_range = getelementptr i8, ptr %thread, i64 32
  %range = urem i64 %n, MOST_RANGES
  store i64 %range, ptr %at_range
  %handle = getelementptr i8, ptr %thread, i64 24
  %error = call i32 @pthread_create(ptr %handle, ptr null, ptr @worker, ptr %thread)
  %bad = icmp ne i32 %error, 0
  br i1 %bad, label %out, label %made
made:
  %next = add i64 %n, 1
  br label %head
out:
  %one = icmp eq i64 %n, 1
  %alone = zext i1 %one to i64
  %at_alone = getelementptr i8, ptr %pool, i64 920
  store i64 %alone, ptr %at_alone
  ret i64 %n
}

; End all workers and free what threads have.
define void @stop(ptr %pool, ptr %threads, i64 %count) {
entry:
  %at_quit = getelementptr i8, ptr %pool, i64 768
  store atomic i32 1, ptr %at_quit seq_cst, align 4
  %e = atomicrmw add ptr %pool, i32 1 seq_cst
  call void @wake(ptr %pool, ptr %pool, i32 2147483647, i64 1280)
  br label %head
head:
  %n = phi i64 [1, %entry], [%next, %join]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %join, label %out
join:
  %offset = mul i64 %n, 128
  %thread = getelementptr i8, ptr %threads, i64 %offset
  %at_handle = getelementptr i8, ptr %thread, i64 24
  %handle = load ptr, ptr %at_handle
  %j = call i32 @pthread_join(ptr %handle, ptr null)
  call void @drop(ptr %thread)
  %next = add i64 %n, 1
  br label %head
out:
  call void @drop(ptr %threads)
  ret void
}

; One launch on all threads, the caller's among them; those that sleep are woken if it is worth it.
define internal void @launch(
    ptr %pool, ptr %thread, ptr %command, i64 %chunks, i1 %worth) noinline {
entry:
  %at_done = getelementptr i8, ptr %pool, i64 256
  %at_launch = getelementptr i8, ptr %pool, i64 384
  %at_chunks = getelementptr i8, ptr %pool, i64 416
  %at_scratch = getelementptr i8, ptr %pool, i64 424
  %at_sleepers = getelementptr i8, ptr %pool, i64 512
  %at_spins = getelementptr i8, ptr %pool, i64 896
  %head = load <4 x i64>, ptr %command, align 8
  store <4 x i64> %head, ptr %at_launch, align 64
  %from = getelementptr i8, ptr %command, i64 32
  %need = load i64, ptr %from
  store i64 %need, ptr %at_scratch
  store i64 %chunks, ptr %at_chunks
  store atomic i32 0, ptr %at_done release, align 4
  %at_ranges = getelementptr i8, ptr %pool, i64 928
  %ranges = load i64, ptr %at_ranges
  %first_range = getelementptr i8, ptr %pool, i64 2048
  br label %cut
cut:
  %number = phi i64 [0, %entry], [%following, %cut]
  %begin = phi i64 [0, %entry], [%stop, %cut]
  %following = add i64 %number, 1
  %product = mul i64 %chunks, %following
  %stop = udiv i64 %product, %ranges
  %size = sub i64 %stop, %begin
  %offset = mul i64 %number, 128
  %at_left = getelementptr i8, ptr %first_range, i64 %offset
  %at_stop = getelementptr i8, ptr %at_left, i64 8
  store i64 %stop, ptr %at_stop
  store atomic i64 %size, ptr %at_left release, align 8
  %uncut = icmp slt i64 %following, %ranges
  br i1 %uncut, label %cut, label %begin_all
begin_all:
  %e = atomicrmw add ptr %pool, i32 1 seq_cst
  %sleepers = load atomic i32, ptr %at_sleepers seq_cst, align 4
  %some = icmp sgt i32 %sleepers, 0
  %call = and i1 %some, %worth
  br i1 %call, label %wake, label %share
wake:
  %all = trunc i64 %chunks to i32
  %others = sub i32 %all, 1
  %count = call i32 @llvm.smin.i32(i32 %others, i32 %sleepers)
  call void @wake(ptr %pool, ptr %pool, i32 %count, i64 1280)
  br label %share
share:
  call void @work(ptr %pool, ptr %thread)
  %end = trunc i64 %chunks to i32
  %spins = load i64, ptr %at_spins
  br label %wait
wait:
  %n = phi i64 [0, %share], [%m, %pause]
  %done = load atomic i32, ptr %at_done seq_cst, align 4
  %finished = icmp eq i32 %done, %end
  br i1 %finished, label %out, label %pause
pause:
  PAUSE
  %m = add i64 %n, 1
  %again = icmp slt i64 %m, %spins
  br i1 %again, label %wait, label %rest
rest:
  %at_waiting = getelementptr i8, ptr %pool, i64 640
  store atomic i32 1, ptr %at_waiting seq_cst, align 4
  br label %look
look:
  %now = load atomic i32, ptr %at_done seq_cst, align 4
  %over = icmp eq i32 %now, %end
  br i1 %over, label %rested, label %sleep
sleep:
  call void @sleep(ptr %pool, ptr %at_done, i32 %now, i64 1536)
  br label %look
rested:
  store atomic i32 0, ptr %at_waiting seq_cst, align 4
  br label %out
out:
  ret void
}

; Spin, to measure how long a round takes.
define void @spin(i64 %rounds) {
entry:
  br label %head
head:
  %n = phi i64 [0, %entry], [%next, %head]
  PAUSE
  %next = add i64 %n, 1
  %more = icmp slt i64 %next, %rounds
  br i1 %more, label %head, label %out
out:
  ret void
}
"""
