"""Synthetic facts of an exact length in tokens: the same ones in every run, no two alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from inferscale_memory.errors import InvalidInputError

_CLAUSES = (
    "moved to {city} in {year}",
    "plays the {thing} every {day}",
    "sold a {colour} {thing} for {number} euros",
    "is allergic to {food}",
    "met a {job} near {city} last {month}",
    "keeps {number} {animal}s in the garden",
    "never eats {food} on a {day}",
    "learns to be a {job} in {city}",
    "lost a {colour} {thing} in {month}",
    "bought {food} for {number} people",
    "was born in {city} in {month} {year}",
    "trains a {colour} {animal} each {day}",
)
_WORDS = {
    slot: words.split()
    for slot, words in {
        "name": "Ada Bruno Clara Daniel Elif Farid Greta Hugo Ines Jonas Kofi Lena Marta Nils Olga Pablo Qi Rosa Samir",
        "relation": "sister brother neighbour dentist cousin colleague teacher daughter uncle trainer boss aunt friend",
        "city": "Lisbon Oslo Kyoto Lagos Quebec Turin Nairobi Cusco Ghent Tallinn Seville Hanoi Perth Boston",
        "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
        "month": "January February March April May June July August September October November December",
        "thing": "guitar bicycle camera violin lamp piano clock radio boat carpet telescope drum mirror tent",
        "colour": "red blue green white black yellow silver purple brown grey",
        "food": "rice honey fish cheese nuts bread onions garlic apples soup coffee butter pepper eggs",
        "job": "pilot baker nurse judge farmer tailor painter doctor sailor singer lawyer cook",
        "animal": "horse rabbit goat parrot turtle duck dog cat pigeon snake",
        "year": " ".join(map(str, range(1950, 2025))),
        "number": " ".join(map(str, range(2, 99))),
    }.items()
}
_FILLERS = ("now", "too", "there", "again", "still", "then", "here", "so", "well", "a", "the", "of", "to", "in", "and")
_ATTEMPTS = 200


def make_facts(count: int, tokens: int, length: Callable[[str], int]) -> list[str]:
    """Write ``count`` different facts of exactly ``tokens`` tokens each.

    Args:
        count: how many; 0 gives none.
        tokens: length of each as it stands in a prompt.
        length: number of tokens that a text takes in a prompt, line break and bullet included.

    Raises:
        InvalidInputError: facts of that length do not exist, or not so many.
    """
    facts: dict[str, None] = {}
    for attempt in range(count * _ATTEMPTS):
        if len(facts) == count:
            break
        fact = _exactly(_words(random.Random(attempt)), tokens, length)
        if fact is not None:
            facts[fact] = None
    if len(facts) < count:
        raise InvalidInputError(
            f"only {len(facts)} different facts of {tokens} tokens were found, wanted {count}; "
            "give more tokens per fact (--fact-tokens 25)."
        )
    return list(facts)


def _words(choose: random.Random) -> Iterator[str]:
    """Words of one fact, without end."""
    yield from (choose.choice(_WORDS["name"]), "my", choose.choice(_WORDS["relation"]))
    while True:
        clause = choose.choice(_CLAUSES).format(**{slot: choose.choice(words) for slot, words in _WORDS.items()})
        yield from clause.split()
        yield "and"


def _exactly(words: Iterator[str], tokens: int, length: Callable[[str], int]) -> str | None:
    """As many words as fit, then fillers of one token; None where these words cannot be made to fit."""
    text = next(words)
    for word in words:
        if length(f"{text} {word}.") > tokens:
            break
        text = f"{text} {word}"
    now = length(f"{text}.")
    while now < tokens:
        longer = next((one for word in _FILLERS if now < length(f"{(one := f'{text} {word}')}.") <= tokens), None)
        if longer is None:
            return None
        text, now = longer, length(f"{longer}.")
    return f"{text}." if now == tokens else None
