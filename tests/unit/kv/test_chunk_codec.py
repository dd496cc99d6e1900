from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferscale_memory.errors import ChunkError
from inferscale_memory.kv import codec

torch = pytest.importorskip("torch")

SECRET = b"s" * codec.SECRET_BYTES
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 7), st.integers(1, 3), st.sampled_from((1, 2, 8, 64)))
DTYPES = st.sampled_from((torch.bfloat16, torch.float16, torch.float32))
FIXTURES_ARE_STATELESS = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)


def pack(chunk, secret=SECRET) -> bytearray:
    return bytearray(b"".join(codec.encode(chunk, secret)))


def unpack(raw, chunk, secret=SECRET, **asked):
    asked = {"key": chunk.key, "fingerprint": chunk.fingerprint, "rank": chunk.rank, "world": chunk.world, **asked}
    return codec.decode(torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0).byte(), secret, **asked)


@given(shape=SHAPES, dtype=DTYPES, ranks=st.sampled_from(((0, 1), (0, 2), (3, 4))))
@FIXTURES_ARE_STATELESS
def test_a_chunk_survives_the_round_trip_to_the_bit(make_chunk, same, shape, dtype, ranks):
    chunk = make_chunk(shape=shape, dtype=dtype, rank=ranks[0], world=ranks[1])
    same(unpack(pack(chunk), chunk), chunk)


def test_not_a_number_and_infinities_survive_too(make_chunk, same):
    chunk = make_chunk()
    chunk.keys[0, 0, 0] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    same(unpack(pack(chunk), chunk), chunk)


def test_a_tensor_that_is_not_contiguous_is_stored_in_its_own_order(make_chunk, same):
    chunk = make_chunk(shape=(2, 3, 2, 4))
    strided = replace(chunk, keys=chunk.keys.transpose(1, 2).contiguous().transpose(1, 2))
    assert not strided.keys.is_contiguous()
    same(unpack(pack(strided), chunk), chunk)


def test_decoded_tensors_are_views_of_the_buffer(make_chunk):
    chunk = make_chunk()
    buffer = torch.frombuffer(pack(chunk), dtype=torch.uint8)
    decoded = codec.decode(buffer, SECRET, key=chunk.key, fingerprint=chunk.fingerprint, rank=0, world=1)
    assert decoded.keys.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
    assert decoded.footprint == buffer.nbytes


def test_any_safetensors_reader_opens_the_file(make_chunk, tmp_path):
    safetensors = pytest.importorskip("safetensors", reason="checks the format against the reference reader")
    chunk = make_chunk()
    path = tmp_path / "chunk.safetensors"
    path.write_bytes(pack(chunk))
    with safetensors.safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("keys"), chunk.keys)
        assert torch.equal(file.get_tensor("values"), chunk.values)
        assert tuple(file.get_tensor("token_ids").tolist()) == chunk.token_ids
        assert file.metadata()["key"] == chunk.key


@given(data=st.data())
@FIXTURES_ARE_STATELESS
def test_one_flipped_bit_anywhere_is_noticed(make_chunk, data):
    chunk = make_chunk()
    raw = pack(chunk)
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ChunkError, match="do not match their MAC"):
        unpack(raw, chunk)


@given(data=st.data())
@FIXTURES_ARE_STATELESS
def test_a_truncated_file_is_noticed(make_chunk, data):
    chunk = make_chunk()
    raw = pack(chunk)
    with pytest.raises(ChunkError, match="torn"):
        unpack(raw[: data.draw(st.integers(0, len(raw) - 1))], chunk)


def test_a_torn_file_whose_end_was_never_written_is_noticed(make_chunk):
    chunk = make_chunk()
    raw = pack(chunk)
    raw[len(raw) // 2 :] = bytes(len(raw) - len(raw) // 2)
    with pytest.raises(ChunkError, match="torn"):
        unpack(raw, chunk)


def test_appended_bytes_are_noticed(make_chunk):
    chunk = make_chunk()
    with pytest.raises(ChunkError, match="MAC"):
        unpack(pack(chunk) + b"\0", chunk)


def test_a_chunk_of_another_store_is_refused(make_chunk):
    chunk = make_chunk()
    with pytest.raises(ChunkError, match="of another store"):
        unpack(pack(chunk, b"x" * codec.SECRET_BYTES), chunk)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"key": "0" * 64}, "its key is"),
        ({"fingerprint": "0" * 64}, "its fingerprint is"),
        ({"rank": 1}, "its rank is '0', wanted '1'"),
        ({"world": 2}, "its world is '1', wanted '2'"),
    ],
)
def test_an_authentic_chunk_that_was_not_asked_for_is_refused(make_chunk, asked, message):
    chunk = make_chunk()
    with pytest.raises(ChunkError, match=message):
        unpack(pack(chunk), chunk, **asked)


def test_an_authentic_file_of_another_format_is_refused(make_chunk, monkeypatch):
    chunk = make_chunk()
    with monkeypatch.context() as patch:
        patch.setattr(codec, "FORMAT", "inferscale-chunk-0")
        raw = pack(chunk)
    with pytest.raises(ChunkError, match="its format is 'inferscale-chunk-0', wanted 'inferscale-chunk-1'"):
        unpack(raw, chunk)


def test_an_authentic_file_that_makes_no_sense_is_refused(make_chunk):
    chunk = make_chunk()
    text = json.dumps({"__metadata__": codec._metadata(chunk)}).encode()
    raw = len(text).to_bytes(8, "little") + text
    with pytest.raises(ChunkError, match="authentic but malformed: KeyError"):
        unpack(bytearray(raw + codec._mac(SECRET, raw)), chunk)
