"""How well a short answer matches the gold one, by the words they share."""

from __future__ import annotations

import re
import string
from collections import Counter

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> list[str]:
    """Words in lower case, without ASCII punctuation and English articles, as SQuAD compares them."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def token_f1(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall of the answer's words, counted (Rajpurkar et al., EMNLP 2016); 0 to 1.

    Two answers without words match, one without words matches none.
    """
    given, wanted = normalised(answer), normalised(gold)
    if not given or not wanted:
        return float(given == wanted)
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted))
