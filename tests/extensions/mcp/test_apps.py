"""Apps of MCP servers: what clients learn of them, and the page and the policy of one."""

import json

import pytest

from tests.extensions.mcp.mcp_servers import APPS, context_with
from tests.extensions.mcp.test_offers import place_with
from turnstream.extensions.mcp.apps import origins_of, policy_of

BAD = (
    "data:",
    "*",
    "https://*",
    "https://a.example; script-src *",
    "http://a.example",
    "'self'",
    "https://a.example/x",
)


def test_a_policy_has_origins_alone() -> None:
    assert origins_of([*BAD, 5, "https://a.example", "wss://*.b.example:8443"]) == [
        "https://a.example",
        "wss://*.b.example:8443",
    ]
    assert origins_of("https://a.example") == []
    policy = policy_of(["https://a.example"], [])
    assert policy.startswith("sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; ")
    assert "connect-src https://a.example;" in policy
    assert "connect-src 'none'" in policy_of([], ["https://b.example"])


@pytest.mark.extensions("mcp")
@pytest.mark.asyncio(loop_scope="session")
async def test_clients_learn_of_an_app_and_read_its_page(database_url: str) -> None:
    async with place_with(database_url, None, APPS) as place:
        tools = place.servers.tools()
        assert sorted(tools) == ["apps__chart", "apps__trap"]  # `refresh` is for apps alone
        outcome = await tools["apps__chart"](context_with(), json.dumps({"place": "Sund"}))
        assert outcome.data["ui"] == {"server": "apps", "resourceUri": "ui://apps/chart"}
        assert "ui://" not in outcome.text  # the model reads nothing of it
        app = await place.ada.json("POST", "/api/mcp/apps", json={"server": "apps", "uri": "ui://apps/chart"})
        assert app["connect"] == ["https://api.example.com"]
        assert app["load"] == []
        assert app["frame"] == "mcp-app?connect=https%3A%2F%2Fapi.example.com"
        assert "ui/initialize" in app["html"]
        frame = await place.ada.request("GET", f"/{app['frame']}&connect=https://b.example;script-src%20*")
        assert "connect-src https://api.example.com; base-uri" in frame.headers["content-security-policy"]
        assert "frame-ancestors 'self'" in frame.headers["content-security-policy"]
        for uri, words in (("ui://apps/plain", "is no app"), ("ui://apps/none", "has refused this")):
            refused = await place.ada.json("POST", "/api/mcp/apps", 422, json={"server": "apps", "uri": uri})
            assert words in refused["detail"]
        await place.ada.json("POST", "/api/mcp/apps", 404, json={"server": "none", "uri": "ui://apps/chart"})
        await place.ada.json("POST", "/api/mcp/apps", 422, json={"server": "apps", "uri": "https://a.example"})
