"""Tools behind a URL: each call is one signed request, and its answer is the result."""

import json
import re
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import structlog

from app.domain.turns import HttpCall, ToolSpec
from app.tools.http.addresses import Allowed, UrlRefused
from app.tools.http.answer import outcome_of, phrase
from app.tools.http.client import AnswerTooLong, HostUnreachable, HttpClient, HttpRequest, HttpResponse, parse_url
from app.tools.policy import Policy
from app.tools.schemas import InputSchema
from app.tools.tool import Outcome, ToolContext, ToolError, ToolUnavailable, check_name

log = structlog.get_logger(__name__)

LONGEST_TIMEOUT = 600.0  # of a tool that came with a request: its calls hold slots of the server

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")
_RESERVED_HEADERS = frozenset(
    {
        "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host",
        "idempotency-key", "te", "trailer", "transfer-encoding", "upgrade",
        "webhook-id", "webhook-signature", "webhook-timestamp",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpTool:
    """`allowed` are the internal addresses that its calls may reach. They are signed with `signing_secret`, if any."""

    spec: ToolSpec
    policy: Policy
    call: HttpCall
    client: HttpClient
    allowed: Allowed
    signing_secret: str | None

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        try:
            value = json.loads(input_json)
            if complaint := InputSchema(self.spec.input_schema).complaint(value):
                raise ValueError(complaint)
            body = self._body(context, value)
        except ValueError as error:
            return Outcome(f"The input of {self.spec.name} is not right. {error}", kind="bad_input")
        key = context.idempotency_key
        request = HttpRequest(self.call.url, body, key, self.allowed, self.call.headers, self.signing_secret)
        return outcome_of(self.spec.name, await self._post(request), self.policy.results, self.call.headers)

    def _body(self, context: ToolContext, value: object) -> bytes:
        body = {
            "tool": self.spec.name,
            "input": value,
            "owner": context.owner,
            "chat_id": str(context.chat_id),
            "turn_id": str(context.turn_id),
            "tool_use_id": context.tool_use_id,
            "idempotency_key": context.idempotency_key,
        }
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()

    async def _post(self, request: HttpRequest) -> HttpResponse:
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
    """Makes HTTP tools, and owns their connections."""

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

    def request_tool(self, spec: ToolSpec) -> HttpTool:
        """The tool of a spec that came with a request, whose schema is checked already. Raises ValueError."""
        call = _check(spec, self._allowed)
        if not 0 < call.timeout <= LONGEST_TIMEOUT:
            raise ValueError(f"the `timeout` must be above 0 and at most {LONGEST_TIMEOUT:g} seconds")
        # Signed for hosts of the operator alone: a signature that was made for a stranger's address could be shown to
        # the operator's own services.
        secret = self._signing_secret if self._allowed.allows_host(parse_url(call.url).host or "") else None
        return HttpTool(spec, Policy(timeout=call.timeout), call, self._client, self._allowed, secret)

    def operator_tool(self, spec: ToolSpec, policy: Policy, *, internal: bool = False) -> HttpTool:
        """A tool of the operator; `internal` allows an internal address for its own host. Raises ValueError."""
        url = parse_url(spec.http.url if spec.http else "")
        allowed = self._allowed.with_host(url.host) if internal and url.host else self._allowed
        call = _check(spec, allowed)
        InputSchema.checked(spec.input_schema)
        # The spec is stored with turns and listed: it must not hold the address and the headers.
        return HttpTool(replace(spec, http=None), policy, call, self._client, allowed, self._signing_secret)


def _check(spec: ToolSpec, allowed: Allowed) -> HttpCall:
    check_name(spec.name)
    call = spec.http
    if call is None:
        raise ValueError(f"{spec.name} needs a URL")
    allowed.check(parse_url(call.url))
    for name, value in call.headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"a header cannot be called {name!r}: use letters, digits and -")
        if name.lower() in _RESERVED_HEADERS:
            raise ValueError(f"the header {name} is set by the server: remove it")
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(
                f"the value of the header {name} holds a line break or another control character: remove it"
            )
    return call
