"""A machine that runs the PTX of CUDA kernels on the host, thread by thread, and finds what a GPU would not tell.

The text of a kernel (`ptx`) is translated to LLVM IR (`translate`, with a module for each group of instructions), each
thread being a coroutine that stops at barriers (`coroutines`). A scheduler (`runtime`) runs the blocks of a grid one
after the other. Memory (`memory`) knows of each byte whether it belongs to an array, or to a variable of a block or a
thread, was ever written, and who touched it last. `machine` holds it together, and `backend` lets the library's own
host code launch on it.
"""
