import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.model_requests import (
    REQUEST,
    assistant,
    call,
    called_by,
    program,
    program_result,
    redacted,
    rendered,
    result,
    returned,
    server_call,
    server_result,
    text,
    thinking,
    user,
    words,
)
from turnstream.domain.blocks import Block
from turnstream.domain.history import COMPACTED
from turnstream.domain.rounds import Round
from turnstream.domain.steps import VOIDED
from turnstream.domain.turns import EarlierResults, Limits, ToolSpec, Turn, TurnRequest
from turnstream.llm.conversation.messages import (
    GIVEN_UP,
    GO_ON,
    GO_ON_FROM_BEGUN,
    NO_RESULT,
    NO_ROUND_LEFT,
    NO_USER,
    NO_WORDS,
    ONE_ROUND_LEFT,
    PROGRAM_CUT,
    ROUNDS_LEFT,
    build_messages,
)

QUESTION = user(text("Hello?"))


def sent(*path: Turn) -> list[tuple[str, list[str]]]:
    """Returns the messages in short form: a text as it is, and another block as its type and its id."""
    messages = build_messages(path)
    return [(message.role, [_short(block) for block in message.blocks]) for message in messages]


def _short(block: Block) -> str:
    if block.type in {"text", "thinking"}:
        return block.text
    return " ".join(filter(None, [block.type, block.tool_use_id]))


def after_question(*rounds: Sequence[Block], stops: Sequence[str] = ()) -> list[tuple[str, list[str]]]:
    """Returns the messages after the question, if the running turn has these rounds."""
    question, *rest = sent(QUESTION, assistant(*rounds, stops=stops))
    assert question == ("user", ["Hello?"])
    return rest


# --- the ordinary case ---------------------------------------------------------------------------------------


def test_a_question_is_one_message() -> None:
    assert sent(QUESTION, assistant()) == [("user", ["Hello?"])]


def test_a_fallback_is_asked_to_continue_a_text_begun_by_its_client() -> None:
    path = [QUESTION, assistant([text("It is")]), user(), assistant()]
    own = [("user", "Hello?"), ("assistant", "It is")]
    for model, more in ((REQUEST.model, []), ("other", [("user", GO_ON_FROM_BEGUN)])):
        messages = build_messages(path, model=model)
        assert [(message.role, message.blocks[-1].text) for message in messages] == [*own, *more]


def test_a_round_is_followed_by_the_results_of_its_calls_in_call_order() -> None:
    answered = [thinking("Hm."), text("I look."), call("a"), call("b"), result("b"), result("a")]
    assert after_question(answered, stops=["tool_use"]) == [
        ("assistant", ["Hm.", "I look.", "tool_use a", "tool_use b"]),
        ("user", ["tool_result a", "tool_result b"]),
    ]


def test_an_earlier_exchange_comes_before_the_next_question() -> None:
    assert sent(QUESTION, assistant([text("Yes.")]), user(text("And?")), assistant()) == [
        ("user", ["Hello?"]),
        ("assistant", ["Yes."]),
        ("user", ["And?"]),
    ]


def test_results_come_before_the_words_of_the_next_user_turn() -> None:
    ended = assistant([call("a"), result("a")], stops=["tool_use"])
    assert sent(QUESTION, ended, user(text("And?")), assistant())[-1] == ("user", ["tool_result a", "And?"])


def test_rounds_and_blocks_are_ordered_by_number_and_not_by_row() -> None:
    turn = assistant([text("a"), text("b")], [text("c")], stops=["pause_turn", "pause_turn"])
    mixed = replace(turn, rounds=turn.rounds[::-1], blocks=turn.blocks[::-1])
    assert sent(QUESTION, mixed)[-1] == ("assistant", ["a", "b", "c"])


# --- rounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("round", [Round(2, 1), Round(2, 1, stop_reason="voided", sealed_by=2)])
def test_a_round_that_is_not_sealed_or_was_voided_is_left_out(round: Round) -> None:
    turn = assistant([call("a"), result("a")], [text("half")], stops=["tool_use"])
    assert sent(QUESTION, replace(turn, rounds=(turn.rounds[0], round)))[-1] == ("user", ["tool_result a"])


