"""The graph assistant: the script of its model, and the browser that shows the graph and runs the tools."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.support.assistants.model import Conversation, Json, Said, Thought, Use

FIND: Json = {
    "type": "client",
    "name": "findNodes",
    "description": "Finds nodes of the graph that the user sees. Returns their ids.",
    "input_schema": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
}
STYLE: Json = {
    "type": "client",
    "name": "styleNodes",
    "description": "Gives nodes of the graph a colour.",
    "input_schema": {
        "type": "object",
        "properties": {"ids": {"type": "array", "items": {"type": "string"}}, "color": {"type": "string"}},
        "required": ["ids", "color"],
    },
}


def painter(conversation: Conversation) -> Iterable[Said]:
    asked = re.fullmatch(r"Find all (\w+)s and make them (\w+)", conversation.question)
    assert asked is not None, conversation.question
    assert conversation.offered == {"findNodes", "styleNodes"}
    kind, color = asked.groups()
    answered = conversation.answered
    if not answered:
        return [Thought(f"Which nodes are {kind}s?"), "I look for them.", Use("findNodes", {"kind": kind})]
    last = answered[-1].data
    if answered[-1].name == "styleNodes":
        return [f"Done: {last['styled']} nodes are {color}."]
    if not last:
        return [f"There are no {kind}s in the graph, so I changed nothing."]
    return [f"There are {len(last)}.", Use("styleNodes", {"ids": last, "color": color})]


@dataclass
class Browser:
    """The browser that shows the graph. `colors` has the visible colors of the graph."""

    kinds: dict[str, str] = field(default_factory=lambda: {"tom": "cat", "rex": "dog", "kitty": "cat"})
    colors: dict[str, str] = field(default_factory=dict)

    def act(self, call: Json) -> Json:
        """Runs the tool. Returns the action with its result."""
        return {"type": "result", "tool_use_id": call["tool_use_id"], "output": self._run(call["name"], call["input"])}

    def _run(self, name: str, given: Json) -> Any:
        if name == "findNodes":
            return [node for node, kind in self.kinds.items() if kind == given["kind"]]
        assert name == "styleNodes"
        self.colors |= dict.fromkeys(given["ids"], given["color"])
        return {"styled": len(given["ids"])}
