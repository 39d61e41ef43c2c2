"""Records model calls: an interceptor, and a folder into which a thread writes. Recording never delays a call, and
never makes a call fail.
"""

import asyncio
import os
import queue
import re
import shutil
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Self
from uuid import UUID

import httpx2
import structlog

from turnstream.domain.errors import ConfigError
from turnstream.llm.interceptor import Send
from turnstream.llm.provider import ModelCall
from turnstream_lab.filtering import current_call, filter_body
from turnstream_lab.recording import Ending, Failure, RecordedChunk, Recording, decode, encode, redact, redact_reads

log = structlog.get_logger(__name__)

# Response headers to record. Other headers may name an account, or contain cookies.
_KEPT: Final = frozenset(
    {
        "apim-request-id",
        "content-encoding",
        "content-type",
        "request-id",
        "retry-after",
        "retry-after-ms",
        "x-generation-id",
        "x-request-id",
        "x-should-retry",
    }
)
_KEYS: Final = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "x-amz-security-token")
_OTHERS: Final = "other"
_STEP: Final = 100  # folders in one portion of a sweep
# The most bytes that wait for the disk, and the seconds for which a stopping server waits until they are written.
_MOST_WAITING: Final = 64 << 20
_EXIT_PATIENCE: Final = 5.0
_NAME: Final = re.compile(r"attempt-\d+-round-\d+-try-\d+\.jsonl")


class Recordings:
    """A folder of recordings, with one folder for each turn. New recordings are accepted only inside the `with` block.
    Recordings that cannot be written or queued are dropped, which is logged. `owners` are the owners who may request
    recordings; None means all owners.
    """

    def __init__(self, folder: Path, most_waiting: int = _MOST_WAITING, owners: frozenset[str] | None = None) -> None:
        self.folder = folder
        self.owners = owners
        self._most_waiting = most_waiting  # bytes
        self._waiting: queue.SimpleQueue[tuple[Callable[[], Recording], int] | None] = queue.SimpleQueue()
        # Bytes. Only one thread changes each number, so neither number needs a lock.
        self._enqueued = self._written = 0
        self._writer = threading.Thread(target=self._write_all, name="recordings", daemon=True)

    def __enter__(self) -> Self:
        self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.put(None)
        self._writer.join(_EXIT_PATIENCE)
        if self._writer.is_alive():  # a hanging disk must not delay the exit
            log.warning("recording.dropped", note="the server stops", bytes=self._enqueued - self._written)

    def enqueue(self, make: Callable[[], Recording], size: int) -> None:
        """Queues a recording of `size` bytes. The writing thread calls `make`, so that the caller spends no time on
        redaction and JSON.
        """
        if self._enqueued - self._written + size > self._most_waiting:
            log.warning("recording.dropped", note="the disk is too slow", bytes=size)
            return
        self._enqueued += size
        self._waiting.put((make, size))

    def read(self, turn: UUID) -> list[Recording]:
        """Returns the recordings of a turn in order. Raises ConfigError for a file that is no recording."""
        recordings = []
        for path in sorted((self.folder / str(turn)).glob("*.jsonl")):
            try:
                recordings.append(decode(path.read_bytes()))
            except ValueError as error:
                raise ConfigError(f"{path}: {error}") from None
        return recordings

    def files(self, turn: UUID) -> Iterator[tuple[str, bytes]]:
        """Yields the name and the bytes of each recording of a turn."""
        for path in sorted((self.folder / str(turn)).glob("*.jsonl")):
            yield path.name, path.read_bytes()

    def keep(self, turn: UUID, name: str, content: bytes) -> bool:
        """Stores a file that `files` yielded. Returns False if the recording exists, or if the name is not that of a
        recording.
        """
        path = self.folder / str(turn) / name
        if not _NAME.fullmatch(name) or path.exists():
            return False
        _write(path, content)
        return True

    def delete(self, turn: UUID) -> int:
        """Deletes the recordings of a turn. Returns their number."""
        folder = self.folder / str(turn)
        count = len([*folder.glob("*.jsonl")])
        shutil.rmtree(folder, ignore_errors=True)
        return count

    async def sweep(
        self, present: Callable[[Sequence[UUID]], Awaitable[set[UUID]]], days: float | None
    ) -> AsyncGenerator[int, None]:
        """Deletes recordings of deleted turns, and recordings older than `days`. `present` returns the existing turns.
        Yields the number of recordings that each portion deleted.
        """
        before = float("-inf") if days is None else time.time() - days * 86_400
        try:
            kept = await asyncio.to_thread(self._turns)
        except OSError as error:
            log.error("recording.failed", error=str(error))
            return
        for start in range(0, len(kept), _STEP):
            some, count = kept[start : start + _STEP], 0
            there = await present([turn for turn, _ in some])
            for turn, changed_at in some:
                if turn not in there or changed_at < before:
                    count += await asyncio.to_thread(self.delete, turn)
            yield count

    def _turns(self) -> list[tuple[UUID, float]]:
        """Returns the turns that have recordings, and the time of the last change for each turn."""
        found = []
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            with suppress(ValueError, FileNotFoundError):  # not the folder of a turn, or being deleted
                found.append((UUID(path.name), path.stat().st_mtime))
        return found

    def _write_all(self) -> None:
        while (each := self._waiting.get()) is not None:
            make, size = each
            try:
                recording = make()
                _write(_free_name(self.folder, recording), encode(recording))
            except Exception as error:  # noqa: BLE001, of the disk, or of bytes of others that cannot be encoded
                log.error("recording.failed", error=str(error) or type(error).__name__)
            self._written += size


