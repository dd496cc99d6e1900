"""What embedders promise, and the choice of an index by name."""

import shutil
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

from inferscale_memory import _extras
from inferscale_memory.errors import ConfigError, InvalidInputError, MissingExtraError, ModelError
from inferscale_memory.retrieval import (
    CallableEmbedder,
    Embedder,
    EmbeddingError,
    FaissIndex,
    NumpyIndex,
    SentenceTransformerEmbedder,
    TorchIndex,
    factory,
    open_index,
)


def test_a_callable_may_return_lists_of_any_length_and_they_are_normalised():
    embedder = CallableEmbedder(lambda texts: [[3, 4]] * len(texts), id="x", dim=2)
    vectors = embedder.embed(["a", "b"])
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, [[0.6, 0.8]] * 2)
    assert isinstance(embedder, Embedder)


def test_no_texts_give_no_vectors_and_no_call():
    embedder = CallableEmbedder(lambda texts: pytest.fail("called"), id="x", dim=3)
    assert embedder.embed([]).shape == (0, 3)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ([[1.0, 2.0, 3.0]], "has 3 dimensions, want 2"),
        ([[1.0, 2.0]] * 2, "want one vector for each of 1"),
        ([[float("nan"), 1.0]], "NaN or infinity"),
        ([[0.0, 0.0]], "is zero"),
        (None, "shape"),
        ("words", "not a rectangular array"),
    ],
)
def test_a_callable_that_returns_unusable_vectors_is_a_clear_error(output, reason):
    with pytest.raises(EmbeddingError, match=f"embedder 'mine' gave back.*{reason}"):
        CallableEmbedder(lambda texts: output, id="mine", dim=2).embed(["a"])


def test_a_callable_without_a_name_is_named_by_what_it_does():
    def one(texts):
        return [[len(text), 1.0] for text in texts]

    def two(texts):
        return [[1.0, len(text)] for text in texts]

    ids = [CallableEmbedder(fn).id for fn in (one, one, two, lambda texts: one(texts))]
    assert ids[0] == ids[1] == ids[3] != ids[2]
    assert CallableEmbedder(one).dim == 2
    assert CallableEmbedder(one, id="mine").id == "mine"


def test_a_callable_is_held_to_the_dimension_of_its_first_call():
    shapes = iter([2, 3])
    embedder = CallableEmbedder(lambda texts: np.ones((len(texts), next(shapes))))
    with pytest.raises(EmbeddingError, match="has 3 dimensions, want 2"):
        embedder.embed(["a"])


@pytest.mark.parametrize(("id", "dim"), [("", 3), (" ", 3), ("x" * 257, 3), (7, 3), ("x", 0), ("x", True), ("x", 2.0)])
def test_a_callable_needs_a_name_and_a_dimension(id, dim):
    with pytest.raises(InvalidInputError, match="embedder"):
        CallableEmbedder(len, id=id, dim=dim)


def test_a_model_is_not_loaded_before_it_is_needed():
    SentenceTransformerEmbedder("/no/such/folder")


def test_a_model_that_cannot_be_loaded_is_named_with_the_cause(monkeypatch):
    def refuse(name, device):
        raise OSError(f"Path {name} not found.")

    library = types.SimpleNamespace(SentenceTransformer=refuse)
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    with pytest.raises(ModelError, match=r"cannot load the embedding model '/absent': Path /absent not found\. Pass a"):
        SentenceTransformerEmbedder("/absent").embed(["a"])


@pytest.mark.parametrize("kwargs", [{"model": " "}, {"batch_size": 0}])
def test_unusable_settings_of_a_model_are_refused(kwargs):
    with pytest.raises(InvalidInputError, match=r"blank|batch_size"):
        SentenceTransformerEmbedder(**kwargs)


def test_the_real_model_embeds_meaning_alike_from_many_threads_under_an_id_of_its_content(real_model, tmp_path):
    embedder = SentenceTransformerEmbedder(real_model, device="cpu")
    texts = ["My dog is called Rex.", "The train leaves at nine.", "How is my pet named?"]
    results = []
    threads = [threading.Thread(target=lambda: results.append(embedder.embed(texts))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for vectors in results:
        np.testing.assert_allclose(vectors, results[0], atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
        assert vectors.shape == (3, embedder.dim)
    assert results[0][2] @ results[0][0] > results[0][2] @ results[0][1]
    assert embedder.memory_bytes() > 0
    copy = shutil.copytree(real_model, tmp_path / "copy")
    assert SentenceTransformerEmbedder(str(copy), device="cpu").id == embedder.id
    with pytest.raises(EmbeddingError, match="cannot embed 1 text"):
        embedder.embed(["lone \ud800 surrogate"])


def test_a_question_is_embedded_by_one_thread_and_the_others_keep_theirs(real_model, monkeypatch):
    torch = pytest.importorskip("torch")
    embedder = SentenceTransformerEmbedder(real_model, device="cpu")
    usual = torch.get_num_threads()
    torch.set_num_threads(usual + 1)
    if torch.get_num_threads() != usual + 1:
        pytest.skip("an engine of another test runs in this process, and fixes the number of threads")
    try:
        embedder.load()
        counts = []
        encode = embedder._encode

        def counted(texts):
            counts.append(torch.get_num_threads())
            return encode(texts)

        monkeypatch.setattr(embedder, "_encode", counted)
        question = embedder.embed(["How is my dog called?"])
        many = embedder.embed(["How is my dog called?"] * 200)
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert counts == [1, usual + 1]
        assert elsewhere == [torch.get_num_threads()] == [usual + 1]
        np.testing.assert_allclose(many[0], question[0], atol=1e-5)
    finally:
        torch.set_num_threads(usual)


def test_an_index_is_made_by_name(monkeypatch):
    assert isinstance(open_index("numpy"), NumpyIndex)
    for package, kind, type_ in (("torch", "torch", TorchIndex), ("faiss", "faiss", FaissIndex)):
        pytest.importorskip(package)
        assert isinstance(open_index(kind, device="cpu"), type_)
    assert isinstance(open_index("auto", device="cpu"), NumpyIndex)
    monkeypatch.setattr(factory, "find_spec", lambda name: None)
    assert isinstance(open_index("auto"), NumpyIndex)


def test_an_index_kind_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="'jasper'; want one of auto, torch, faiss"):
        open_index("jasper")


def test_a_device_that_does_not_exist_is_refused():
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="cannot use device 'abacus'"):
        TorchIndex(device="abacus")


def test_a_missing_package_names_its_extra(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(_extras.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"inferscale-memory\[cpu\]"):
        FaissIndex()
    with pytest.raises(MissingExtraError, match=r"inferscale-memory\[cuda\]"):
        FaissIndex(gpu=True)
    with pytest.raises(MissingExtraError, match=r"inferscale-memory\[embed\]"):
        TorchIndex()
    with pytest.raises(MissingExtraError, match=r"inferscale-memory\[embed\]"):
        SentenceTransformerEmbedder("m").load()


def test_a_gpu_index_without_gpu_support_says_what_to_install():
    faiss = pytest.importorskip("faiss")
    if hasattr(faiss, "StandardGpuResources"):
        pytest.skip("this FAISS is built for GPUs")
    with pytest.raises(ConfigError, match=r"Uninstall it and run: pip install 'inferscale-memory\[cuda\]'"):
        FaissIndex(gpu=True)


def test_importing_the_package_loads_no_heavy_library():
    heavy = ["torch", "faiss", "sentence_transformers", "transformers", "vllm"]
    code = f"import sys, inferscale_memory.retrieval; sys.exit(','.join([m for m in {heavy} if m in sys.modules]) or 0)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
