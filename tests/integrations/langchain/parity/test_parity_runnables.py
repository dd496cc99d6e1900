"""Runnables: plain LCEL with the memory as a step, and a history around a chain."""

from __future__ import annotations

from operator import itemgetter

from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from steering import exactly

from langchain_inferscale import InferScaleBufferMemory, InferScaleChatMessageHistory

QUESTIONS = ("What is the dog of Alice called?", "How old is the dog?")
ANSWERS = ("Rex.", "Four.")
SCRIPT = [exactly(answer) for answer in ANSWERS]
EXCHANGES = [("human", QUESTIONS[0]), ("ai", ANSWERS[0]), ("human", QUESTIONS[1]), ("ai", ANSWERS[1])]
CHAT = ChatPromptTemplate(
    [("system", "You are a helpful assistant."), MessagesPlaceholder("history"), ("human", "{input}")]
)
STRING = PromptTemplate.from_template("{history}\nHuman: {input}\nAI:")
RECALLING = ChatPromptTemplate(
    [("system", "You are a helpful assistant. {facts}"), MessagesPlaceholder("history"), ("human", "{input}")]
)


def with_memory(prompt, model, memory):
    """A chain as one writes it with LCEL: load, prompt, model, save."""
    load = RunnableLambda(memory.load_memory_variables, memory.aload_memory_variables)

    def save(exchange):
        memory.save_context({"input": exchange["input"]}, {"output": exchange["output"]})
        return exchange["output"]

    async def asave(exchange):
        await memory.asave_context({"input": exchange["input"]}, {"output": exchange["output"]})
        return exchange["output"]

    return (
        RunnablePassthrough.assign(history=load | itemgetter("history"))
        | RunnablePassthrough.assign(output=prompt | model | StrOutputParser())
        | RunnableLambda(save, asave)
    )


async def test_lcel_with_messages_placeholder(stage, awaited):
    def build(model, memory):
        return with_memory(CHAT, model, memory)

    questions = [{"input": question} for question in QUESTIONS]
    _, ours = await stage.both(build, "chat", SCRIPT, questions, awaited=awaited, return_messages=True)
    assert ours.saved == EXCHANGES


async def test_lcel_with_string_history(stage, other_kind, awaited):
    def build(model, memory):
        return with_memory(STRING, model, memory)

    questions = [{"input": question} for question in QUESTIONS]
    _, ours = await stage.both(build, other_kind, SCRIPT, questions, awaited=awaited)
    assert ours.saved == EXCHANGES


async def converse(chain, config, *, awaited, settle):
    """Ask both questions."""
    for question in QUESTIONS:
        asked = {"input": question}
        answer = await chain.ainvoke(asked, config) if awaited else chain.invoke(asked, config)
        assert answer.content == ANSWERS[QUESTIONS.index(question)]
        settle()


def around(chain, histories):
    """``RunnableWithMessageHistory`` over one history."""
    return RunnableWithMessageHistory(
        chain, lambda session_id: histories, input_messages_key="input", history_messages_key="history"
    )


def said(history):
    return [(message.type, message.content) for message in history.messages]


async def test_a_history_is_a_transcript_and_injects_nothing_by_itself(stage, awaited):
    ours = InferScaleChatMessageHistory(stage.memory, user_id=stage.user, session_id="s1")
    for history in (InMemoryChatMessageHistory(), ours):
        model = stage.model("chat", SCRIPT)
        config = {"configurable": {"session_id": "s1"}}
        await converse(around(CHAT | model, history), config, awaited=awaited, settle=stage.settle)
        assert said(history) == EXCHANGES
        assert [call.kv["injected"] for call in model.recorder.calls] == [0, 0]


async def test_a_history_with_a_memory_beside_it_injects_in_every_call(stage, awaited):
    """The run names user and session, so that history, memory and model agree on whose they are."""
    history = InferScaleChatMessageHistory(stage.memory)
    memory = InferScaleBufferMemory(memory=stage.memory, chat_memory=history, k=4, recent_turns=0, input_key="input")
    facts = RunnableLambda(memory.load_memory_variables, memory.aload_memory_variables) | itemgetter("history")
    model = stage.model("chat", SCRIPT)
    chain = around(RunnablePassthrough.assign(facts=facts) | RECALLING | model, history)
    config = {"configurable": {"session_id": "s1", "user_id": stage.user}}
    await converse(chain, config, awaited=awaited, settle=stage.settle)
    kept = InferScaleChatMessageHistory(stage.memory, user_id=stage.user, session_id="s1")
    assert said(kept) == EXCHANGES
    for call in model.recorder.calls:
        stage.assert_call_injected(call)
    assert model.recorder.calls[0].kv["injected"] > 0
