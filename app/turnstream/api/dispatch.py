"""Makes the routes of a table of calls. Each request is admitted, and handled within a tracing span."""

from asyncio import CancelledError
from collections.abc import Iterable, Mapping, Sequence

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from turnstream.api.http.call_group import Answer, CallGroup
from turnstream.api.http.endpoint import Endpoint, HandlerApp
from turnstream.api.http.errors import CUT_OFF, Unavailable
from turnstream.api.http.reading import check_query
from turnstream.api.services import admit, count_writes, services_and_owner
from turnstream.tracing import TRACING


async def answer(request: Request, endpoint: Endpoint) -> Response:
    """Returns the response of the endpoint's handler. Raises Unavailable if the request is cancelled, TooMany, and the
    errors of `admit`, `check_query` and the handler.
    """
    try:
        return await _answered(request, endpoint)
    except CancelledError:
        raise Unavailable(CUT_OFF) from None


async def _answered(request: Request, endpoint: Endpoint) -> Response:
    if not endpoint.open:
        await admit(request, endpoint)
    if endpoint.checks_query:
        check_query(request, endpoint.queries)
    if endpoint.limits and "writes" in endpoint.limits:
        await count_writes(*services_and_owner(request), 1)
    if not TRACING.on or endpoint.open:
        return await endpoint.handler(request)
    with TRACING.span(
        endpoint.call, "SERVER", parent=request.headers.get("traceparent"), http__request__method=endpoint.method
    ) as span:
        response = await endpoint.handler(request)
        span.set(http__response__status_code=response.status_code)
        return response


class RouteWithHeader(BaseRoute):
    """Restricts a route to requests that have the header `header`."""

    def __init__(self, route: Route, header: str) -> None:
        self.route = route
        self.header = header

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = self.route.matches(scope)
        return (match, child) if match is not Match.NONE and self.header in Headers(scope=scope) else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.route.handle(scope, receive, send)


def routes_of(parts: Iterable[CallGroup]) -> list[BaseRoute]:
    """Makes one route for each path, so that the refusal of a wrong method lists all allowed methods. A group with its
    own answer or header gets its own routes. Routes with a header come first, then the routes that most requests match.
    """
    headed: list[BaseRoute] = []
    apart: list[BaseRoute] = []
    rest: list[BaseRoute] = []
    shared: dict[str, dict[str, Endpoint]] = {}
    for part in parts:
        is_apart = part.answer is not None or part.header is not None
        by_path: dict[str, dict[str, Endpoint]] = {} if is_apart else shared
        for endpoint in part.endpoints:
            by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        own = _routes(by_path, part.answer or answer) if is_apart else []
        (apart if part.header is None else headed).extend(_limited([*own, *part.refused], part.header))
        rest += _limited(part.routes, part.header)
    return [*headed, *_routes(shared, answer), *apart, *rest]


def _routes(by_path: Mapping[str, Mapping[str, Endpoint]], answer: Answer) -> Sequence[Route]:
    return [Route(path, _dispatcher(methods, answer), methods=list(methods)) for path, methods in by_path.items()]


def _limited(routes: Sequence[Route], header: str | None) -> Sequence[BaseRoute]:
    return routes if header is None else [RouteWithHeader(each, header) for each in routes]


def _dispatcher(endpoints: Mapping[str, Endpoint], answer: Answer) -> HandlerApp:
    async def dispatch(request: Request) -> Response:
        endpoint = endpoints["GET" if request.method == "HEAD" else request.method]
        request.state.endpoint = endpoint
        return await answer(request, endpoint)

    return HandlerApp(dispatch)
