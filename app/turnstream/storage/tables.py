"""The tables of the core, each with its ownership. An extension lists its tables in its module `tables`. The columns
are in the files `schema.sql` (all_tables.py).

A column is `json`, never `jsonb`, if a provider may need its value back byte for byte: `jsonb` reorders keys and
rewrites numbers. The database stores the text verbatim; the code that owns the column encodes and decodes it.
"""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    "tokens": owned("owner", "credential", closed=True),
    # The keys that encrypt the secrets of owners, wrapped by the master key that `master` names
    # (turnstream.libraries.secrets). An erasure deletes the owner's key, so that nobody can decrypt the secrets.
    "owner_keys": owned("owner", "credential", closed=True),
    # The audit trail, which outlasts its owners. Triggers record tokens, approvals and grants (`audit_token`, …).
    "audit": owned("owner", "trail", closed=True),
    # Requests of owners to erase all their data. A replica claims a due request until `claimed_until`.
    "erasures": owned("owner", "state", closed=True),
    # Short-lived tokens. If a stored token is deleted, the short-lived tokens that were issued for it are deleted too.
    "browser_tokens": owned("owner", "credential"),
    # Sessions of people who signed in at an issuer, found by the SHA-256 of the session's cookie. `state` is the digest
    # of the login's state, so that each login creates only one session. `sid` is the issuer's id of the session.
    "login_sessions": owned("owner", "credential", closed=True),
    # Owners who have moved from or to another cell, named by `cell`. Until `held_until` the move is in progress:
    # triggers refuse the rows that requests insert (`refuse_owner_who_moves`).
    "moves": owned("owner", closed=True),
    # Gets its only row when the first token is created. From then on the server requires tokens for ever.
    "token_requirement": owned(None),
    # `of_turn`: the turn whose agent call this chat works on; null for a chat of a person. Lists omit chats of agents.
    "chats": owned("owner", "content"),
    # Deleted chats, which the owner's feed shows. A trigger (`keep_deleted_chat`) inserts the rows; a sweep removes
    # them.
    "deleted_chats": owned("owner", "state"),
    # `parent_role`: through it, a composite foreign key requires a parent of the other role in the same chat.
    # `tool_set`: the digest of the turn's tools, if `request` does not contain the tools. `deaths`: the number of
    # process deaths that the turn may have caused. `declined`: the replicas that cannot run the turn. If no replica can
    # run it, the list contains the last replica several times, and that replica tries again after `declined_until`.
    # `asked`: the number of asks and jobs that the turn has ever had. `arrivals`: the number of answers, steers and
    # outcomes of jobs that have reached the open turn. `forked_from`: the turn that a fork copied; it may be deleted by
    # now. `lineage`: the numbers of the turn's attempts, oldest first; null if `attempt` has never changed
    # (`keep_lineage`). `queue_owner`: the owner of an open turn, which the fair queue reads (`keep_owner_of_turn`).
    "turns": owned("chat_id", "content"),
    # The tools of requests; each owner's set of tools is stored once. `digest` is the SHA-256 of the owner and the text
    # of the tools. `used_at` is at most an hour before the last use (`keep_tool_set`).
    "tool_sets": owned("owner", "state"),
    # Deleted turns of chats that still exist, for readers of the chat and of the owner's feed. `place` is the place
    # that the turn had (app/turnstream/storage/chats/chat_changes.py). If a queued turn is edited or moved, it gets a
    # new place, and a row here with its old place.
    "deleted_turns": owned("chat_id", "state"),
    # `cost`: calculated with the prices at the time when the round was sealed or voided.
    "rounds": owned("turn_id", "content"),
    # The ledger: the tokens and cost of each model call. The ledger outlasts chats and turns, because a deletion must
    # not hide costs. `call` is "number.attempt" of a round, or the id of a call outside of rounds, such as the call for
    # a title. `root_turn` is the root of the family that shares its budgets, if the turn has a family.
    "charges": owned("owner", "state"),
    # The use of each rate by an owner, reservations included. The columns `minute`, `day` and `month` contain the times
    # (UTC) when the present periods began. `running_turns` limits how many turns of the owner the queue runs at once.
    "accounts": owned("owner", "state"),
    # The maximum use that is reserved for a running model call; 0 if no plan limits the call. The charge of the call
    # replaces its reservation, or the reservation is released. If the process dies before the reply begins,
    # `request_tokens` and `request_cost` are charged.
    "reservations": owned("owner"),
    # `whole`: the full text of a result of which the model gets only a part; it is read only on demand. `client_data`:
    # the data that a tool returned for clients; no model receives these data.
    "blocks": owned("turn_id", "content"),
    # `preliminary`: the preliminary output of the tool, an object with `text` and `data`.
    "tool_calls": owned("turn_id", "content"),
    # A call that runs apart from its turn. A runner owns the job while `replica` names a live replica. `attempt` counts
    # the runs and fences their writes. `handle` names the work that a detached job has elsewhere. A job with
    # `settled_at` is over; it has no outcome if its call got another result. `reports`: the turn does not wait for the
    # job, but applies the outcome as a steer with the job's id. `token_digest`: the digest of a token whose holder may
    # settle the job. `asked_in`: the attempt that asked a question and detached; later runs get the answer.
    # `queue_owner`: the owner of an unsettled job, set by a trigger.
    "jobs": owned("turn_id", "state"),
    # A call that waits for a person: for the result of a client tool, permission to run a tool, or the answer to a
    # question. `digest` identifies the exact input; an answer with another digest is refused. `tool_digest` identifies
    # the tool that the person sees, if the chat may remember an approval. If `approvers` are named, nobody else may
    # answer, which a trigger enforces (`check_approver`). Approval links signed before `links_revoked_at` are invalid.
    "asks": owned("turn_id", "content"),
    # A message of the user to an open turn, or the report of the job with the same id. `taken_at`: the time when the
    # turn applied the steer.
    "steers": owned("turn_id", "content"),
    # A person's permission for further calls of a tool in a chat. `digest` identifies the tool: a changed tool needs a
    # new decision. The grant outlasts the turn in which the person gave it.
    "grants": owned("chat_id", "content"),
    # A request with an Idempotency-Key, and the exchange that it created. `digest` is the digest of the request: the
    # same key with another body is refused. `turn_id`: null after the message was withdrawn.
    "idempotency_keys": owned("owner", "content"),
    # The journal: the open text of running turns. Each replica has its own log: a row for each tick, with the new
    # pieces of all its turns as JSON (turnstream.storage.runs.journal). Checkpoints have stored the text of the ticks
    # up to `checkpoint`. UNLOGGED: after a restart of Postgres a running executor still has the text. No foreign key,
    # because Postgres would lock a logged row to check it.
    "journal_ticks": owned(None),
    # The text of open blocks that checkpoints have stored, in pieces from offset `start`, until the block is closed.
    "open_text": owned("turn_id", "state"),
    # `session`: the key of the advisory lock that the replica's own session holds. `webhooks`: the events for which
    # turns write webhooks while the replica lives. `suspects`: the claimed turns that may have killed a process; beside
    # them the replica claims no other turns. `configuration`: digests of the configuration that turns can observe, and
    # limits on running turns; null for the previous version. `draining_since`: the time of an operator's order to
    # drain. `signs` (owners of statements), `reads_tool_sets` (reads tools outside of requests), `runs_jobs`,
    # `edits_queue` (edits steers) and `knows_reports` (delivers reports) are false for older versions, which lack the
    # ability. `extensions`: the active extensions, for triggers; the default, the search, is for versions that name
    # none. `master_keys`: the ids of the replica's master keys; null for a version that cannot decrypt secrets.
    "replicas": owned(None),
    # One row: the HMAC-SHA256 key, as two padded halves, with which Postgres verifies the owner that a server names.
    "signing_key": owned(None),
    # The reports that replicas write every few seconds about their running turns, only for display to people.
    "activity": owned(None),
    # Periods that the clock of Postgres has shown twice, because the clock was set back or another machine took over.
    # Times within such a period do not show the order of changes.
    "clock_steps": owned(None),
    # The sweeps, each with the time when it is due next. The replica that runs a sweep keeps postponing this time.
    "sweeps": owned(None),
    "uploads": owned("owner", "content"),
    # Files that credentials bound to a chat have uploaded for it. Messages of these credentials may refer to the files.
    "chat_uploads": owned("chat_id", "state"),
    # `searchable`: how many characters of the content the search covers, because a tsvector has at most 1 MB.
    "documents": owned("owner", "content"),
}
