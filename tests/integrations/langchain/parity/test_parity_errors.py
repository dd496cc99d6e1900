"""What goes wrong in a chain goes wrong in the same way, and is saved as little."""

from __future__ import annotations

import pytest
from langchain_classic.chains import ConversationChain, LLMChain
from langchain_core.prompts import PromptTemplate
from steering import exactly


async def failures(stage, build, questions, *, awaited, steps=0, match):
    """Messages of the error that each memory's chain ends in."""
    errors = []
    for memory in (stage.theirs(), stage.ours()):
        model = stage.model("chat", [exactly("Yes.")] * steps)
        with pytest.raises(ValueError, match=match) as error:
            await stage.play(build, memory, model, questions, awaited=awaited)
        errors.append((type(error.value), sorted(str(error.value).split("'"))))
        assert memory.buffer == ""
        assert len(model.recorder.calls) == steps
    return errors


async def test_a_missing_input_key(stage, awaited):
    def build(model, memory):
        return ConversationChain(llm=model, memory=memory)

    theirs, ours = await failures(stage, build, [{"wrong": "Hello."}], awaited=awaited, match="Missing some input keys")
    assert theirs == ours


async def test_two_inputs_without_an_input_key_fail_after_the_answer(stage, awaited):
    prompt = PromptTemplate.from_template("{history}\n{name}: {input}\nAI:")

    def build(model, memory):
        return LLMChain(llm=model, prompt=prompt, memory=memory)

    questions = [{"name": "Bob", "input": "Is Rex a dog?"}]
    theirs, ours = await failures(stage, build, questions, awaited=awaited, steps=1, match="One input key expected")
    assert theirs == ours


def test_a_prompt_that_does_not_take_the_memory(stage):
    prompt = PromptTemplate.from_template("{other}\nHuman: {input}\nAI:")
    errors = []
    for memory in (stage.theirs(), stage.ours()):
        with pytest.raises(ValueError, match="Got unexpected prompt input variables") as error:
            ConversationChain(llm=stage.model("chat", []), prompt=prompt, memory=memory)
        errors.append(error.value.errors()[0]["msg"])
    assert errors[0] == errors[1]
