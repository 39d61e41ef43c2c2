"""Tokens of jobs: each is new, and what is stored of it does not show it."""

from turnstream.domain.jobs import digest_of_token, new_token


def test_each_token_is_new_and_its_digest_does_not_show_it() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(token.startswith("tsj_") and len(token) >= 40 for token in tokens)
    digests = {digest_of_token(token) for token in tokens}
    assert len(digests) == 100
    assert {len(digest) for digest in digests} == {32}
