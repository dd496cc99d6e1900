"""What a model reads from the memory tools, and whose memory they touch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_steps import holds_handle, plain_memory
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from inferscale_memory import Memory
from inferscale_memory.errors import ScopeError
from langchain_inferscale import memory_tools

BOB = {"configurable": {"user_id": "bob"}}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with plain_memory(tmp_path) as memory:
        memory.add(["Alice's dog is called Rex.", "Alice was born in Lisbon."], user_id="alice")
        yield memory


def call(tool: BaseTool, config: dict[str, Any] | None = None, **arguments: Any) -> ToolMessage:
    return tool.invoke({"type": "tool_call", "id": "1", "name": tool.name, "args": arguments}, config)


def test_there_are_three_and_their_arguments_teach(memory: Memory) -> None:
    tools = memory_tools(memory, user_id="alice")
    assert [tool.name for tool in tools] == ["save_memory", "search_memory", "forget_memory"]
    assert [set(tool.args) for tool in tools] == [{"text"}, {"query", "k"}, {"fact_id"}]
    assert all(argument["description"] for tool in tools for argument in tool.args.values())


def test_what_is_saved_can_be_found_and_forgotten_by_the_id_that_was_told(memory: Memory) -> None:
    save, search, forget = memory_tools(memory, user_id="alice")
    saved = call(save, text="Alice is allergic to peanuts.")
    told = saved.content.split("[")[1].split("]")[0]
    assert saved.content == f"Saved: [{told}] Alice is allergic to peanuts."
    assert f"[{told}] Alice is allergic to peanuts." in call(search, query="allergic to peanuts", k=1).content
    assert call(forget, fact_id=f"[{told}]").content == f"Forgotten: [{told}]."
    assert "peanuts" not in call(search, query="allergic to peanuts").content


async def test_the_same_holds_when_they_are_awaited(memory: Memory) -> None:
    save, search, forget = memory_tools(memory, user_id="alice")
    await save.ainvoke({"text": "Alice is allergic to peanuts."})
    found = await search.ainvoke({"query": "allergic to peanuts", "k": 1})
    told = found.split("[")[1].split("]")[0]
    assert await forget.ainvoke({"fact_id": told}) == f"Forgotten: [{told}]."


def test_the_artifact_is_plain_data_and_nothing_holds_a_handle(memory: Memory) -> None:
    save, search, _ = memory_tools(memory, user_id="alice")
    handle = memory.recall("dog", user_id="alice")
    saved, found = call(save, text=f"Alice likes {handle} tea."), call(search, query=f"dog {handle}")
    assert saved.artifact["created"] is True
    assert found.artifact["facts"][0]["text"] == "Alice's dog is called Rex."
    assert holds_handle(handle)
    assert not holds_handle([saved, found])


def test_a_known_fact_is_not_saved_twice(memory: Memory) -> None:
    save = memory_tools(memory, user_id="alice")[0]
    again = call(save, text="Alice's dog is called Rex.")
    assert again.content.startswith("Known already: [")
    assert again.artifact["created"] is False


def test_an_empty_search_says_so(memory: Memory) -> None:
    search = memory_tools(memory)[1]
    found = call(search, BOB, query="dog")
    assert found.content == "Nothing is remembered about this."
    assert found.artifact == {"facts": []}


def test_users_do_not_see_nor_forget_each_others_facts(memory: Memory) -> None:
    save, search, forget = memory_tools(memory)
    fact = memory.search("dog", 1, user_id="alice")[0].fact
    call(save, BOB, text="Bob plays chess.")
    assert "Rex" not in call(search, BOB, query="dog").content
    refused = call(forget, BOB, fact_id=fact.id)
    assert refused.status == "error"
    assert "search_memory" in refused.content
    assert memory.get(fact.id, user_id="alice").text == "Alice's dog is called Rex."


def test_an_unknown_id_is_told_with_the_remedy(memory: Memory) -> None:
    refused = call(memory_tools(memory, user_id="alice")[2], fact_id="nonsense")
    assert refused.status == "error"
    assert "no fact 'nonsense'" in refused.content
    assert "Look up the id with search_memory." in refused.content


@pytest.mark.parametrize("arguments", [{}, {"query": "dog", "k": 0}, {"query": "dog", "k": "many"}])
def test_wrong_arguments_are_told_to_the_model(memory: Memory, arguments: dict[str, Any]) -> None:
    refused = call(memory_tools(memory, user_id="alice")[1], **arguments)
    assert refused.status == "error"
    assert refused.content.startswith(f"Wrong arguments: {'k' if arguments else 'query'}: ")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_blank_argument_is_told_to_the_model(memory: Memory, place: int) -> None:
    tool = memory_tools(memory, user_id="alice")[place]
    argument = next(iter(tool.args))
    assert call(tool, **{argument: "  "}).status == "error"


def test_an_outage_is_told_to_the_model(memory: Memory) -> None:
    memory.close()
    for tool in memory_tools(memory, user_id="alice"):
        refused = call(tool, **{next(iter(tool.args)): "dog"})
        assert refused.status == "error"
        assert f"{tool.name} failed: this memory is closed" in refused.content


def test_a_call_for_nobody_is_the_applications_mistake_and_raises(memory: Memory) -> None:
    for tool in memory_tools(memory):
        with pytest.raises(ScopeError, match="Pass at least one"):
            call(tool, **{next(iter(tool.args)): "dog"})


def test_a_run_cannot_change_whose_tools_they_are(memory: Memory) -> None:
    search = memory_tools(memory, user_id="alice")[1]
    with pytest.raises(ScopeError, match="different ids for user_id"):
        call(search, BOB, query="dog")
