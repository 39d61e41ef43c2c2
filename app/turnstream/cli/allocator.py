"""Sets the C library's allocator, so that freed memory returns to the system."""

import ctypes

# Parameters of glibc's mallopt, as in its malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = 1 << 20  # bytes of unused memory at the end of an arena
_MAPPED = 1 << 18  # bytes; larger buffers are mapped separately, and unmapped when freed


def give_back_freed_memory() -> None:
    """Fixes the thresholds of glibc. By default, glibc raises them whenever a larger buffer is freed: after a buffer of
    some megabytes, buffers of up to 32 MB come from arenas, threads have arenas of their own, and an arena keeps up to
    64 MB of unused memory. Other C libraries have no such thresholds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _MAPPED)
