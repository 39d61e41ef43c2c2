"""The encoder turns the events of a run into AG-UI's events. These tests need no server."""

import json

from tests.support.turns import call, sealed, turn_of
from turnstream.domain.events import ActionRequired, Notice, RequiredAction
from turnstream.extensions.ag_ui.encoder import Run, RunEncoder


def test_nothing_follows_the_end_of_a_run() -> None:
    turn = turn_of(call(), rounds=[sealed(stop_reason="tool_use")])
    asked = turn.blocks[0]
    assert asked.tool_use_id is not None
    question = RequiredAction(asked.tool_use_id, "register", "elicitation", '{"message": "Who sails?"}', "0" * 64, None)
    encode = RunEncoder(turn, Run("thread", "run"), lambda: turn, collects=False)
    running = Notice("tool_progress", {"tool_use_id": asked.tool_use_id, "job": "running"})
    assert b'"CUSTOM"' in encode(running, None)
    (end,) = encode(ActionRequired(1, 1, (question,)), None).split(b"\n\n")[:-1]
    assert json.loads(end.removeprefix(b"data: "))["type"] == "RUN_FINISHED"
    assert encode(running, None) == b""
