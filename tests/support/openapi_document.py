"""Compares the server's answers with the server's OpenAPI document."""

import json
import re
from collections.abc import Mapping
from typing import Any

import httpx2
from jsonschema_rs import Draft202012Validator, Registry

Json = dict[str, Any]

PROBLEM = "application/problem+json"
STREAM = "text/event-stream"


def answers_of(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the answers by status. If a stream is documented beside an answer in JSON, the stream replaces the answer
    200.
    """
    stream = {"200": operation["x-stream"]} if "x-stream" in operation else {}
    return {**operation["responses"], **stream}


class Document:
    """The document. `seen` has the checked answers: the method, the path as the document writes it, and the status."""

    def __init__(self, document: Json) -> None:
        self.json = document
        self.seen: set[tuple[str, str, int]] = set()
        self._registry = Registry([("urn:document", document)])
        self._validators: dict[str, Draft202012Validator] = {}
        self._patterns = {path: re.compile(_pattern(path)) for path in document["paths"]}

    def check(self, request: httpx2.Request, response: httpx2.Response) -> None:
        """Raises AssertionError for an undocumented answer. Does not read the body of a stream."""
        path, item = self._item(request.url.path)
        method = "get" if request.method == "HEAD" else request.method.lower()
        if method not in item:
            self._check_unknown(request, response, item)
            return
        operation = item[method]
        answers = answers_of(operation)
        answer = answers.get(str(response.status_code)) or answers.get("default")
        assert answer is not None, f"{request.method} {path} answered {response.status_code}"
        self._check_answer(request, response, self.resolved(answer))
        if response.is_success:
            self._check_accepted(request, operation)
        self.seen.add((request.method, path, response.status_code))

    def stream_of(self, request: httpx2.Request) -> str:
        """Returns the name of the stream that answers this request."""
        _, item = self._item(request.url.path)
        method = "get" if request.method == "HEAD" else request.method.lower()
        reference: str = answers_of(item[method])["200"].get("$ref", "OpenAI")
        return reference.rpartition("/")[2]

    def check_event(self, name: str, data: Any, stream: str = "Stream") -> None:
        """Checks the `data` of an event with this name."""
        schema = self.resolved(self.json["components"]["responses"][stream]["content"][STREAM]["x-itemSchema"])
        assert name in schema["discriminator"]["mapping"], f"an event {name} is not in the document"
        self._valid({"event": name, "data": data}, {"$ref": schema["discriminator"]["mapping"][name]})

    def resolved(self, value: Json) -> Json:
        """Returns `value`, or the target of its reference."""
        while "$ref" in value:
            found: Any = self.json
            for key in value["$ref"].removeprefix("#/").split("/"):
                found = found[key]
            value = found
        return value

    # --- the parts -----------------------------------------------------------------------------------------------

    def _item(self, path: str) -> tuple[str, Mapping[str, Any]]:
        known = next((known for known, pattern in self._patterns.items() if pattern.fullmatch(path)), path)
        return known, self.json["paths"].get(known, {})

    def _check_unknown(self, request: httpx2.Request, response: httpx2.Response, item: Mapping[str, Any]) -> None:
        assert response.status_code == (405 if item else 404), f"{request.method} {request.url.path}"
        if item:
            allowed = {method.upper() for method in item} | ({"HEAD"} if "get" in item else set())
            assert set(response.headers["allow"].split(", ")) == allowed
        self._check_problem(response)
        self._valid(response.json(), {"$ref": "#/components/schemas/Problem"})

    def _check_answer(self, request: httpx2.Request, response: httpx2.Response, answer: Json) -> None:
        for name, header in answer.get("headers", {}).items():
            assert name in response.headers or not header.get("required"), f"{name} is missing"
        kind = response.headers.get("content-type", "").partition(";")[0]
        if "content" not in answer:
            assert not response.content
            return
        kind = kind if "*/*" not in answer["content"] else "*/*"
        assert kind in answer["content"], f"{kind} is not in the document"
        if request.method == "HEAD" or kind == STREAM:
            return
        if kind == PROBLEM:
            self._check_problem(response)
        self._valid(response.json() if "json" in kind else response.text, answer["content"][kind]["schema"])

    def _check_problem(self, response: httpx2.Response) -> None:
        assert response.headers["content-type"] == PROBLEM
        problem = response.json()
        assert problem["status"] == response.status_code
        assert problem["title"]
        if response.status_code == 422:
            assert all(error["field"] for error in problem["errors"])
            assert problem["errors"]

    def _check_accepted(self, request: httpx2.Request, operation: Json) -> None:
        """Checks that the document allows a request that the server has accepted."""
        known = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "query"}
        assert set(request.url.params) <= known
        body = operation.get("requestBody")
        if body is None:
            return
        if not request.content:
            assert not body["required"]
        elif "application/json" in body["content"]:
            self._valid(json.loads(request.content), body["content"]["application/json"]["schema"])

    def _valid(self, value: Any, schema: Json) -> None:
        validator = self._validators.get(key := json.dumps(schema))
        if validator is None:
            schema = {**schema, "$ref": f"urn:document{schema['$ref']}"} if "$ref" in schema else schema
            validator = Draft202012Validator(schema, registry=self._registry, validate_formats=True)
            self._validators[key] = validator
        validator.validate(value)


def _pattern(path: str) -> str:
    """Returns the pattern of a documented path. Only its parameter `path` may contain slashes."""
    return re.sub(r"\\{path\\}", ".*", re.sub(r"\\{(?!path)\w+\\}", "[^/]+", re.escape(path)))
