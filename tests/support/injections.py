"""Statements that Postgres must refuse when they are injected, or when a session with the API's role executes them.

`{bob}` is a chat of another owner, `{approve}` is the JSON of an approval, and `{owner}` and `{actor}` are signed.
"""

from collections.abc import Mapping

REFUSED: Mapping[str, str] = {
    # objects whose names hide names of the schema
    "a temporary table": "CREATE TEMP TABLE search_pending (owner text, chat_id uuid)",
    "a temporary table of the trail": "CREATE TEMP TABLE audit (kind text)",
    "a temporary view": "CREATE TEMP VIEW signing_key AS SELECT ''::bytea AS inner_pad, ''::bytea AS outer_pad",
    "a function in the temporary schema": "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "a table": "CREATE TABLE mine (a int)",
    "a function": "CREATE FUNCTION owner_in_scope(a int) RETURNS text LANGUAGE sql AS 'SELECT 1'",
    "a schema": "CREATE SCHEMA mine",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON chats EXECUTE FUNCTION audit_grant()",
    # owners that no server has signed
    "another owner, for the session": "SELECT * FROM chats, set_config('turnstream.owner', 'bob', false)",
    "another owner, for the transaction": "SELECT set_config('turnstream.owner', 'bob', true); TABLE chats",
    "another owner in the parameter's form": "SELECT CAST('bob' AS owner_scope); TABLE chats",
    "a signature of nothing": f"SELECT * FROM chats, set_config('turnstream.owner', '{'0' * 64}:bob', true)",
    "the actor's signature for an owner": "SELECT * FROM chats, set_config('turnstream.owner', '{actor}', true)",
    "the owner's signature for another": (
        "SELECT * FROM chats, set_config('turnstream.owner', left('{owner}', 65) || 'bob', true)"
    ),
    # the audit trail
    "an entry of its own": "INSERT INTO audit (kind, detail) VALUES ('x', '{{}}')",
    "an entry that goes": "DELETE FROM audit",
    "the trail": "TABLE audit",
    "an answer without an actor": "UPDATE asks SET answered_at = now(), answer = '{approve}'",
    "an answer of another actor": (
        "UPDATE asks SET answered_at = now(), answer = '{approve}'"
        " FROM set_config('turnstream.actor', 'eve', true) AS a"
    ),
    "an answer with an owner's signature": (
        "UPDATE asks SET answered_at = now(), answer = '{approve}'"
        " FROM set_config('turnstream.actor', '{owner}', true) AS a"
    ),
    "a grant without an actor": "UPDATE grants SET revoked_at = now()",
    "a grant that is gone": "DELETE FROM grants",
    "an ask of another kind": "UPDATE asks SET kind = 'client'",
    "no triggers": "SET session_replication_role = replica",
    "a trigger that is off": "ALTER TABLE grants DISABLE TRIGGER ALL",
    # tables and functions that the role may not use
    "tokens": "SELECT hash FROM tokens",
    "the key": "TABLE signing_key",
    "moves": "TABLE moves",
    "a replica that signs nothing": "INSERT INTO replicas (id, address, session) VALUES (gen_random_uuid(), 'x', 1)",
    "the function behind the trail": "SELECT actor_in_scope()",
    "the function behind the owner": "SELECT signed_value('owner', 'bob')",
    "a sweep": "SELECT search_catch_up(1)",
    "an index of others": "SELECT search_assign('{bob}', true)",
    # rows of other owners
    "a row of another": "INSERT INTO chats (id, owner) VALUES (gen_random_uuid(), 'bob')",
    "a place in the queue of another": "UPDATE turns SET queue_owner = 'bob'",
    # other roles, and files
    "the owner's role": "SET ROLE postgres",
    "the functions' role": "SET ROLE postgres_functions",
    "a role": "CREATE ROLE mine",
    "another session's user": "SET SESSION AUTHORIZATION postgres",
    "policies that are off": "ALTER TABLE chats DISABLE ROW LEVEL SECURITY",
    "row_security": "SET row_security = off; TABLE chats",
    "files": "SELECT pg_read_file('/etc/passwd')",
    "programs": "COPY chats TO PROGRAM 'cat'",
}
