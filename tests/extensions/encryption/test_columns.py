"""Each column that contains texts of users is encrypted, or is listed with the reason why it is not."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pytest

from tests.extensions.encryption.test_codec import codec_of
from tests.integration.test_job_questions import give, questioned
from tests.support.harness import OWNER, Asked, Harness
from turnstream.domain.asks import AskAnswer
from turnstream.domain.blocks import Block
from turnstream.domain.chats import Chat
from turnstream.domain.kinds import TEXT
from turnstream.domain.turns import OutputSpec, TurnRequest
from turnstream.extensions.encryption.old_contents import change_contents
from turnstream.extensions.tool_results.rows import TOOL_CACHE
from turnstream.kit.ids import new_id
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.scripted import ScriptedProvider, message_of, tool_use
from turnstream.storage import contents
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.chats.chats import Chats
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.storage.database import Database, Statement
from turnstream.tools.tool import Detached, PersonQuestion, ToolContext, tool

pytestmark = pytest.mark.extensions("documents", "encryption", "jobs", "tool_results")

SEALED: Final = {
    f"{each.table}.{column}"
    for each in (*vars(contents).values(), TOOL_CACHE)
    if isinstance(each, contents.SealedColumns)
    for column, kind in each.columns.items()
    if kind != "rows"
}
# docs/security.md gives the reasons in the same words.
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
        login_sessions.hash login_sessions.state owner_keys.earlier owner_keys.master owner_keys.wrapped
        replicas.master_keys sign_ins.pending sign_ins.state sign_ins.tokens signing_key.inner_pad signing_key.outer_pad
        tokens.hash tool_cache.key tool_sets.digest turns.tool_set""",
    "paths and names that are looked for": """
        browser_tokens.folder documents.path idempotency_keys.key schedules.name search_documents.path""",
    "the journal, whose pieces are sealed one by one": "journal_ticks.pieces",
    "settings and tools, as a program sends them": """
        browser_tokens.fixed chats.settings grants.when schedules.trigger tool_sets.tools""",
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


TITLE, SYSTEM, SCHEMA, ASKED, STEERED, INPUT = "titled7", "prompted7", "described7", "sounded7", "turned7", "hoisted7"
MOORED, SHOWN, KEPT, QUESTION, ANSWER, RESULT = "moored7", "shown7", "kept7", "wondered7", "replied7", "landed7"
WORDS: Final = (TITLE, SYSTEM, SCHEMA, ASKED, STEERED, INPUT, MOORED, SHOWN, KEPT, QUESTION, ANSWER, RESULT)
SEEN: Final = asyncio.Event()
FORM_OF_ANSWER = '{"type":"object","properties":{"name":{"type":"string"}}}'


@tool(background=True)
async def moor(berth: str, context: ToolContext) -> str | Detached:
    """Moors the ship after the person has answered a question. The waiting job holds no slot."""
    if context.handle is None:
        await context.checkpoint({"kept": KEPT})
        return Detached(1, message=MOORED, question=PersonQuestion(QUESTION, 60, FORM_OF_ANSWER))
    assert context.checkpointed == {"kept": KEPT}
    assert context.answer is not None
    assert berth == INPUT
    return f"{RESULT} {context.answer.content}"


@tool(background=True)
async def wait(context: ToolContext) -> None:
    """Shows a preliminary output, and then waits until the test ends."""
    context.preliminary(SHOWN)
    await SEEN.wait()


async def found(database: Database) -> set[str]:
    """Returns the words that are stored in plain text in any row."""
    texts = ""
    for table in ALL_TABLES:
        for row in await database.rows(Statement(f"SELECT row_to_json(row)::text AS text FROM {table} AS row")):
            texts += row["text"]
    return {word for word in WORDS if word in texts}


async def asked_in_chat(harness: Harness) -> Asked:
    now = datetime.now(UTC)
    chat = Chat(new_id(), OWNER, TITLE, SYSTEM, {}, created_at=now, updated_at=now)
    output = OutputSpec(f'{{"type":"object","description":"{SCHEMA}"}}')
    request = TurnRequest("scripted", SYSTEM, tools=(moor.spec, wait.spec), output=output)
    async with Exchanges(harness.database).in_new_chat(chat, None) as draft:
        exchange = await draft.create([Block(0, 0, 0, TEXT, ASKED)], request, None)
    return Asked(chat.id, exchange.assistant_turn.id)


async def test_no_row_of_a_conversation_has_its_words(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_master_key()
    sealing, plain = codec_of(harness, key), codec_of(harness, key, seals=False)

    async def all_can(*_: object) -> None:
        """Disables the check of replicas, because the test's replica does not list the forms that it reads."""

    monkeypatch.setattr(OwnerKeys, "replica_without_key", all_can)
    harness.database.codec = sealing
    calls = message_of(tool_use("moor", {"berth": INPUT}, "a"), tool_use("wait", {}, "b"))
    async with harness.replica(ScriptedProvider([calls]), [moor, wait], listens=True) as replica:
        asked = await asked_in_chat(harness)
        replica.worker.wake()
        turn = await questioned(harness, asked)
        # the loop polls, because a change of rows causes no event
        while not (turn.preliminary and turn.status == "waiting"):
            turn = await harness.turn(asked)
            await asyncio.sleep(0.01)
        assert [job.progress for job in turn.jobs] == [MOORED, None]
        (ask,) = turn.asks
        await give(harness, asked, ask, AskAnswer("result", f'{{"action":"accept","content":{{"name":"{ANSWER}"}}}}'))
        while not any(job.settled for job in turn.jobs):
            turn = await harness.turn(asked)
            await asyncio.sleep(0.01)
        assert RESULT in f"{turn}"
        SEEN.set()
    async with Exchanges(harness.database).after(Target(OWNER, asked.chat, on_busy="steer"), None) as draft:
        await draft.steer([Block(0, 0, 0, TEXT, STEERED)])
    before = await harness.turn(asked), await Chats(harness.database).get(OWNER, asked.chat)
    assert await found(harness.database) == set()
    for codec, sealed in ((plain, False), (sealing, True)):
        harness.database.codec = codec
        steps = [step async for step in change_contents(harness.database, codec, sealed=sealed)]
        assert sum(step.left for step in steps) == 0
        assert sum([step.changed async for step in change_contents(harness.database, codec, sealed=sealed)]) == 0
        assert await found(harness.database) == (set() if sealed else set(WORDS))
        after = await harness.turn(asked), await Chats(harness.database).get(OWNER, asked.chat)
        assert after[1] == before[1]
        assert replace(after[0], steers=()) == replace(before[0], steers=())
        assert [steer.blocks for steer in after[0].steers] == [steer.blocks for steer in before[0].steers]
