"""Conversations to be remembered, and what a prompt is given of them."""

from __future__ import annotations

from inferscale_memory.handles import find_handles

TALK = (
    ("My dog is called Rex.", "What a fine name."),
    ("I live in Graz.", "A lovely town."),
    ("I like tea.", "So do many."),
    ("It rains today.", "Take an umbrella."),
)


def talk(memory, exchanges=TALK):
    for said, answered in exchanges:
        memory.save_context({"input": said}, {"output": answered})


def loaded(memory, said="What is my dog called?"):
    return memory.load_memory_variables({"input": said})[memory.memory_key]


def recalled(memory, text):
    """Texts behind the one handle in ``text``, best first."""
    [handle] = find_handles(text)
    return [explained.fact.text for explained in reversed(memory.explain(handle).facts)]
