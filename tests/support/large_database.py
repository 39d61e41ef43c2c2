"""A database of any size that SQL generates: chats, turns, blocks, charges and the index of the search."""

from dataclasses import dataclass
from hashlib import md5
from uuid import UUID

from turnstream.domain.turns import TurnRequest
from turnstream.storage.rows import to_json

SAID = " ".join(f"word{number}" for number in range(1, 61))  # the text of every block


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the database. Each chat has `exchanges` exchanges, and the chats are dealt out to the `owners` in
    turn. Chat 0, which belongs to owner 0, has `long_chat` exchanges.
    """

    chats: int = 4_500
    exchanges: int = 5
    long_chat: int = 2_500
    owners: int = 90
    answer_blocks: int = 3
    recent: int = 200  # exchanges of the long chat whose charges are of the last hour
    documents: int = 9_000
    pending: bool = True  # all texts wait to be indexed again

    @property
    def turns(self) -> int:
        return 2 * (self.chats * self.exchanges + self.long_chat)

    @property
    def blocks(self) -> int:
        return self.turns // 2 * (1 + self.answer_blocks)


def row_id(kind: str, chat: int, number: int = 0) -> UUID:
    """Returns the id of a chat, or of the turn with this number in its chat. `kind` is `chat`, `user` or
    `assistant`.
    """
    return UUID(md5(f"{kind}-{chat}-{number}".encode(), usedforsecurity=False).hexdigest())


def load_sql(size: Size) -> str:
    """Returns the statements that fill a migrated database."""
    owner, apart = f"'owner-' || chat % {size.owners}", 13_500_000 // size.chats  # seconds from chat to chat
    before, request = size.long_chat - size.recent, to_json(TurnRequest("m"))
    return f"""
SET session_replication_role = replica;
CREATE FUNCTION id_of(kind text, chat int, number int) RETURNS uuid IMMUTABLE LANGUAGE sql
    AS $$ SELECT md5(kind || '-' || chat || '-' || number)::uuid $$;
CREATE TEMPORARY TABLE exchange AS
    SELECT chat, number, now() - interval '100 days' + (chat * {apart} + number) * interval '1 second' AS at
    FROM generate_series(0, {size.chats}) AS chat,
        generate_series(1, CASE chat WHEN 0 THEN {size.long_chat} ELSE {size.exchanges} END) AS number;
INSERT INTO chats (id, owner, settings, created_at, updated_at)
    SELECT id_of('chat', chat, 0), {owner}, '{{}}', min(at), max(at) FROM exchange GROUP BY chat;
INSERT INTO turns (id, chat_id, parent_id, role, status, created_at, ended_at)
    SELECT id_of('user', chat, number), id_of('chat', chat, 0),
        CASE WHEN number > 1 THEN id_of('assistant', chat, number - 1) END, 'user', 'complete', at, at
    FROM exchange;
INSERT INTO turns (id, chat_id, parent_id, role, status, request, attempt, stop_reason, created_at, ended_at)
    SELECT id_of('assistant', chat, number), id_of('chat', chat, 0), id_of('user', chat, number), 'assistant',
        'complete', '{request}', 1, 'end_turn', at, at
    FROM exchange;
INSERT INTO rounds (turn_id, number, attempt, messages, started_at, sealed_by, sealed_at, stop_reason)
    SELECT id_of('assistant', chat, number), 1, 1, 1, at, 1, at, 'end_turn' FROM exchange;
INSERT INTO charges (turn_id, call, kind, owner, chat_id, model, input_tokens, cache_read_tokens, cache_write_tokens,
        output_tokens, cost, charged_at)
    SELECT id_of('assistant', chat, number), '1.1', 'round', {owner}, id_of('chat', chat, 0), 'm',
        1, 0, 0, 1, 0.1, at - interval '60 days' FROM exchange WHERE chat > 0 OR number <= {before}
    ORDER BY at;
