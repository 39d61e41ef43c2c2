from hashlib import sha256

from app.domain.asks import digest_of


def test_the_digest_is_of_the_exact_text_of_the_input() -> None:
    assert digest_of('{"a": 1}') == sha256(b'{"a": 1}').hexdigest()
    assert digest_of('{"a": 1}') != digest_of('{"a":1}')


def test_text_that_is_no_unicode_has_a_digest_too() -> None:
    assert digest_of("\ud800") == sha256(b"\xed\xa0\x80").hexdigest()
