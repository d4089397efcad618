"""Memory that is lent to other libraries, in native code: they give it back whenever they want."""

from __future__ import annotations

LENT_AT = 64  # bytes of a record before what others are given

LENDING = f"""
@dltensor = internal constant [9 x i8] c"dltensor\\00"
@dltensor_versioned = internal constant [19 x i8] c"dltensor_versioned\\00"

declare i32 @PyCapsule_IsValid(ptr, ptr)
declare ptr @PyCapsule_GetPointer(ptr, ptr)

; Somebody no longer reads what was lent to them; any thread may say so.
define void @take_back(ptr %lent) {{
  %record = getelementptr i8, ptr %lent, i64 -{LENT_AT}
  call void @destroy(ptr %record)
  ret void
}}

; A capsule is gone: what is in it goes back, unless somebody has taken it out.
define void @drop_capsule(ptr %capsule) {{
entry:
  %valid = call i32 @PyCapsule_IsValid(ptr %capsule, ptr @dltensor)
  %is_plain = icmp ne i32 %valid, 0
  br i1 %is_plain, label %back, label %look
look:
  %valid_versioned = call i32 @PyCapsule_IsValid(ptr %capsule, ptr @dltensor_versioned)
  %is_versioned = icmp ne i32 %valid_versioned, 0
  br i1 %is_versioned, label %back, label %done
back:
  %name = phi ptr [@dltensor, %entry], [@dltensor_versioned, %look]
  %lent = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr %name)
  call void @take_back(ptr %lent)
  br label %done
done:
  ret void
}}
"""
