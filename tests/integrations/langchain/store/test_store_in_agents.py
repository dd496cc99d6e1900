"""The store where langgraph puts it: in tools, in graphs, and its items injected into a real engine."""

from __future__ import annotations

from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedStore
from langgraph.store.base import BaseStore

from langchain_inferscale import InferScaleStore
from tests.asking import FACTS, FLUSH, QUESTION, ask


class Caller(GenericFakeChatModel):
    """Says what it is told to say; plumbing only."""

    def bind_tools(self, tools: Any, **options: Any) -> Caller:
        return self


def calling(*calls: tuple[str, dict[str, Any]]) -> Caller:
    said = [
        AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call{n}"}])
        for n, (name, arguments) in enumerate(calls)
    ]
    return Caller(messages=iter([*said, AIMessage("done")]))


@tool
def save(text: str, runtime: ToolRuntime) -> str:
    """Save a text."""
    runtime.store.put(("alice",), "saved", {"text": text})
    return "saved"


@tool
def find(query: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Find a text."""
    return store.search(("alice",), query=query)[0].value["text"]


@tool
async def afind(query: str, runtime: ToolRuntime) -> str:
    """Find a text."""
    return (await runtime.store.asearch(("alice",), query=query))[0].value["text"]


def told(result: dict[str, Any]) -> list[str]:
    return [message.content for message in result["messages"] if isinstance(message, ToolMessage)]


def test_an_agents_tools_save_and_find_through_the_store(memory):
    model = calling(("save", {"text": "My dog is called Rex."}), ("find", {"query": "dog"}))
    agent = create_agent(model, [save, find], store=InferScaleStore(memory, fields=["text"]))
    result = agent.invoke({"messages": [("user", "Remember my dog.")]})
    assert told(result) == ["saved", "My dog is called Rex."]
    assert [hit.fact.text for hit in memory.search("dog", user_id="alice")] == ["My dog is called Rex."]


async def test_an_agent_awaits_the_store_in_its_tools(memory):
    model = calling(("save", {"text": "My dog is called Rex."}), ("afind", {"query": "dog"}))
    agent = create_agent(model, [save, afind], store=InferScaleStore(memory, fields=["text"]))
    assert told(await agent.ainvoke({"messages": [("user", "Hi.")]})) == ["saved", "My dog is called Rex."]


def test_a_graphs_node_reaches_the_store(memory):
    def node(state: MessagesState) -> dict[str, Any]:
        get_store().put(("alice",), "seen", {"text": state["messages"][-1].content})
        return {}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    store = InferScaleStore(memory)
    graph.compile(store=store).invoke({"messages": [("user", "hello")]})
    assert store.get(("alice",), "seen").value == {"text": "hello"}


def test_an_item_is_recalled_by_a_handle_and_injected(engine, memory_for, user):
    memory = memory_for("preamble")
    store = InferScaleStore(memory, fields=["text"])
    for n, text in enumerate(FACTS):
        store.put((user,), f"{n}", {"text": text})
    memory.flush(FLUSH, user_id=user)
    handle = store.recall((user,), QUESTION, 2)
    assert "Rex" in handle.facts[0].fact.text
    full = engine.chat(ask(handle), user_id=user, max_tokens=1, temperature=0)["kv"]
    assert full["fallback_reason"] is None
    assert full["injected"] > 40
    store.delete((user,), "3")
    less = engine.chat(ask(handle), user_id=user, max_tokens=1, temperature=0)["kv"]
    assert tokens(less) < tokens(full)
    assert memory.explain(handle).deleted == 1


def tokens(kv: dict[str, Any]) -> int:
    return kv["injected"] + kv["local_hit"] + kv["prefilled"]
