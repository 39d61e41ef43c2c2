"""owners of open turns: the queue by owner, and places of an owner that are taken one after the other

Revision: 0038, after: 0037

A trigger gives open turns of a version that still runs their owner. The index is built by the migration 0045.
"""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

FILL = """
UPDATE turns SET queue_owner = owner FROM chats WHERE chats.id = chat_id AND status IN ('queued', 'running', 'waiting')
"""
# A turn that comes with its chat in one statement does not see it: such a one gets its owner when it is queued.
KEEP_OWNER = """
CREATE FUNCTION keep_owner_of_turn() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    NEW.queue_owner := (SELECT owner FROM chats WHERE id = NEW.chat_id);
    RETURN NEW;
END
$$
"""
TRIGGER = """
CREATE TRIGGER owner_of_turn BEFORE INSERT OR UPDATE OF status ON turns FOR EACH ROW
WHEN (NEW.queue_owner IS NULL AND NEW.status IN ('queued', 'running', 'waiting')) EXECUTE FUNCTION keep_owner_of_turn()
"""
# Moves between cells rename the owners of chats.
FOLLOW_OWNER = """
CREATE FUNCTION follow_owner_of_chat() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE turns SET queue_owner = NEW.owner WHERE chat_id = NEW.id AND status IN ('queued', 'running', 'waiting');
    RETURN NULL;
END
$$
"""
TRIGGER_OF_CHATS = """
CREATE TRIGGER owner_of_open_turns AFTER UPDATE OF owner ON chats FOR EACH ROW
WHEN (OLD.owner <> NEW.owner) EXECUTE FUNCTION follow_owner_of_chat()
"""
# The lock comes before the snapshots of the queries: each of two transactions sees what the other one has written. It is
# taken behind that of a chat that exists, and before the first row of a new one. No turn passes those of its owner that
# are queued.
TAKE_PLACE = """
CREATE FUNCTION take_place(whose text, most_running integer, most_queued integer) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(whose, 44));
    IF most_queued IS NOT NULL THEN
        RETURN most_queued > (SELECT count(*) FROM (
            SELECT FROM turns WHERE status = 'queued' AND queue_owner = whose LIMIT most_queued
        ) AS found);
    END IF;
    RETURN NOT EXISTS (SELECT FROM turns WHERE status = 'queued' AND queue_owner = whose)
        AND most_running > (SELECT count(*) FROM (
            SELECT FROM turns WHERE status = 'running' AND queue_owner = whose LIMIT most_running
        ) AS found);
END
$$
"""


def upgrade() -> None:
    op.add_column("turns", sa.Column("queue_owner", sa.Text(), nullable=True))
    op.execute(FILL)
    op.execute(KEEP_OWNER)
    op.execute(TRIGGER)
    op.execute(FOLLOW_OWNER)
    op.execute(TRIGGER_OF_CHATS)
    op.execute(TAKE_PLACE)


def downgrade() -> None:
    op.execute("DROP FUNCTION take_place(text, integer, integer)")
    op.execute("DROP TRIGGER owner_of_open_turns ON chats")
    op.execute("DROP FUNCTION follow_owner_of_chat()")
    op.execute("DROP TRIGGER owner_of_turn ON turns")
    op.execute("DROP FUNCTION keep_owner_of_turn()")
    op.drop_column("turns", "queue_owner")