def _write(path: Path, content: bytes) -> None:
    """Writes under a temporary name first, so that nobody reads a partial file. Only our account can read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    unfinished.rename(path)


def _free_name(folder: Path, recording: Recording) -> Path:
    """Returns a file name that does not exist yet. Names sort by attempt, round and try."""
    call, number = recording.call, 1
    place = folder / (str(call.turn) if call else _OTHERS)
    name = f"attempt-{call.attempt:09}-round-{call.round:03}" if call else recording.began.replace(":", "-")
    while (path := place / f"{name}-try-{number:02}.jsonl").exists():
        number += 1
    return path


class RecordingInterceptor:
    """Records the calls that `selects` accepts."""

    def __init__(self, recordings: Recordings, selects: Callable[[ModelCall | None], bool] = lambda _: True) -> None:
        self._recordings = recordings
        self._selects = selects

    async def __call__(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        call = current_call()
        if not self._selects(call):
            return await send(request)
        recorder = _CallRecorder(self._recordings, request, call)
        try:
            response = await send(request)
        except BaseException as error:  # a call that was cancelled while waiting is recorded, too
            recorder.end(error)
            raise
        recorder.begin(response)
        return filter_body(response, recorder.read_body, on_close=recorder.end)


class _CallRecorder:
    """Records a call in progress. For each read, only the time and the bytes are stored."""

    def __init__(self, recordings: Recordings, request: httpx2.Request, call: ModelCall | None) -> None:
        self._recordings = recordings
        self._request = request
        self._call = call
        self._began = datetime.now(UTC)
        self._start = time.perf_counter()
        self._response: httpx2.Response | None = None
        self._head_at = 0.0
        self._times: list[float] = []
        self._data: list[bytes] = []
        self._ended = False

    def begin(self, response: httpx2.Response) -> None:
        self._response, self._head_at = response, self._now()

    async def read_body(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for chunk in body:
                self._times.append(time.perf_counter())
                self._data.append(chunk)
                yield chunk
        except httpx2.HTTPError as error:
            self.end(error)
            raise
        self.end(whole=True)

    def end(self, error: BaseException | None = None, *, whole: bool = False) -> None:
        """Ends and queues the recording. Only the first call has an effect, because a complete body is also closed
        later.
        """
        if self._ended:
            return
        self._ended = True
        failure = Failure(type(error).__name__, str(error)) if isinstance(error, httpx2.HTTPError) else None
        ending: Ending = "whole" if whole else "failed" if failure else "closed"
        size = len(self._request.content) + sum(map(len, self._data))
        self._recordings.enqueue(partial(self._recording, ending, self._now(), failure), size)

    def _recording(self, ending: Ending, ended_at: float, failure: Failure | None) -> Recording:
        request, head = self._request, self._response
        keys = (request.headers.get(name, "").removeprefix("Bearer ") for name in _KEYS)
        secrets = [key.encode() for key in keys if key]
        reads = [
            RecordedChunk(round(at - self._start, 6), data) for at, data in zip(self._times, self._data, strict=True)
        ]
        return Recording(
            began=self._began.isoformat(),
            url=f"{request.url.host}{request.url.path}",
            request=redact(request.content, secrets),
            call=self._call,
            status=head.status_code if head else None,
            headers={name: value for name, value in head.headers.items() if name in _KEPT} if head else {},
            head_at=self._head_at,
            reads=redact_reads(reads, secrets),
            ending=ending,
            ended_at=ended_at,
            failure=failure,
        )

    def _now(self) -> float:
        return round(time.perf_counter() - self._start, 6)
