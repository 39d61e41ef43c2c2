"""Measured processes: how they are started on a chosen CPU, how their use of resources is read, and how they are
stopped.
"""

import http.client
import os
import resource
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

SERVER_CPU = 0
TOOLS_CPU = 1


class StartError(Exception):
    pass


def raise_file_limit() -> None:
    """Raises the limit of open files for this process and its children: a thousand readers need a thousand sockets."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def on_cpu(cpu: int | None) -> Iterator[None]:
    """Runs the child processes that are started in this context on the CPU; None allows any CPU. If the machine has one
    CPU, all processes share it.
    """
    allowed = os.sched_getaffinity(0)
    present = range(os.cpu_count() or 1)
    os.sched_setaffinity(0, {cpu} if cpu is not None and cpu in present else allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str], *, cpu: int | None, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[psutil.Popen]:
    with on_cpu(cpu), log.open("ab") as output:
        process = psutil.Popen(command, env=os.environ | dict(environment or {}), stdout=output, stderr=output)
    try:
        yield process
    finally:
        stop(process)


def stop(process: psutil.Popen) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=10)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_answering(process: psutil.Popen, port: int, path: str, log: Path, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not answers(port, path):
        if process.poll() is not None or time.monotonic() > until:
            raise StartError(f"{' '.join(process.args)} does not answer:\n{log.read_text()[-3000:]}")
        time.sleep(0.05)


def answers(port: int, path: str) -> bool:
    try:
        return get(port, path)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def metric(port: int, name: str) -> float:
    """Returns the sum of a metric over all combinations of its labels."""
    _, body = get(port, "/metrics")
    samples = (line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
    return sum(float(value) for sample, value in samples if sample.partition("{")[0] == name)


def wait_until_calm(process: psutil.Process, seconds: float = 30) -> None:
    """Waits until the process uses less than a tenth of a CPU."""
    until = time.monotonic() + seconds
    while True:
        before = cpu_seconds(process)
        time.sleep(0.3)
        if cpu_seconds(process) - before < 0.03 or time.monotonic() > until:
            return


def cpu_seconds(process: psutil.Process) -> float:
    """Returns the CPU time of the process and its running children, from the scheduler's statistics if the kernel has
    them.
    """
    return sum(own_cpu_seconds(each) for each in family(process))


def own_cpu_seconds(process: psutil.Process) -> float:
    with suppress(OSError):
        return schedstat(process, 0)
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0


def waited_seconds(process: psutil.Process) -> float:
    """Returns how long the process was ready to run but had no CPU, or 0 if the kernel does not report it."""
    with suppress(OSError):
        return schedstat(process, 1)
    return 0.0


def schedstat(process: psutil.Process, column: int) -> float:
    """Returns the scheduler's times in seconds, summed over all threads. Raises OSError if the kernel does not report
    them.
    """
    threads = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[column]) for thread in threads) / 1e9


def resident_bytes(process: psutil.Process) -> int:
    return sum(each.memory_info().rss for each in family(process))


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]
