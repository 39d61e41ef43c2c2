"""The agent for LangGraph's server: one model call, as in its quickstart."""

import os

from langchain_anthropic import ChatAnthropic
from langgraph.graph import START, MessagesState, StateGraph

model = ChatAnthropic(
    model="claude-sonnet-4-6", base_url=os.environ["ANTHROPIC_BASE_URL"], api_key="bench", max_tokens=1024
)


async def answer(state: MessagesState) -> dict[str, list[object]]:
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
