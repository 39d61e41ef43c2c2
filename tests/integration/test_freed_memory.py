"""Large replies leave no unused memory in the process."""

import os
import platform
import subprocess
import sys

import pytest

# Threads free buffers that are as large as a reply may be, and then smaller buffers, with small objects between them
# that stay.
PROGRAM = """
import sys, psutil
from concurrent.futures import ThreadPoolExecutor
from turnstream.cli.allocator import give_back_freed_memory

if sys.argv[1:]:
    give_back_freed_memory()

def work(_):
    large = bytearray(30_000_000)
    del large
    buffers = [(bytearray(1_000_000), bytes(2_000)) for _ in range(40)]
    return [kept for _, kept in buffers]

process = psutil.Process()
before = process.memory_info().rss
with ThreadPoolExecutor(4) as pool:
    kept = list(pool.map(work, range(8)))
    print((process.memory_info().rss - before) // 1_000_000)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the thresholds are glibc's")
def test_memory_of_large_buffers_is_given_back() -> None:
    def megabytes_kept(*arguments: str) -> int:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        command = [sys.executable, "-c", PROGRAM, *arguments]
        return int(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)

    assert megabytes_kept() > 20, "glibc by itself"
    assert megabytes_kept("given back") < 10
