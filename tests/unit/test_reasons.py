"""For each thing that an open turn may wait for, a sentence names the reason."""

from dataclasses import replace
from uuid import UUID

import pytest

from turnstream.domain.activity import Activity, RunningCall
from turnstream.libraries.explanations.reasons import OpenAsk, OpenJob, TurnState, ago, reasons

ID, OTHER = UUID(int=1), UUID(int=2)
QUEUED = TurnState(ID, UUID(int=3), "ada", "queued", 90.0, model="m", queued=70.0)
RUNNING = replace(QUEUED, status="running", replica="a:1", lease_left=5.0, attempt=1, activity=Activity())
STREAMING = replace(RUNNING, activity=Activity("streaming", 40.0, 31.0))
ASKS = (OpenAsk("pay", "approval", 130), OpenAsk("find", "client", 1), OpenAsk("book", "elicitation", 8_000))
SIGN_IN = OpenAsk("events", "sign_in", 90)
GONE = "The replica of the turn is dead; another one takes over within seconds."
FROZEN = [
    "The replica of the turn has not reported for 7 seconds: it is frozen, overloaded or cut off.",
    "Unless the replica renews its lease within 5 seconds, another one takes the turn over.",
]
CALLS = (RunningCall("dig", 40.0),)
DETACHED = OpenJob(OTHER, "dig", 40.0, detached=True, deadline=7200.0)
ON_DETACHED = f"The turn waits for the job {OTHER} of the tool dig, which has been detached for 40 seconds"
ON_CHILD = f"The turn waits for the job {OTHER} of the tool dig, on which the turn {ID} works"
REPORTING = OpenJob(OTHER, "dig", 40.0, "a:1", reports=True)
NOT_FOR = f"The turn does not wait for the job {OTHER} of the tool dig, which has been running for 40 seconds."
CHILD = replace(QUEUED, status="waiting", asks=ASKS[:1])
UNTAKEN = "which is due, and no replica has taken it for"


