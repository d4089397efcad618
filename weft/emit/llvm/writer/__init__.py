"""Write LLVM text: code, vectors, storage, loop nests, addresses."""
