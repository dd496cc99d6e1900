"""``InferScaleBufferMemory``: what ConversationBufferMemory does too, and what it puts into a prompt."""

from __future__ import annotations

import warnings

import pytest
from langchain_classic.memory import ConversationBufferMemory
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from talking import TALK, loaded, recalled, talk

from inferscale_memory.handles import find_handles
from langchain_inferscale import InferScaleBufferMemory, InferScaleChatMessageHistory

# -- what ConversationBufferMemory does too ----------------------------------------------------------------------------


def test_it_takes_every_field_that_conversation_buffer_memory_has(memory):
    fields = {
        "memory_key": "chat_history",
        "input_key": "question",
        "output_key": "answer",
        "return_messages": True,
        "human_prefix": "User",
        "ai_prefix": "Bot",
        "chat_memory": InferScaleChatMessageHistory(memory, user_id="alice"),
    }
    assert set(fields) == set(ConversationBufferMemory.model_fields)
    ours = InferScaleBufferMemory(memory=memory, **fields)
    assert isinstance(ours, ConversationBufferMemory)
    assert {name: getattr(ours, name) for name in fields} == fields


@pytest.mark.parametrize("return_messages", [False, True])
async def test_an_empty_memory_gives_what_conversation_buffer_memory_gives(bare, return_messages):
    ours, theirs = bare(return_messages=return_messages), ConversationBufferMemory(return_messages=return_messages)
    assert ours.load_memory_variables({"input": "x"}) == theirs.load_memory_variables({"input": "x"})
    assert await ours.aload_memory_variables({}) == await theirs.aload_memory_variables({})
    assert ours.buffer == theirs.buffer == await ours.abuffer()


@pytest.mark.parametrize("return_messages", [False, True])
def test_as_long_as_all_is_shown_word_for_word_it_is_conversation_buffer_memory_to_the_letter(bare, return_messages):
    options = {"return_messages": return_messages, "human_prefix": "User", "ai_prefix": "Bot"}
    ours, theirs = bare(**options), ConversationBufferMemory(**options)
    for memory in (ours, theirs):
        talk(memory, TALK[:3])
    if return_messages:
        assert [(m.type, m.content) for m in loaded(ours)] == [(m.type, m.content) for m in loaded(theirs)]
    else:
        assert loaded(ours) == loaded(theirs)


@pytest.mark.parametrize("inputs", [{}, {"a": "x", "b": "y"}, {"input": 3}])
def test_loading_never_complains_of_the_inputs(bare, inputs):
    ours = bare()
    assert ours.load_memory_variables(inputs) == {"history": ""}
    talk(ours)
    assert ours.load_memory_variables(inputs)["history"].endswith("AI: Take an umbrella.")


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({"a": "x", "b": "y"}, {"output": "z"}),
        ({}, {"output": "z"}),
        ({"input": "x"}, {"one": "y", "two": "z"}),
        ({"input": "x"}, {}),
        ({"input": {"not": "text"}}, {"output": "z"}),
    ],
)
async def test_saving_fails_as_conversation_buffer_memory_fails(bare, inputs, outputs):
    theirs, ours = ConversationBufferMemory(), bare()
    with pytest.raises(ValueError, match=r"key|valid") as wanted:
        theirs.save_context(inputs, outputs)
    with pytest.raises(type(wanted.value)) as found:
        ours.save_context(inputs, outputs)
    with pytest.raises(type(wanted.value)) as found_async:
        await ours.asave_context(inputs, outputs)
    for error in (found, found_async):
        # The keys named come from a set.
        assert sorted(str(error.value).split("'")) == sorted(str(wanted.value).split("'"))
    assert ours.buffer == ""


def test_of_several_outputs_the_one_called_output_is_saved_with_a_warning(bare):
    ours = bare()
    with pytest.warns(UserWarning, match="multiple output keys"):
        ours.save_context({"input": "Hello."}, {"output": "Good day.", "steps": "none"})
    assert ours.buffer == "Human: Hello.\nAI: Good day."


def test_it_makes_no_deprecation_warning_of_its_own(bare):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        talk(bare())


# -- what it puts into a prompt ----------------------------------------------------------------------------------------


def test_a_handle_stands_before_the_recent_turns(bare, memory):
    ours = bare(recent_turns=2, k=2)
    talk(ours)
    text = loaded(ours)
    handle, rest = text.split("\n", 1)
    assert find_handles(text) == [handle]
    assert rest == "Human: It rains today.\nAI: Take an umbrella."
    assert recalled(memory, text)[0] == "User: My dog is called Rex."


