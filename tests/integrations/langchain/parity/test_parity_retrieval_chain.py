"""``ConversationalRetrievalChain``: the history reaches the model that condenses the question, and no other."""

from __future__ import annotations

import pytest
from langchain_classic.chains import ConversationalRetrievalChain
from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from steering import exactly

QUESTIONS = ("What is the dog of Alice called?", "How old is he?")
ANSWERS = ("Rex.", "Four.")
CONDENSED = exactly("How old is the dog of Alice?")
EXCHANGES = [("human", QUESTIONS[0]), ("ai", ANSWERS[0]), ("human", QUESTIONS[1]), ("ai", ANSWERS[1])]
FIELDS = {"memory_key": "chat_history", "return_messages": True}
WITH_HISTORY = PromptTemplate.from_template("{chat_history}\n\n{context}\n\nQuestion: {question}\nAnswer:")


class OnePage(BaseRetriever):
    """Always the same document."""

    def _get_relevant_documents(self, query, *, run_manager):
        return [Document("Dogs need to be walked.")]


def builder(condenser, prompt=None, **options):
    def build(model, memory):
        if prompt is not None:
            options["combine_docs_chain_kwargs"] = {"prompt": prompt}
        return ConversationalRetrievalChain.from_llm(
            model, OnePage(), condense_question_llm=condenser, memory=memory, **options
        )

    return build


def asked(questions=QUESTIONS):
    return [{"question": question} for question in questions]


def alike(theirs, ours):
    """The chain compares messages by their words: those that were saved have ids."""
    assert theirs.saved == ours.saved == EXCHANGES
    assert [out.keys() for out in theirs.outputs] == [out.keys() for out in ours.outputs]
    assert [out["answer"] for out in theirs.outputs] == [out["answer"] for out in ours.outputs] == list(ANSWERS)


@pytest.mark.parametrize("prompt", [None, WITH_HISTORY], ids=["its own prompt", "a prompt with the history"])
async def test_the_facts_reach_every_prompt_that_holds_the_history(stage, prompt, awaited):
    script = [exactly(answer) for answer in ANSWERS]
    sides, condensers = [], []
    # Ours condenses the first question too: there is no turn yet, but there are facts.
    for memory, condensed in ((stage.theirs(**FIELDS), [CONDENSED]), (stage.ours(**FIELDS), [CONDENSED] * 2)):
        condensers.append(stage.model("chat", condensed))
        model = stage.model("chat", script)
        sides.append(await stage.play(builder(condensers[-1], prompt), memory, model, asked(), awaited=awaited))
    alike(*sides)
    theirs, ours = sides
    assert [len(condenser.recorder.calls) for condenser in condensers] == [1, 2]
    assert [call.kv["injected"] for call in (*condensers[0].recorder.calls, *theirs.calls)] == [0, 0, 0]
    for call in condensers[1].recorder.calls:
        stage.assert_call_injected(call)
    for call in ours.calls:
        if prompt is None:
            assert (call.kv["injected"], call.recalled, call.handles) == (0, [], [])
        else:
            stage.assert_call_injected(call)


async def test_two_outputs_without_an_output_key_are_the_same_error(stage, awaited):
    errors = []
    for memory in (stage.theirs(**FIELDS), stage.ours(**FIELDS)):
        condenser, model = stage.model("chat", [CONDENSED]), stage.model("chat", [exactly(ANSWERS[0])])
        build = builder(condenser, return_source_documents=True)
        with pytest.raises(ValueError, match="Got multiple output keys") as error:
            await stage.play(build, memory, model, asked()[:1], awaited=awaited)
        errors.append(str(error.value))
        assert memory.buffer == []
    assert errors[0] == errors[1]
