"""Classic chains: the memory variable in a string prompt."""

from __future__ import annotations

from langchain_classic.chains import ConversationChain, LLMChain
from langchain_classic.memory import CombinedMemory, ConversationBufferMemory, ReadOnlySharedMemory
from langchain_core.prompts import PromptTemplate
from steering import exactly

from inferscale_memory.handles import find_handles

QUESTIONS = ("What is the dog of Alice called?", "How old is the dog?")
ANSWERS = ("Rex.", "Four.")
SCRIPT = [exactly(answer) for answer in ANSWERS]
EXCHANGES = [("human", QUESTIONS[0]), ("ai", ANSWERS[0]), ("human", QUESTIONS[1]), ("ai", ANSWERS[1])]


async def test_conversation_chain(stage, kind, awaited):
    def build(model, memory):
        return ConversationChain(llm=model, memory=memory)

    questions = [{"input": question} for question in QUESTIONS]
    _, ours = await stage.both(build, kind, SCRIPT, questions, awaited=awaited)
    assert ours.saved == EXCHANGES
    assert [output["response"] for output in ours.outputs] == list(ANSWERS)
    assert ours.outputs[1]["history"].endswith(f"\nHuman: {QUESTIONS[0]}\nAI: {ANSWERS[0]}")


async def test_llm_chain(stage, other_kind, awaited):
    prompt = PromptTemplate.from_template("{chat_history}\nQuestion: {question}\nAnswer:")

    def build(model, memory):
        return LLMChain(llm=model, prompt=prompt, memory=memory)

    questions = [{"question": question} for question in QUESTIONS]
    fields = {"memory_key": "chat_history", "human_prefix": "Question", "ai_prefix": "Answer"}
    _, ours = await stage.both(build, other_kind, SCRIPT, questions, awaited=awaited, **fields)
    assert ours.saved == EXCHANGES
    assert ours.outputs[1]["chat_history"].endswith(f"\nQuestion: {QUESTIONS[0]}\nAnswer: {ANSWERS[0]}")


async def test_combined_memory(stage, awaited):
    """The other memory of the two stays as it is, and both save."""
    prompt = PromptTemplate.from_template("{facts}\n\n{history}\nHuman: {input}\nAI:")
    others = []

    def build(model, memory):
        others.append(ConversationBufferMemory(input_key="input"))
        return ConversationChain(llm=model, prompt=prompt, memory=CombinedMemory(memories=[memory, others[-1]]))

    questions = [{"input": question} for question in QUESTIONS]
    _, ours = await stage.both(build, "chat", SCRIPT, questions, awaited=awaited, memory_key="facts", input_key="input")
    assert ours.saved == EXCHANGES
    assert others[0].buffer == others[1].buffer
    assert not find_handles(ours.outputs[1]["history"])


async def test_read_only_shared_memory(stage, awaited):
    """A second chain reads what the first one saved, and saves nothing."""
    prompt = PromptTemplate.from_template("{history}\nSummarise for {input}:")

    def build(model, memory):
        first = ConversationChain(llm=model, memory=memory)
        return first | (lambda _: {"input": "Bob"}) | LLMChain(
            llm=model, prompt=prompt, memory=ReadOnlySharedMemory(memory=memory)
        )  # fmt: skip

    script = [*SCRIPT[:1], exactly("About Rex.")]
    _, ours = await stage.both(build, "chat", script, [{"input": QUESTIONS[0]}], awaited=awaited)
    assert ours.saved == EXCHANGES[:2]
    assert ours.outputs[0]["text"] == "About Rex."