def test_as_messages_a_system_message_carries_the_handle(bare, memory):
    ours = bare(recent_turns=2, k=2, return_messages=True)
    talk(ours)
    system, *recent = loaded(ours)
    assert type(system) is SystemMessage
    assert recalled(memory, system.content)[0] == "User: My dog is called Rex."
    assert [(type(m), m.content) for m in recent] == [
        (HumanMessage, "It rains today."),
        (AIMessage, "Take an umbrella."),
    ]


@pytest.mark.parametrize("return_messages", [False, True])
async def test_the_async_twins_give_the_same_prompt(bare, return_messages):
    ours = bare(recent_turns=2, k=2, return_messages=return_messages)
    for said, answered in TALK:
        await ours.asave_context({"input": said}, {"output": answered})
    inputs = {"input": "What is my dog called?"}
    assert await ours.aload_memory_variables(inputs) == ours.load_memory_variables(inputs)
    assert find_handles(str(await ours.aload_memory_variables(inputs)))
    await ours.aclear()
    assert ours.buffer == await ours.abuffer() == ([] if return_messages else "")


def test_the_recent_turns_take_no_slot_of_the_k_facts(bare, memory):
    ours = bare(recent_turns=4, k=4)
    talk(ours)
    found = recalled(memory, loaded(ours, "I like tea and it rains."))
    exchanges = [f"User: {said}" for said, _ in TALK[:2]] + [f"Assistant: {answered}" for _, answered in TALK[:2]]
    assert sorted(found) == sorted(exchanges)


def test_what_was_said_before_and_again_just_now_takes_no_slot_either(bare, memory):
    ours = bare(recent_turns=2, k=8)
    talk(ours, [*TALK, ("My dog is called Rex.", "You said so.")])
    assert "User: My dog is called Rex." not in recalled(memory, loaded(ours))


def test_without_recent_turns_the_variable_is_the_handle_alone(bare, memory):
    ours = bare(recent_turns=0, k=1)
    talk(ours)
    text = loaded(ours)
    assert [text] == find_handles(text)
    assert recalled(memory, text) == ["User: My dog is called Rex."]


def test_facts_that_were_not_said_in_the_conversation_are_recalled_too(bare, memory):
    memory.add("The dog of Alice barks.", user_id="alice")
    assert recalled(memory, loaded(bare(k=1))) == ["The dog of Alice barks."]


def test_the_question_is_what_stands_under_the_input_key(bare, memory):
    talk(bare())
    ours = bare(recent_turns=0, k=1, input_key="question")
    found = ours.load_memory_variables({"question": "my dog", "other": "tea"})["history"]
    assert recalled(memory, found) == ["User: My dog is called Rex."]
    found = ours.load_memory_variables({"question": [HumanMessage("tea"), HumanMessage("my dog")]})["history"]
    assert recalled(memory, found) == ["User: My dog is called Rex."]


@pytest.mark.parametrize("inputs", [{}, {"input": " "}, {"input": None}, {"other": "dog", "input": "dog"}])
def test_without_one_the_question_is_the_last_thing_the_user_said(bare, memory, inputs):
    ours = bare(recent_turns=0, k=1)
    talk(ours)
    assert recalled(memory, ours.load_memory_variables(inputs)["history"]) == ["User: It rains today."]


def test_a_threshold_leaves_out_what_does_not_fit(bare):
    ours = bare(recent_turns=0, threshold=0.99)
    talk(ours)
    assert loaded(ours) == ""


def test_the_handle_changes_with_what_it_names_and_with_nothing_else(bare):
    ours = bare(recent_turns=0, k=1)
    talk(ours)
    assert loaded(ours) == loaded(ours)
    assert loaded(ours) != loaded(ours, "Do I like tea?")


def test_refresh_is_handed_on(bare, memory):
    ours = bare(recent_turns=0, k=3, refresh=2)
    talk(ours)
    assert [fact.refreshed for fact in memory.explain(loaded(ours)).facts] == [False, True, True]


def test_the_buffer_is_the_whole_conversation_for_people(bare):
    ours = bare(recent_turns=2)
    talk(ours)
    assert ours.buffer == ours.buffer_as_str
    assert ours.buffer.startswith("Human: My dog is called Rex.\nAI: What a fine name.\nHuman: I live in Graz.")
    assert len(ours.buffer_as_messages) == 2 * len(TALK)
    assert not find_handles(ours.buffer)