INSERT INTO charges (turn_id, call, kind, owner, chat_id, model, input_tokens, cache_read_tokens, cache_write_tokens,
        output_tokens, cost, charged_at)
    SELECT id_of('assistant', 0, number), '1.1', 'round', 'owner-0', id_of('chat', 0, 0), 'm', 1, 0, 0, 1, 0.1,
        now() - (({size.long_chat} - number) * 10) * interval '1 second'
    FROM generate_series({before + 1}, {size.long_chat}) AS number;
INSERT INTO tool_calls (turn_id, round, tool_use_id, name, attempt, state, started_at, settled_at)
    SELECT id_of('assistant', chat, number), 1, 'c', 'dig', 1, 'settled', at, at FROM exchange;
INSERT INTO blocks (turn_id, index, round, attempt, type, text)
    SELECT id_of('user', chat, number), 0, 0, 0, 'text', '{SAID}' FROM exchange;
INSERT INTO blocks (turn_id, index, round, attempt, type, text)
    SELECT id_of('assistant', chat, number), index, 1, 1, 'text', '{SAID}'
    FROM exchange, generate_series(0, {size.answer_blocks} - 1) AS index;
INSERT INTO uploads (id, owner, media_type, digest, content, created_at)
    SELECT id_of('upload', number, 0), 'owner-0', 'image/png', sha256(number::text::bytea), '', now() - interval '9 d'
    FROM generate_series(1, 20) AS number;
INSERT INTO blocks (turn_id, index, round, attempt, type, text, data)
    SELECT id_of('user', number, 1), 1, 0, 0, 'image', '', json_build_object('upload', id_of('upload', number, 0))
    FROM generate_series(1, 10) AS number;
INSERT INTO documents (owner, path, content, searchable)
    SELECT {owner}, 'notes/' || chat || '.md', '{SAID} ' || md5(chat::text), 1000
    FROM generate_series(1, {size.documents}) AS chat;
INSERT INTO search_documents (owner, path, language, words)
    SELECT owner, path, 'simple', search_document_vector('simple', path, content) FROM documents;
INSERT INTO search_segments (id, owner, chats) SELECT number, 'owner-' || number, 51
    FROM generate_series(0, {size.owners} - 1) AS number;
INSERT INTO search_chats (chat_id, owner, segment, language, tool_results, form, created_at, added_at, title)
    SELECT id, owner, substr(owner, 7)::bigint, 'simple', false, 'simple', created_at, created_at, '' FROM chats;
INSERT INTO search_texts (chat_id, turn_id, role, of_tools, owner, segment, form, created_at, added_at, words)
    SELECT chat_id, turns.id, role, false, owner, segment, 'simple', turns.created_at, turns.created_at,
        array_to_tsvector(ARRAY[md5(turns.id::text), role] || ARRAY(
            SELECT 'word' || number FROM generate_series(1, 60) AS number
        ))
    FROM turns JOIN search_chats USING (chat_id);
UPDATE search_segments SET vocabulary = (
    SELECT array_to_tsvector(array_agg('word' || number) || ARRAY['user', 'assistant'])
    FROM generate_series(1, 60) AS number
), covered_until = now() WHERE id > 1;
INSERT INTO search_segments (id, owner, chats, covered_until, vocabulary)
    SELECT {size.owners} + part, 'heavy', 250, now(), (
        SELECT array_to_tsvector(array_agg(md5((part * 10000 + number)::text))) FROM generate_series(1, 5000) AS number
    ) FROM generate_series(1, 120) AS part;
INSERT INTO search_pending (owner, chat_id, turn_id, added_at)
    SELECT {owner}, id_of('chat', chat, 0), id_of(role, chat, number), at
    FROM exchange, unnest(ARRAY['user', 'assistant']) AS role WHERE {size.pending} ORDER BY at;
SET session_replication_role = DEFAULT;
"""