def test_a_paused_round_is_continued_without_a_word_of_the_user() -> None:
    assert after_question([text("a"), server_call("s")], stops=["pause_turn"]) == [
        ("assistant", ["a", "server_tool_use s"])
    ]
    assert after_question([server_call("s")], [server_result("s"), text("b")], stops=["pause_turn", "pause_turn"]) == [
        ("assistant", ["server_tool_use s", "web_search_tool_result s", "b"])
    ]


def test_the_rounds_that_are_left_are_named_behind_the_results_of_each() -> None:
    def told(blocks: Sequence[Sequence[Block]], **limits: Any) -> list[str]:
        turn = assistant(*blocks, stops=["tool_use"] * len(blocks))
        asked = TurnRequest("model", tools=(ToolSpec("look", "", "{}"),), limits=Limits(tell_rounds=True, **limits))
        messages = sent(QUESTION, replace(turn, request=asked))
        return [texts[-1] for role, texts in messages if role == "user"]

    rounds = [[call("a"), result("a")], [call("b"), result("b")]]
    assert told(rounds, max_rounds=2) == [ROUNDS_LEFT.format(2), ONE_ROUND_LEFT, NO_ROUND_LEFT]
    assert told(rounds, max_calls=2) == [ROUNDS_LEFT.format(5), ROUNDS_LEFT.format(4), NO_ROUND_LEFT]
    assert told(rounds, max_rounds=2, hard_max_rounds=3)[-1] == NO_ROUND_LEFT, "the same call, the same result"
    rounds[1][1] = replace(result("b"), text="something else")
    assert told(rounds, max_rounds=2, hard_max_rounds=3)[-1] == ONE_ROUND_LEFT


def test_after_a_cut_reply_the_model_is_asked_to_continue() -> None:
    cut = text("Once upon", interrupted=True)
    assert after_question([cut], stops=["interrupted"]) == [("assistant", ["Once upon"]), ("user", [GO_ON])]


def test_the_prompt_to_continue_stays_in_later_requests() -> None:
    cut = assistant([text("Once upon", interrupted=True)], [text("a time.")], stops=["interrupted"])
    assert sent(QUESTION, cut, user(text("And?")), assistant())[1:] == [
        ("assistant", ["Once upon"]),
        ("user", [GO_ON]),
        ("assistant", ["a time."]),
        ("user", ["And?"]),
    ]


def test_a_turn_that_ended_with_a_cut_reply_has_no_prompt_to_continue() -> None:
    cut = assistant([text("Once upon", interrupted=True)], stops=["cancelled"])
    assert sent(QUESTION, cut, user(text("And?")), assistant())[1:] == [
        ("assistant", ["Once upon"]),
        ("user", ["And?"]),
    ]


def test_a_turn_whose_next_call_failed_has_a_prompt_to_continue() -> None:
    cut = assistant([text("Once upon", interrupted=True)], stops=["interrupted"])
    cut = replace(cut, rounds=(*cut.rounds, Round(2, 1, stop_reason="voided")))
    assert sent(QUESTION, cut, user(text("And?")), assistant())[-1] == ("user", [GO_ON, "And?"])


# --- calls and results ---------------------------------------------------------------------------------------


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    messages = build_messages([QUESTION, assistant([call("a")], stops=["tool_use"])])
    (missing,) = rendered(messages)[-1]["content"]
    assert missing == {"type": "tool_result", "tool_use_id": "a", "content": NO_RESULT, "is_error": True}


def test_a_result_without_a_call_is_left_out() -> None:
    assert after_question([text("Yes."), result("a")])[0] == ("assistant", ["Yes."])
    assert sent(user(text("Hello?"), result("a")), assistant()) == [("user", ["Hello?"])]


