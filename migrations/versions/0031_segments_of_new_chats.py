"""segments of new chats: a chat is assigned to a segment when it is made, with or without a title

Revision: 0031, after: 0030

As before 0030. The row of its owner's segment is locked until the commit: where the first message of a chat does that,
the messages of a burst wait for one another.
"""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

TRIGGER = """
CREATE CONSTRAINT TRIGGER chat_made_searchable AFTER INSERT ON chats DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW {when} EXECUTE FUNCTION keep_searchable_chat()
"""


def upgrade() -> None:
    op.execute("DROP TRIGGER chat_made_searchable ON chats")
    op.execute(TRIGGER.format(when=""))


def downgrade() -> None:
    op.execute("DROP TRIGGER chat_made_searchable ON chats")
    op.execute(TRIGGER.format(when="WHEN (NEW.title IS NOT NULL)"))
