"""reports: outcomes of jobs that their turn does not wait for, and how they were delivered

Revision: 0071, after: 0070

A job reports only while no replica of the version before lives: such a replica would send a report to a provider as it
is, and be refused. So a downgrade leaves no report: one that a turn has or waits for becomes a message of the user with the
line that the model gets, one that is not delivered becomes the result of its call, and a job that is not over ends as
unknown.
"""

import sqlalchemy as sa
from alembic import op

revision = "0071"
down_revision = "0070"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("reports", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("jobs", sa.Column("delivery", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("delivered_to", sa.Uuid(), nullable=True))
    op.add_column("jobs", sa.Column("delivered_round", sa.Integer(), nullable=True))
    op.add_column("steers", sa.Column("is_report", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("replicas", sa.Column("knows_reports", sa.Boolean(), server_default=sa.text("false"), nullable=False))


def downgrade() -> None:
    # With the line that this version writes before a report in a model request.
    op.execute(
        """
        CREATE FUNCTION pg_temp.as_message(report json, said text) RETURNS text LANGUAGE sql AS $$
            SELECT format('[Result of the call %s of the tool %s, which ran in the background. The tool has returned it%s;'
                    || ' the user has not written it.]' || E'\\n\\n%s',
                report->>'tool_use_id', report->>'name',
                CASE WHEN report->>'is_error' = 'true' THEN ' as an error' ELSE '' END, said)
        $$
        """
    )
    op.execute(
        "UPDATE blocks SET type = 'user_text', data = NULL, text = pg_temp.as_message(data, text) WHERE type = 'report'"
    )
    op.execute(
        """
        UPDATE steers SET blocks = json_build_array(
            CAST(blocks->0 AS jsonb) - 'data' || jsonb_build_object(
                'type', 'user_text',
                'text', pg_temp.as_message(CAST(blocks->0->>'data' AS json), blocks->0->>'text')
            )
        )
        WHERE is_report AND taken_at IS NULL
        """
    )
    # An outcome from elsewhere is not cut yet. Without one, it is unknown.
    op.execute(
        """
        UPDATE blocks SET data = NULL,
            client_data = CASE WHEN outcome #>> '{outcome,data}' IS NOT NULL THEN outcome #> '{outcome,data}' END,
            text = coalesce(left(said, 20000),
                'The server stopped while this call was running. Find out whether it took effect before you call again.'),
            whole = coalesce(outcome #>> '{outcome,whole}', CASE WHEN length(said) > 20000 THEN said END),
            is_error = outcome IS NULL OR outcome #>> '{outcome,is_error}' = 'true'
        FROM (SELECT *, outcome #>> '{outcome,text}' AS said FROM jobs WHERE reports AND delivery IS NULL) AS job
        WHERE blocks.turn_id = job.turn_id AND blocks.round = job.round AND blocks.tool_use_id = job.tool_use_id
            AND type = 'tool_result'
        """
    )
    op.execute("UPDATE jobs SET settled_at = now(), replica = NULL WHERE reports AND settled_at IS NULL")
    op.drop_column("replicas", "knows_reports")
    op.drop_column("steers", "is_report")
    op.drop_column("jobs", "delivered_round")
    op.drop_column("jobs", "delivered_to")
    op.drop_column("jobs", "delivery")
    op.drop_column("jobs", "reports")