def test_a_result_belongs_to_the_call_of_its_own_round() -> None:
    rounds = [call("a"), result("a", "first")], [call("a"), result("a", "second")]
    messages = build_messages([QUESTION, assistant(*rounds, stops=["tool_use", "tool_use"])])
    assert [message.blocks[0].text for message in messages if message.role == "user"] == ["Hello?", "first", "second"]


def test_a_call_that_comes_twice_in_a_reply_is_sent_once() -> None:
    assert after_question([call("a"), call("a"), result("a")])[0] == ("assistant", ["tool_use a"])


def test_words_after_the_last_call_are_left_out() -> None:
    blocks = [text("x"), call("a"), text("y"), call("b"), text("z"), thinking("w")]
    for stop in ["tool_use", "interrupted"]:
        assert after_question(blocks, stops=[stop])[0] == ("assistant", ["x", "tool_use a", "y", "tool_use b"])


def test_a_server_tool_after_the_last_call_stays_unless_the_reply_was_cut() -> None:
    blocks = [call("a"), server_call("s"), result("a")]
    assert after_question(blocks, stops=["tool_use"])[0] == ("assistant", ["tool_use a", "server_tool_use s"])
    assert after_question(blocks, stops=["interrupted"])[0] == ("assistant", ["tool_use a"])


# --- data that the provider refuses --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        text(""),
        text(" \n", interrupted=True),
        thinking("Hm.", signature=""),
        thinking("Hm.", interrupted=True),
        replace(thinking("Hm."), data=None),
        redacted(interrupted=True),
        call("a", '{"n":', interrupted=True),
        server_call("s", interrupted=True),
    ],
)
def test_a_block_the_provider_would_refuse_is_left_out(block: Block) -> None:
    assert after_question([block, text("Yes.")])[0] == ("assistant", ["Yes."])


def test_thinking_without_a_word_is_whole_when_it_is_signed() -> None:
    assert after_question([thinking(""), text("Yes.")])[0] == ("assistant", ["", "Yes."])


def test_blanks_between_words_go_back_but_a_message_of_blanks_does_not() -> None:
    assert after_question([text("\n\n"), thinking("Hm."), text("Yes.")])[0] == ("assistant", ["\n\n", "Hm.", "Yes."])
    blank = assistant([thinking("Hm."), text("\n\n")])
    assert sent(QUESTION, blank, user(text("And?")), assistant()) == [("user", ["Hello?", "And?"])]
    assert sent(user(text(" "), text("Hello?")), assistant()) == [("user", ["Hello?"])]


def test_a_message_does_not_end_in_thinking_unless_it_is_to_be_continued() -> None:
    blocks = [text("Yes."), thinking("Hm."), redacted()]
    assert after_question(blocks)[0] == ("assistant", ["Yes."])
    assert after_question(blocks, stops=["pause_turn"])[0] == ("assistant", ["Yes.", "Hm.", "redacted_thinking"])


@pytest.mark.parametrize(
    ("path", "messages"),
    [
        ([assistant()], [("user", [NO_USER])]),
        (
            [assistant([text("Hi.")]), user(text("?")), assistant()],
            [("user", [NO_USER]), ("assistant", ["Hi."]), ("user", ["?"])],
        ),
        (
            [QUESTION, assistant([text("a")]), assistant()],
            [("user", ["Hello?"]), ("assistant", ["a"]), ("user", [GO_ON])],
        ),
        ([user(), assistant()], [("user", [NO_USER])]),
        ([user(text(" \n")), assistant()], [("user", [NO_WORDS])]),
        (
            [QUESTION, assistant([text("a")]), user(text(" ")), assistant()],
            [("user", ["Hello?"]), ("assistant", ["a"]), ("user", [NO_WORDS])],
        ),
    ],
)
def test_there_is_always_a_user_to_answer(path: list[Turn], messages: list[Any]) -> None:
    assert sent(*path) == messages


# --- server tools --------------------------------------------------------------------------------------------


