"""Columns with words of people: each is sealed, or on a list with the reason why it is not."""

from collections.abc import Mapping
from typing import Final

import pytest

from turnstream.extensions.tool_results.rows import TOOL_CACHE
from turnstream.storage import contents
from turnstream.storage.all_tables import ALL_TABLES

pytestmark = pytest.mark.extensions("documents", "encryption", "jobs", "tool_results")

SEALED: Final = {
    f"{each.table}.{column}"
    for each in (*vars(contents).values(), TOOL_CACHE)
    if isinstance(each, contents.SealedColumns)
    for column, kind in each.columns.items()
    if kind != "rows"
}
# The words of each reason are those of docs/security.md.
PLAIN: Final[Mapping[str, str]] = {
    "names of owners, members and operators": """
        accounts.owner audit.owner audit.actor browser_tokens.owner charges.owner chat_members.created_by
        chat_members.member chats.owner deleted_chats.owner documents.owner erasures.owner idempotency_keys.owner
        jobs.queue_owner login_sessions.owner login_sessions.name login_sessions.subject moves.owner owner_keys.owner
        reservations.owner schedule_runs.owner schedules.owner search_chats.owner search_documents.owner
        search_owners.owner search_pending.owner search_segments.owner search_texts.owner sign_ins.owner
        stopped_jobs.owner tokens.owner tokens.name tool_cache.owner tool_sets.owner turns.queue_owner uploads.owner
        asks.approvers""",
    "states, kinds and names of the server": """
        activity.turns asks.kind asks.name audit.kind blocks.name blocks.type browser_tokens.plan browser_tokens.roles
        browser_tokens.scopes charges.call charges.kind charges.model chat_members.plan chat_members.role grants.tool
        jobs.delivery jobs.kind jobs.name login_sessions.issuer login_sessions.plan login_sessions.roles
        login_sessions.scopes moves.cell moves.state open_text.name open_text.type provider_rates.key
        provider_rates.state replicas.address replicas.configuration replicas.extensions replicas.webhooks
        reservations.call reservations.kind reservations.model rounds.model rounds.stop_reason rounds.usage
        schedule_runs.state schedules.missed schedules.paused schedules.plan schedules.cron schedules.zone
        search_chats.form search_chats.language search_documents.language search_owners.language
        search_segments.languages search_texts.form search_texts.role shares.digest sign_ins.issuer sign_ins.scopes
        sign_ins.server sign_ins.tools stopped_jobs.name sweeps.name tokens.plan tokens.roles tokens.scopes
        tool_cache.tool tool_calls.name tool_calls.state turns.role turns.parent_role turns.status turns.stop_reason
        turns.usage uploads.media_type uploads.purpose""",
    "ids of calls, requests and work elsewhere": """
        asks.tool_use_id blocks.tool_use_id grants.tool_use_id jobs.handle jobs.tool_use_id login_sessions.sid
        open_text.tool_use_id rounds.request_id stopped_jobs.handle stopped_jobs.tool_use_id tool_calls.tool_use_id
        waiting_webhooks.calls""",
    "digests and secrets, which are sealed or hashed by themselves": """
        asks.digest asks.tool_digest browser_tokens.hash grants.digest idempotency_keys.digest jobs.token_digest
        login_sessions.hash login_sessions.state owner_keys.master owner_keys.wrapped replicas.master_keys
        sign_ins.pending sign_ins.state sign_ins.tokens signing_key.inner_pad signing_key.outer_pad tokens.hash
        tool_cache.key tool_sets.digest turns.tool_set""",
    "paths and names that are looked for": """
        browser_tokens.folder documents.path idempotency_keys.key schedules.name search_documents.path""",
    "the journal, whose pieces are sealed one by one": "journal_ticks.pieces",
    "settings and tools, as a program sends them": """
        browser_tokens.fixed chats.settings grants.when schedules.request schedules.trigger tool_sets.tools""",
    "reports of errors, and of what was done": """
        audit.detail rounds.data schedule_runs.error search_pending.refused turns.error waiting_webhooks.answer
        webhooks.answer""",
}


def test_each_column_is_sealed_or_has_a_reason() -> None:
    kinds = {"text", "json", "jsonb", "bytea"}
    stored = {
        f"{table.name}.{column.name}"
        for table in ALL_TABLES.values()
        for column in table.columns.values()
        if column.type in kinds
    }
    plain = [name for names in PLAIN.values() for name in names.split()]
    assert len(plain) == len(set(plain))
    assert set(plain).isdisjoint(SEALED)
    assert stored == {*plain, *SEALED}
