"""Writing LLVM IR: functions, vectors, storage, loop nests, addresses."""
