"""Each job has a new token, and the stored digest does not reveal the token. A report names the state of a job and the
place of its delivery.
"""

from dataclasses import replace
from uuid import UUID

from turnstream.domain.jobs import Job
from turnstream.extensions.jobs.tokens import digest_of_token, new_token


def test_each_token_is_new_and_its_digest_does_not_show_it() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(token.startswith("tsj_") and len(token) >= 40 for token in tokens)
    digests = {digest_of_token(token) for token in tokens}
    assert len(digests) == 100
    assert {len(digest) for digest in digests} == {32}


def test_a_report_says_where_it_is_and_in_which_state() -> None:
    turn = UUID(int=1)
    job = Job(UUID(int=2), 1, "call_1", "dig", "tool", reports=True)
    assert job.report()["state"] == "due"
    told = replace(job, settled=True, delivery="started", delivered_to=turn, delivered_round=0).report()
    assert (told["state"], told["delivery"], told["turn"], told["round"]) == ("settled", "started", turn, 0)
