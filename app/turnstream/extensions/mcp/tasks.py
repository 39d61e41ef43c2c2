"""Tasks of MCP servers (`io.modelcontextprotocol/tasks`, 2026-07-28): calls whose results are polled."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import structlog
from mcp import MCPError, types
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from pydantic import ConfigDict

from turnstream.extensions.mcp.questions import question_of
from turnstream.libraries.outgoing.owner_tokens import NoTokenNow
from turnstream.tools.tool import (
    GOES_ON,
    Detached,
    Outcome,
    PersonAnswer,
    PersonQuestion,
    ToolContext,
    ToolError,
    ToolUnavailable,
)

log = structlog.get_logger(__name__)

_POLL = 5.0  # seconds between two polls if the server sends no interval
_LONGEST_POLL = 60.0
_TIME_TO_CANCEL = 5.0
_MAX_QUESTIONS = 100  # maximum number of questions of one task
_MAX_MESSAGE = 1000  # characters


class CreatedTask(types.Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status_message: str | None = None
    poll_interval_ms: int | None = None


class TaskState(types.Result):
    """The answer to `tasks/get`."""

    status: str
    status_message: str | None = None
    poll_interval_ms: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    input_requests: dict[str, dict[str, Any]] | None = None


class TaskParams(types.RequestParams):
    model_config = ConfigDict(extra="allow")

    task_id: str


class TaskRequest(types.Request[TaskParams, str]):
    name_param = "taskId"


class TaskCreated(Exception):
    """The server continues a call as a task."""

    def __init__(self, task: CreatedTask) -> None:
        super().__init__(task.task_id)
        self.task = task


class TaskExtension(ClientExtension):
    """Makes `Client.call_tool` raise TaskCreated, so that `McpTask` can poll the task on any connection."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> Sequence[ResultClaim[CreatedTask]]:
        return (ResultClaim(result_type="task", model=CreatedTask, resolve=self._raise),)

    async def _raise(self, task: CreatedTask, _: ClaimContext) -> NoReturn:
        raise TaskCreated(task)


# Sends a request about a task over the present connection. Raises MCPError, and ToolUnavailable if there is no
# connection.
SendTask = Callable[[TaskRequest], Awaitable[TaskState | types.EmptyResult]]


@dataclass(frozen=True, slots=True)
class TaskPause:
    """The task continues, and is polled again after `seconds`."""

    seconds: float
    message: str | None = None


