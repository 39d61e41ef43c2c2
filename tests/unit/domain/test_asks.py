"""A digest identifies one call: it depends on the call's round and on each character of the call's input."""

from dataclasses import replace
from hashlib import sha256

from tests.support.turns import ask, call, result
from turnstream.domain.asks import digest_of
from turnstream.domain.blocks import PreliminaryOutput


def test_a_digest_is_of_the_input_as_it_was_streamed() -> None:
    spaced, tight = (replace(call(), text=text) for text in ('{"a": 1}', '{"a":1}'))
    assert digest_of(spaced) == sha256(b'1 {"a": 1}').hexdigest()
    assert digest_of(spaced) != digest_of(tight)


def test_an_id_that_is_used_again_in_another_round_is_another_call() -> None:
    assert digest_of(call(round=1)) != digest_of(call(round=2))


def test_an_input_with_half_a_surrogate_pair_has_a_digest() -> None:
    assert digest_of(replace(call(), text="\ud800")) == sha256(b"1 \xed\xa0\x80").hexdigest()


def test_a_call_and_its_result_and_ask_and_output_have_one_key() -> None:
    shown = PreliminaryOutput(2, "a", "look", "so far")
    assert {call(round=2).key, result(round=2).key, ask(round=2).key, shown.key} == {(2, "a")}
