"""The tables of the core, each with its ownership. The tables of an extension are in its module `tables`. The files
`schema.sql` have their columns (all_tables.py).

`json`, never `jsonb`, for all that a provider may need back byte for byte: `jsonb` reorders keys and rewrites numbers.
The database stores the text verbatim; the code that owns the column encodes and decodes it.
"""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    "tokens": owned("owner", "credential", closed=True),
    # The keys that encrypt the secrets of owners, each wrapped by the master key in `master`
    # (turnstream.libraries.secrets). Without its row the secrets are undecryptable: erasures delete it.
    "owner_keys": owned("owner", "credential", closed=True),
    # The audit trail. Triggers record tokens, approvals and grants (`audit_token`, …). It outlasts its owners.
    "audit": owned("owner", "trail", closed=True),
    # Requests of owners to erase all their data. A replica claims a due request until `claimed_until`.
    "erasures": owned("owner", "state", closed=True),
    # Short-lived tokens. The deletion of the exchanged stored token deletes its short-lived tokens.
    "browser_tokens": owned("owner", "credential"),
    # Sessions of people who signed in at an issuer, by the SHA-256 of their cookies. `state` is the digest of the
    # login's state: each login makes one session. `sid` is the issuer's name of the session.
    "login_sessions": owned("owner", "credential", closed=True),
    # Owners who came from or went to another cell, `cell`. Until `held_until` a move is in progress: triggers refuse
    # inserts of requests (`refuse_owner_who_moves`).
    "moves": owned("owner", closed=True),
    # One row since the creation of the first token. From then on, for ever, the server needs tokens.
    "token_requirement": owned(None),
    # `of_turn`: the turn with the call that the chat works on. Null for a chat of a person; lists have only these.
    "chats": owned("owner", "content"),
    # Deleted chats, for the feed of their owner. A trigger (`keep_deleted_chat`) inserts rows; a sweep removes these.
    "deleted_chats": owned("owner", "state"),
    # `parent_role`: the composite foreign key requires a parent of the other role in the same chat. `tool_set`: the
    # digest of its tools, if the request does not contain the tools. `deaths`: the process deaths that the turn may
    # have caused. `declined`: the replicas that cannot run the turn. If no replica can, the list has the last replica
    # several times, and `declined_until` is the end of its pause. `asked`: the number of calls that ever waited for a
    # person or had a job. `arrivals`: the number of answers, steers and outcomes of jobs that have reached the open
    # turn. `forked_from`: the turn that a fork copied, perhaps deleted by now. `lineage`: the numbers of its attempts,
    # from its first attempt on; null if there is only one (`keep_lineage`). `queue_owner`: the owner of an open turn,
    # for the fair queue (`keep_owner_of_turn`).
    "turns": owned("chat_id", "content"),
    # The tools of requests, once for each owner. `digest` is the SHA-256 of the owner and the text of the tools.
    # `used_at` is at most an hour before the last use (`keep_tool_set`).
    "tool_sets": owned("owner", "state"),
    # Deleted turns of existing chats, for the readers of the chat and of the owner's feed. `place` is the place of the
    # turn (app/turnstream/storage/chats/chat_changes.py). An edited or moved queued turn also leaves a row for its old
    # place, and has a new place.
    "deleted_turns": owned("chat_id", "state"),
    # `cost`: by the prices at the time of the seal or the void.
    "rounds": owned("turn_id", "content"),
    # The ledger: the tokens and cost of each model call. The ledger outlasts chats and turns, because a deletion must
    # not hide costs. `call` is "number.attempt" of a round, or the id of a call beside the turn: of a summary of a
    # result or a title. `root_turn` is the root of the family with the shared budgets, if there is a family.
    "charges": owned("owner", "state"),
    # The use of an owner's rates in the minute, day and month (UTC) that began at these times, reservations included.
    # `running_turns` is the limit for the queue.
    "accounts": owned("owner", "state"),
    # The maximum use of a running model call; 0 without a limiting plan. The charge of the call replaces its
    # reservation, or the reservation is released. If the process dies before the reply begins, the charge is
    # `request_tokens` and `request_cost`.
    "reservations": owned("owner"),
    # `whole`: the full text of a result, if the model gets only a part; read only on demand. `client_data`: the data of
    # a tool for clients; no model receives these data.
    "blocks": owned("turn_id", "content"),
    # `preliminary`: the preliminary output of the tool, an object with `text` and `data`.
    "tool_calls": owned("turn_id", "content"),
    # A call that runs apart from its turn. A runner owns the job while `replica` names a live replica. `attempt` counts
    # the runs and fences their writes. `handle` belongs to a detached job. A job with `settled_at` is over: with an
    # outcome, or without if its call got another result. `reports`: the turn does not wait; the turn applies the
    # outcome as a steer with the job's id. `token_digest`: a holder of the token may settle the job. `asked_in`: the
    # attempt that has detached with a question; later runs get the answer. `queue_owner`: the owner of an unsettled
    # job, set by a trigger.
    "jobs": owned("turn_id", "state"),
    # A call that waits for a person: for the result of a client tool, or for permission to run a tool. `digest`
    # identifies the exact input; an answer with another digest is refused. `tool_digest` identifies the shown tool, if
    # the chat may remember an approval. `approvers` are the only persons who may answer, enforced by a trigger
    # (`check_approver`). Approval links signed before `links_revoked_at` are invalid.
    "asks": owned("turn_id", "content"),
    # A message of the user to an open turn, or the report of the job with the same id, until the turn applies it.
    "steers": owned("turn_id", "content"),
    # A person's permission for further calls of a tool in a chat. `digest` identifies the tool: a changed tool needs a
    # new decision. The grant outlasts the turn of the approval.
    "grants": owned("chat_id", "content"),
    # A request that carried an Idempotency-Key, and the exchange it made. `digest` is of the request, so that the same
    # key with another body is refused. `turn_id`: null after a withdrawal of the message.
    "idempotency_keys": owned("owner", "content"),
    # The journal: the open text of running turns. Each replica has its own log: a row for each tick, with the new
    # pieces of all its turns as JSON (turnstream.storage.runs.journal). Checkpoints have stored the ticks up to
    # `checkpoint`. UNLOGGED: after a restart of Postgres a running executor still has the text. No foreign key, because
    # a foreign key would lock a logged row.
    "journal_ticks": owned(None),
    # The text that checkpoints have stored, in pieces from offset `start`, until the block is closed.
    "open_text": owned("turn_id", "state"),
    # `session`: the advisory lock of the replica's own session, for its whole life. `webhooks`: the events for which
    # turns write webhooks during the life of the replica. `suspects`: the turns that may have ended a process; the
    # replica claims no other turns beside these. `configuration`: digests of the configuration that turns can observe,
    # and the limit of an owner's running turns; null for the previous version. `draining_since`: the time of an
    # operator's order to drain. False for older versions: `signs` (signed owners of statements), `reads_tool_sets`
    # (tools outside of requests), `runs_jobs` (jobs), `edits_queue` (edited steers), `knows_reports` (reports of jobs).
    # `extensions`: the active extensions, for triggers; the previous version names none, and has the search.
    # `master_keys`: the ids of its master keys; null for a version without decryption of secrets.
    "replicas": owned(None),
    # One row: the HMAC-SHA256 key with which Postgres verifies an owner named by a server, as two padded halves.
    "signing_key": owned(None),
    # The reports of replicas about their running turns, every few seconds, only for display to people.
    "activity": owned(None),
    # Periods that the clock of Postgres has shown twice, because the clock was set back or another machine took over.
    # Times within such a period do not show the order of changes.
    "clock_steps": owned(None),
    # Sweeps with their next due times. The replica that runs a sweep keeps postponing its due time.
    "sweeps": owned(None),
    "uploads": owned("owner", "content"),
    # Files of a chat, uploaded by credentials bound to the chat. Messages of these credentials may refer to the files.
    "chat_uploads": owned("chat_id", "state"),
    # `searchable`: the number of searched characters of the content, because a tsvector has at most 1 MB.
    "documents": owned("owner", "content"),
}
