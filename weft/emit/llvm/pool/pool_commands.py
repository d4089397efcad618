"""The text of a loop over commands, and of one command: to copy bytes.

Commands are rows of 64 bytes: function, operands, tasks, chunk, bytes of scratch, and three words
that are free. The first row tells how many follow, and the nanoseconds that the launches among them
take, all threads together.

It takes time to wake a thread. So nobody is woken for less work than that, unless commands have
followed each other closely for some time: threads that are awake then stay so. A run that took
longer than the one before may have been held up, so it counts for twice that one at most.
"""

from __future__ import annotations

ROW_WORDS = 8
WAKING = 60_000  # nanoseconds of work from which on it is worth to wake threads
STREAK = 4 * WAKING  # the same of commands that follow each other closely, all together
PAUSE = 40_000  # nanoseconds between these: less than a thread looks for work before it sleeps

COMMANDS = f"""
; Run commands one after another; 0, or 1 if there was no memory for scratch.
define i32 @run(ptr %pool, ptr %commands) {{
entry:
  %at_threads = getelementptr i8, ptr %pool, i64 912
  %threads = load ptr, ptr %at_threads
  %at_alone = getelementptr i8, ptr %pool, i64 920
  %alone = load i64, ptr %at_alone
  %count = load i64, ptr %commands
  %at_failed = getelementptr i8, ptr %pool, i64 904
  store atomic i32 0, ptr %at_failed seq_cst, align 4
  %at_busy = getelementptr i8, ptr %pool, i64 1792
  store atomic i64 0, ptr %at_busy seq_cst, align 8
  %at_before = getelementptr i8, ptr %commands, i64 8
  %before = load i64, ptr %at_before
  %at_ended = getelementptr i8, ptr %pool, i64 1800
  %at_streak = getelementptr i8, ptr %pool, i64 1808
  %begin = call i64 @now()
  %ended = load i64, ptr %at_ended
  %pause = sub i64 %begin, %ended
  %close = icmp slt i64 %pause, {PAUSE}
  %earlier = load i64, ptr %at_streak
  %streak = select i1 %close, i64 %earlier, i64 0
  %is_much = icmp sgt i64 %before, {WAKING}
  %is_long = icmp sgt i64 %streak, {STREAK}
  %worth = or i1 %is_much, %is_long
  br label %head
head:
  %n = phi i64 [1, %entry], [%next, %after]
  %more = icmp sle i64 %n, %count
  br i1 %more, label %look, label %count_up
look:
  %offset = mul i64 %n, 64
  %command = getelementptr i8, ptr %commands, i64 %offset
  %at_tasks = getelementptr i8, ptr %command, i64 16
  %tasks = load i64, ptr %at_tasks
  %at_chunk = getelementptr i8, ptr %command, i64 24
  %chunk = load i64, ptr %at_chunk
  %short = icmp sle i64 %tasks, %chunk
  %one = icmp ne i64 %alone, 0
  %inline = or i1 %short, %one
  br i1 %inline, label %here, label %launch
here:
  %at_operands = getelementptr i8, ptr %command, i64 8
  %operands = load ptr, ptr %at_operands
  %at_need = getelementptr i8, ptr %command, i64 32
  %need = load i64, ptr %at_need
  %function = load ptr, ptr %command
  %at = getelementptr i8, ptr %threads, i64 8
  %at_size = getelementptr i8, ptr %threads, i64 16
  %size = load i64, ptr %at_size
  %enough = icmp ule i64 %need, %size
  br i1 %enough, label %do, label %grow
grow:
  %grown = call ptr @scratch(ptr %threads, i64 %need)
  %none = icmp eq ptr %grown, null
  br i1 %none, label %out, label %do
do:
  %scratch = load ptr, ptr %at
  call void %function(ptr %operands, ptr %scratch, i64 0, i64 %tasks)
  br label %after
launch:
  %up = add i64 %tasks, %chunk
  %last = sub i64 %up, 1
  %chunks = sdiv i64 %last, %chunk
  call void @launch(ptr %pool, ptr %threads, ptr %command, i64 %chunks, i1 %worth)
  br label %after
after:
  %next = add i64 %n, 1
  br label %head
count_up:
  %busy = load atomic i64, ptr %at_busy seq_cst, align 8
  %twice = shl i64 %before, 1
  %most = call i64 @llvm.smax.i64(i64 %twice, i64 1000)
  %now = call i64 @llvm.smin.i64(i64 %busy, i64 %most)
  store i64 %now, ptr %at_before
  %so_far = add i64 %streak, %busy
  store i64 %so_far, ptr %at_streak
  %end = call i64 @now()
  store i64 %end, ptr %at_ended
  br label %out
out:
  %failed = load atomic i32, ptr %at_failed seq_cst, align 4
  ret i32 %failed
}}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Copy bytes: operands are where to, where from, how many (a number), and bytes a task.
define void @copy(ptr %operands, ptr %scratch, i64 %begin, i64 %end) {{
  %to = load ptr, ptr %operands
  %at_from = getelementptr ptr, ptr %operands, i64 1
  %from = load ptr, ptr %at_from
  %at_bytes = getelementptr ptr, ptr %operands, i64 2
  %bytes = load i64, ptr %at_bytes
  %at_piece = getelementptr ptr, ptr %operands, i64 3
  %piece = load i64, ptr %at_piece
  %low = mul i64 %begin, %piece
  %up = mul i64 %end, %piece
  %high = call i64 @llvm.smin.i64(i64 %up, i64 %bytes)
  %count = sub i64 %high, %low
  %target = getelementptr i8, ptr %to, i64 %low
  %source = getelementptr i8, ptr %from, i64 %low
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %count, i1 false)
  ret void
}}
"""
