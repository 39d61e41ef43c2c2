"""A scripted server that runs a client through the scenarios, and checks the client's requests and assembled turns."""

import asyncio
import json
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import assert_never
from uuid import NAMESPACE_URL, UUID, uuid5

from turnstream_conformance.origin import STREAM, Request, Response, origin
from turnstream_conformance.report import Check, Failed, PromiseResult, Report, Skipped
from turnstream_conformance.scenarios import (
    SCENARIOS,
    UNREACHABLE,
    Answer,
    Lost,
    PlainAnswer,
    Scenario,
    Stream,
    numbered,
)
from turnstream_conformance.wire import ENDS, Event, Json, assemble, difference

_BEATS = 8
_SLACK = 0.05  # seconds by which a timer may fire early, or two clocks may differ
_GROWTH = 1.5  # the last of four pauses exceeds the shortest by at least this factor, whatever the jitter
_ALIKE = 0.05  # seconds, or share of a long pause: pauses that differ by less have no random part
_SIDE_BY_SIDE = 12  # scenarios that run at the same time


@dataclass(frozen=True, slots=True)
class Asked:
    """A request from the client, and its answer. `last_id` is the id of the last event that was sent completely, and
    `ended` is the time when the answer ended. `is_sure` is false if bytes may have been lost after they were sent.
    """

    request: Request
    answer: Answer
    last_id: str | None
    ended: float
    is_sure: bool = True


@dataclass(slots=True)
class Session:
    """A client's run through one scenario. `reported` receives the turn that the client assembled."""

    scenario: Scenario
    chat: UUID
    turn: UUID
    patience: float
    events: Sequence[Event]
    streams: list[Asked] = field(default_factory=list)
    posts: list[Asked] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    reported: asyncio.Future[Json] = field(default_factory=asyncio.Future)

    @property
    def address(self) -> str:
        return f"/api/chats/{self.chat}/turns/{self.turn}"

    @property
    def events_in_json(self) -> Sequence[Event]:
        """The events that the JSON of `GET …/turns/{turn}` contains."""
        return self.events[: self.scenario.in_json]

    def as_json(self) -> Json:
        """Returns the turn as `GET …/turns/{turn}` returns it."""
        blocks, status = assemble(self.events_in_json)
        last = self.events_in_json[-1]
        turn = {"id": str(self.turn), "chat_id": str(self.chat), "role": "assistant", "status": status}
        end = {"stop_reason": None, "usage": {}, **(last.data if status in ENDS.values() else {})}
        return {
            **turn, **end, "model": "scripted", "attempt": 1, "cursor": last.id, "blocks": blocks, "rounds": [],
            "actions": [], "degraded": [], "error": None, "parent_id": str(self.turn), "siblings": [],
        }  # fmt: skip

    def as_exchange(self) -> Json:
        """Returns the response to a POST of a message, before the assistant turn has started."""
        begun: Json = {"status": "queued", "blocks": [], "cursor": None, "stop_reason": None, "usage": {}}
        user = {"id": str(self.turn), "chat_id": str(self.chat), "role": "user", "status": "complete", "blocks": []}
        return {"user_turn": user, "assistant_turn": self.as_json() | begun, "stream_url": f"{self.address}/stream"}


Customer = Callable[[str, Session], Awaitable[None]]
"""Takes a client through a session at a URL, and returns when the client has ended and its report is in the session."""