def test_a_server_tool_may_be_answered_in_the_next_round_after_our_own_results() -> None:
    rounds = [server_call("s"), call("a"), result("a")], [server_result("s"), text("Yes.")]
    assert after_question(*rounds, stops=["tool_use"])[:3] == [
        ("assistant", ["server_tool_use s", "tool_use a"]),
        ("user", ["tool_result a"]),
        ("assistant", ["web_search_tool_result s", "Yes."]),
    ]


def test_no_prompt_is_added_while_a_server_tool_is_at_work() -> None:
    assert after_question([server_call("s")], stops=["tool_use"]) == [("assistant", ["server_tool_use s"])]


@pytest.mark.parametrize("stop", ["max_tokens", "cancelled", "end_turn"])
def test_a_server_tool_that_will_not_be_answered_any_more_is_left_out(stop: str) -> None:
    assert after_question([text("a"), server_call("s")], stops=[stop])[0] == ("assistant", ["a"])


def test_a_server_tool_still_at_work_when_its_turn_ended_is_left_out() -> None:
    paused = assistant([text("a"), server_call("s")], stops=["pause_turn"])
    assert sent(QUESTION, paused, user(text("And?")), assistant())[1] == ("assistant", ["a"])


def test_an_answer_of_a_server_tool_without_its_call_is_left_out() -> None:
    blocks = [server_result("s"), server_call("t"), server_result("t"), server_result("t"), text("a")]
    assert after_question(blocks)[0] == ("assistant", ["server_tool_use t", "web_search_tool_result t", "a"])


# --- programs: code at the provider that calls our tools --------------------------------------------------------------


def by_program(*ids: str) -> list[Block]:
    return [block for id in ids for block in (called_by("prog", id), result(id, f"seen {id}"))]


def test_a_program_stays_while_its_calls_come_in_one_reply_after_the_other() -> None:
    rounds = [text("I compute."), program("prog"), *by_program("a", "b")], by_program("c"), by_program("d")
    begun = [
        ("assistant", ["I compute.", "server_tool_use prog", "tool_use a", "tool_use b"]),
        ("user", ["tool_result a", "tool_result b"]),
        ("assistant", ["tool_use c"]),
        ("user", ["tool_result c"]),
        ("assistant", ["tool_use d"]),
        ("user", ["tool_result d"]),
    ]
    for number in (1, 2, 3):
        assert after_question(*rounds[:number], stops=["tool_use"] * number) == begun[: 2 * number]
    ended = assistant(*rounds, [program_result("prog"), text("Done.")], stops=["tool_use"] * 3)
    assert sent(QUESTION, ended, user(text("And?")), assistant())[1:] == [
        *begun,
        ("assistant", ["code_execution_tool_result prog", "Done."]),
        ("user", ["And?"]),
    ]


PROGRAM_TEXT = f"{PROGRAM_CUT}\n- look {{}}: seen a\n- look {{}}: error: {NO_RESULT}"


@pytest.mark.parametrize("stop", ["tool_use", "cancelled", "error", "interrupted"])
def test_an_unfinished_program_of_an_ended_turn_is_sent_as_text(stop: str) -> None:
    rounds = [text("I compute."), program("prog"), *by_program("a")], [called_by("prog", "b")]
    turn = assistant(*rounds, stops=["tool_use", stop])
    assert sent(QUESTION, turn, user(text("And?")), assistant())[1:] == [
        ("assistant", ["I compute."]),
        ("user", [PROGRAM_TEXT, "And?"]),
    ]


def test_a_program_is_over_when_the_user_speaks_or_its_reply_was_cut() -> None:
    rounds = [program("prog"), *by_program("a")], [called_by("prog", "b"), words("Stop.")]
    spoken = assistant(*rounds, stops=["tool_use"] * 2)
    assert sent(QUESTION, spoken) == [("user", ["Hello?", PROGRAM_TEXT, "Stop."])]
    cut = [program("prog"), *by_program("a")], [called_by("prog", "b")]
    assert sent(QUESTION, assistant(*cut, stops=["tool_use", "interrupted"])) == [("user", ["Hello?", PROGRAM_TEXT])]


