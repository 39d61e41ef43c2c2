"""Tools that are services: each call is one signed request, and its answer is the result."""

import json
import re
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import structlog

from app.domain.turns import HttpCall, ToolSpec
from app.tools.http.addresses import Allowed, UrlRefused
from app.tools.http.answer import outcome_of, phrase
from app.tools.http.client import AnswerTooLong, HostUnreachable, HttpClient, HttpRequest, HttpResponse, parsed
from app.tools.policy import Policy
from app.tools.schemas import InputSchema
from app.tools.tool import Outcome, ToolContext, ToolError, ToolUnavailable, check_name

log = structlog.get_logger(__name__)

LONGEST_TIMEOUT = 600.0  # of a tool that was declared with a request: others wait for its slot

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")
_RESERVED = frozenset(
    {
        "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host",
        "idempotency-key", "te", "trailer", "transfer-encoding", "upgrade",
        "webhook-id", "webhook-signature", "webhook-timestamp",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpTool:
    """`allowed` may be internal. Signed with `signing_secret`, if there is one."""

    spec: ToolSpec
    policy: Policy
    call: HttpCall
    client: HttpClient
    allowed: Allowed
    signing_secret: str | None

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        try:
            body = self._body(context, self._fitting(input_json))
        except ValueError as error:
            return Outcome(f"The input of {self.spec.name} is not right. {error}", kind="bad_input")
        key = context.idempotency_key
        request = HttpRequest(self.call.url, body, key, self.allowed, self.call.headers, self.signing_secret)
        return outcome_of(self.spec.name, await self._answer(request), self.policy.results, self.call.headers)

    def _fitting(self, input_json: str) -> object:
        given = json.loads(input_json)
        if complaint := InputSchema(self.spec.input_schema).complaint(given):
            raise ValueError(complaint)
        return given

    def _body(self, context: ToolContext, given: object) -> bytes:
        body = {
            "tool": self.spec.name,
            "input": given,
            "owner": context.owner,
            "chat_id": str(context.chat_id),
            "turn_id": str(context.turn_id),
            "tool_use_id": context.tool_use_id,
            "idempotency_key": context.idempotency_key,
        }
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        name = self.spec.name
        try:
            answer = await self.client.post(request)
        except UrlRefused as error:
            log.warning("tool.refused", reason=str(error))
            raise ToolError(f"The tool {name} cannot be called: {error}.") from None
        except AnswerTooLong:
            raise ToolError(f"The answer of {name} was too long to be read. Ask for less.") from None
        except HostUnreachable as error:
            log.warning("tool.unreachable", reason=str(error))
            raise ToolUnavailable(f"The tool {name} cannot be reached at the moment.") from None
        if answer.status >= 500:
            log.warning("tool.unreachable", reason=phrase(answer.status))
            raise ToolUnavailable(f"The tool {name} does not work at the moment ({phrase(answer.status)}).")
        return answer


class HttpTools:
    """Makes such tools, and owns their connections."""

    def __init__(
        self, allowed: Allowed, signing_secret: str | None = None, *, max_answer_bytes: int = 1_000_000
    ) -> None:
        self._allowed = allowed
        self._signing_secret = signing_secret
        self._client = HttpClient(allowed, max_answer_bytes)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, traceback)

    def tool_for(self, spec: ToolSpec) -> HttpTool:
        """The tool of a spec that came with a request, whose schema was checked before. Raises ValueError, in words for
        whoever declares it. It is signed for hosts of the operator alone: a signature made for a stranger could be
        shown to the operator's own services.
        """
        call = _checked(spec, self._allowed)
        if not 0 < call.timeout <= LONGEST_TIMEOUT:
            raise ValueError(f"the timeout must be above 0 and at most {LONGEST_TIMEOUT:g} s")
        secret = self._signing_secret if self._allowed.names(parsed(call.url).host or "") else None
        return HttpTool(spec, Policy(timeout=call.timeout), call, self._client, self._allowed, secret)

    def declared(self, spec: ToolSpec, policy: Policy, *, internal: bool = False) -> HttpTool:
        """A tool of the operator; `internal` allows its host, and no other, to be internal. Raises ValueError. What the
        tool shows as its spec is without the address and the headers.
        """
        url = parsed(spec.http.url if spec.http else "")
        allowed = self._allowed.with_host(url.host) if internal and url.host else self._allowed
        call = _checked(spec, allowed)
        InputSchema.checked(spec.input_schema)
        return HttpTool(replace(spec, http=None), policy, call, self._client, allowed, self._signing_secret)


def _checked(spec: ToolSpec, allowed: Allowed) -> HttpCall:
    check_name(spec.name)
    call = spec.http
    if call is None:
        raise ValueError(f"{spec.name} has no URL")
    allowed.check(parsed(call.url))
    for name, value in call.headers.items():
        if not _HEADER.fullmatch(name) or name.lower() in _RESERVED:
            raise ValueError(f"a header cannot be called {name!r}, or is set by the server")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the value of the header {name} holds a line break or another control character")
    return call
