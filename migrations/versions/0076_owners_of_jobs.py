"""owners of jobs: a job that is not settled carries its owner, so that claims find the jobs of each owner by an index

Revision: 0076, after: 0075

Replicas of the version before, which run beside, do not write the column: a trigger does, and it comes in the
transaction that adds the column.
"""

import sqlalchemy as sa
from alembic import op

revision = "0076"
down_revision = "0075"
branch_labels = None
depends_on = None

KEEP = """
CREATE OR REPLACE FUNCTION keep_owner_of_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    NEW.queue_owner := (SELECT owner FROM turns JOIN chats ON chats.id = chat_id WHERE turns.id = NEW.turn_id);
    RETURN NEW;
END
$$
"""
TRIGGER = """
CREATE OR REPLACE TRIGGER owner_of_job BEFORE INSERT ON jobs FOR EACH ROW
WHEN (NEW.queue_owner IS NULL AND NEW.settled_at IS NULL) EXECUTE FUNCTION keep_owner_of_job()
"""
FILL = """
UPDATE jobs SET queue_owner = owner FROM turns JOIN chats ON chats.id = chat_id
WHERE turns.id = turn_id AND settled_at IS NULL
"""
FOLLOW = """
CREATE OR REPLACE FUNCTION follow_owner_of_chat() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE turns SET queue_owner = NEW.owner WHERE chat_id = NEW.id AND status IN ('queued', 'running', 'waiting');
    {}RETURN NULL;
END
$$
"""
FOLLOW_JOBS = """UPDATE jobs SET queue_owner = NEW.owner FROM turns
    WHERE turns.chat_id = NEW.id AND turn_id = turns.id AND settled_at IS NULL;
    """


def upgrade() -> None:
    op.add_column("jobs", sa.Column("queue_owner", sa.Text(), nullable=True))
    for sql in (KEEP, TRIGGER, FOLLOW.format(FOLLOW_JOBS), FILL):
        op.execute(sql)


def downgrade() -> None:
    op.execute(FOLLOW.format(""))
    op.execute("DROP TRIGGER IF EXISTS owner_of_job ON jobs")
    op.execute("DROP FUNCTION IF EXISTS keep_owner_of_job")
    op.drop_column("jobs", "queue_owner")
