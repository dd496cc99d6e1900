"""Conversations to be remembered, and what a prompt is given of them."""

from __future__ import annotations

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ToolCallBlock

from inferscale_memory.handles import find_handles

TALK = (
    ("My dog is called Rex.", "What a fine name."),
    ("I live in Graz.", "A lovely town."),
    ("I like tea.", "So do many."),
    ("It rains today.", "Take an umbrella."),
)
QUESTION = "What is my dog called?"


def user(text):
    return ChatMessage(role=MessageRole.USER, content=text)


def assistant(text, **more):
    return ChatMessage(role=MessageRole.ASSISTANT, content=text, **more)


def system(text):
    return ChatMessage(role=MessageRole.SYSTEM, content=text)


def tool_call(name="look", call_id="c1", text=""):
    call = ToolCallBlock(tool_call_id=call_id, tool_name=name, tool_kwargs={"at": "sky"})
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=[TextBlock(text=text), call])


def tool_result(text, call_id="c1"):
    return ChatMessage(role=MessageRole.TOOL, content=text, additional_kwargs={"tool_call_id": call_id})


def exchanges(talk=TALK):
    """The messages of a talk."""
    return [message for said, answered in talk for message in (user(said), assistant(answered))]


def said(messages):
    """Role and text of each message, without the one that holds a handle."""
    return [
        (message.role.value, message.content or "") for message in messages if not find_handles(message.content or "")
    ]


def words(text):
    """A tokenizer: a token is a word."""
    return text.split()


def recalled(memory, messages):
    """Texts behind the one handle in ``messages``, best first; [] where there is none."""
    found = [handle for message in messages for handle in find_handles(message.content or "")]
    if not found:
        return []
    [handle] = found
    return [explained.fact.text for explained in reversed(memory.explain(handle).facts)]
