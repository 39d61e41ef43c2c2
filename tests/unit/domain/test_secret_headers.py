"""Headers of HTTP tools, as clients see them."""

from typing import Any

import pytest

from turnstream.domain.secret_headers import MASK, has_secrets, masked_settings, masked_tool
from turnstream.libraries.secrets.credentials import credentials_of, needs_sealing, server_of, with_credentials

SECRET = {"name": "crm", "url": "https://crm.example/", "headers": {"Authorization": "Bearer tok", "x": "y"}}
MCP = {"type": "mcp", "server_url": "https://crm.example/", "authorization": "tok", "headers": {"x": "y"}}
SHOWN_MCP = {**MCP, "authorization": MASK, "headers": {"x": MASK}}
SHOWN = {**SECRET, "headers": {"Authorization": MASK, "x": MASK}}


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("doc_tree", "doc_tree"),
        ({"type": "client", "name": "look"}, {"type": "client", "name": "look"}),
        ({"type": "http", "headers": {}}, {"type": "http", "headers": {}}),
        (SECRET, SHOWN),
        ({"name": "crm", "http": SECRET}, {"name": "crm", "http": SHOWN}),
        ({"type": "provider", "definition": MCP}, {"type": "provider", "definition": SHOWN_MCP}),
        (
            {"headers": {"a": "${secret:KEY}", "b": "Bearer ${secret:KEY}", "c": "tok ${secret:KEY} x"}},
            {"headers": {"a": "${secret:KEY}", "b": "Bearer ${secret:KEY}", "c": MASK}},
        ),
    ],
)
def test_the_values_of_headers_are_masked_but_for_names_of_secrets(stored: Any, shown: Any) -> None:
    assert masked_tool(stored) == shown


def test_settings_are_shown_with_masked_tools() -> None:
    assert masked_settings({"model": "m", "tools": ["doc_tree", SECRET]}) == {
        "model": "m",
        "tools": ["doc_tree", SHOWN],
    }
    assert masked_settings({"model": "m"}) == {"model": "m"}


def test_the_credentials_of_servers_in_parameters_are_masked() -> None:
    server = {"type": "url", "url": "https://crm.example/", "authorization_token": "tok"}
    params = {"max_tokens": 5, "mcp_servers": [server]}
    shown = {"max_tokens": 5, "mcp_servers": [{**server, "authorization_token": MASK}]}
    assert masked_settings({"params": params}) == {"params": shown}


@pytest.mark.parametrize("tool", [SECRET, SHOWN, MCP, SHOWN_MCP, {"type": "provider", "definition": MCP}])
def test_a_tool_with_a_secret_or_its_mask_has_secrets(tool: Any) -> None:
    assert has_secrets(tool)


@pytest.mark.parametrize("tool", ["doc_tree", {"headers": {"a": "Bearer ${secret:KEY}"}}, {"definition": {"x": "y"}}])
def test_a_tool_without_a_value_of_its_own_has_no_secrets(tool: Any) -> None:
    assert not has_secrets(tool)


@pytest.mark.parametrize("servers", [None, "x", ["x"], {"authorization": "x"}, []])
def test_a_parameter_of_another_form_stays(servers: Any) -> None:
    assert masked_settings({"params": {"mcp_servers": servers}}) == {"params": {"mcp_servers": servers}}


def test_a_value_other_than_text_is_no_credential() -> None:
    for definition in ({}, {"authorization": None, "headers": None}, {"authorization": {"type": "oauth"}}):
        assert credentials_of(definition) == {}
        assert with_credentials(definition, {}) == definition


def test_credentials_are_put_back_in_their_places() -> None:
    values = {name: f"new {value}" for name, value in credentials_of(MCP).items()}
    assert values == {"authorization": "new tok", "headers.x": "new y"}
    changed = with_credentials(MCP, values)
    assert list(changed) == list(MCP)
    assert changed == {**MCP, "authorization": "new tok", "headers": {"x": "new y"}}


@pytest.mark.parametrize(
    ("definition", "server"),
    [(MCP, "https://crm.example/"), ({"connector_id": "mail"}, "mail"), ({"url": 5}, ""), ({"type": "custom"}, "")],
)
def test_a_credential_is_for_its_server(definition: Any, server: str) -> None:
    assert server_of(definition) == server


@pytest.mark.parametrize(
    ("value", "is_secret"), [("Bearer tok", True), ("", True), (MASK, False), ("Bearer ${secret:CRM}", False)]
)
def test_masks_and_names_of_secrets_are_no_secrets(value: str, is_secret: bool) -> None:
    assert needs_sealing(value) == is_secret