class ScriptedServer:
    """Serves the scenarios to a client. `patience` is the longest time in seconds that a scenario may take."""

    def __init__(self, patience: float) -> None:
        self.sessions = {scenario.promise: _session(scenario, patience) for scenario in SCENARIOS}
        self._by_chat = {str(session.chat): session for session in self.sessions.values()}

    async def handle(self, request: Request, response: Response) -> None:
        match request.path.strip("/").split("/"):
            case ["scenarios"]:
                await response.json(200, [_listed(session) for session in self.sessions.values()])
            case ["reports", chat] if chat in self._by_chat:
                with suppress(asyncio.InvalidStateError):
                    self._by_chat[chat].reported.set_result(json.loads(request.body))
                await response.whole(204, {})
            case ["api", "chats", chat, "turns", *rest] if chat in self._by_chat:
                await self._play(self._by_chat[chat], rest, request, response)
            case _:
                await response.json(404, _problem(404))

    async def _play(self, session: Session, rest: Sequence[str], request: Request, response: Response) -> None:
        scenario = session.scenario
        match request.method, rest:
            case "GET", [_, "stream"]:
                await _answer(session, scenario.answers, session.streams, request, response)
            case "GET", [_]:
                await response.json(200, session.as_json())
            case "POST", [] if scenario.posts is not None:
                if len(session.posts) < len(scenario.posts):
                    await _answer(session, scenario.posts, session.posts, request, response)
                else:
                    session.posts.append(Asked(request, Lost(), None, time.monotonic()))
                    await response.json(201, session.as_exchange())
            case _:
                session.faults.append(f"{request.method} {request.path} was asked for, which no scenario needs")
                await response.json(404, _problem(404))


def _session(scenario: Scenario, patience: float) -> Session:
    chat, turn = (uuid5(NAMESPACE_URL, f"{kind}:{scenario.promise}") for kind in ("chat", "turn"))
    ids = {"chat": str(chat), "turn": str(turn)}
    steps = [(name, data | ids if name == "turn_start" else data) for name, data in scenario.steps]
    return Session(scenario, chat, turn, patience, numbered(steps))


def _listed(session: Session) -> Json:
    kind = "follow" if session.scenario.posts is None else "post"
    return {"promise": session.scenario.promise, "kind": kind, "chat": str(session.chat), "turn": str(session.turn)}


def _problem(status: int) -> Json:
    return {"type": "about:blank", "title": "Scripted", "status": status, "detail": f"The scenario answers {status}."}


# --- answers ---------------------------------------------------------------------------------------------------------


async def _answer(
    session: Session, answers: Sequence[Answer], asked: list[Asked], request: Request, response: Response
) -> None:
    """Answers the n-th request with the n-th answer, and records both. After the last answer of the scenario, every
    request is answered with 204.
    """
    answer = answers[len(asked)] if len(asked) < len(answers) else PlainAnswer(204)
    place = len(asked)
    asked.append(Asked(request, answer, None, time.monotonic()))
    last_id: str | None = None
    match answer:
        case PlainAnswer():
            headers = {} if answer.retry_after is None else {"Retry-After": str(answer.retry_after)}
            if answer.html is not None:
                await response.whole(answer.status, {**headers, "Content-Type": "text/html"}, answer.html.encode())
            elif answer.status == 204:
                await response.whole(204, headers)
            else:
                await response.json(answer.status, _problem(answer.status), headers)
        case Lost():
            pass
        case Stream():
            last_id = await _send(session, answer, request, response)
        case _:
            assert_never(answer)
    is_sure = not (isinstance(answer, Stream) and answer.then == "reset")
    asked[place] = Asked(request, answer, last_id, time.monotonic(), is_sure)


async def _send(session: Session, answer: Stream, request: Request, response: Response) -> str | None:
    """Sends the events after the cursor according to `answer`. Returns the id of the last event that was sent
    completely.
    """
    ids = [event.id for event in session.events]
    if request.cursor is not None and request.cursor not in ids:
        await response.json(400, _problem(400))
        return None
    rest = session.events[ids.index(request.cursor) + 1 :] if request.cursor else session.events
    body = StreamBody(rest, answer, session.scenario.retry)
    await response.start(200, {**STREAM, "Turnstream-Heartbeat": f"{session.scenario.heartbeat:g}"})
    await _chunks(response, body.sent, answer.bytewise)
    match answer.then:
        case "end":
            await response.end()
        case "cut":
            pass
        case "reset":
            response.reset()
        case "silence":
            with suppress(TimeoutError):
                await asyncio.wait_for(response.gone(), session.patience)
        case "beat":
            for _ in range(_BEATS):
                await response.send(b": ping\n\n")
                await asyncio.sleep(session.scenario.heartbeat)
            await _chunks(response, body.held_back, answer.bytewise)
            await response.end()
        case _:
            assert_never(answer.then)
    return body.last_id or request.cursor