@pytest.mark.parametrize(
    ("turn", "sentences"),
    [
        (
            replace(QUEUED, status="waiting", asks=(SIGN_IN,)),
            ["The turn waits for a sign-in to the server of events, 2 minutes by now."],
        ),
        (QUEUED, ["The turn is the next in the queue, 70 seconds by now; no replica has claimed it yet."]),
        (replace(QUEUED, ahead=1), ["The turn is queued behind 1 other turn."]),
        (
            replace(QUEUED, ahead=1, room=0),
            ["All replicas run their maximum of turns.", "The turn is queued behind 1 other turn."],
        ),
        (replace(QUEUED, ahead=1, room=1), ["The turn is queued behind 1 other turn."]),
        (replace(QUEUED, ahead=2), ["The turn is queued behind 2 other turns."]),
        (
            replace(QUEUED, behind=OTHER, ahead=2),
            [f"The turn is queued behind the turn {OTHER} of the same chat, which has not ended."],
        ),
        (
            replace(QUEUED, owner_running=2, owner_limit=2),
            ["2 turns of the owner run already: this is the limit."],
        ),
        (
            replace(QUEUED, owner_running=1, owner_limit=1),
            ["1 turn of the owner runs already: this is the limit."],
        ),
        (replace(QUEUED, owner_running=1, owner_limit=2, ahead=1), ["The turn is queued behind 1 other turn."]),
        (
            replace(QUEUED, claiming=0, ahead=1),
            ["No replica claims turns: none is alive, or all stop. The turn has waited for 70 seconds."],
        ),
        (
            replace(QUEUED, claiming=1, declined=("a:1",), ahead=1),
            ["No live replica has the model and the tools of the turn; it ends if none starts within two minutes."],
        ),
        (replace(QUEUED, claiming=2, declined=("a:1",), ahead=1), ["The turn is queued behind 1 other turn."]),
        (RUNNING, []),
        (
            replace(RUNNING, lease_left=None),
            ["The replica of the turn is dead; another one takes over within seconds."],
        ),
        (
            replace(RUNNING, lease_left=-1),
            ["The replica of the turn is dead; another one takes over within seconds."],
        ),
        (replace(RUNNING, activity=None), ["The replica of the turn has not reported yet."]),
        (replace(STREAMING, reported=7), FROZEN),
        (replace(RUNNING, activity=None, reported=7), FROZEN),
        (replace(STREAMING, reported=3), ["The provider of the model m has been silent for 34 seconds."]),
        (replace(STREAMING, activity=Activity("processing", 1, 1)), ["The model m is answering."]),
        (replace(STREAMING, activity=Activity("streaming", 1)), ["The model m is answering."]),
        (replace(STREAMING, activity=Activity("streaming", 1, 0.1), reported=3), ["The model m is answering."]),
        (
            replace(STREAMING, activity=Activity("waiting", 1, 60)),
            ["A call of the model m waits for the provider's rate limit."],
        ),
        (
            replace(STREAMING, activity=Activity("retrying", 1)),
            ["A call of the model m has failed, and is repeated after a pause."],
        ),
        (
            replace(STREAMING, activity=Activity("executing", 1)),
            ["The tools have run; the next model call is being prepared."],
        ),
        (
            replace(STREAMING, activity=Activity("executing", 1), calls=CALLS),
            ["The tool dig has been running for 40 seconds."],
        ),
        (
            replace(STREAMING, activity=Activity("executing", 1, calls=CALLS), calls=(RunningCall("other", 1),)),
            ["The tool dig has been running for 40 seconds."],
        ),
        (
            replace(QUEUED, status="waiting", asks=ASKS, recoveries=1, attempt=3),
            [
                "The turn waits for an approval of pay, 2 minutes by now.",
                "The turn waits for the result of find, which the client runs, 1 second by now.",
                "The turn waits for an answer to a question of book, 2 hours by now.",
                "The turn was taken over, after 1 interruption.",
            ],
        ),
        (
            replace(RUNNING, cancel_requested=True, activity=Activity("executing", 1), asks=ASKS[2:]),
            [
                "The turn is being cancelled.",
                "The turn waits for an answer to a question of book, 2 hours by now.",
            ],
        ),
        (
            replace(QUEUED, status="waiting", jobs=(OpenJob(OTHER, "dig", 40.0), OpenJob(ID, "sow", 1.0, "a:1"))),
            [
                f"The turn waits for the job {OTHER} of the tool dig, {UNTAKEN} 40 seconds.",
                f"The turn waits for the job {ID} of the tool sow, which has been running for 1 second.",
            ],
        ),
        (
            replace(QUEUED, status="waiting", jobs=(DETACHED, replace(DETACHED, due=20.0, deadline=None))),
            [
                f"{ON_DETACHED}; it is settled from outside, or ended by its deadline in 2 hours.",
                f"{ON_DETACHED}; it is due in 20 seconds.",
            ],
        ),
        (
            replace(QUEUED, status="waiting", jobs=(replace(DETACHED, due=-30.0),)),
            [f"{ON_DETACHED}; it is due, and no replica has taken it for 30 seconds."],
        ),
        (
            replace(
                QUEUED, status="waiting", jobs=(replace(DETACHED, child=ID), replace(DETACHED, child=ID, works=CHILD))
            ),
            [
                f"{ON_CHILD}.",
                f"{ON_CHILD}, which is waiting: The turn waits for an approval of pay, 2 minutes by now.",
            ],
        ),
        (
            replace(QUEUED, status="waiting", jobs=(replace(DETACHED, child=ID, works=replace(RUNNING, id=ID)),)),
            [f"{ON_CHILD}, which is running."],
        ),
        (replace(QUEUED, status="complete", stop_reason="end_turn"), ["The turn has ended: end_turn"]),
        (
            replace(QUEUED, status="complete", stop_reason="end_turn", jobs=(REPORTING,)),
            ["The turn has ended: end_turn", NOT_FOR],
        ),
        (
            replace(QUEUED, status="waiting", jobs=(REPORTING, OpenJob(ID, "sow", 1.0, "a:1"))),
            [f"The turn waits for the job {ID} of the tool sow, which has been running for 1 second.", NOT_FOR],
        ),
        (replace(QUEUED, status="error", error="The provider is down."), ["The turn has ended: The provider is down."]),
        (replace(QUEUED, status="cancelled"), ["The turn has ended: cancelled"]),
    ],
)
def test_a_turn_says_why_it_does_not_move(turn: TurnState, sentences: list[str]) -> None:
    assert reasons(turn) == sentences


def test_spans_are_in_units_for_people() -> None:
    assert [ago(s) for s in (0.4, 1, 89, 90, 5_399, 5_400, 129_599, 129_600)] == [
        "0 seconds", "1 second", "89 seconds", "2 minutes", "90 minutes", "2 hours", "36 hours", "2 days",
    ]  # fmt: skip
