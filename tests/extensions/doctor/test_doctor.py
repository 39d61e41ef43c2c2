"""`turnstream doctor` runs the checks of `serve`. It starts no server and changes nothing."""

import base64
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import structlog
from click.testing import CliRunner

from tests.support.canned import Answer, canned_server
from tests.support.server_process import clean_environment, free_port
from turnstream.cli import commands
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extensions.doctor.command import Finding, examine
from turnstream.extensions.otel import endpoint
from turnstream.extensions.watches.transactions import TransactionWatch
from turnstream.kit.ids import new_id
from turnstream.libraries.extension_metrics import OLDEST_TRANSACTION_SECONDS
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import MasterKeys, new_master_key
from turnstream.main import running
from turnstream.storage import migrations
from turnstream.storage.database import connect
from turnstream.storage.migrations import newest_revision
from turnstream.storage.row_security import admit, embedded_api_url
from turnstream.storage.runs.queue import Queue

SECRET = base64.b64encode(b"a key of 24 bytes or more").decode()
NO_KEYS: dict[str, Any] = {"anthropic_api_key": None, "openai_api_key": None, "gemini_api_key": None}


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Provides a clean environment, and restores the logging settings that the command changes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", clean_environment())
    before, silent = structlog.get_config(), structlog.make_filtering_bound_logger(logging.CRITICAL)
    monkeypatch.setattr(
        "turnstream.extensions.doctor.command.configure_logging", lambda _: structlog.configure(wrapper_class=silent)
    )
    yield
    structlog.configure(**before)


def settings(database_url: str, **given: Any) -> Settings:
    return Settings(_env_file=None, **{**NO_KEYS, "database_url": database_url, "port": free_port(), **given})


async def found(wanted: Settings, ping: bool = False) -> dict[str, list[Finding]]:
    checks: dict[str, list[Finding]] = {}
    for finding in await examine(wanted, ping):
        checks.setdefault(finding.check, []).append(finding)
    return checks


def faults(checks: dict[str, list[Finding]]) -> list[str]:
    return [each.text for findings in checks.values() for each in findings if each.status == "fault"]


async def test_a_server_that_can_start_has_no_fault(database_url: str) -> None:
    checks = await found(settings(database_url))
    assert faults(checks) == []
    assert checks["model"][0].text == "the default is demo; only --ping calls it"
    assert checks["database"][0].text.endswith(f"is at revision {newest_revision()}, the newest")
    assert {check for check, (finding, *_) in checks.items() if finding.status == "ok"} >= {"access", "tools", "clock"}


async def test_a_default_model_that_is_in_no_list_is_noted_and_no_model_is_said_to_answer(database_url: str) -> None:
    (listed,), (model, noted) = [
        (await found(settings(database_url, anthropic_api_key="sk-ant-0", model=name)))["models"]
        for name in ("claude-haiku-4-5", "nope-model")
    ]
    assert (listed.status, model.status) == ("ok", "ok")
    assert noted == Finding("models", "note", "nope-model is not listed: anthropic gets the name as it is")


@pytest.mark.parametrize(
    "given",
    [
        {"webhook_url": "https://example.org/"},
        {"params_allow": "nope"},
        {"cors_origins": "*"},
        {"plans_file": Path("gone.toml")},
        {"model": "nope"},
        {"host": "0.0.0.0"},
        {"host": "0.0.0.0", "model": "demo"},
        {"proxy_secret": "short"},
        {"metrics_token": "short"},
        {"jwt_issuer": "https://example.org/"},
        {"record": Path("/proc/nope")},
        {"login_roles": "staff"},
        {"models_file": Path("gone.toml")},
        {"title_model": "nope"},
        {
            "tools_file": Path("gone.toml"),
            "toolset": "nope.x:y",
            "signing_secret": "!",
            "http_tools_allow": "10.0.0.0/33",
        },
        {"tool_secrets": "KEY"},
        {"master_key": "short"},
        {"anthropic_api_key": "sk-0", "anthropic_base_url": "htp:/bad"},
        {"openai_api_key": "sk-0", "openai_base_url": "localhost:8000/v1"},
        {"require_encryption": True},
    ],
    ids=" ".join,
)
async def test_a_refusal_of_serve_is_a_fault_with_the_same_text(database_url: str, given: dict[str, Any]) -> None:
    wanted = settings(database_url, **given)
    with pytest.raises(ConfigError) as refused:
        async with running(wanted):
            pass
    seen = faults(await found(wanted))
    assert [sentence for sentence in refused.value.args if sentence not in seen] == []


