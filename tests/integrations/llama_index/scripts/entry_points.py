"""LlamaIndex's chat engines and agents, each as something that answers a user's message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from llama_index.core.agent.workflow import AgentStream, AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import MessageRole
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from scripted import WORD, Scripted, Steer, by_reasoning, by_steps, freely, shaped, tool_call

from llama_index.memory.inferscale import InferScaleMemory
from llama_index.retrievers.inferscale import InferScaleQueryEngine

SYSTEM = "You are a helpful assistant."
CHAT_MODES = ("chat", "achat", "stream_chat", "astream_chat")
AGENT_MODES = ("whole", "streaming")
"""Agents are async only."""

Say = Callable[[str], Awaitable[str]]


@dataclass(frozen=True)
class Entry:
    """One class, and what is known of the model calls that it makes in a turn."""

    build: Callable[[Scripted, InferScaleMemory, str], Say]
    steer: Steer
    holds_handle: tuple[bool, ...]
    """Per call of a turn, whether the memory's messages are in its prompt."""
    modes: tuple[str, ...]


class Notes(BaseRetriever):
    """Documents that have nothing to do with the user."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="The library opens at nine."), score=1.0)]


def look_up(topic: str) -> str:
    """Look a topic up."""
    return f"{topic}: nothing new."


# -- chat engines ------------------------------------------------------------------------------------------------------


def chatting(
    make: Callable[[Scripted, InferScaleMemory, str], Any],
) -> Callable[[Scripted, InferScaleMemory, str], Say]:
    """Builds something that answers through one of the four methods of a chat engine."""

    def build(llm: Scripted, memory: InferScaleMemory, mode: str) -> Say:
        engine = make(llm, memory, mode)

        async def say(text: str) -> str:
            if mode == "chat":
                return str(engine.chat(text))
            if mode == "achat":
                return str(await engine.achat(text))
            if mode == "stream_chat":
                return "".join(engine.stream_chat(text).response_gen)
            response = await engine.astream_chat(text)
            return "".join([token async for token in response.async_response_gen()])

        return say

    return build


def simple(llm: Scripted, memory: InferScaleMemory, mode: str) -> Any:
    return SimpleChatEngine.from_defaults(llm=llm, memory=memory, system_prompt=SYSTEM)


def with_context(llm: Scripted, memory: InferScaleMemory, mode: str) -> Any:
    return ContextChatEngine.from_defaults(retriever=Notes(), llm=llm, memory=memory, system_prompt=SYSTEM)


def condense_plus_context(llm: Scripted, memory: InferScaleMemory, mode: str) -> Any:
    return CondensePlusContextChatEngine.from_defaults(retriever=Notes(), llm=llm, memory=memory, system_prompt=SYSTEM)


def condense_question(llm: Scripted, memory: InferScaleMemory, mode: str) -> Any:
    query_engine = RetrieverQueryEngine.from_args(Notes(), llm=llm)
    return CondenseQuestionChatEngine.from_defaults(query_engine=query_engine, llm=llm, memory=memory)


def condense_question_of_facts(llm: Scripted, memory: InferScaleMemory, mode: str) -> Any:
    long_term = {"memory": memory.memory, "user_id": memory.user_id, "k": memory.k, "refresh": memory.refresh}
    query_engine = InferScaleQueryEngine.from_defaults(llm=llm, streaming="stream" in mode, **long_term)
    return CondenseQuestionChatEngine.from_defaults(query_engine=query_engine, llm=llm, memory=memory)


# -- agents ------------------------------------------------------------------------------------------------------------


def running(make: Callable[[Scripted, bool], Any]) -> Callable[[Scripted, InferScaleMemory, str], Say]:
    """Builds something that answers by a run of an agent."""

    def build(llm: Scripted, memory: InferScaleMemory, mode: str) -> Say:
        agent = make(llm, mode == "streaming")

        async def say(text: str) -> str:
            run = agent.run(text, memory=memory)
            streamed = [event async for event in run.stream_events() if isinstance(event, AgentStream)]
            answer = await run
            assert bool(streamed) == (mode == "streaming")
            assert answer.response.role == MessageRole.ASSISTANT
            return str(answer)

        return say

    return build


def function_agent(llm: Scripted, streaming: bool) -> Any:
    return FunctionAgent(llm=llm, tools=[look_up], system_prompt=SYSTEM, streaming=streaming)


def react_agent(llm: Scripted, streaming: bool) -> Any:
    return ReActAgent(llm=llm, tools=[look_up], system_prompt=SYSTEM, streaming=streaming)


def two_agents(llm: Scripted, streaming: bool) -> Any:
    desk = FunctionAgent(
        name="desk", description="Takes questions.", llm=llm, system_prompt=SYSTEM, streaming=streaming
    )
    clerk = FunctionAgent(
        name="clerk",
        description="Answers them.",
        llm=llm,
        system_prompt="You are a clerk.",
        tools=[look_up],
        can_handoff_to=[],
        streaming=streaming,
    )
    return AgentWorkflow(agents=[desk, clerk], root_agent="desk")


LOOK_UP = tool_call("look_up", '{"topic": "[a-z]{3,8}"}')
HAND_OVER = tool_call("handoff", '{"to_agent": "clerk", "reason": "[a-z]{3,8}"}')
ANSWER = shaped(WORD)

ENTRIES = {
    "SimpleChatEngine": Entry(chatting(simple), freely, (True,), CHAT_MODES),
    "ContextChatEngine": Entry(chatting(with_context), freely, (True,), CHAT_MODES),
    "CondensePlusContextChatEngine": Entry(chatting(condense_plus_context), freely, (True, True), CHAT_MODES),
    "CondenseQuestionChatEngine": Entry(chatting(condense_question), freely, (True, False), CHAT_MODES),
    "CondenseQuestionChatEngine over facts": Entry(
        chatting(condense_question_of_facts), freely, (True, True), CHAT_MODES
    ),
    "FunctionAgent": Entry(running(function_agent), by_steps(LOOK_UP, ANSWER), (True, True), AGENT_MODES),
    "ReActAgent": Entry(running(react_agent), by_reasoning, (True, True), AGENT_MODES),
    "AgentWorkflow": Entry(running(two_agents), by_steps(HAND_OVER, LOOK_UP, ANSWER), (True,) * 3, AGENT_MODES),
}
