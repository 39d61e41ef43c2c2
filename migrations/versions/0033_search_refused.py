"""search refused: a text that Postgres refuses to index keeps no other one out of the index

Revision: 0033, after: 0032

A step that fails for what is in its texts is done again, text by text. A text that fails alone stays with the words of
Postgres in `refused`, and is left out until somebody sets that to null. A search goes on without what it cannot index.
"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

# As in migration 0032, but for what is inserted.
NEXT = """
CREATE OR REPLACE FUNCTION search_index_next(most integer) RETURNS integer LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    taken bigint[];{one}
BEGIN
    IF NOT pg_try_advisory_xact_lock('search_pending'::regclass::oid::bigint) THEN
        RETURN 0;
    END IF;
    taken := ARRAY(
        SELECT search_pending.id FROM search_pending JOIN chats ON chats.id = chat_id{wanted}
        ORDER BY search_pending.id LIMIT most FOR KEY SHARE OF chats SKIP LOCKED
    );
    IF cardinality(taken) < most THEN
        DELETE FROM search_pending WHERE NOT EXISTS (SELECT FROM chats WHERE chats.id = chat_id);
    END IF;
    {index}
END
$$
"""
ONE = """
    one bigint;"""
WANTED = """
        WHERE refused IS NULL"""
# Any other error passes, or is about all texts.
EACH = """BEGIN
        RETURN search_index_rows(taken);
    EXCEPTION WHEN data_exception OR program_limit_exceeded OR integrity_constraint_violation OR internal_error THEN
        FOREACH one IN ARRAY taken LOOP
            BEGIN
                PERFORM search_index_rows(ARRAY[one]);
            EXCEPTION
                WHEN data_exception OR program_limit_exceeded OR integrity_constraint_violation OR internal_error THEN
                    UPDATE search_pending SET refused = SQLERRM WHERE id = one;
            END;
        END LOOP;
        RETURN cardinality(taken);
    END;"""
OF = """
CREATE OR REPLACE FUNCTION search_index_of(of_owner text, most integer) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '2s' AS $$
BEGIN
    IF NOT pg_has_role(session_user, current_user, 'MEMBER')
        AND of_owner IS DISTINCT FROM current_setting('turnstream.owner', true)
        OR NOT EXISTS (SELECT FROM search_pending WHERE owner = of_owner{also})
    THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock('search_pending'::regclass::oid::bigint);
    PERFORM search_index_rows(ARRAY(
        SELECT search_pending.id FROM search_pending JOIN chats ON chats.id = chat_id
        WHERE search_pending.owner = of_owner{also}
        ORDER BY search_pending.id DESC LIMIT most FOR KEY SHARE OF chats SKIP LOCKED
    ));
EXCEPTION WHEN {errors} THEN
    RETURN;
END
$$
"""


def _execute(function: str) -> None:
    op.execute(sa.text(function.replace(":", r"\:")))


def upgrade() -> None:
    op.add_column("search_pending", sa.Column("refused", sa.Text(), nullable=True))
    _execute(NEXT.format(one=ONE, wanted=WANTED, index=EACH))
    _execute(OF.format(also=" AND refused IS NULL", errors="OTHERS"))


def downgrade() -> None:
    _execute(NEXT.format(one="", wanted="", index="RETURN search_index_rows(taken);"))
    _execute(OF.format(also="", errors="lock_not_available"))
    op.drop_column("search_pending", "refused")
