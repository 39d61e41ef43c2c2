"""Constraints of rows, results of statements, and results of the search."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.dialects.postgresql.asyncpg import dialect

from tests.support.locks import Locker
from turnstream.domain.errors import StatementTooLong
from turnstream.extensions.admin.statement_list import statements
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Database, Statement, connect, retry_while_unavailable
from turnstream.storage.pool import Pool
from turnstream.storage.runs.queue import CLAIM_TURNS, Queue
from turnstream.storage.sql_files import schema_files

Row = Mapping[str, Any]

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
CHAT, OTHER_CHAT, USER, ASSISTANT, ENDED, REPLICA, NEW = (UUID(int=number) for number in range(1, 8))

# --- one valid row of each table ---------------------------------------------------------------------------------

USER_TURN: Row = {"id": USER, "chat_id": CHAT, "role": "user", "status": "complete", "ended_at": NOW}
TURN: Row = {
    "id": NEW,
    "chat_id": CHAT,
    "parent_id": USER,
    "role": "assistant",
    "status": "queued",
    "request": '{"model":"m"}',
}
RUNNING: Row = {**TURN, "status": "running", "replica": REPLICA, "attempt": 1}
COMPLETE: Row = {**TURN, "status": "complete", "stop_reason": "end_turn", "ended_at": NOW}
ROUND: Row = {"turn_id": ASSISTANT, "number": 1, "attempt": 1, "messages": 1, "started_at": NOW}
SEALED: Row = {**ROUND, "sealed_by": 1, "sealed_at": NOW, "stop_reason": "end_turn"}
BLOCK: Row = {"turn_id": ASSISTANT, "index": 0, "round": 1, "attempt": 1, "type": "text", "text": "x"}
CALL: Row = {**BLOCK, "index": 1, "type": "tool_use", "tool_use_id": "c", "name": "n"}
RESULT: Row = {**CALL, "index": 2, "type": "tool_result"}
CALL_ID: Row = {"turn_id": ASSISTANT, "round": 1, "tool_use_id": "c"}
TOOL_CALL: Row = {**CALL_ID, "name": "n", "attempt": 1, "state": "started", "started_at": NOW}
JOB: Row = {"id": NEW, **CALL_ID, "name": "n", "kind": "tool", "input": "{}", "deadline": NOW}
STOPPED_JOB: Row = {"id": NEW, "owner": "ada", **CALL_ID, "name": "n", "handle": "1"}
ASK: Row = {**CALL_ID, "name": "n", "kind": "approval", "digest": "0", "attempt": 1}
STEER: Row = {"id": NEW, "turn_id": ASSISTANT, "blocks": "[]"}
KEY: Row = {"owner": "ada", "key": "k", "digest": b"", "turn_id": ASSISTANT}
TOKEN: Row = {"id": USER, "owner": "ada", "name": "laptop", "hash": bytes(32)}
REPLICA_ROW: Row = {"id": REPLICA, "address": "here", "session": 1, "lease_until": NOW}
ACTIVITY: Row = {"replica": REPLICA, "turns": "{}"}
OPEN_TEXT: Row = {**BLOCK, "start": 0}
TICK: Row = {"replica": REPLICA, "tick": 1, "checkpoint": 0, "pieces": "[]"}
DOCUMENT: Row = {"owner": "ada", "path": "a/b.md", "content": "x", "searchable": 10}

WEBHOOK: Row = {"turn_id": ASSISTANT}
DELETED_TURN: Row = {"turn_id": NEW, "chat_id": CHAT, "place": 1, "deleted_at": NOW}
DELETED_CHAT: Row = {"owner": "ada", "chat_id": NEW, "deleted_at": NOW}
GRANT: Row = {"id": NEW, "chat_id": CHAT, "tool": "n", "digest": "0", "turn_id": ASSISTANT, "tool_use_id": "c"}
SHARE: Row = {
    "id": NEW,
    "chat_id": CHAT,
    "turn_id": ASSISTANT,
    "digest": bytes(32),
    "live": False,
    "results": False,
    "files": False,
}
MEMBER: Row = {"chat_id": CHAT, "member": "bob", "role": "read", "created_by": "owner:ada"}
WAITING: Row = {"turn_id": ASSISTANT, "asked": 1, "calls": "[]"}
CACHED: Row = {"owner": "ada", "key": bytes(32), "tool": "n", "content": "x", "size": 1, "expires_at": NOW}
TOOL_SET: Row = {"owner": "ada", "digest": bytes(32), "tools": "[]"}
AUDIT: Row = {"id": 1000, "kind": "token.created", "detail": "{}"}
BROWSER_TOKEN: Row = {"id": NEW, "owner": "ada", "hash": bytes(32), "scopes": ["read"], "expires_at": NOW}
LOGIN_SESSION: Row = {
    "id": NEW,
    "owner": "ada",
    "hash": bytes(32),
    "state": bytes(32),
    "issuer": "https://issuer.example",
    "subject": "ada",
    "scopes": ["read"],
    "roles": [],
    "expires_at": NOW,
}
OWNER_KEY: Row = {"owner": "ada", "master": bytes(8), "wrapped": bytes(100)}
CHARGE: Row = {
    "turn_id": ASSISTANT,
    "call": "1.1",
    "kind": "round",
    "owner": "ada",
    "chat_id": CHAT,
    "model": "m",
    "input_tokens": 1,
    "cache_read_tokens": 0,
    "cache_write_tokens": 0,
    "output_tokens": 1,
}
ACCOUNT: Row = {"owner": "ada", "minute": NOW, "day": NOW, "month": NOW}
RESERVATION: Row = {
    "id": NEW,
    "owner": "ada",
    "turn_id": ENDED,
    "attempt": 1,
    "call": "1.1",
    "tokens": 7,
    "cost": 0,
}
UPLOAD: Row = {"id": NEW, "owner": "ada", "digest": bytes(32), "media_type": "image/png", "content": b"x"}
CHAT_UPLOAD: Row = {"chat_id": CHAT, "upload_id": NEW}
SEARCH_CHAT: Row = {
    "chat_id": CHAT,
    "owner": "ada",
    "segment": 1000,
    "language": "simple",
    "tool_results": False,
    "form": "simple",
    "created_at": NOW,
    "added_at": NOW,
    "title": "",
}
SEARCH_TEXT: Row = {
    "chat_id": CHAT,
    "turn_id": ASSISTANT,
    "role": "assistant",
    "of_tools": False,
    "owner": "ada",
    "segment": 1000,
    "form": "simple",
    "created_at": NOW,
    "added_at": NOW,
    "words": "",
}
SEARCH_DOCUMENT: Row = {"owner": "ada", "path": "a/b.md", "words": ""}  # the row is created by a trigger

SCHEDULE = {
    "id": REPLICA,
    "owner": "ada",
    "name": "Daily",
    "request": "{}",
    "every": 60.0,
    "zone": "UTC",
    "missed": "skip",
    "grace": 1.0,
    "next_at": NOW,
}
SCHEDULE_RUN = {"schedule_id": REPLICA, "tick": NOW, "owner": "ada", "state": "pending"}
SIGN_IN: Row = {
    "owner": "ada",
    "server": "calendar",
    "version": 1,
    "tokens": "sealed",
    "signed_in_at": NOW,
    "state": b"state",
    "pending": "sealed",
    "pending_until": NOW,
}
VALID: list[tuple[str, Row]] = [
    ("chats", {"id": CHAT, "owner": "ada"}),
    ("chats", {"id": OTHER_CHAT, "owner": "ada"}),
    ("turns", USER_TURN),
    ("turns", {**RUNNING, "id": ASSISTANT}),
    ("turns", {**COMPLETE, "id": ENDED}),
    ("rounds", SEALED),
    *(("blocks", block) for block in (BLOCK, CALL, RESULT)),
    ("tool_calls", TOOL_CALL),
    ("jobs", JOB),
    ("stopped_jobs", STOPPED_JOB),
    ("sign_ins", SIGN_IN),
    ("schedules", SCHEDULE),
    ("schedule_runs", SCHEDULE_RUN),
    ("asks", ASK),
    ("steers", STEER),
    ("idempotency_keys", KEY),
    ("tokens", TOKEN),
    ("replicas", REPLICA_ROW),
    ("activity", ACTIVITY),
    ("journal_ticks", TICK),
    ("open_text", OPEN_TEXT),
    ("documents", DOCUMENT),
    ("uploads", UPLOAD),
    ("chat_uploads", CHAT_UPLOAD),
    ("webhooks", WEBHOOK),
    ("deleted_chats", DELETED_CHAT),
    ("deleted_turns", DELETED_TURN),
    ("grants", GRANT),
    ("shares", SHARE),
    ("chat_members", MEMBER),
    ("waiting_webhooks", WAITING),
    ("tool_cache", CACHED),
    ("tool_sets", TOOL_SET),
    ("audit", AUDIT),
    ("erasures", {"owner": "ada", "due_at": NOW}),
    ("browser_tokens", BROWSER_TOKEN),
    ("login_sessions", LOGIN_SESSION),
    ("owner_keys", OWNER_KEY),
    ("charges", CHARGE),
    ("accounts", ACCOUNT),
    ("reservations", RESERVATION),
    ("sweeps", {"name": "s", "due_at": NOW}),
    ("provider_rates", {"key": "k", "state": "{}"}),
    ("clock_steps", {"began": NOW, "until": NOW}),
    ("token_requirement", {"single": True}),
    ("signing_key", {"inner_pad": b"inner", "outer_pad": b"outer"}),
    ("moves", {"owner": "eve", "cell": "08", "state": "gone"}),
    ("search_owners", {"owner": "ada"}),
    ("search_segments", {"id": 1000, "owner": "ada", "chats": 1}),
    ("search_chats", SEARCH_CHAT),
    ("search_texts", SEARCH_TEXT),
    ("search_pending", {"id": 1000, "owner": "ada", "chat_id": CHAT}),
    ("search_backlog", {"chat_id": CHAT}),
]

# --- what each constraint is there to refuse ---------------------------------------------------------------------

WRONG: dict[str, list[Row]] = {
    "pk_chats": [{"id": CHAT, "owner": "bob"}],
    "pk_deleted_chats": [DELETED_CHAT],
    "pk_deleted_turns": [DELETED_TURN],
    "fk_deleted_turns_chat_id": [{**DELETED_TURN, "turn_id": USER, "chat_id": NEW}],
    "pk_grants": [GRANT],
    "fk_grants_chat_id": [{**GRANT, "id": USER, "chat_id": NEW}],
    "pk_shares": [SHARE],
    "ix_shares_digest": [{**SHARE, "id": USER}],
    "fk_shares_chat_id": [{**SHARE, "id": USER, "digest": b"other", "chat_id": NEW}],
    "fk_shares_turn_id": [{**SHARE, "id": USER, "digest": b"other", "turn_id": NEW}],
    "ck_shares_end": [{**SHARE, "id": USER, "digest": b"other", "live": True}],
    "pk_chat_members": [MEMBER],
    "fk_chat_members_chat_id": [{**MEMBER, "chat_id": NEW}],
    "ck_chat_members_role": [{**MEMBER, "member": "eve", "role": "admin"}],
    "pk_waiting_webhooks": [WAITING],
    "fk_waiting_webhooks_turn_id": [{**WAITING, "turn_id": NEW}],
    "ck_waiting_webhooks_one_state": [{**WAITING, "asked": 2, "delivered_at": NOW}],
    "pk_tool_cache": [CACHED],
    "pk_tool_sets": [TOOL_SET],
    "ck_tool_sets_digest_is_sha256": [{**TOOL_SET, "digest": b"x"}],
    "pk_audit": [AUDIT],
    "pk_erasures": [{"owner": "ada", "due_at": LATER}],
    "pk_browser_tokens": [BROWSER_TOKEN],
    "fk_browser_tokens_token_id": [{**BROWSER_TOKEN, "id": USER, "token_id": NEW}],
    "ck_browser_tokens_hash_is_sha256": [{**BROWSER_TOKEN, "id": USER, "hash": b"secret"}],
    "ck_browser_tokens_turn_has_chat": [{**BROWSER_TOKEN, "id": USER, "turn_id": ASSISTANT}],
    "pk_login_sessions": [{**LOGIN_SESSION, "hash": bytes([1] * 32), "state": bytes([1] * 32)}],
    "uq_login_sessions_hash": [{**LOGIN_SESSION, "id": USER, "state": bytes([1] * 32)}],
    "uq_login_sessions_state": [{**LOGIN_SESSION, "id": USER, "hash": bytes([1] * 32)}],
    "ck_login_sessions_sha256": [
        {**LOGIN_SESSION, "id": USER, "hash": b"secret", "state": bytes([1] * 32)},
        {**LOGIN_SESSION, "id": USER, "hash": bytes([1] * 32), "state": b"state"},
    ],
    "pk_owner_keys": [OWNER_KEY],
    "ck_owner_keys_master_is_an_id": [{**OWNER_KEY, "owner": "eve", "master": b"x"}],
    "pk_charges": [CHARGE],
    "pk_accounts": [ACCOUNT],
    "pk_reservations": [RESERVATION],
    "pk_moves": [{"owner": "eve", "cell": "07", "state": "arrived"}],
    "ck_moves_state": [{"owner": "ada", "cell": "08", "state": "lost"}],
    "ck_moves_leaving_is_held": [{"owner": "ada", "cell": "08", "state": "leaving"}],
    "pk_sweeps": [{"name": "s", "due_at": NOW}],
    "pk_provider_rates": [{"key": "k", "state": "{}"}],
    "pk_clock_steps": [{"began": NOW, "until": NOW}],
    "pk_token_requirement": [{"single": True}],
    "pk_search_owners": [{"owner": "ada"}],
    "pk_search_segments": [{"id": 1000, "owner": "bob", "chats": 1}],
    "pk_search_chats": [SEARCH_CHAT],
    "fk_search_chats_chat_id": [{**SEARCH_CHAT, "chat_id": NEW}],
    "pk_search_texts": [SEARCH_TEXT],
    "fk_search_texts_turn": [{**SEARCH_TEXT, "turn_id": NEW}],
    "pk_search_pending": [{"id": 1000, "owner": "bob", "chat_id": NEW}],
    "pk_search_backlog": [{"chat_id": CHAT}],
    "fk_search_backlog_chat_id": [{"chat_id": NEW}],
    "ck_token_requirement_one_row": [{"single": False}],
    "ck_tool_cache_key_is_sha256": [{**CACHED, "key": b"x"}],
    "ck_asks_elicitation_has_question": [
        {**ASK, "tool_use_id": "d", "kind": "elicitation"},
        {**ASK, "tool_use_id": "d", "kind": "sign_in"},
        {**ASK, "tool_use_id": "d", "question": "{}"},
    ],
    "pk_documents": [DOCUMENT],
    "pk_search_documents": [SEARCH_DOCUMENT],
    "fk_search_documents_document": [{**SEARCH_DOCUMENT, "path": "b.md"}],
    "pk_webhooks": [WEBHOOK],
    "fk_webhooks_turn_id": [{**WEBHOOK, "turn_id": NEW}],
    "ck_webhooks_one_state": [{"turn_id": ENDED, "delivered_at": NOW}],
    "pk_uploads": [{**UPLOAD, "owner": "bob"}],
    "pk_chat_uploads": [CHAT_UPLOAD],
    "fk_chat_uploads_chat_id": [{**CHAT_UPLOAD, "chat_id": NEW}],
    "fk_chat_uploads_upload_id": [{**CHAT_UPLOAD, "upload_id": CHAT}],
    "uq_uploads_owner_digest": [{**UPLOAD, "id": USER}],
    "ck_uploads_digest_is_sha256": [{**UPLOAD, "id": USER, "digest": b"x"}],
    "ck_documents_path_shape": [{**DOCUMENT, "path": path} for path in ("", "/a", "a//b", "x" * 1025)],
    "pk_journal_ticks": [TICK],
    "pk_open_text": [OPEN_TEXT],
    "pk_activity": [ACTIVITY],
    "fk_activity_replica": [{**ACTIVITY, "replica": NEW}],
    "pk_replicas": [{**REPLICA_ROW, "session": 2}],
    "uq_replicas_session": [{**REPLICA_ROW, "id": NEW}],
    "pk_tokens": [{**TOKEN, "name": "phone"}],
    "uq_tokens_name": [{**TOKEN, "id": NEW}],
    "ck_tokens_hash_is_sha256": [{**TOKEN, "id": NEW, "name": "phone", "hash": b"secret"}],
    "pk_turns": [{**TURN, "id": ASSISTANT}],
    "fk_turns_chat_id": [{**USER_TURN, "id": NEW, "chat_id": NEW}],
    "fk_turns_parent_is_of_the_other_role": [
        {**TURN, "parent_id": ENDED},
        {**TURN, "chat_id": OTHER_CHAT},
        {**TURN, "parent_id": REPLICA},
        {**USER_TURN, "id": NEW, "parent_id": USER},
    ],
    "ck_turns_role": [{**COMPLETE, "role": "system", "request": None}],
    "ck_turns_status": [{**TURN, "status": "lost"}],
    "ck_turns_user_turn_is_complete": [{**USER_TURN, "id": NEW, "status": "queued", "ended_at": None}],
    "ck_turns_assistant_turn_has_request": [{**TURN, "request": None}, {**USER_TURN, "id": NEW, "request": "{}"}],
    "ck_turns_assistant_turn_has_parent": [{**TURN, "parent_id": None}],
    "ck_turns_not_its_own_parent": [{**TURN, "parent_id": NEW}],
    "ck_turns_running_has_replica": [{**RUNNING, "replica": None}, {**TURN, "replica": REPLICA}],
    "ck_turns_running_has_attempt": [{**RUNNING, "attempt": 0}],
    "ck_turns_terminal_has_end": [{**COMPLETE, "ended_at": None}, {**TURN, "ended_at": NOW}],
    "ck_turns_error_says_why": [{**COMPLETE, "status": "error"}, {**COMPLETE, "error": "{}"}],
    "ck_turns_complete_has_stop_reason": [{**COMPLETE, "stop_reason": None}],
    "ck_turns_counts": [{**TURN, "attempt": -1}, {**TURN, "recoveries": -1}],
    "ck_turns_people_counts": [{**TURN, "asked": -1}, {**TURN, "arrivals": -1}],
    "pk_stopped_jobs": [STOPPED_JOB],
    "pk_jobs": [{**JOB, "tool_use_id": "d"}],
    "uq_jobs_turn_id_round_tool_use_id": [{**JOB, "id": USER}],
    "fk_jobs_turn_id": [{**JOB, "id": USER, "turn_id": NEW}],
    "ck_jobs_outcome_has_time": [{**JOB, "id": USER, "tool_use_id": "d", "outcome": "{}"}],
    "ck_jobs_over_has_no_runner": [{**JOB, "id": USER, "tool_use_id": "d", "settled_at": NOW, "replica": REPLICA}],
    "pk_sign_ins": [{**SIGN_IN, "state": b"other"}],
    "ix_sign_ins_state": [{**SIGN_IN, "server": "wiki"}],
    "ck_sign_ins_tokens_have_time": [{**SIGN_IN, "server": "wiki", "state": b"other", "tokens": None}],
    "ck_sign_ins_pending": [{**SIGN_IN, "server": "wiki", "state": b"other", "pending": None}],
    "pk_schedules": [SCHEDULE],
    "fk_schedules_chat_id": [{**SCHEDULE, "id": USER, "chat_id": NEW}],
    "ck_schedules_one_rule": [{**SCHEDULE, "id": USER, "cron": "* * * * *"}, {**SCHEDULE, "id": USER, "every": None}],
    "ck_schedules_missed": [{**SCHEDULE, "id": USER, "missed": "all"}],
    "ck_schedules_paused": [{**SCHEDULE, "id": USER, "paused": "nobody"}],
    "pk_schedule_runs": [SCHEDULE_RUN],
    "fk_schedule_runs_schedule_id": [{**SCHEDULE_RUN, "schedule_id": NEW}],
    "ck_schedule_runs_state": [{**SCHEDULE_RUN, "tick": LATER, "state": "lost"}],
    "ck_schedule_runs_started_has_turn": [{**SCHEDULE_RUN, "tick": LATER, "state": "started"}],
    "pk_asks": [ASK],
    "fk_asks_turn_id": [{**ASK, "turn_id": NEW}],
    "ck_asks_kind": [{**ASK, "tool_use_id": "d", "kind": "survey"}],
    "ck_asks_answer_has_time": [
        {**ASK, "tool_use_id": "d", "answer": "{}"},
        {**ASK, "tool_use_id": "d", "answered_at": NOW},
    ],
    "pk_steers": [STEER],
    "fk_steers_turn_id": [{**STEER, "id": USER, "turn_id": NEW}],
    "pk_blocks": [BLOCK],
    "fk_blocks_turn_id": [{**BLOCK, "turn_id": NEW}],
    "ck_blocks_counts": [{**BLOCK, "index": 9, name: -1} for name in ("index", "round", "attempt")],
    "ck_blocks_call_has_id_and_name": [
        {**block, "index": 9, "tool_use_id": "d", name: None}
        for block in (CALL, RESULT)
        for name in ("tool_use_id", "name")
    ],
    "ck_blocks_only_results_are_errors": [{**BLOCK, "index": 9, "is_error": True}],
    "ck_blocks_only_results_are_cut": [{**BLOCK, "index": 9, "whole": "x"}],
    "uq_blocks_call_ids": [{**CALL, "index": 9}],
    "uq_blocks_one_result_per_call": [{**RESULT, "index": 9}],
    "pk_idempotency_keys": [{**KEY, "turn_id": ENDED}],
    "fk_idempotency_keys_turn_id": [{**KEY, "key": "l", "turn_id": NEW}],
    "ck_idempotency_keys_key_length": [{**KEY, "key": ""}, {**KEY, "key": "x" * 256}],
    "pk_rounds": [{**ROUND}],
    "fk_rounds_turn_id": [{**ROUND, "turn_id": NEW}],
    "ck_rounds_counts": [{**ROUND, name: 0} for name in ("number", "attempt", "messages")],
    "ck_rounds_sealed_by_and_when": [
        {**SEALED, "number": 2, "sealed_at": None},
        {**ROUND, "number": 2, "sealed_at": NOW},
    ],
    "ck_rounds_sealed_by_later_attempt": [{**SEALED, "number": 2, "attempt": 2}],
    "ck_rounds_sealed_has_stop_reason": [{**SEALED, "number": 2, "stop_reason": None}],
    "ck_rounds_voided_is_not_sealed": [{**SEALED, "number": 2, "stop_reason": "voided"}],
    "uq_rounds_one_sealed": [{**SEALED, "attempt": 2, "sealed_by": 2}],
    "pk_tool_calls": [TOOL_CALL],
    "fk_tool_calls_turn_id": [{**TOOL_CALL, "turn_id": NEW}],
    "ck_tool_calls_state": [{**TOOL_CALL, "tool_use_id": "d", "state": "lost", "settled_at": NOW}],
    "ck_tool_calls_settled_has_time": [
        {**TOOL_CALL, "tool_use_id": "d", "settled_at": NOW},
        {**TOOL_CALL, "tool_use_id": "d", "state": "settled"},
    ],
}
# Exceptions: the target of a foreign key that includes the primary key, and a table that has one row and no key.
NEVER_ALONE = {"uq_turns_chat_id_id_role"}


RULE = re.compile(r"^    CONSTRAINT (\w+)|^CREATE UNIQUE INDEX (\w+)|^CREATE (?:UNLOGGED )?TABLE (\w+)", re.MULTILINE)


def rules() -> Iterator[tuple[str, str]]:
    """Returns the name of every constraint and unique index, with its table."""
    table = ""
    for file in schema_files():
        for constraint, index, begun in RULE.findall(file.read_text()):
            table = begun or table
            if rule := constraint or index:
                yield rule, table


RULES = dict(rules())


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    """A connection to a database that contains the valid rows."""
    connection = await asyncpg.connect(database_url)
    for table, row in VALID:
        await insert(connection, table, row)
    yield connection
    await connection.close()


async def insert(connection: "asyncpg.Connection[Any]", table: str, row: Row) -> None:
    names = ", ".join(f'"{name}"' for name in row)
    places = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    await connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", *row.values())


def test_every_rule_there_is_is_tried() -> None:
    assert RULES.keys() == WRONG.keys() | NEVER_ALONE


async def test_each_constraint_refuses_its_violation(rows: "asyncpg.Connection[Any]") -> None:
    for rule, wrong in WRONG.items():
        for row in wrong:
            with pytest.raises(asyncpg.IntegrityConstraintViolationError) as refused:
                await insert(rows, RULES[rule], row)
            assert refused.value.constraint_name == rule, row


async def test_no_column_that_must_be_there_can_be_left_out(rows: "asyncpg.Connection[Any]") -> None:
    valid = dict(VALID) | {"search_documents": SEARCH_DOCUMENT}
    for table in ALL_TABLES.values():
        for column in table.columns.values():
            if not column.nullable:
                with pytest.raises(asyncpg.NotNullViolationError) as refused:
                    await insert(rows, table.name, {**valid[table.name], column.name: None})
                assert refused.value.column_name == column.name


async def test_with_a_chat_goes_everything_that_belongs_to_it(rows: "asyncpg.Connection[Any]") -> None:
    await rows.execute("DELETE FROM chats WHERE id = $1", CHAT)
    for table in ("turns", "rounds", "blocks", "tool_calls", "idempotency_keys"):
        assert await rows.fetchval(f"SELECT count(*) FROM {table}") == 0, table


# --- statements ------------------------------------------------------------------------------------------------------


def test_parameters_are_found_where_sqlalchemy_finds_them() -> None:
    for sql in (
        "SELECT :a, :b, :a WHERE :c IS NULL AND x::text = :a::text AND y[:b] = ':d' AND z = CAST(:e_1 AS int[])",
        "SELECT 'a:b', a::int, :a - :b",
    ):
        compiled = text(sql).compile(dialect=dialect())  # type: ignore[no-untyped-call]
        statement = Statement(sql)
        assert statement.sql == str(compiled)
        names = compiled.positiontup
        assert names is not None
        assert statement.arguments({name: name for name in names}) == names


async def test_every_statement_is_accepted_by_the_migrated_database(database_url: str) -> None:
    found = statements()
    assert len(found) > 40
    connection = await asyncpg.connect(database_url)
    for name, statement in found.items():
        prepared = await connection.prepare(statement.sql)
        assert len(prepared.get_parameters()) == len(statement.arguments(_Anything())), name
    await connection.close()


class _Anything(dict[str, Any]):
    def __missing__(self, name: str) -> None:
        return None


class Expiries(Pool):
    """Counts how often all connections were discarded."""

    count = 0

    def expire(self, since: float) -> None:
        self.count += 1
        super().expire(since)


async def test_a_statement_that_meets_its_own_limit_closes_no_other_connection(
    rows: "asyncpg.Connection[Any]", database_url: str
) -> None:
    """Runs every statement that has its own limit while all tables are locked, with a shorter limit."""
    pool = Expiries(lambda: asyncpg.connect(database_url), 2)
    limited = {name: copy(each) for name, each in statements().items() if each.timeout is not None}
    assert len(limited) > 60
    async with Locker(rows, rows).holding(f"LOCK TABLE {', '.join(ALL_TABLES)}"):
        for name, statement in limited.items():
            statement.timeout = 0.02
            # Without a number of rows to do, a function would do nothing and return.
            values = {name: 1 if name == "most" else None for name in statement.names}
            with pytest.raises(StatementTooLong, match="exceeded its time limit"):
                await Database(pool, 30.0).rows(statement, **values)
            assert not pool.count, name
    await pool.close()


async def test_a_statement_that_is_too_long_is_not_repeated_at_once() -> None:
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        raise StatementTooLong("too long")

    with pytest.raises(StatementTooLong):
        await retry_while_unavailable(work)
    assert tries == 1


# --- the newest turn -------------------------------------------------------------------------------------------------


async def test_the_newest_turn_is_newest_by_the_databases_clock(database_url: str) -> None:
    """A replica with a slow clock makes ids smaller than the ids of earlier turns."""
    first, last = UUID(int=200), UUID(int=100)
    connection = await asyncpg.connect(database_url)
    await insert(connection, "chats", {"id": CHAT, "owner": "ada"})
    await insert(connection, "turns", {**USER_TURN, "created_at": NOW})
    for second, turn in enumerate((first, last)):
        await insert(connection, "turns", {**COMPLETE, "id": turn, "created_at": NOW + timedelta(seconds=second)})
    await connection.close()
    async with connect(database_url, size=2) as database:
        assert await Turns(database).newest("ada", CHAT) == last
        assert await Turns(database).siblings([first]) == {first: [first, last]}
        async with Exchanges(database).after(Target("ada", CHAT), None) as draft:
            assert draft.before
            assert draft.before.id == last


async def test_a_turn_that_ends_during_its_cancellation_keeps_its_end(database_url: str) -> None:
    holder, watcher = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    await insert(holder, "chats", {"id": CHAT, "owner": "ada"})
    await insert(holder, "turns", USER_TURN)
    await insert(holder, "turns", RUNNING)
    locker = Locker(holder, watcher)
    end = (
        "UPDATE turns SET status = 'complete', stop_reason = 'end_turn', replica = NULL, ended_at = now() WHERE id = $1"
    )
    async with connect(database_url, size=2) as database:
        async with locker.holding(end, NEW, commit=True):
            cancelling = asyncio.ensure_future(Turns(database).cancel("ada", CHAT, NEW))
            await locker.waiting()
        turn = await cancelling
    assert (turn.status, turn.cancel_requested) == ("complete", False)
    await holder.close()
    await watcher.close()


# --- claims ----------------------------------------------------------------------------------------------------------


async def queue_up(database_url: str, count: int) -> list[UUID]:
    connection = await asyncpg.connect(database_url)
    turns = [UUID(int=100 + number) for number in range(count)]
    await insert(connection, "chats", {"id": CHAT, "owner": "ada"})
    await insert(connection, "turns", USER_TURN)
    for turn in turns:
        await insert(connection, "turns", {**TURN, "id": turn})
    await connection.close()
    return turns


async def test_a_claim_does_not_wait_for_others_and_gets_the_remaining_turns(database_url: str) -> None:
    turns = await queue_up(database_url, 5)
    async with connect(database_url, size=2) as database:
        async with database.transaction() as slow:
            taken = await slow.rows(CLAIM_TURNS, replica=REPLICA, step=1, limit=2, suspects=1)
            rest = await Queue(database, NEW, "there", 2).claim(10)
        assert sorted([row["id"] for row in taken]) == turns[:2]
        assert rest == turns[2:]
        assert await Queue(database, NEW, "there", 2).claim(10) == []


async def test_a_claim_that_is_rolled_back_was_none(database_url: str) -> None:
    (turn,) = await queue_up(database_url, 1)
    async with connect(database_url, size=2) as database:
        with suppress(RuntimeError):
            async with database.transaction() as connection:
                assert await connection.rows(CLAIM_TURNS, replica=REPLICA, step=1, limit=1, suspects=1)
                raise RuntimeError
        assert await Queue(database, NEW, "there", 2).claim(10) == [turn]
        assert await Queue(database, NEW, "there", 2).claimed() == {turn: False}


async def test_only_the_turns_of_those_who_are_gone_are_queued_again(database_url: str) -> None:
    turns = await queue_up(database_url, 3)
    gone, alive, forgotten = (UUID(int=number) for number in (21, 22, 23))
    async with connect(database_url, size=2) as database:
        for number, replica in enumerate((gone, alive, forgotten)):
            queue = Queue(database, replica, str(replica), number)
            await queue.renew_lease(60)
            assert await queue.claim(1) == [turns[number]]
        await database.row(Statement("DELETE FROM replicas WHERE id = :replica"), replica=forgotten)
        assert sorted(await Queue(database, alive, "", 1).take_over([gone])) == [turns[0], turns[2]]
        assert await Queue(database, alive, "", 1).claimed() == {turns[1]: False}


async def test_a_replica_that_leaves_with_a_turn_that_it_could_not_release_is_found_by_its_peers(
    database_url: str,
) -> None:
    (turn,) = await queue_up(database_url, 1)
    async with connect(database_url, size=2) as database:
        leaving, peer = Queue(database, REPLICA, "here", 1), Queue(database, NEW, "there", 2)
        await leaving.renew_lease(60)
        await leaving.claim(1)
        await leaving.leave()
        assert [each.id for each in await peer.peers()] == [REPLICA]
        assert await peer.take_over([REPLICA]) == [turn]