def test_a_stopped_program_is_sent_as_text_behind_its_last_sent_round() -> None:
    """The turn also made a call in a later round. That round was voided, so requests omit it."""
    rounds = [text("I compute."), program("prog"), *by_program("a")], [called_by("prog", "b")]
    assert after_question(*rounds, stops=["cancelled", VOIDED]) == [
        ("assistant", ["I compute."]),
        ("user", [f"{PROGRAM_CUT}\n- look {{}}: seen a"]),
    ]


def test_a_program_is_over_when_the_model_may_use_no_more_tools() -> None:
    turn = assistant([text("I compute."), program("prog"), *by_program("a")], stops=["tool_use"])
    last = build_messages([QUESTION, turn], may_use_tools=False)
    assert [[_short(block) for block in message.blocks] for message in last[1:]] == [
        ["I compute."],
        [f"{PROGRAM_CUT}\n- look {{}}: seen a"],
    ]
    paused = build_messages([QUESTION, assistant([server_call("s")], stops=["pause_turn"])], may_use_tools=False)
    assert [_short(block) for block in paused[-1].blocks] == ["server_tool_use s"]


def test_a_summary_made_meanwhile_ends_no_program() -> None:
    rounds: list[list[Block]] = [[program("prog"), *by_program("a")], []]
    assert after_question(*rounds, stops=["tool_use", COMPACTED])[-2:] == [
        ("assistant", ["server_tool_use prog", "tool_use a"]),
        ("user", ["tool_result a"]),
    ]


def test_behind_a_summary_made_meanwhile_nothing_was_cut_off_when_the_program_is_stopped_later() -> None:
    begun = [text("I compute."), program("prog"), *by_program("a")]
    rounds: list[list[Block]] = [begun, [], [called_by("prog", "b"), call("x"), result("x")]]
    assert after_question(*rounds, stops=["tool_use", COMPACTED, "interrupted"]) == [
        ("assistant", ["I compute.", "tool_use x"]),
        ("user", ["tool_result x", PROGRAM_TEXT]),
    ]


def test_a_program_does_not_continue_behind_an_answer_without_its_calls() -> None:
    rounds = [program("prog"), *by_program("a")], [call("x"), result("x")]
    assert sent(QUESTION, assistant(*rounds, stops=["tool_use"] * 2)) == [
        ("user", ["Hello?", f"{PROGRAM_CUT}\n- look {{}}: seen a"]),
        ("assistant", ["tool_use x"]),
        ("user", ["tool_result x"]),
    ]


def test_calls_and_server_tools_of_a_program_that_is_missing_are_left_out_with_their_results() -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "prog"}
    nested = replace(server_call("s"), data=json.dumps({"type": "server_tool_use", "id": "s", "caller": caller}))
    blocks = [text("a"), nested, server_result("s"), called_by("prog", "b"), call("c"), result("c")]
    assert after_question(blocks, stops=["tool_use"]) == [
        ("assistant", ["a", "tool_use c"]),
        ("user", ["tool_result c", f"{PROGRAM_CUT}\n- look {{}}: error: {NO_RESULT}"]),
    ]


def test_no_words_come_between_while_another_server_tool_is_at_work() -> None:
    blocks = [server_call("s"), called_by("gone", "a"), call("b"), result("b")]
    assert after_question(blocks, stops=["tool_use"])[-1] == ("user", ["tool_result b"])


def test_no_note_on_failed_tools_is_added_while_a_program_is_at_work() -> None:
    failed = [called_by("prog", "a"), result("a", "no", is_error=True)]
    again = [called_by("prog", "b"), result("b", "no", is_error=True)]
    turn = assistant([program("prog"), *failed], again, stops=["tool_use"] * 2, request=ONE_FAILURE)
    assert sent(QUESTION, turn)[2::2] == [("user", ["tool_result a"]), ("user", ["tool_result b"])]


