"""Settings of the C library's allocator: memory that the server has freed goes back to the system."""

import ctypes

# Parameters of glibc's mallopt, as in its malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = 1 << 20  # bytes at the end of an arena
_MAPPED = 1 << 18  # bytes from which on a buffer is mapped by itself, and unmapped when it is freed


def give_back_freed_memory() -> None:
    """Fixes the thresholds of glibc, which raises them with each larger buffer that is freed: after some megabytes in
    one piece, buffers of up to 32 MB come from arenas, of which threads have their own, and an arena keeps up to 64 MB
    that nobody uses. Other C libraries have no such thresholds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _MAPPED)
