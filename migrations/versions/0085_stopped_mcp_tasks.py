"""stops of tasks of MCP servers are kept until the servers have them, as those of other calls that continue elsewhere

Revision: 0085, after: 0084

The conditions of the triggers `job_stopped` and `job_deleted` have changed; they are in files.
"""

revision = "0085"
down_revision = "0084"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
