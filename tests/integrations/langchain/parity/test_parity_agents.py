"""Classic agents: the handle is in every step of a tool loop."""

from __future__ import annotations

import pytest
from langchain_classic.agents import AgentExecutor, AgentType, create_react_agent, initialize_agent
from langchain_core.exceptions import OutputParserException
from langchain_core.prompts import PromptTemplate
from langchain_core.tools import StructuredTool
from steering import exactly

QUESTIONS = ("What is the dog of Alice called?", "How old is the dog?")
ANSWERS = ("Rex.", "Four.")
EXCHANGES = [("human", QUESTIONS[0]), ("ai", ANSWERS[0]), ("human", QUESTIONS[1]), ("ai", ANSWERS[1])]
FIELDS = {"memory_key": "chat_history"}

REACT = """Answer the question. You have these tools:
{tools}
Use one of [{tool_names}] by writing Action and Action Input, or write Final Answer.

Conversation so far:
{chat_history}

Question: {input}
{agent_scratchpad}"""


@pytest.fixture
def asked():
    """What the tool was asked for."""
    return []


@pytest.fixture
def tools(asked):
    def lookup(query: str) -> str:
        """Look a name up."""
        asked.append(query)
        return "Rex"

    async def alookup(query: str) -> str:
        return lookup(query)

    return [StructuredTool.from_function(lookup, coroutine=alookup)]


@pytest.fixture
def questions():
    return [{"input": question} for question in QUESTIONS]


def check(ours, asked):
    assert ours.saved == EXCHANGES
    assert [output["output"] for output in ours.outputs] == list(ANSWERS)
    assert asked == ["dog", "dog"]
    assert len(ours.calls) == 3


async def test_conversational_react_agent_with_string_history(stage, tools, asked, questions, kind, awaited):
    script = [
        exactly("Action: lookup\nAction Input: dog"),
        exactly(f"AI: {ANSWERS[0]}"),
        exactly(f"AI: {ANSWERS[1]}"),
    ]

    def build(model, memory):
        return initialize_agent(tools, model, agent=AgentType.CONVERSATIONAL_REACT_DESCRIPTION, memory=memory)

    _, ours = await stage.both(build, kind, script, questions, awaited=awaited, **FIELDS)
    check(ours, asked)


async def test_conversational_chat_agent_with_messages_placeholder(stage, tools, asked, questions, awaited):
    def action(name, said):
        return exactly(f'{{"action": "{name}", "action_input": "{said}"}}')

    script = [action("lookup", "dog"), action("Final Answer", ANSWERS[0]), action("Final Answer", ANSWERS[1])]

    def build(model, memory):
        return initialize_agent(tools, model, agent=AgentType.CHAT_CONVERSATIONAL_REACT_DESCRIPTION, memory=memory)

    _, ours = await stage.both(build, "chat", script, questions, awaited=awaited, return_messages=True, **FIELDS)
    check(ours, asked)


async def test_create_react_agent(stage, tools, asked, questions, other_kind, awaited):
    """The executor streams such an agent's model."""
    script = [
        exactly("Action: lookup\nAction Input: dog"),
        exactly(f"Final Answer: {ANSWERS[0]}"),
        exactly(f"Final Answer: {ANSWERS[1]}"),
    ]

    def build(model, memory):
        agent = create_react_agent(model, tools, PromptTemplate.from_template(REACT))
        return AgentExecutor(agent=agent, tools=tools, memory=memory)

    _, ours = await stage.both(build, other_kind, script, questions, awaited=awaited, **FIELDS)
    check(ours, asked)


async def test_an_answer_that_does_not_parse_is_the_same_error_and_saves_nothing(stage, tools, questions, awaited):
    def build(model, memory):
        return initialize_agent(tools, model, agent=AgentType.CONVERSATIONAL_REACT_DESCRIPTION, memory=memory)

    errors = []
    for memory in (stage.theirs(**FIELDS), stage.ours(**FIELDS)):
        model = stage.model("chat", [exactly("No idea.")])
        with pytest.raises(ValueError, match="Could not parse LLM output") as error:
            await stage.play(build, memory, model, questions[:1], awaited=awaited)
        errors.append(str(error.value))
        assert memory.buffer == ""
    assert errors[0] == errors[1]


@pytest.mark.xfail(
    raises=(OutputParserException, ValueError), reason="a model of 135M parameters writes no ReAct step unsteered"
)
async def test_an_agent_that_chooses_its_steps_freely(stage, tools, questions):
    model = stage.model("chat", [None] * 4)
    model.max_tokens = 16

    def build(model, memory):
        return initialize_agent(
            tools, model, agent=AgentType.CONVERSATIONAL_REACT_DESCRIPTION, memory=memory, max_iterations=3
        )

    side = await stage.play(build, stage.ours(**FIELDS), model, questions[:1], awaited=False)
    assert "Rex" in side.outputs[0]["output"]