class StreamBody:
    """Encodes events as `answer` demands. `sent` are the bytes before the cut, and `held_back` are the bytes after it.
    `last_id` is the id of the last event that is sent completely.
    """

    def __init__(self, events: Sequence[Event], answer: Stream, retry: int) -> None:
        whole = f"retry: {retry}\n\n".encode()
        ends: dict[int, str | None] = {0: None}
        for number, event in enumerate(events):
            lines = event.frame().removesuffix(b"\n\n").split(b"\n")
            comment = b": ping\n\n" if number % 4 == 3 else b""
            whole += comment + answer.line_end.join([*(lines[::-1] if answer.fields_reversed else lines), b"", b""])
            if event.id is not None:
                ends[len(whole)] = event.id
        stop = len(whole)
        if answer.cut is not None:
            stop = whole.index(answer.cut.before + answer.cut.behind) + len(answer.cut.before)
        self.sent, self.held_back = whole[:stop], whole[stop:]
        self.last_id = ends[max(end for end in ends if end <= stop or answer.then == "beat")]


async def _chunks(response: Response, body: bytes, bytewise: bool) -> None:
    size = 1 if bytewise else max(len(body), 1)
    for start in range(0, len(body), size):
        await response.send(body[start : start + size])


# --- checks ----------------------------------------------------------------------------------------------------------


async def _examine(session: Session, url: str, customer: Customer) -> str:
    try:
        await asyncio.wait_for(customer(url, session), session.patience)
    except TimeoutError:
        done = f"{len(session.posts)} POSTs and {len(session.streams)} requests for the stream"
        raise Failed(f"The client was not done after {session.patience:g} s, with {done}.") from None
    scenario = session.scenario
    if session.faults:
        raise Failed(session.faults[0])
    _check_requests("POSTs", session.posts, 0 if scenario.posts is None else len(scenario.posts) + (not scenario.stops))
    _check_requests("requests for the stream", session.streams, len(scenario.answers))
    _check_posts(session)
    for asked, again in pairwise(session.streams):
        _check_cursor(session, asked, again)
    measured = _check_pauses(session)
    if not scenario.stops:
        _check_report(session)
    return measured


def _check_requests(kind: str, asked: Sequence[Asked], expected: int) -> None:
    if len(asked) != expected:
        raise Failed(f"There were {len(asked)} {kind}, not {expected}.")


def _check_posts(session: Session) -> None:
    for first, again in pairwise(session.posts):
        keys = [asked.request.headers.get("idempotency-key") for asked in (first, again)]
        if keys[0] is None or keys[0] != keys[1]:
            raise Failed(f"A POST was sent again with the Idempotency-Key {keys[1]} after {keys[0]}.")
        if first.request.body != again.request.body:
            raise Failed("A POST was sent again with another body.")


def _check_cursor(session: Session, asked: Asked, again: Asked) -> None:
    got, sent = again.request.cursor, asked.last_id
    if isinstance(asked.answer, PlainAnswer) and asked.answer.status == 400:
        sent = session.events_in_json[-1].id
    elif not isinstance(asked.answer, Stream):
        sent = asked.request.cursor
    if got == sent:
        return
    ids = [None, *(event.id for event in session.events if event.id)]
    if asked.is_sure or got not in ids or ids.index(got) > ids.index(sent):
        raise Failed(f"After the event {sent} the client came back with the cursor {got}.")


def _check_pauses(session: Session) -> str:
    """Checks the pauses between requests by the rule of the scenario, and returns their description."""
    scenario, asked = session.scenario, session.posts if session.scenario.posts else session.streams
    gaps = _gaps(asked)
    pauses = _seconds(gap for _, gap in gaps)
    match scenario.pauses:
        case "any":
            silent = [each for each in asked if isinstance(each.answer, Stream) and each.answer.then == "silence"]
            return f"given up after {silent[0].ended - silent[0].request.at:.1f} s" if silent else ""
        case "growing":
            # The last pause is compared with the shortest, not with the first: a busy machine may lengthen any pause.
            shortest = min(gap for _, gap in gaps)
            if shortest < 0.1 or gaps[-1][1] < _GROWTH * shortest:
                raise Failed(f"The pauses were {pauses} s; each is to be longer than the one before, and none short.")
        case "named":
            for first, gap in gaps:
                named = first.answer.retry_after if isinstance(first.answer, PlainAnswer) else None
                if named is not None and gap < named - _SLACK:
                    raise Failed(f"The client came back after {gap:.1f} s where Retry-After named {named}.")
        case _:
            assert_never(scenario.pauses)
    return f"pauses of {pauses} s"


