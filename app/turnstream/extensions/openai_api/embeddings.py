"""The call that makes embeddings. Its requests are sent to a provider whose `api` in the file of models is
`openai-embeddings`.
"""

from collections.abc import AsyncGenerator, Sequence
from functools import partial

import httpx2
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.exchange import admit
from turnstream.api.http.reading import read_body
from turnstream.api.schemas.requests import TurnOptions
from turnstream.api.services import check_rate, identity_of, services_and_owner
from turnstream.domain.charges import Charge, charge_of_request
from turnstream.domain.compaction import tokens_of
from turnstream.domain.errors import PermanentError, ProviderError, RequestRefused
from turnstream.domain.plans import SPENT
from turnstream.domain.rounds import billed_tokens
from turnstream.engine.recorder import to_the_end
from turnstream.engine.spending import most_cost
from turnstream.extensions.openai_api.errors import failed_call
from turnstream.extensions.openai_api.schemas import EmbeddingsIn
from turnstream.kit.ids import new_id
from turnstream.kit.offload import offload
from turnstream.libraries.providers.connect import OnDemand
from turnstream.libraries.providers.transport.failures import connection_error, provider_error
from turnstream.libraries.providers.transport.http import http_client
from turnstream.llm.models.api import CallOptions, ProviderSpec
from turnstream.llm.models.catalog import Model, Models
from turnstream.llm.provider import ModelRequest, Part, Provider, ProviderWrapper
from turnstream.storage.database import retry_while_unavailable
from turnstream.storage.owners.accounts import CallPlace
from turnstream.storage.owners.charges import Charges

_CALL = "1"  # the ledger's name for the only model call of a request
_OPENAI = "https://api.openai.com/v1"
_READ_TIMEOUT = 60.0  # seconds
_MOST_BYTES = 64_000_000  # limit for an answer: 2,048 vectors of 3,072 dimensions in base64 have 34 MB


class EmbeddingsProvider:
    """A provider that makes embeddings. It refuses to answer messages."""

    def __init__(self, spec: ProviderSpec, _: CallOptions) -> None:
        self.name = spec.name
        self._url = f"{(spec.base_url or _OPENAI).rstrip('/')}/embeddings"
        key = {"authorization": f"Bearer {spec.key}"} if spec.key else {}
        self._headers = {"content-type": "application/json", **key, **spec.headers}
        self._client = http_client(
            httpx2.AsyncClient, read_timeout=_READ_TIMEOUT, client_certificate=spec.client_certificate
        )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        raise PermanentError("no_answers", f"The model {request.model} makes embeddings; it answers no messages.")
        yield ()  # type: ignore[unreachable]

    async def embed(self, body: bytes) -> bytes:
        """Returns the provider's answer unchanged. Raises ProviderError."""
        answer = bytearray()
        try:
            async with self._client.stream("POST", self._url, content=body, headers=self._headers) as response:
                async for chunk in response.aiter_bytes():
                    answer += chunk
                    if len(answer) > _MOST_BYTES:
                        raise PermanentError("answer_too_long", f"The provider sent more than {_MOST_BYTES:,} bytes.")
        except httpx2.HTTPError as error:
            raise connection_error(error) from error
        if response.is_error:
            raise provider_error(_decoded(bytes(answer)), response.status_code, headers=response.headers)
        return bytes(answer)

    async def aclose(self) -> None:
        await self._client.aclose()


async def create_embeddings(request: Request) -> Response:
    services, owner = services_and_owner(request)
    identity_of(request).require_reach(None)
    sent, _ = await read_body(request, EmbeddingsIn)
    resolver = services.resolver
    model = resolver.models.check(sent.model)
    if not resolver.allowed.has_model(model.id):
        detail = f"`model` must be a model that the operator of this server allows, not {sent.model}."
        raise RequestRefused(detail, field="model")
    if (provider := await _provider_of(resolver.models, model)) is None:
        raise RequestRefused(f"`model` must be a model for embeddings; {sent.model} is none.", field="model")
    await admit(services, owner, TurnOptions())
    id, prices, estimate = new_id(), resolver.models.prices(model.id), _estimated_tokens(sent.input)
    charge: Charge | None
    charge = request_alone = charge_of_request("embedding", _CALL, model.id, estimate, prices)
    plan, accounts, charges = services.plans.of(owner), services.storage.accounts, Charges(services.storage.database)
    if limited := plan.has(*SPENT):
        reserved = (2 * estimate, most_cost(prices, 2 * estimate, 0))
        check_rate(await accounts.reserve(owner, plan, CallPlace(id), request_alone, *reserved))
    try:
        answer = await provider.embed(to_json({**sent.sent(), "model": model.upstream or model.id}))
        if (used := await offload(len(answer), _tokens_in, answer)) is not None:
            charge = charge_of_request("embedding", _CALL, model.id, used, prices)
    except ProviderError as error:
        charge = None
        return failed_call(error)
    finally:
        # A cancelled call is charged by the estimate, because the provider has received the request.
        if charge is not None:
            await to_the_end(retry_while_unavailable(partial(charges.add, owner, None, id, charge)))
        elif limited:
            await to_the_end(retry_while_unavailable(lambda: accounts.release_call(id, _CALL)))
    return Response(answer, media_type="application/json")


async def _provider_of(models: Models, model: Model) -> EmbeddingsProvider | None:
    """Returns the provider of the model, if the model makes embeddings."""
    for entry in models.providers:
        if any(listed.id == model.id for listed in entry.listed()):
            provider: Provider = entry.provider
            while isinstance(provider, ProviderWrapper):
                provider = provider.provider
            adapter = await provider.adapter() if isinstance(provider, OnDemand) else provider
            return adapter if isinstance(adapter, EmbeddingsProvider) else None
    return None


class _Used(msgspec.Struct):
    prompt_tokens: int


class _Answer(msgspec.Struct):
    usage: _Used


def _tokens_in(answer: bytes) -> int | None:
    """Returns the tokens that the provider counted, or None if the answer has no count."""
    try:
        used = msgspec.json.decode(answer, type=_Answer).usage.prompt_tokens
    except msgspec.DecodeError:
        return None
    return billed_tokens({"input_tokens": used}).input


def _estimated_tokens(input: object) -> int:
    """Estimates the tokens of a text, of a number (one token), or of a list of texts and numbers."""
    match input:
        case str():
            return max(1, tokens_of(len(input)))
        case list():
            return sum(map(_estimated_tokens, input))
        case _:
            return 1


def _decoded(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode(errors="replace")
