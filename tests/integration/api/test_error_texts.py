"""Every refusal is a sentence that names the field. The wrong bodies are generated from the request schemas."""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, get_args
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio
from pydantic import BaseModel

from tests.support.calls import ENDPOINTS
from tests.support.http_client import Client, said
from tests.support.http_server import Server, pausing
from tests.support.openapi_document import Document
from turnstream.api.http.endpoint import Endpoint
from turnstream.domain.errors import RefusalCode
from turnstream.domain.identity import SCOPES
from turnstream.scripted import Pause

pytestmark = pytest.mark.asyncio(loop_scope="session")

JSON = {"Content-Type": "application/json"}
ALWAYS = {"type", "title", "status", "code", "detail", "request_id"}
SENTENCE = re.compile(r"[A-Z`].+\.", re.DOTALL)
# Phrases of pydantic's own messages, which no refusal may contain.
RAW = re.compile(r"Input |should (be|have|match)|Extra inputs|Value error|Field required|validation error")
WITH_JSON = [endpoint for endpoint in ENDPOINTS if isinstance(endpoint.takes, type)]

Wrong = tuple[Any, str]  # a wrong value, and the path of the field that the refusal must name


def check(response: httpx2.Response, field: str | None = None) -> None:
    """Checks that the refusal is a problem document of sentences, and names `field`."""
    assert 400 <= response.status_code < 500, f"{response.request.url} {response.request.content!r}"
    problem = response.json()
    assert ALWAYS <= problem.keys() <= ALWAYS | {"errors"}
    assert problem["code"] in get_args(RefusalCode)
    assert problem["request_id"] == response.headers["x-request-id"]
    errors = problem.get("errors", [])
    for text in [problem["detail"], *(error["message"] for error in errors)]:
        assert SENTENCE.fullmatch(text), text
        assert not RAW.search(text), text
    for error in errors:
        assert error["field"] == "(body)" or f"`{error['field']}`" in error["message"], error
    if field is not None:
        assert field in [error["field"] for error in errors], f"{field}: {problem}"


# --- wrong bodies ----------------------------------------------------------------------------------------------------


