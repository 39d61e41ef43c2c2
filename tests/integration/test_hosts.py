"""A Postgres with several hosts: how a connection chooses its host."""

import asyncio
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.integration.proxy import proxied
from turnstream.domain.errors import ConfigError
from turnstream.storage.database import Statement, connect, plain_url, single_connection
from turnstream.storage.hosts import _urls_of_hosts
from turnstream.storage.migrations import upgrade


@pytest.fixture
def silent() -> Iterator[str]:
    """A host that accepts connections, but never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def with_hosts(url: str, *hosts: str) -> str:
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}{at}{','.join(hosts)}", query="target_session_attrs=read-write").geturl()


async def test_a_host_that_is_silent_does_not_keep_the_next_one_waiting(database_url: str, silent: str) -> None:
    async with proxied(database_url) as (way, _):
        url = with_hosts(way, silent, urlsplit(way).netloc.rpartition("@")[2])
        await asyncio.to_thread(upgrade, url)
        async with connect(url, size=1) as database, single_connection(url) as connection:
            assert await database.row(Statement("SELECT 1"))
            assert await connection.fetchval("SELECT 1") == 1


async def test_without_a_suitable_host_the_last_failure_is_raised(database_url: str, silent: str) -> None:
    async with proxied(database_url) as (way, _):
        here = urlsplit(way).netloc.rpartition("@")[2]
        url = with_hosts(way, here, here).replace("read-write", "standby")
        with pytest.raises(asyncpg.TargetServerAttributeNotMatched):
            async with single_connection(url):
                pass
    with pytest.raises(ConfigError, match="does not answer"):
        async with connect(with_hosts(way, silent, silent), size=1, statement_timeout=0.2):
            pass


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://a:b%40c@one/d?x=1", ["postgresql://a:b%40c@one/d?x=1"]),
        (
            "postgresql://a:b%40c@one:1,two:2/d?x=1&y=a%20b",
            ["postgresql://a:b%40c@one:1/d?x=1&y=a+b", "postgresql://a:b%40c@two:2/d?x=1&y=a+b"],
        ),
        ("postgresql://one,[::1]:2/d", ["postgresql://one/d", "postgresql://[::1]:2/d"]),
        (
            "postgresql://a@/d?host=/one,/two&port=1,2",
            ["postgresql://a@/d?host=%2Fone&port=1", "postgresql://a@/d?host=%2Ftwo&port=2"],
        ),
        ("postgresql://one,two/d?port=1", ["postgresql://one/d?port=1", "postgresql://two/d?port=1"]),
        (
            "postgresql://one,two/d?target_session_attrs=prefer-standby",
            ["postgresql://one,two/d?target_session_attrs=prefer-standby"],
        ),
        ("postgresql://one,two/d?port=1,2,3", ["postgresql://one,two/d?port=1,2,3"]),
    ],
)
def test_a_url_is_split_by_its_hosts(url: str, hosts: list[str]) -> None:
    assert _urls_of_hosts(url) == hosts


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "/db",
        "host",
        "me@host:5432/db",
        "me:p%2Fw@[::1]:5432,10.0.0.1,two:1/db?a=b/c@d",
        "me@/db?host=/run&port=5433",
    ],
)
def test_a_url_has_the_form_of_the_driver(rest: str) -> None:
    for scheme in ("postgres", "postgresql", "postgresql+asyncpg"):
        assert plain_url(f"{scheme}://{rest}") == f"postgresql://{rest}"


@pytest.mark.parametrize("character", ["/", "?", "#", "@", "[", "]"])
def test_a_password_that_is_not_encoded_is_refused_and_not_shown(character: str) -> None:
    """The driver would interpret the first half of the password as a port, and show it."""
    for url in (f"postgresql://me:secret{character}secret@host/db", f"mysql://me:secret{character}secret@host/db"):
        with pytest.raises(ConfigError, match=r"^TURNSTREAM_STANDBY_URL must be an address") as refused:
            plain_url(url, "TURNSTREAM_STANDBY_URL")
        assert "secret" not in str(refused.value)
