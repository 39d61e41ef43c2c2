"""Tools behind a URL. Each call is one signed request, and the answer to it is the tool's result."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Self

import msgspec
import structlog

from turnstream.domain.media import MEDIA, media_type_of
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.extensions.http_tools.client import (
    AnswerTooLong,
    HostUnreachable,
    HttpClient,
    HttpRequest,
    HttpResponse,
    parse_url,
)
from turnstream.extensions.http_tools.request_tools import RequestToolRules
from turnstream.libraries.outgoing.addresses import Allowed, UrlRefused
from turnstream.libraries.outgoing.owner_tokens import HttpService, ServiceAccess, Token
from turnstream.tools.policy import Policy, ResultForm
from turnstream.tools.schemas import InputSchema
from turnstream.tools.serialize import serialize
from turnstream.tools.tool import RETURNED_NOTHING, File, Outcome, ToolContext, ToolError, ToolUnavailable, check_name

log = structlog.get_logger(__name__)

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")
_RESERVED_HEADERS = frozenset(
    {
        "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host",
        "idempotency-key", "te", "trailer", "transfer-encoding", "upgrade",
        "webhook-id", "webhook-signature", "webhook-timestamp",
    }
)  # fmt: skip

_SCOPES = re.compile(r'\bscope="([^"]*)"')
_MAX_ERROR_CHARS = 2000
_SHORTEST_SECRET = 6  # characters; hiding shorter secrets would also hide ordinary words
_UNKNOWN = "application/octet-stream"
# No other charsets, because some of Python's many codecs need quadratic time.
_CHARSETS = frozenset({"us-ascii", "iso-8859-1", "windows-1252", "utf-16"})


@dataclass(frozen=True, slots=True)
class HttpTool:
    """A tool behind a URL. Its calls may reach the internal addresses in `allowed`, and are signed with
    `signing_secret`, if any. If there is an `access`, calls contain the owner's token.
    """

    spec: ToolSpec
    policy: Policy
    call: HttpCall
    client: HttpClient
    allowed: Allowed
    signing_secret: str | None
    access: ServiceAccess | None = None

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        try:
            value = json.loads(input_json)
            if complaint := InputSchema(self.spec.input_schema).complaint(value):
                raise ValueError(complaint)
            fields = {
                "tool": self.spec.name,
                "input": value,
                "owner": context.owner,
                "chat_id": str(context.chat_id),
                "turn_id": str(context.turn_id),
                "tool_use_id": context.tool_use_id,
                "idempotency_key": context.idempotency_key,
            }
            body = json.dumps(fields, allow_nan=False, separators=(",", ":")).encode()
        except ValueError as error:
            return Outcome(f"The input of {self.spec.name} is not right. {error}", kind="bad_input")
        key = context.idempotency_key
        request = HttpRequest(self.call.url, body, key, self.allowed, self.call.headers, self.signing_secret)
        if self.access is None:
            return outcome_of(self.spec.name, await self._post(request), self.policy.results, self.call.headers)
        return await self._called_with_token(self.access, request, context)

    async def _called_with_token(self, access: ServiceAccess, request: HttpRequest, context: ToolContext) -> Outcome:
        """Calls the tool with the owner's token. A refused token is refreshed once. If there is no token that the
        service accepts, the outcome asks for a sign-in.
        """
        owner, service, tokens = context.owner, access.service, access.tokens
        if tokens is None:
            raise ToolUnavailable(f"Nobody can sign in to {service.name} here: the extension mcp does not run.")
        token, seen, wanted = await tokens.token(owner, service), None, list[str]()
        answer = None if token is None else await self._post_with(token, request)
        if token is not None and answer is not None and _is_unauthorized(answer):
            seen = token.version
            token = await tokens.refreshed(owner, service, seen)
            answer = None if token is None else await self._post_with(token, request)
        if token is not None and answer is not None and not _is_unauthorized(answer):
            missing = [scope for scope in _insufficient_scopes(answer) if scope not in token.scopes]
            if not missing or (service.scopes and not set(missing) <= set(service.scopes)):
                secrets = {**self.call.headers, **_authorization(token)}
                return outcome_of(self.spec.name, answer, self.policy.results, secrets)
            wanted = [*token.scopes, *missing]
        ask = tokens.ask(owner, context.turn_id, service, wanted, seen if token is None else token.version)
        return Outcome(f"The user must sign in to {service.name} first.", kind="refused", sign_in=ask)

    async def _post_with(self, token: Token, request: HttpRequest) -> HttpResponse:
        return await self._post(replace(request, secrets={**request.secrets, **_authorization(token)}))

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
    """Makes HTTP tools, and owns their connections. Tools of the operator and tools in requests have separate lists of
    allowed hosts, and separate connections.
    """

    def __init__(
        self,
        allowed: Allowed,
        signing_secret: str | None = None,
        *,
        request_tools: RequestToolRules | None = None,
        max_answer_bytes: int = 1_000_000,
    ) -> None:
        self._allowed = allowed
        self._signing_secret = signing_secret
        self._rules = request_tools or RequestToolRules()
        self._accesses: dict[str, ServiceAccess] = {}
        self._client = HttpClient(allowed, max_answer_bytes)
        self._request_client = HttpClient(self._rules.allowed, max_answer_bytes)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        await self._request_client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for access in self._accesses.values():
            if access.tokens is not None:
                await access.tokens.close()
        await self._request_client.__aexit__()
        await self._client.__aexit__()

    def request_tool(self, spec: ToolSpec) -> HttpTool:
        """Returns the tool that a request declares by `spec`, whose schema has been checked. Raises ValueError.

        The calls of the tool are never signed, because a client chooses the address, the headers and the schema, and
        the operator's approvals for that service do not apply.
        """
        allowed = self._rules.allowed
        call = self._rules.applied(_check(spec, allowed))
        _check(replace(spec, http=call), allowed)  # again, after the secrets are inserted
        return HttpTool(spec, Policy(timeout=call.timeout), call, self._request_client, allowed, None)

    def operator_tool(
        self, spec: ToolSpec, policy: Policy, *, internal: bool = False, service: HttpService | None = None
    ) -> HttpTool:
        """Returns a tool that the operator declares. If it is `internal`, its own host may have an internal address. If
        there is a `service`, its calls need the owner's token. Raises ValueError.
        """
        url = parse_url(spec.http.url if spec.http else "")
        allowed = self._allowed.with_host(url.host) if internal and url.host else self._allowed
        call = _check(spec, allowed)
        InputSchema.checked(spec.input_schema)
        access = None if service is None else self._accesses.setdefault(service.name, ServiceAccess(service))
        if access is not None and access.service != service:
            raise ValueError(
                f"all tools at {access.service.name} share a sign-in: their `issuer`, `client_id`, `client_secret` and"
                " `scopes` must be the same"
            )
        # Turns and lists contain the spec, so the spec must not contain the address and the headers.
        return HttpTool(replace(spec, http=None), policy, call, self._client, allowed, self._signing_secret, access)


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


# --- tokens of owners ------------------------------------------------------------------------------------------------


def _authorization(token: Token) -> dict[str, str]:
    return {"Authorization": f"Bearer {token.access}"}


def _is_unauthorized(answer: HttpResponse) -> bool:
    """Whether the service itself refused the token. Refusals by other origins, which do not get the token, do not
    count.
    """
    return answer.status == HTTPStatus.UNAUTHORIZED and answer.challenge is not None


def _insufficient_scopes(answer: HttpResponse) -> Sequence[str]:
    """Returns the scopes that the service demands if the token is valid, but lacks rights."""
    challenge = answer.challenge or ""
    if answer.status != HTTPStatus.FORBIDDEN or "insufficient_scope" not in challenge:
        return ()
    found = _SCOPES.search(challenge)
    return found[1].split() if found else ()


# --- answers ---------------------------------------------------------------------------------------------------------


def outcome_of(name: str, answer: HttpResponse, results: ResultForm, secrets: Mapping[str, str]) -> Outcome:
    """Converts an answer to an outcome. An image or a PDF becomes a file. An answer with a status other than 2xx
    becomes an error that contains the answer's text.
    """
    succeeded = 200 <= answer.status < 300
    found, declared = media_type_of(answer.body), answer.media_type or _UNKNOWN
    # The header must declare an image or another binary type; without a header, the bytes must not be text.
    file = declared.startswith("image/") or (declared in MEDIA and not MEDIA[declared].is_text)
    agrees = file or (declared == _UNKNOWN and _text(answer) is None)
    if succeeded and found is not None and not found.is_text and agrees:
        return Outcome.of([File(answer.body)])
    text, failed, data = _read(answer, results)
    text = _without(secrets, text)
    if data is not None:
        data = msgspec.json.decode(_without(secrets, msgspec.json.encode(data).decode()))
    if succeeded:
        nothing = "The call failed, and nothing is said of why." if failed else RETURNED_NOTHING
        return Outcome(text if text.strip() else nothing, is_error=failed, data=data)
    shown = text if len(text) <= _MAX_ERROR_CHARS else f"{text[:_MAX_ERROR_CHARS]}…"
    text = f"{name} answered {phrase(answer.status)}" + (f": {shown}" if shown.strip() else ".")
    return Outcome(text, is_error=True, data=data)


def phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _read(answer: HttpResponse, results: ResultForm) -> tuple[str, bool, Any]:
    """Returns the text of an answer, whether it is an error, and its `data`. If the answer is a JSON object with `text`
    or `output`, all three come from the object; any other text is returned unchanged.
    """
    text = _text(answer)
    if text is None:
        return "The answer is not text.", True, None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text, False, None
    match value:
        case {"text": str(inner)} | {"output": str(inner)} as answered:
            pass
        case {"output": output} as answered:
            inner = "" if output is None else serialize(output, results)
        case _:
            return text, False, None
    return inner, answered.get("is_error") is True, answered.get("data")


def _text(answer: HttpResponse) -> str | None:
    charset = (answer.charset or "").lower()
    try:
        return answer.body.decode(charset if charset in _CHARSETS else "utf-8-sig")
    except UnicodeDecodeError:
        return None


def _without(secrets: Mapping[str, str], text: str) -> str:
    """Hides the secrets in a text, or in JSON, because a service may repeat secrets that it has refused."""
    for value in secrets.values():
        for secret in (value, value.rpartition(" ")[2]):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "[hidden]").replace(json.dumps(secret)[1:-1], "[hidden]")
    return text