# --- thinking under another request --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"params": {"max_tokens": 9}, "limits": Limits(max_rounds=1)}, True),
        ({"model": "claude-sonnet-5-5"}, False),
        ({"system": "Be strict."}, False),
        ({"tools": (ToolSpec("look", "Looks.", "{}"),)}, False),
    ],
)
def test_earlier_thinking_is_sent_only_under_the_request_it_was_thought_under(
    change: dict[str, Any], holds: bool
) -> None:
    earlier = assistant([thinking("Hm."), redacted(), text("Yes.")])
    now = assistant(request=replace(REQUEST, **change))
    thought = ["Hm.", "redacted_thinking"] if holds else []
    assert sent(QUESTION, earlier, user(text("And?")), now)[1] == ("assistant", [*thought, "Yes."])


def test_a_turn_without_a_request_was_thought_under_none() -> None:
    imported = assistant([thinking("Hm."), text("Yes.")], request=None)
    assert sent(QUESTION, imported, user(text("And?")), assistant())[1] == ("assistant", ["Yes."])
    assert sent(QUESTION, imported, user(text("?")), assistant(request=None))[1] == (
        "assistant",
        ["Hm.", "Yes."],
    )


@pytest.mark.parametrize(("then", "now"), [((), ('{"type":"a"}',)), (('{"type":"a"}',), ('{"type":"b"}',))])
def test_thinking_does_not_hold_under_other_tools_of_the_provider(then: tuple[str, ...], now: tuple[str, ...]) -> None:
    earlier = assistant([thinking("Hm."), text("Yes.")], request=replace(REQUEST, provider_tools=then))
    path = [QUESTION, earlier, user(text("And?"))]
    same, other = (assistant(request=replace(REQUEST, provider_tools=tools)) for tools in (then, now))
    assert sent(*path, same)[1] == ("assistant", ["Hm.", "Yes."])
    assert sent(*path, other)[1] == ("assistant", ["Yes."])


# --- steering messages -----------------------------------------------------------------------------------------------


def test_steering_messages_come_after_all_results() -> None:
    answered = [call("a"), call("b"), result("b"), result("a"), words("Faster."), words("And well.")]
    assert after_question(answered, stops=["tool_use"]) == [
        ("assistant", ["tool_use a", "tool_use b"]),
        ("user", ["tool_result a", "tool_result b", "Faster.", "And well."]),
    ]


def test_steering_messages_are_plain_text_for_the_model() -> None:
    messages = build_messages([QUESTION, assistant([text("Yes."), words("Faster.")])])
    assert rendered(messages)[-1] == {"role": "user", "content": [{"type": "text", "text": "Faster."}]}


def test_a_steering_message_behind_a_complete_reply_is_the_next_message() -> None:
    assert after_question([text("Yes."), words("Faster.")]) == [("assistant", ["Yes."]), ("user", ["Faster."])]


def test_a_steer_to_a_cut_reply_replaces_the_prompt_to_continue() -> None:
    cut = [text("Once upon", interrupted=True), words("Shorter.")]
    assert after_question(cut, stops=["interrupted"]) == [("assistant", ["Once upon"]), ("user", ["Shorter."])]


@pytest.mark.parametrize("nothing", ["", " \n"])
def test_a_blank_steer_keeps_the_prompt_to_continue(nothing: str) -> None:
    cut = [text("Once upon", interrupted=True), words(nothing)]
    assert after_question(cut, stops=["interrupted"])[-1] == ("user", [GO_ON])


def test_a_steering_message_before_the_first_seal_follows_the_question() -> None:
    early = assistant([text("Yes.")])
    early = replace(early, blocks=(words("Faster.", round=0), *(replace(b, index=1) for b in early.blocks)))
    assert sent(QUESTION, early, user(text("And?")), assistant()) == [
        ("user", ["Hello?", "Faster."]),
        ("assistant", ["Yes."]),
        ("user", ["And?"]),
    ]


def test_a_steering_message_to_an_empty_answer_stays() -> None:
    cancelled = replace(assistant(), blocks=(words("Faster.", round=0),))
    assert sent(QUESTION, cancelled, user(text("And?")), assistant()) == [("user", ["Hello?", "Faster.", "And?"])]