@pytest.mark.parametrize(
    ("given", "status", "text"),
    [
        ({}, "ok", "only this machine"),
        ({"metrics_token": "x" * 16}, "ok", "need their token"),
        ({"host": "0.0.0.0"}, "note", "set TURNSTREAM_METRICS_TOKEN"),
        ({"host": "0.0.0.0", "metrics_token": "x" * 16}, "ok", "need their token"),
    ],
)
async def test_metrics_that_other_machines_can_reach_without_a_token_are_noted(
    database_url: str, given: dict[str, Any], status: str, text: str
) -> None:
    (finding,) = (await found(settings(database_url, **given)))["metrics"]
    assert finding.status == status
    assert text in finding.text


async def test_a_postgres_that_is_too_old_is_refused_in_the_same_words(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "OLDEST_POSTGRES", 1000)
    wanted = settings(database_url)
    with pytest.raises(ConfigError, match=r"a server of PostgreSQL \d+\.\d+: upgrade it to") as refused:
        async with running(wanted):
            pass
    assert str(refused.value) in faults(await found(wanted))


def test_four_wrong_settings_are_four_lines_and_exit_1(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "WEBHOOK_URL": "https://example.org/",
        "TOOLS_FILE": "gone.toml",
        "TOOLSET": "nope.x:y",
        "PLANS_FILE": "gone.toml",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"TURNSTREAM_{name}", value)
    monkeypatch.setenv("DATABASE_URL", database_url)
    done = CliRunner().invoke(commands, ["doctor", "--json"])
    report = json.loads(done.stdout)
    assert [each["text"].split(":")[0].split(" must")[0] for each in report if each["status"] == "fault"] == [
        "TURNSTREAM_PLANS_FILE",
        "TURNSTREAM_WEBHOOK_SECRET",
        "TURNSTREAM_TOOLS_FILE",
        "TURNSTREAM_TOOLSET",
    ]
    assert done.exit_code == 1


def test_wrong_settings_are_all_shown_and_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTREAM_PROT", "1")
    monkeypatch.setenv("TURNSTREAM_POOL_SIZE", "x")
    done = CliRunner().invoke(commands, ["doctor"])
    assert done.stdout.splitlines() == [
        "fault  settings     TURNSTREAM_PROT is not a setting; did you mean TURNSTREAM_PORT? Extensions add others.",
        "fault  settings     TURNSTREAM_POOL_SIZE must be a whole number.",
    ]
    assert done.exit_code == 1
    listed = CliRunner().invoke(commands, ["doctor", "--settings"])
    assert "TURNSTREAM_POOL_SIZE\n    connections to Postgres per replica\n" in listed.stdout


async def test_doctor_changes_nothing_that_serve_would_change(empty_database_url: str, tmp_path: Path) -> None:
    checks = await found(settings(empty_database_url))
    assert [(each.status, "migrates it to" in each.text) for each in checks["database"]] == [("note", True)]
    connection = await asyncpg.connect(empty_database_url)
    assert await connection.fetch("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace") == []
    await connection.close()
    checks = await found(Settings(_env_file=None, **NO_KEYS, data_dir=tmp_path / ".data", port=free_port()))
    assert (checks["database"][0].status, faults(checks)) == ("note", [])
    assert not (tmp_path / ".data").exists()


async def test_doctor_notes_that_row_level_security_is_off_or_has_gaps(database_url: str) -> None:
    checks = await found(settings(database_url))
    assert (checks["API role"][0].status, faults(checks)) == ("note", [])
    assert "row-level security is off" in checks["API role"][0].text
    api_url = await embedded_api_url(database_url)
    await admit(database_url, api_url)
    assert [each.status for each in (await found(settings(database_url, api_database_url=api_url)))["API role"]] == [
        "ok"
    ]
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(
            "ALTER FUNCTION keep_webhook() OWNER TO CURRENT_USER; GRANT CREATE ON SCHEMA public TO PUBLIC"
        )
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(f"GRANT TEMPORARY ON DATABASE {name} TO PUBLIC")
    finally:
        await connection.close()
    noted = (await found(settings(database_url, api_database_url=api_url)))["API role"]
    assert [(each.status, each.text.partition(":")[0]) for each in noted] == [
        ("note", "it may make temporary tables"),
        ("note", "it may create in the schema"),
        ("note", "functions of the tables run as a superuser or as a role with a login"),
    ]


