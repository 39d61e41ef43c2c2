"""The tables of the core, each with its ownership; those of one extension are in its module `tables`. The files
`schema.sql` have their columns (all_tables.py).

`json`, never `jsonb`, for all that a provider may need back byte for byte: `jsonb` reorders keys and rewrites numbers.
The text goes in and out verbatim; the code that owns the column encodes and decodes it.
"""

from collections.abc import Mapping
from typing import Final

from turnstream.storage.ownership import Ownership, owned

TABLES: Final[Mapping[str, Ownership]] = {
    "tokens": owned("owner", "credential", closed=True),
    # The keys that encrypt the secrets of owners, each wrapped by the master key that `master` names
    # (turnstream.libraries.secrets). Without its row nobody can decrypt what it has encrypted: an erasure deletes it.
    "owner_keys": owned("owner", "credential", closed=True),
    # The audit trail. Triggers write of tokens, approvals and grants (`audit_token`, …). It outlasts its owners.
    "audit": owned("owner", "trail", closed=True),
    # Requests of owners to erase everything of theirs. If one is due, a replica claims it until `claimed_until`.
    "erasures": owned("owner", "state", closed=True),
    # Short-lived tokens, which go with the stored token that was exchanged for them.
    "browser_tokens": owned("owner", "credential"),
    # Sessions of people who signed in at an issuer, by the SHA-256 of their cookies. `state` is the digest of the
    # login's: each makes one session. `sid` is the issuer's own name of the session. `scopes` are those of the login.
    "login_sessions": owned("owner", "credential", closed=True),
    # Owners who came from another cell or went to one, which is `cell`. Until `held_until` a move is under way:
    # triggers on what requests insert refuse it (`refuse_owner_who_moves`).
    "moves": owned("owner", closed=True),
    # One row since the first token was created: from then on the server needs tokens, also when the last one is
    # revoked.
    "token_requirement": owned(None),
    # `of_turn`: the turn whose call it works on; null for a chat of a person. Lists have only these.
    "chats": owned("owner", "content"),
    # Chats that are gone, for the feed of their owner. A trigger puts the row (`keep_deleted_chat`); it is swept by
    # age.
    "deleted_chats": owned("owner", "state"),
    # `parent_role`: a parent is of the other role, in the same chat: the composite foreign key says so. `tool_set`: the
    # digest of its tools, if the request has none itself. `deaths`: the deaths of processes that it may have caused.
    # `declined`: the replicas that cannot run it, one several times if none can, and until when the last one leaves it
    # alone. `asked`: how many calls ever waited for a person or had a job. `arrivals`: how many answers, steers and
    # outcomes of jobs have arrived while the turn was open. `forked_from`: the turn that a fork copied. It may be gone.
    # `lineage`: the numbers of its attempts, from the one on that it was made with; null if it is the only one
    # (`keep_lineage`). `queue_owner`: the owner of an open turn, for a queue that is shared out (`keep_owner_of_turn`).
    "turns": owned("chat_id", "content"),
    # The tools of requests, once for each owner. `digest` is a SHA-256 of the owner who has stored them and of their
    # text. `used_at` is behind the last use by an hour at most (`keep_tool_set`).
    "tool_sets": owned("owner", "state"),
    # Turns that were deleted from a chat that is still there, for the readers of the chat and of the owner's feed.
    # `place` is that of the turn (app/turnstream/storage/chats/chat_changes.py). A queued turn that was edited or moved
    # has left a place, too, and is there at another one.
    "deleted_turns": owned("chat_id", "state"),
    # `cost`: by the prices of the time when the round was sealed or voided.
    "rounds": owned("turn_id", "content"),
    # The ledger: what each model call has used and cost. It outlasts chats and turns, or deleting them would hide what
    # was spent. `call` is "number.attempt" of a round; the id of a call beside the turn, a summary of a result or a
    # title. `root_turn`: of a turn that was made for another one: the root of the family, whose budgets they share.
    "charges": owned("owner", "state"),
    # The use of an owner's rates: in the minute, day and month (of UTC) that began at these times, of reservations too.
    # `running_turns` is the limit for the queue.
    "accounts": owned("owner", "state"),
    # The greatest use of a running model call; 0 if no plan limits it. Its charge takes its place, or it is given back.
    # A call whose process dies before its reply begins is charged `request_tokens` and `request_cost`.
    "reservations": owned("owner"),
    # `whole`: the full text of a result of which the model gets a part. Read on demand only. `client_data`: the data of
    # a tool for clients; no model receives it.
    "blocks": owned("turn_id", "content"),
    # `preliminary`: the preliminary result of the tool: an object with `text` and `data`.
    "tool_calls": owned("turn_id", "content"),
    # A call that runs apart from its turn. A runner has it while `replica` names one that lives; `attempt` counts the
    # runs and fences their writes. `handle` is that of a job that something else runs. A job is over with `settled_at`:
    # with an outcome, or without one if its call got another result. `reports`: the turn does not wait: the outcome is
    # delivered as a report, which the turn applies as a steer with the job's id. `token_digest`: who has the token may
    # settle it. `asked_in`: the attempt that has detached with a question; the next runs get the answer. `queue_owner`:
    # of a job that is not settled; a trigger sets it.
    "jobs": owned("turn_id", "state"),
    # A call that waits for a person: for the result of a tool that the client runs, or for permission to run it.
    # `digest` is of the exact input; an answer with another digest is refused. `tool_digest`: of the tool as it was
    # shown, if an approval may be remembered for the chat. `approvers`: who alone may answer: a trigger holds each
    # answer to it (`check_approver`). `links_revoked_at`: approval links that were signed until then answer nothing.
    "asks": owned("turn_id", "content"),
    # A message of the user to an open turn, or the report of the job with its id, until the turn takes it in as blocks
    # of its own.
    "steers": owned("turn_id", "content"),
    # A person's permission for further calls of a tool in a chat. `digest` is of the tool: a changed one needs a
    # decision again. The turn of the approval may be deleted without it.
    "grants": owned("chat_id", "content"),
    # A request that carried an Idempotency-Key, and the exchange it made. `digest` is of the request, so that the same
    # key with another body is refused. `turn_id`: null once the message was withdrawn.
    "idempotency_keys": owned("owner", "content"),
    # The journal: the open text of running turns. Each replica has a log of its own, one row per tick, with the new
    # pieces of all its turns as JSON (turnstream.storage.runs.journal). Ticks up to `checkpoint` are stored, too.
    # UNLOGGED: a running executor still has the text if Postgres restarts. No foreign key: it would lock a logged row.
    "journal_ticks": owned(None),
    # The part that checkpoints have stored, in pieces from offset `start`, until the block is closed.
    "open_text": owned("turn_id", "state"),
    # `session`: the advisory lock that the replica's own session holds as long as it lives. `webhooks`: the kinds of
    # webhooks that turns leave while this replica lives. `suspects`: the turns beside which it claims nothing, because
    # they may end the process. `configuration`: digests of what turns can observe of its configuration, and the limit
    # of an owner's running turns; null for the version before. `draining_since`: when an operator has ordered that it
    # drains. `signs`: false for a version that does not sign the owners of its statements. `reads_tool_sets`: false for
    # a version that looks for tools in requests alone. `runs_jobs`: false for a version that knows no jobs.
    # `extensions`: the active extensions, for triggers. The version before names none, and has the search.
    # `edits_queue`: false for a version that applies steers as it has read them, whatever has become of them since.
    # `master_keys`: the ids of its master keys; null for a version that decrypts no secrets. `knows_reports`: false for
    # a version that knows no reports of jobs.
    "replicas": owned(None),
    # One row: the key of HMAC-SHA256 by which Postgres knows an owner that a server has named, as its two padded
    # halves.
    "signing_key": owned(None),
    # The reports of the replicas about their running turns, every few seconds: for people who ask, and for nothing
    # else.
    "activity": owned(None),
    # Periods that the clock of Postgres has shown twice, because it was set back or another machine took over. A time
    # within one has no place in the order of changes.
    "clock_steps": owned(None),
    # Sweeps, and when each is due again. The replica that does one keeps moving that time on.
    "sweeps": owned(None),
    "uploads": owned("owner", "content"),
    # Files that credentials which are bound to a chat have uploaded for it: their messages may refer to them.
    "chat_uploads": owned("chat_id", "state"),
    # `searchable`: how many characters of the content are searched: a tsvector holds 1 MB.
    "documents": owned("owner", "content"),
}