def test_a_pause_into_which_somebody_spoke_is_over_for_its_server_tool() -> None:
    paused = [text("a"), server_call("s"), words("Stop searching.")]
    assert after_question(paused, stops=["pause_turn"]) == [("assistant", ["a"]), ("user", ["Stop searching."])]
    mixed = [server_call("s"), call("a"), result("a"), words("Stop searching.")]
    assert after_question(mixed, stops=["tool_use"]) == [
        ("assistant", ["tool_use a"]),
        ("user", ["tool_result a", "Stop searching."]),
    ]


def test_a_steering_message_to_an_earlier_round_ends_no_later_pause() -> None:
    rounds = [text("a"), words("Search.")], [server_call("s")]
    assert after_question(*rounds, stops=["end_turn", "pause_turn"])[-1] == ("assistant", ["server_tool_use s"])


# --- tools that all fail ---------------------------------------------------------------------------------------------

ONE_FAILURE = replace(REQUEST, limits=Limits(max_failed_rounds=1))


def failing(id: str, *more: Block) -> list[Block]:
    return [call(id), result(id, "no", is_error=True), *more]


def test_a_note_follows_the_results_when_all_tools_have_failed() -> None:
    turn = assistant(failing("a"), stops=["tool_use"], request=ONE_FAILURE)
    assert sent(QUESTION, turn)[-1] == ("user", ["tool_result a", GIVEN_UP])
    patient = assistant(failing("a"), stops=["tool_use"])
    assert sent(QUESTION, patient)[-1] == ("user", ["tool_result a"])


def test_no_note_on_failed_tools_is_added_while_a_server_tool_is_at_work() -> None:
    turn = assistant([server_call("s"), *failing("a")], stops=["tool_use"], request=ONE_FAILURE)
    assert sent(QUESTION, turn)[-2:] == [
        ("assistant", ["server_tool_use s", "tool_use a"]),
        ("user", ["tool_result a"]),
    ]


def test_the_note_is_the_last_text_behind_the_calls_of_a_stopped_program() -> None:
    stopped = [call("a"), result("a", "no", is_error=True), called_by("gone", "b"), result("b", "no", is_error=True)]
    turn = assistant(stopped, stops=["tool_use"], request=ONE_FAILURE)
    told = f"{PROGRAM_CUT}\n- look {{}}: error: no"
    assert sent(QUESTION, turn)[-1] == ("user", ["tool_result a", told, GIVEN_UP])


def test_the_note_stays_in_all_later_requests() -> None:
    turn = assistant(failing("a"), [text("I could not.")], stops=["tool_use"], request=ONE_FAILURE)
    assert sent(QUESTION, turn, user(text("And?")), assistant())[2:4] == [
        ("user", ["tool_result a", GIVEN_UP]),
        ("assistant", ["I could not."]),
    ]


def test_the_note_stays_when_the_tools_work_again() -> None:
    rounds = failing("a"), [text("I could not."), words("Try b.")], [call("b"), result("b")]
    turn = assistant(*rounds, stops=["tool_use", "end_turn", "tool_use"], request=ONE_FAILURE)
    assert sent(QUESTION, turn)[2:] == [
        ("user", ["tool_result a", GIVEN_UP]),
        ("assistant", ["I could not."]),
        ("user", ["Try b."]),
        ("assistant", ["tool_use b"]),
        ("user", ["tool_result b"]),
    ]


def test_a_model_to_which_the_user_speaks_meanwhile_may_try_again() -> None:
    turn = assistant(failing("a", words("Try b.")), stops=["tool_use"], request=ONE_FAILURE)
    assert sent(QUESTION, turn)[-1] == ("user", ["tool_result a", "Try b."])


def test_a_turn_without_a_request_has_no_failures_to_count() -> None:
    imported = assistant(failing("a"), stops=["tool_use"], request=None)
    assert sent(QUESTION, imported, user(text("And?")), assistant())[-1] == ("user", ["tool_result a", "And?"])


# --- results of earlier turns ----------------------------------------------------------------------------------------


