"""The recordings whose expected result differs from the SDK's result, or which a test excludes, with the reasons.

`python -m tests.support.triage` writes the table to `tests/integration/recordings.md`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.extensions.openai import test_recordings_openai as chat
from tests.extensions.openai import test_responses_recordings as responses
from tests.integration import test_recorded_sessions as played
from tests.integration import test_recordings as anthropic
from tests.integration.recordings import (
    errors,
    errors_of_others,
    is_edited,
    is_one_chat,
    manifest,
    oracles,
    sessions,
    streams,
)

PAGE: Final = Path(__file__).parents[1] / "integration/recordings.md"

_HEAD = """# Recordings that differ

Written by `python -m tests.support.triage`. The tests read {files} files and {sessions} sessions of all folders
`recordings*`; no file is skipped. For {plain} of them the expected result is the SDK's, or the recorded refusal.
The others, and the sessions that a test leaves out or changes:

| recording | difference | expected instead |
|---|---|---|
"""
_KEYS: Final = {"anthropic": "ga", "openai-chat": "chat", "openai-responses": "responses"}
_INTERRUPTED = "the input as it was streamed; the block is interrupted, and never a call"
_LAST = "the content as it was streamed"
_REBUILT = "each reply alone goes back unchanged"


class Row(NamedTuple):
    recording: str
    difference: str
    expected: str


def rows() -> list[Row]:
    return sorted({*_of_streams(), *_of_sessions()})


def _of_streams() -> Iterator[Row]:
    named = [*_named()]
    yield from named
    known = {row.recording for row in named}
    for kind, key in _KEYS.items():
        for file in streams(kind):
            sdk = oracles(file)[key]
            if not sdk["ok"] and not any(file.startswith(each) for each in known):
                reason = str(sdk.get("error") or sdk.get("error_type") or "no result").splitlines()[0][:120]
                yield Row(file, f"the SDK raises: {reason}".replace("|", "/"), "what was streamed")


def _named() -> Iterator[Row]:
    for file, why in anthropic.CUT_INPUTS.items():
        yield Row(file, why, _INTERRUPTED)
    files = {chat.short(file): file for file in streams(chat.CHAT)}
    for name, right in chat.EXCEPTIONS.items():
        yield Row(files[name], right.why, "the content as it was streamed, in `EXCEPTIONS` of the test")
    for name, (error, type, _) in chat.FAILED.items():
        yield Row(files[name], "the provider gives up", f"{error.__name__} `{type}`")
    yield Row(responses.FAILED, "the provider gives up", "PermanentError `rate_limit_exceeded`")
    for names, why in (
        (responses.NEW_IDS, "the last event gives a thought another id"),
        (responses.OTHER_ORDER, "the last event has another order"),
        (responses.OTHER_TEXT, "the last event has another text"),
    ):
        for file in responses.STREAMS:
            if file.startswith(names):
                yield Row(file, why, _LAST)


def _of_sessions() -> Iterator[Row]:
    for name in sessions():
        place = f"sessions/{name}"
        if not is_one_chat(name):
            yield Row(place, "the client begins another chat, or edits what was said before", _REBUILT)
        elif not played.can_be_had_again(name):
            yield Row(
                place, "the user says something beside results", "the requests are equal; the session is not played"
            )
        elif is_edited(name):
            yield Row(place, "the client sends other replies than it received", "the received replies are sent")
    for name in sessions(chat.CHAT):
        if not chat.is_whole(name):
            yield Row(f"sessions/{name}", "a reply is not recorded, or failed", "each stream alone")
        elif name in chat.CLIENT_EDITS:
            yield Row(f"sessions/{name}", f"the client leaves out {chat.CLIENT_EDITS[name]}", "it is sent")
    for name in sessions(responses.KIND):
        if responses.is_edited(name):
            yield Row(f"sessions/{name}", "the client sends other items than it received", _REBUILT)


def page() -> str:
    found = rows()
    files = len(manifest()["files"])
    different = sum(not row.recording.startswith("sessions/") or row.recording.endswith(".sse") for row in found)
    head = _HEAD.format(files=files, sessions=len(manifest()["sessions"]), plain=files - different)
    read = [*errors(), *errors_of_others(), *(file for kind in _KEYS for file in streams(kind))]
    assert len(read) == files
    return head + "".join(f"| `{row.recording}` | {row.difference} | {row.expected} |\n" for row in found)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