def _gaps(asked: Sequence[Asked]) -> list[tuple[Asked, float]]:
    """Returns each request with the seconds from its end to the next request."""
    return [(first, after.request.at - first.ended) for first, after in pairwise(asked)]


def _seconds(pauses: Iterable[float]) -> str:
    return ", ".join(f"{pause:.1f}" for pause in pauses)


async def examine_jitter(sessions: Sequence[Session]) -> str:
    """Compares the n-th pauses of several scenarios with similar failures: if pauses had no random part, the n-th
    pauses would be equal.
    """
    runs = [_gaps(session.streams) for session in sessions if len(session.streams) == len(session.scenario.answers)]
    if len(runs) < 2:
        raise Skipped("needs two scenarios whose pauses grow")
    numbered = [[gap for _, gap in gaps] for gaps in zip(*runs, strict=True)]
    if all(max(pauses) - min(pauses) < _ALIKE * max(1, *pauses) for pauses in numbered):
        raise Failed(
            f"In {len(runs)} scenarios the last pauses were {_seconds(numbered[-1])} s, and the others alike too."
        )
    return f"first pauses of {_seconds(numbered[0])} s"


def _check_report(session: Session) -> None:
    if not session.reported.done():
        raise Failed("The client ended without a report of what it assembled.")
    report = session.reported.result()
    blocks, status = assemble(session.events)
    if wrong := difference(report.get("blocks", []), blocks):
        raise Failed(f"In what the client assembled, {wrong}.")
    if report.get("status") != status:
        raise Failed(f"The client reported the status {report.get('status')}, not {status}.")


# --- clients ---------------------------------------------------------------------------------------------------------


def command(follow: str, post: str | None) -> Customer:
    """Returns a client that starts a command for each scenario: `post` if the scenario begins with a POST, else
    `follow`. `{url}`, `{chat}` and `{turn}` in the command are replaced. The command prints the assembled turn as JSON.
    """

    async def run(url: str, session: Session) -> None:
        template = follow if session.scenario.posts is None else post
        if template is None:
            raise Skipped("needs --post, a command that sends a message and follows its answer")
        values = {"{url}": url, "{chat}": str(session.chat), "{turn}": str(session.turn)}
        words = shlex.split(template)
        for name, value in values.items():
            words = [word.replace(name, value) for word in words]
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        with suppress(ValueError):
            session.reported.set_result(json.loads(output))

    return run


async def visitor(url: str, session: Session) -> None:  # noqa: ARG001, of a customer
    """Waits for a client that reads `/scenarios` and posts its reports by itself."""
    await session.reported
    if session.reported.result().get("skipped"):
        raise Skipped(str(session.reported.result()["skipped"]))


@asynccontextmanager
async def scripted_server(port: int, patience: float) -> AsyncIterator[tuple[str, ScriptedServer]]:
    server = ScriptedServer(patience)
    async with origin(server.handle, port=port) as url:
        yield url, server


async def examine(url: str, server: ScriptedServer, customer: Customer, subject: str) -> Report:
    """Runs the client through all scenarios, several of them at the same time."""
    gate = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def run(session: Session) -> PromiseResult:
        async with gate:
            return await Check(
                session.scenario.promise, session.scenario.rule, lambda: _examine(session, url, customer)
            ).run()

    results = await asyncio.gather(*map(run, server.sessions.values()))
    growing = [session for session in server.sessions.values() if session.scenario in UNREACHABLE]
    jitter = await Check("pauses have a random part", "C6", lambda: examine_jitter(growing)).run()
    return Report(f"client {subject}", [*results, jitter])