def asked_with(mode: EarlierResults, **request: Any) -> TurnRequest:
    return replace(REQUEST, limits=Limits(earlier_results=mode), **request)


EARLIER = [
    [thinking("Hm."), text("I look."), call("a"), result("a", "x" * 3000)],
    [thinking("So."), call("b"), result("b", "short")],
    [text("Found.")],
]


def later(mode: EarlierResults, *rounds: Sequence[Block], **request: Any) -> list[Turn]:
    """Returns a path: an earlier answer with tool calls, and the next turn with these rounds."""
    earlier = assistant(*EARLIER, stops=["tool_use", "tool_use", "end_turn"], request=asked_with(mode))
    return [QUESTION, earlier, user(text("And?")), assistant(*rounds, request=asked_with(mode, **request))]


def test_without_earlier_results_their_calls_and_the_thoughts_behind_them_are_left_out_too() -> None:
    assert sent(*later("none", [text("Again."), call("c"), result("c", "y" * 3000)])) == [
        ("user", ["Hello?"]),
        ("assistant", ["I look.", "Found."]),
        ("user", ["And?"]),
        ("assistant", ["Again.", "tool_use c"]),
        ("user", ["tool_result c"]),
    ]


def test_an_answer_of_calls_only_is_omitted_and_the_questions_are_joined() -> None:
    earlier = assistant([call("a"), result("a")], stops=["tool_use"], request=asked_with("none"))
    path = [QUESTION, earlier, user(text("And?")), assistant(request=asked_with("none"))]
    assert sent(*path) == [("user", ["Hello?", "And?"])]


def test_shortened_earlier_results_say_how_to_read_on() -> None:
    tools = (ToolSpec("read_result", "", "{}"),)
    _, _, first, _, second, *_ = build_messages(later("short", tools=tools))
    (long,) = first.blocks
    note = "[2,500 characters left out: results of earlier answers are sent shortened."
    assert long.text == f'{"x" * 500}\n\n{note} To read on, call read_result with tool_use_id "a" and offset 500.]'
    assert second.blocks[0].text == "short"
    assert build_messages(later("short"))[2].blocks[0].text == f"{'x' * 500}\n\n{note}]"


def test_a_picture_of_an_earlier_turn_is_named() -> None:
    picture = {"type": "image", "source": {"type": "upload", "id": "7", "media_type": "image/png"}}
    earlier = assistant([call("a"), returned("a", ["Here:", picture])], stops=["tool_use"], request=asked_with("short"))
    path = [QUESTION, earlier, user(text("And?")), assistant(request=asked_with("short"))]
    shown, _ = build_messages(path)[2].blocks
    assert (shown.text, shown.data) == ("Here:\n[image left out]", None)


def test_thoughts_of_another_way_to_send_results_are_not_sent_and_those_of_the_same_are() -> None:
    thought = [thinking("Hm."), text("Yes.")]
    for then, now, kept in [("none", "none", True), ("whole", "none", False), ("none", "whole", False)]:
        path = [QUESTION, assistant(thought, request=asked_with(then)), user(text("And?"))]  # type: ignore[arg-type]
        blocks = build_messages([*path, assistant(request=asked_with(now))])[1].blocks  # type: ignore[arg-type]
        assert ("thinking" in [block.type for block in blocks]) is kept


def test_calls_of_the_providers_code_keep_their_results() -> None:
    direct = replace(call("b"), data='{"caller":{"type":"direct"}}')
    rounds = [program("prog"), called_by("prog", "a"), direct, result("a"), result("b")], [program_result("prog")]
    earlier = assistant(*rounds, stops=["tool_use"], request=asked_with("none"))
    path = [QUESTION, earlier, user(text("And?")), assistant(request=asked_with("none"))]
    assert sent(*path)[1:] == [
        ("assistant", ["server_tool_use prog", "tool_use a"]),
        ("user", ["tool_result a"]),
        ("assistant", ["code_execution_tool_result prog"]),
        ("user", ["And?"]),
    ]
