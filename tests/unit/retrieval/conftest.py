"""A deterministic embedder, one of every index, and a fact store."""

import hashlib
import re

import numpy as np
import pytest

from inferscale_memory.db import Base, open_database
from inferscale_memory.facts.models import NewFact
from inferscale_memory.facts.store import FactStore
from inferscale_memory.retrieval import CallableEmbedder, FaissIndex, NumpyIndex, Retriever, TorchIndex
from inferscale_memory.scope import Scope

DIM = 64
INDEXES = {"numpy": NumpyIndex, "torch": lambda: TorchIndex(device="cpu"), "faiss": FaissIndex}


def bag_of_words(text):
    """Each word adds a direction of its own, so that texts are alike by the words they share."""
    vector = np.zeros(DIM, dtype=np.float32)
    for word in re.findall(r"\w+", text.lower()):
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
        vector += np.random.default_rng(seed).standard_normal(DIM).astype(np.float32)
    return vector


class BagOfWords(CallableEmbedder):
    """Counts its calls; refuses every text that holds a word of ``poison``."""

    def __init__(self):
        super().__init__(self._embed, "bag-of-words@1", DIM)
        self.seen = []
        self.poison = set()

    def _embed(self, texts):
        self.seen.extend(texts)
        for text in texts:
            if self.poison & set(text.split()):
                raise RuntimeError(f"cannot digest {text!r}")
        return np.stack([bag_of_words(text) for text in texts])


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(params=list(INDEXES))
def new_index(request):
    """Makes empty indexes of one kind; a test that takes it runs for every kind."""
    if request.param != "numpy":
        pytest.importorskip(request.param)
    return INDEXES[request.param]


@pytest.fixture
def index(new_index):
    return new_index()


@pytest.fixture
def embedder():
    return BagOfWords()


@pytest.fixture
def new_embedder():
    return BagOfWords


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def alice():
    return Scope.of(user_id="alice")


@pytest.fixture
def open_store(tmp_path):
    """Opens the same database again and again, each time as another process would."""
    engines = []

    def open_():
        engine = open_database(f"sqlite:///{tmp_path / 'facts.db'}")
        Base.metadata.create_all(engine)
        engines.append(engine)
        return FactStore(engine)

    yield open_
    for engine in engines:
        engine.dispose()


@pytest.fixture
def store(open_store):
    return open_store()


@pytest.fixture
def save(store):
    """Saves texts in a scope and returns their ids."""

    def save_(scope, *texts):
        result = store.add([NewFact(text=text) for text in texts], scope)
        assert not result.errors
        return [fact.id for fact in result.facts]

    return save_


@pytest.fixture
def retriever(store, embedder, clock):
    return Retriever(store, embedder, NumpyIndex(), clock=clock)


@pytest.fixture
def real_model(embedder_model):
    return str(embedder_model)