@dataclass(frozen=True, slots=True)
class McpTask:
    """A task of a server. A question that the server asks waits `seconds` for a person; if this is None, questions are
    refused.
    """

    id: str
    server: str
    send: SendTask
    seconds: float | None
    shortest_poll: float

    async def follow(self, context: ToolContext, created: CreatedTask) -> types.CallToolResult | Outcome:
        """Polls until the task has ended. If the call is cancelled, the task is cancelled, too."""
        step, answered = TaskPause(self._interval(created.poll_interval_ms), created.status_message), set[str]()
        try:
            while True:
                if step.message:
                    context.progress(step.message)
                await asyncio.sleep(step.seconds)
                next_step = await self._step(context, answered, step.seconds)
                if not isinstance(next_step, TaskPause):
                    return next_step
                step = next_step
        except (asyncio.CancelledError, ToolError):
            await asyncio.shield(self.cancel())
            raise

    def detach(self, context: ToolContext, created: CreatedTask) -> Outcome:
        """Detaches the call before the first poll. The handle of its job has the id of the task."""
        pause = TaskPause(self._interval(created.poll_interval_ms), created.status_message)
        return self._detach(context, pause, set(), is_new=context.job is None)

    async def resume(self, context: ToolContext) -> types.CallToolResult | Outcome:
        """Polls the task of a job once. A question that the server asks becomes a question of the job. The job is then
        detached, and releases its slot.
        """
        handle = context.handle
        if handle.get("new"):  # the task was created inside the turn, and its job is due at once
            return self._detach(context, TaskPause(handle["pause"]), set())
        answered, given = set(handle["answered"]), dict(handle.get("given", {}))
        if handle.get("asked") is not None:
            given[handle["asked"]] = _response(_result(context.answer))
        if given and await self._update(given):
            answered, given = answered | given.keys(), {}
        try:
            state = await self._state(handle["pause"])
            if isinstance(state, TaskPause):
                return self._detach(context, state, answered, given)
            if (end := self._end_of(state)) is not None:
                return end
            seconds = self._longer(handle["pause"]) if given else self._interval(state.poll_interval_ms)
            pause = TaskPause(seconds, state.status_message)
            for key, params in self._new_questions(state, answered | given.keys()):
                if (question := self._question(params)) is not None:
                    return self._detach(context, pause, answered, given, key, question)
                given[key] = _response(_result(None))
        except ToolError:
            await self.cancel()
            raise
        return self._detach(context, pause, answered, given)

    def _detach(
        self,
        context: ToolContext,
        pause: TaskPause,
        answered: set[str],
        given: Mapping[str, Any] | None = None,
        asked: str | None = None,
        question: PersonQuestion | None = None,
        *,
        is_new: bool = False,
    ) -> Outcome:
        """Detaches the job until the next poll. `given` has answers that the server does not have yet. `asked` is the
        key of the server's request that became `question`.
        """
        handle = {"task": self.id, "answered": sorted(answered), "pause": pause.seconds}
        handle |= {"given": dict(given or {}), "asked": asked, "new": is_new}
        after = pause.seconds if question is None else None
        context.detach(Detached(handle, after, pause.message, question))
        return Outcome(GOES_ON)

    async def _step(
        self, context: ToolContext, answered: set[str], paused: float
    ) -> "types.CallToolResult | Outcome | TaskPause":
        """Polls once. Returns the end of the task, or the pause before the next poll."""
        state = await self._state(paused)
        if isinstance(state, TaskPause):
            return state
        if (end := self._end_of(state)) is not None:
            return end
        await self._answer(context, state, answered)
        return TaskPause(self._interval(state.poll_interval_ms), state.status_message)

    async def _state(self, paused: float) -> TaskState | TaskPause:
        """Reads the state of the task. Returns a pause if the server is unreachable, because the task may continue
        there.
        """
        try:
            state = await self.send(_request("tasks/get", self.id))
        except NoTokenNow as missing:
            return TaskPause(self._longer(paused), str(missing))
        except ToolUnavailable:
            return TaskPause(self._longer(paused))
        except MCPError as error:
            if error.code not in {types.INVALID_PARAMS, types.METHOD_NOT_FOUND}:
                return TaskPause(self._longer(paused))
            log.warning("mcp.task_lost", server=self.server, task=self.id, error=error.message[:_MAX_MESSAGE])
            return TaskState(status="lost", status_message=error.message)
        assert isinstance(state, TaskState)
        return state

    def _end_of(self, state: TaskState) -> types.CallToolResult | Outcome | None:
        said = f": {state.status_message[:_MAX_MESSAGE].rstrip('.')}." if state.status_message else "."
        match state.status:
            case "working" | "input_required":
                return None
            case "completed":
                return types.CallToolResult.model_validate(state.result or {}, by_name=False)
            case "failed":
                reason = str((state.error or {}).get("message", ""))[:_MAX_MESSAGE]
                text = f"The MCP server {self.server} failed to do the task{said}"
                return Outcome(f"{text} {reason}".strip(), is_error=True)
            case "cancelled":
                return Outcome(f"The MCP server {self.server} has cancelled the task{said}", is_error=True)
            case "lost":
                text = f"The MCP server {self.server} does not know the task any more{said}"
                return Outcome(f"{text} What the call has done is not known.", kind="unknown")
            case _:
                raise ToolError(
                    f"The MCP server {self.server} sent a state of its task that the protocol does not have."
                )

    async def _answer(self, context: ToolContext, state: TaskState, answered: set[str]) -> None:
        """Asks the person the server's new questions, each question once, and sends the answers to the server."""
        for key, params in self._new_questions(state, answered):
            question = self._question(params)
            answer = None if context.ask is None or question is None else await context.ask(question)
            if await self._update({key: _response(_result(answer))}):  # otherwise the server asks again
                answered.add(key)

    def _new_questions(self, state: TaskState, answered: Set[str]) -> Iterator[tuple[str, types.ElicitRequestParams]]:
        """Yields the questions that have no answer yet. Raises ToolError if the server sends a request that it may not
        send.
        """
        for place, (key, request) in enumerate((state.input_requests or {}).items()):
            if key not in answered:
                if request.get("method") != "elicitation/create" or len(answered) + place >= _MAX_QUESTIONS:
                    raise ToolError(f"The MCP server {self.server} asks for what it may not ask for in a task.")
                yield key, types.ElicitRequest.model_validate(request, by_name=False).params

    def _question(self, params: types.ElicitRequestParams) -> PersonQuestion | None:
        """Returns None if the question must be declined without asking a person."""
        return None if self.seconds is None else question_of(params, self.seconds)

    async def _update(self, responses: Mapping[str, Any]) -> bool:
        """Sends answers. Returns False if the answers may not have arrived."""
        try:
            await self.send(_request("tasks/update", self.id, inputResponses=responses))
        except (ToolUnavailable, MCPError):
            return False
        return True

    async def cancel(self) -> None:
        """Requests the cancellation once. The server may continue the task nevertheless."""
        with suppress(ToolUnavailable, TimeoutError):
            async with asyncio.timeout(_TIME_TO_CANCEL):
                await self.stop()

    async def stop(self) -> None:
        """Asks the server to stop the task. If the server refuses, because it does not know the task or the task has
        ended, the refusal is only logged. Raises ToolUnavailable.
        """
        try:
            await self.send(_request("tasks/cancel", self.id))
        except MCPError as error:
            log.info("mcp.task_not_cancelled", server=self.server, task=self.id, error=error.message[:_MAX_MESSAGE])
        else:
            log.info("mcp.task_cancelled", server=self.server, task=self.id)

    def _longer(self, paused: float) -> float:
        return min(_LONGEST_POLL, max(2 * paused, self.shortest_poll))

    def _interval(self, milliseconds: int | None) -> float:
        seconds = _POLL if milliseconds is None else milliseconds / 1000
        return min(_LONGEST_POLL, max(self.shortest_poll, seconds))


def _result(answer: PersonAnswer | None) -> types.ElicitResult:
    if answer is None:
        return types.ElicitResult(action="decline")
    return types.ElicitResult(action=answer.action, content=None if answer.content is None else dict(answer.content))


def _response(result: types.ElicitResult) -> dict[str, Any]:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def _request(method: str, id: str, **params: Any) -> TaskRequest:
    return TaskRequest(method=method, params=TaskParams(task_id=id, **params))