async def test_too_few_connections_and_a_wrong_address_are_faults(database_url: str) -> None:
    checks = await found(settings(database_url, pool_size=5_000))
    assert [each.status for each in checks["connections"]] == ["fault"]
    address = f"127.0.0.1:{free_port()}/postgres"
    checks = await found(settings(f"postgresql://postgres:secret@{address}?application_name=x"))
    assert [each.status for each in (*checks["database"], *checks["access"])] == ["fault", "note"]
    assert checks["database"][0].text.startswith(f"DATABASE_URL names {address}, a database that cannot be used: ")
    checks = await found(settings(database_url, api_database_url=database_url))
    assert "to which row-level security does not apply" in checks["API role"][0].text


async def test_an_expensive_setting_of_postgres_is_a_note_with_its_remedy(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    await connection.execute(f"ALTER DATABASE {name} SET idle_session_timeout = '7min'")
    await connection.close()
    checks = await found(settings(database_url))
    texts = [each.text for each in checks["postgres"] if each.status == "note"]
    assert any("idle for 7min" in text and "idle_session_timeout to 0 for this user" in text for text in texts)


async def test_a_postgres_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.storage.database.ANSWER_TIMEOUT", 0.1)
    # the kernel accepts connections, but no process reads from them
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        checks = await found(settings(f"postgresql://postgres@127.0.0.1:{frozen.getsockname()[1]}/postgres"))
    assert checks["database"][0].status == "fault"
    assert checks["database"][0].text.endswith("cannot be used: it does not answer within 0.1 seconds")


async def test_an_address_that_is_in_use_is_a_note(database_url: str) -> None:
    async with canned_server() as server:
        checks = await found(settings(database_url, port=int(server.url.rpartition(":")[2])))
    assert [each.status for each in checks["address"]] == ["note"]
    checks = await found(settings(database_url, host="192.0.2.1", model="demo"))
    assert checks["address"][0].status == "fault"


async def test_times_that_harm_a_server_are_noted(database_url: str) -> None:
    checks = await found(settings(database_url, lease=0.5, heartbeat=70))
    assert [checks[name][0].status for name in ("lease", "heartbeat")] == ["note", "note"]
    assert not {"lease", "heartbeat"} & (await found(settings(database_url))).keys()


async def test_ping_asks_the_issuer_for_its_keys(database_url: str) -> None:
    async with canned_server() as issuer:
        keys = f"{issuer.url}/keys"
        wanted = settings(database_url, jwt_issuer=issuer.url, jwt_audience="chat", jwt_keys_url=keys)
        issuer.answer = Answer(b'{"keys": [{"kid": "a", "kty": "RSA"}]}', 200, {"content-type": "application/json"})
        assert (await found(wanted))["issuer"][0].text == f"{issuer.url}; only --ping asks for its keys"
        assert issuer.requests == []
        assert (await found(wanted, ping=True))["issuer"][0].text == f"{issuer.url} has 1 key"
        issuer.answer = Answer(b'{"keys": []}', 200, {"content-type": "application/json"})
        assert "has no key" in (await found(wanted, ping=True))["issuer"][0].text
        issuer.answer = Answer(b"", 503, {})
        assert "503" in (await found(wanted, ping=True))["issuer"][0].text
    without = settings(database_url, jwt_issuer="https://example.org/", jwt_audience="")
    assert sum("TURNSTREAM_JWT_AUDIENCE" in each for each in faults(await found(without))) == 1


async def test_ping_connects_to_the_address_of_the_traces_and_nothing_else_does(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, variable = settings(database_url, traces=True), "OTEL_EXPORTER_OTLP_ENDPOINT"
    (finding,) = (await found(wanted, ping=True))["traces"]
    assert (finding.status, "no address was checked" in finding.text) == ("ok", True)
    async with canned_server() as collector:
        address = collector.url.removeprefix("http://")
        for given in (collector.url, address):
            monkeypatch.setenv(variable, given)
            assert (await found(wanted))["traces"][0].text.endswith(f"only --ping connects to {address} ({variable})")
            (finding,) = (await found(wanted, ping=True))["traces"]
            assert (finding.status, finding.text.endswith(f"{address} ({variable}) accepts connections")) == (
                "ok",
                True,
            )
    (finding,) = (await found(wanted, ping=True))["traces"]
    assert finding.status == "fault"
    assert finding.text.startswith(f"{variable}: {address} cannot be connected to: ")
    assert (await found(wanted))["traces"][0].status == "ok"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "htp:/bad")
    (finding,) = (await found(wanted))["traces"]
    assert finding.text == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT must be a URL, such as http://localhost:4318."


async def test_traces_without_an_sdk_are_a_fault(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "find_spec", lambda _: None)
    (finding,) = (await found(settings(database_url, traces=True)))["traces"]
    assert (finding.status, "no SDK of OpenTelemetry is installed" in finding.text) == ("fault", True)


async def test_ping_calls_providers_and_the_webhook(database_url: str) -> None:
    refusal = json.dumps({"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}})
    json_type = {"content-type": "application/json"}
    async with canned_server() as provider, canned_server() as receiver:
        provider.answer = Answer(refusal.encode(), 401, json_type)
        receiver.answer = Answer(b"", 404, json_type)
        wanted = settings(
            database_url,
            anthropic_api_key="wrong",
            anthropic_base_url=provider.url,
            webhook_url=f"{receiver.url}/hook",
            webhook_secret=SECRET,
        )
        checks = await found(wanted)
        assert (provider.requests, receiver.requests, faults(checks)) == ([], [], [])
        checks = await found(wanted, ping=True)
    assert "invalid x-api-key" in checks["provider anthropic"][0].text
    assert checks["webhook"][0].text.startswith("the receiver answered 404 to a signed `ping`")
    assert json.loads(receiver.requests[0].body)["type"] == "ping"
    assert "webhook-signature" in receiver.requests[0].headers
    assert json.loads(provider.requests[0].body)["max_tokens"] == 16


async def test_a_transaction_that_is_long_open_is_noted(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.extensions.doctor.inspection._LONG_OPEN", 0.0)
    connection = await asyncpg.connect(database_url)
    async with connection.transaction():
        async with connect(database_url, size=1) as database:
            await TransactionWatch(database).look()
        assert OLDEST_TRANSACTION_SECONDS._value.get() > 0
        notes = [each.text for each in (await found(settings(database_url)))["postgres"] if each.status == "note"]
    await connection.close()
    assert any(note.startswith("a transaction is open for 0 minutes") for note in notes)


async def test_doctor_finds_secrets_in_plain_text_and_undecryptable_ones(database_url: str) -> None:
    old, new = new_master_key(), new_master_key()

    async def secrets(key: str | None) -> list[tuple[str, str]]:
        found_ = (await found(settings(database_url, master_key=key)))["secrets"]
        return [(each.status, each.text.partition(":")[0]) for each in found_]

    plain, encrypted = (
        ("note", "those of requests are stored in plain text"),
        ("ok", "are encrypted before they are stored"),
    )
    lost = ("fault", "those of 1 owners cannot be decrypted")
    assert await secrets(None) == [plain]
    assert await secrets(old) == [encrypted]
    assert (await secrets("nonsense"))[0][0] == "fault"
    async with connect(database_url, size=1) as database:
        await OwnerKeys(database, MasterKeys.read(old)).find_or_create("ada")
        assert await secrets(None) == [lost, plain]
        assert await secrets(new) == [lost]
        assert await secrets(f"{new},{old}") == [("note", "an earlier master key wraps the keys of 1 owners")]
        queue = Queue(database, new_id(), "here:1", 1, master_keys=MasterKeys.read(new).ids)
        await queue.renew_lease(60)
        assert await secrets(old) == [("note", "some may stay plain while the replica here")]


async def test_the_name_of_an_agent_that_a_model_has_is_a_fault(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "tools.toml"
    file.write_text('[agents.demo]\ndescription = "d"\nprompt = "p"\nas_model = true\n')
    checks = await found(settings(database_url, tools_file=file))
    assert faults(checks) == ["The agent demo must have another name: a model has this one."]