class Bodies:
    """Generates bodies from the JSON schema of a request: a valid body, and each way to make one member wrong."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._schema = model.model_json_schema()

    def wrong(self) -> Iterator[Wrong]:
        yield from self._wrong(self._schema, "")

    def _resolved(self, schema: Any) -> Any:
        while "$ref" in schema:
            schema = self._schema["$defs"][schema["$ref"].rpartition("/")[2]]
        options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
        return self._resolved(options[0]) if len(options) == 1 else schema

    def _valid(self, schema: Any) -> Any:
        schema = self._resolved(schema)
        if "const" in schema or "enum" in schema:
            return schema.get("const", schema.get("enum", [None])[0])
        if options := schema.get("oneOf", schema.get("anyOf")):
            return self._valid(options[0])
        match schema.get("type"):
            case "string":
                return str(uuid4()) if schema.get("format") == "uuid" else "x"
            case "integer" | "number":
                return schema.get("minimum", 1)
            case "boolean":
                return True
            case "array":
                return [self._valid(schema["items"])] * schema.get("minItems", 0)
            case "object":
                required = schema.get("required", ())
                return {name: self._valid(schema["properties"][name]) for name in required}
            case _:
                return None

    def _wrong(self, schema: Any, path: str) -> Iterator[Wrong]:
        schema = self._resolved(schema)
        if options := schema.get("oneOf", schema.get("anyOf")):
            choices = [self._resolved(option) for option in options]
            if any(choice["type"] == "object" for choice in choices):
                tag = schema.get("discriminator", {}).get("propertyName", "type")
                yield from self._wrong_choices(choices, path, tag)
            else:
                yield from self._wrong_kinds(choices, path)
            return
        match schema.get("type"):
            case "string":
                yield from ((value, path) for value in self._wrong_strings(schema))
            case "integer" | "number":
                for value in self._wrong_numbers(schema):
                    yield value, path
            case "boolean":
                yield "yes", path
            case "array":
                yield from self._wrong_arrays(schema, path)
            case "object":
                yield from self._wrong_objects(schema, path)
            case _:
                pass

    def _wrong_choices(self, options: list[Any], path: str, tag: str) -> Iterator[Wrong]:
        """Generates wrong values for a union. The options of the union differ in their member `tag`."""
        yield {}, joined(path, tag)
        yield {tag: "nothing"}, joined(path, tag)
        for option in options:
            if option["type"] == "object":
                member = option["properties"][tag]
                yield from self._wrong_objects(option, path, {tag: member.get("const", member.get("enum", [None])[0])})

    def _wrong_kinds(self, options: list[Any], path: str) -> Iterator[Wrong]:
        """Generates wrong values for a field that takes a text or a list. A value of the wrong type is refused, and so
        is an object.
        """
        yield {}, path
        for option in options:
            if option["type"] == "array":
                for value, place in self._wrong(option["items"], f"{path}.0"):
                    yield [value], place

    def _wrong_strings(self, schema: Any) -> Iterator[Any]:
        yield 1
        if "const" in schema or "enum" in schema or "format" in schema or "pattern" in schema:
            yield "not one of them"
        if schema.get("minLength"):
            yield ""
        if "maxLength" in schema:
            yield "x" * (schema["maxLength"] + 1)

    def _wrong_numbers(self, schema: Any) -> Iterator[Any]:
        yield "1"
        if "minimum" in schema:
            yield schema["minimum"] - 1
        if "exclusiveMinimum" in schema:
            yield schema["exclusiveMinimum"]
        if "maximum" in schema:
            yield schema["maximum"] + 1

    def _wrong_arrays(self, schema: Any, path: str) -> Iterator[Wrong]:
        yield "x", path
        if schema.get("minItems"):
            yield [], path
        if "maxItems" in schema:
            yield [self._valid(schema["items"])] * (schema["maxItems"] + 1), path
        for value, place in self._wrong(schema["items"], f"{path}.0"):
            yield [value], place

    def _wrong_objects(self, schema: Any, path: str, tag: Mapping[str, str] | None = None) -> Iterator[Wrong]:
        if schema.get("title") == "Params":  # the model decides about the members of `Params`: test_parameters.py
            yield "x", path
            return
        valid = {**self._valid(schema), **(tag or {})}
        if not tag:
            yield "x", path
        if schema.get("additionalProperties") is False:
            yield {**valid, "unheard_of": 1}, joined(path, "unheard_of")
        for name in schema.get("required", ()):
            if name not in (tag or ()):
                yield {key: value for key, value in valid.items() if key != name}, joined(path, name)
        for name, member in schema.get("properties", {}).items():
            if name not in (tag or ()):
                for value, place in self._wrong(member, joined(path, name)):
                    yield {**valid, name: value}, place


def joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@pytest_asyncio.fixture(loop_scope="session")
async def plain(server: Server) -> AsyncIterator[Client]:
    """A client that does not compare answers with the document, because the comparison costs more than the requests."""
    async with Client(server.url, None, await server.token("plain", *SCOPES)) as client:
        yield client


async def ids_of(client: Client) -> dict[str, str]:
    schedules = (await client.get("/api/schedules")).json()["schedules"]
    triggers = (await client.get("/api/triggers")).json()["triggers"]
    posted = (await client.post("/api/turns", json=said("Hi"))).json()
    await client.get(posted["stream_url"])
    turn = posted["assistant_turn"]
    if not (schedules and triggers):  # an owner has a limited number of schedules and triggers
        every = {"name": "n", "every": 86_400, "request": said("Hi")}
        schedules = [(await client.post("/api/schedules", json=every)).json()]
        triggers = [(await client.post("/api/triggers", json={"name": "n", "request": said("Hi")})).json()]
    return {
        "schedule": schedules[0]["id"],
        "trigger": triggers[0]["id"],
        "chat": turn["chat_id"],
        "turn": turn["id"],
        "id": turn["chat_id"],
        "entry": posted["user_turn"]["id"],
    }


def filled(endpoint: Endpoint, ids: dict[str, str]) -> str:
    path = endpoint.path.replace("{path:path}", "{path}")
    return re.sub("{(.+?)}", lambda found: ids.get(found[1], "x"), path)


@pytest.mark.parametrize("endpoint", WITH_JSON, ids=lambda endpoint: endpoint.call)
async def test_every_wrong_member_of_a_body_is_named_in_a_sentence(plain: Client, endpoint: Endpoint) -> None:
    assert isinstance(endpoint.takes, type)
    path, count = filled(endpoint, await ids_of(plain)), 0
    for body, field in Bodies(endpoint.takes).wrong():
        response = await plain.request(endpoint.method, path, content=json.dumps(body), headers=JSON)
        check(response, field or "(body)")
        count += 1
    assert count >= 3


@pytest.mark.parametrize("endpoint", WITH_JSON, ids=lambda endpoint: endpoint.call)
async def test_a_body_that_cannot_be_read_is_refused_in_a_sentence(
    plain: Client, server: Server, endpoint: Endpoint
) -> None:
    path = filled(endpoint, await ids_of(plain))
    for body, headers, status in (
        (b"{", JSON, 400),
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (b" " * (server.services.http.max_body_bytes + 1), JSON, 413),
        (b'{"\\ud800":1}', JSON, None),
    ):
        response = await plain.request(endpoint.method, path, content=body, headers=headers)
        assert status is None or response.status_code == status
        check(response)


# --- wrong paths, queries, headers -----------------------------------------------------------------------------------


async def test_every_wrong_id_of_a_path_is_named_in_a_sentence(plain: Client) -> None:
    right = await ids_of(plain)
    for endpoint in ENDPOINTS:
        for name in {"chat", "entry", "replica", "turn", "upload"} & set(re.findall("{(.+?)}", endpoint.path)):
            for wrong in ("x", str(uuid4())):
                body: dict[str, Any] = {"content": b"{}", "headers": JSON} if endpoint.takes else {}
                if endpoint.takes and endpoint.path.endswith("/turns"):
                    body["content"] = json.dumps(said("Hi"))
                if "{entry}" in endpoint.path and endpoint.takes:
                    body["content"] = json.dumps({"version": "any"})
                if endpoint.path.endswith("/actions") or "/approvals/" in endpoint.path:
                    body["content"] = json.dumps({"actions": [{"type": "result", "tool_use_id": "x"}]})
                response = await plain.request(endpoint.method, filled(endpoint, {**right, name: wrong}), **body)
                check(response)
                assert response.status_code == 404
                assert name in response.json()["detail"] or re.search("{tool_use_id}|{grant}|{secret}", endpoint.path)


@pytest.mark.extensions("documents")
async def test_every_wrong_query_is_named_in_a_sentence(plain: Client) -> None:
    ids, refused = await ids_of(plain), set()
    for endpoint in ENDPOINTS:
        for query in endpoint.queries:
            # Uploads and entries are left out. For an upload, only `unused` has an effect as `if`, and every `chat` is
            # valid; for an entry, any text is a version.
            if "{upload}" in endpoint.path or "{entry}" in endpoint.path:
                continue
            for wrong in ("x", "0", "\0", "é" * 300, str(uuid4()), "1-999-0", " ".join("abcdefghij")):
                path = filled(endpoint, ids)
                async with plain.stream(endpoint.method, path, params={query.name: wrong}) as response:
                    if 400 <= response.status_code < 500:
                        await response.aread()
                        check(response)
                        assert query.name in response.json()["detail"] or wrong in response.json()["detail"]
                        refused.add(query.name)
    assert {"limit", "before", "q", "leaf", "through", "cursor", "after", "prefix"} <= refused


@pytest.mark.extensions("documents")
async def test_wrong_headers_documents_and_uploads_are_refused_in_sentences(plain: Client, server: Server) -> None:
    ids = await ids_of(plain)
    turns = f"/api/chats/{ids['chat']}/turns"
    check(await plain.post(turns, json=said("Hi"), headers={"Idempotency-Key": ""}), "Idempotency-Key")
    await plain.post(turns, json=said("Hi"), headers={"Idempotency-Key": "one"})
    check(await plain.post(turns, json=said("Ho"), headers={"Idempotency-Key": "one"}), "Idempotency-Key")
    check(await plain.get(f"{turns}/{ids['turn']}/stream", headers={"Last-Event-ID": "x"}), "Last-Event-ID")
    check(await plain.get(turns, headers={"Authorization": "Bearer nobody"}))
    check(await plain.get(turns, headers={"Authorization": ""}))
    check(await plain.put("/api/documents/a//b", content=b"x"), "path")
    check(await plain.put("/api/documents/a", content=b"\xff"))
    check(await plain.put("/api/documents/a", content=b"\0"), "(body)")
    check(await plain.get("/api/documents/nothing"))
    check(await plain.delete("/api/documents/nothing"))
    check(await plain.post("/api/uploads", content=b"\0\1"))
    check(await plain.post("/api/uploads", content=b"x" * (server.services.http.max_upload_bytes + 1)))
    check(await plain.get(f"{turns}/{ids['turn']}/results/c"))
    check(await plain.put("/api/chats"))
    check(await plain.get("/api/nothing"))


# --- what the rows do not allow --------------------------------------------------------------------------------------


async def test_a_request_that_does_not_fit_the_state_is_refused_in_a_sentence(plain: Client, server: Server) -> None:
    posted = (await plain.post("/api/turns", json=said("Hi"))).json()
    await plain.get(posted["stream_url"])
    user, assistant = posted["user_turn"], posted["assistant_turn"]
    turns = f"/api/chats/{user['chat_id']}/turns"
    check(await plain.get(f"{turns}/{user['id']}/stream"))
    check(await plain.post(f"{turns}/{user['id']}/regenerate", json={}))
    check(await plain.post(f"{turns}/{user['id']}/cancel"), "turn")
    check(await plain.post(turns, json={**said("x"), "parent_id": user["id"]}), "parent_id")
    check(await plain.post(turns, json={**said("x"), "parent_id": str(uuid4())}), "parent_id")
    result = {"type": "result", "tool_use_id": "c"}
    check(await plain.post(f"{turns}/{assistant['id']}/actions", json={"actions": [result]}))
    check(await plain.post(f"{turns}/{assistant['id']}/actions", json={"actions": [result] * 2}))
    pause = Pause()
    model = server.scripts.model(pausing(pause, "One ", "two."))
    running = (await plain.post(turns, json={**said("x"), "model": model})).json()
    await pause.reached.wait()
    check(await plain.post(turns, json=said("y")))
    check(await plain.post(f"{turns}/{running['assistant_turn']['id']}/regenerate", json={}))
    pause.go.set()


async def test_a_name_that_the_server_does_not_have_is_refused_by_field(plain: Client) -> None:
    look = {"type": "client", "name": "look", "description": "x", "input_schema": {"type": "object"}}
    image = {"type": "image", "source": {"type": "base64", "data": "eA=="}}
    for member, field in (
        ({"model": "none such"}, "model"),
        ({"tools": ["none such"]}, "tools.0"),
        ({"tools": [look, {**look, "description": "y"}]}, "tools.1"),
        ({"tools": [{**look, "input_schema": {"type": "text"}}]}, "tools.0"),
        ({"params": {"tool_choice": {"type": "tool", "name": "none"}}}, "params.tool_choice.name"),
        ({"params": {"tool_choice": {"type": "tool"}}}, "params.tool_choice"),
        ({"output": {"schema": {"type": "text"}}}, "output.schema"),
        ({"output": {"schema": {"type": "object"}, "validator": "none"}}, "output.validator"),
        ({"blocks": [image]}, "blocks.0.source"),
        ({"blocks": [{"type": "document", "source": {"type": "path", "path": "none"}}]}, "blocks.0.source.path"),
        ({"blocks": [{"type": "document", "source": {"type": "upload", "id": str(uuid4())}}]}, "blocks.0.source.id"),
        ({"params": {"thinking": {"a": "\0"}}}, "params.thinking"),
    ):
        check(await plain.post("/api/turns", json={**said("x"), **member}), field)
    settings = {"settings": {"tools": ["none such"]}}
    check(await plain.post("/api/chats", json=settings), "settings.tools.0")


async def test_the_refusal_of_an_unknown_member_names_the_known_ones(plain: Client, document: Document) -> None:
    refused = (await plain.post("/api/turns", json={**said("x"), "limits": {"rounds": 1}})).json()
    known = document.json["components"]["schemas"]["LimitsIn"]["properties"]
    assert refused["detail"].startswith("`limits.rounds` is not known here; known are ")
    assert all(f"`{name}`" in refused["detail"] for name in known)


# --- unknown parameters of the query ---------------------------------------------------------------------------------


def path_of(endpoint: Endpoint) -> str:
    return re.sub(r"{[^}]+}", str(uuid4()), endpoint.path)


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if each.checks_query], ids=lambda each: each.call)
async def test_an_unknown_parameter_is_refused_with_the_known_ones(plain: Client, endpoint: Endpoint) -> None:
    refused = await plain.request(endpoint.method, path_of(endpoint), params={"limt": "5"})
    assert refused.status_code == 422
    check(refused, "limt")
    for query in endpoint.queries:
        assert f"`{query.name}`" in refused.json()["detail"]


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if not each.checks_query], ids=lambda each: each.call)
async def test_dialects_and_open_calls_ignore_unknown_parameters(plain: Client, endpoint: Endpoint) -> None:
    path = path_of(endpoint)
    without = await plain.request(endpoint.method, path)
    with_one = await plain.request(endpoint.method, path, params={"limt": "5"})
    assert (with_one.status_code, "limt" in with_one.text) == (without.status_code, False)


async def test_parameters_that_others_add_are_ignored(plain: Client) -> None:
    assert (await plain.get("/api/chats?_=1764000000&utm_source=mail&limit=5")).status_code == 200


@pytest.mark.parametrize("query", ["limt", "limt=", "li%6Dt=5", "limit=5&limt=5"])
async def test_an_unknown_parameter_is_found_however_it_is_written(plain: Client, query: str) -> None:
    assert (await plain.get(f"/api/chats?{query}")).status_code == 422
