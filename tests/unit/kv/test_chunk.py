from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from inferscale_memory.errors import InvalidInputError

torch = pytest.importorskip("torch")


def test_a_chunk_knows_its_size_in_tokens_and_bytes(make_chunk):
    chunk = make_chunk(shape=(2, 3, 2, 4), dtype=torch.bfloat16)
    assert chunk.num_tokens == 3
    assert chunk.nbytes == 2 * (2 * 3 * 2 * 4) * 2


def test_a_chunk_cannot_be_changed(make_chunk):
    with pytest.raises(FrozenInstanceError):
        make_chunk().rank = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": (1, 2)}, r"keys are \(2, 3, 2, 4\); wanted \[2 layers, 2 tokens"),
        ({"token_ids": ()}, "0 tokens"),
        ({"layer_names": ("one",)}, r"wanted \[1 layers"),
        ({"layer_names": ("one", "one")}, "repeat"),
        ({"keys": torch.zeros(2, 3, 8, dtype=torch.bfloat16)}, r"keys are \(2, 3, 8\)"),
        ({"values": torch.zeros(2, 3, 2, 5, dtype=torch.bfloat16)}, r"values are \(2, 3, 2, 5\)"),
        ({"values": torch.zeros(2, 3, 2, 4)}, "keys are bfloat16, values float32"),
        ({"keys": torch.zeros(2, 3, 2, 4).int(), "values": torch.zeros(2, 3, 2, 4).int()}, "keys are int32"),
        ({"rank": 1}, "rank 1 of 1"),
        ({"rank": -1}, "rank -1 of 1"),
        ({"key": "../../etc/passwd"}, "key is '../../etc/passwd'"),
        ({"fingerprint": "A" * 64}, "fingerprint is 'AAAA"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(make_chunk, change, message):
    with pytest.raises(InvalidInputError, match=message):
        replace(make_chunk(), **change)


def test_a_chunk_cut_from_a_large_buffer_lets_go_of_it_when_compacted(make_chunk, same):
    chunk = make_chunk(shape=(2, 3, 2, 4))
    buffer = torch.zeros(1 << 20, dtype=torch.bfloat16)
    view = buffer[: chunk.keys.numel()].view(chunk.keys.shape)
    view.copy_(chunk.keys)
    cut = replace(chunk, keys=view)
    assert cut.footprint >= buffer.nbytes
    assert cut.compact().footprint == chunk.nbytes
    same(cut.compact(), chunk)


def test_a_chunk_that_fills_its_buffer_is_not_copied(make_chunk):
    chunk = make_chunk()
    assert chunk.compact() is chunk


def test_keys_and_values_in_one_buffer_count_once(make_chunk):
    chunk = make_chunk()
    both = torch.stack((chunk.keys, chunk.values))
    assert replace(chunk, keys=both[0], values=both[1]).footprint == chunk.nbytes
