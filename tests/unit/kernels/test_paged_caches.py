from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from inferscale_kernels import PagedCaches  # noqa: E402 (needs torch)


def caches(layers=2, dtype=torch.bfloat16):
    return [torch.zeros(5, 16, 3, 64, dtype=dtype) for _ in range(layers)]


def test_views_are_described_and_nothing_is_copied():
    packed = [torch.zeros(5, 3, 16, 128, dtype=torch.float16) for _ in range(2)]
    cells = [layer.transpose(1, 2) for layer in packed]
    made = PagedCaches.of([c[..., :64] for c in cells], [c[..., 64:] for c in cells])
    assert (made.layers, made.blocks, made.block_size, made.heads, made.head_dim) == (2, 5, 16, 3, 64)
    assert made.key_bases.tolist() == [layer.data_ptr() for layer in packed]
    assert made.value_bases.tolist() == [layer.data_ptr() + 64 * 2 for layer in packed]
    assert (made.dtype, made.fp8, made.aligned) == (torch.float16, None, True)


def test_keys_and_values_may_have_strides_of_their_own():
    values = [torch.zeros(5, 3, 16, 64, dtype=torch.bfloat16).transpose(1, 2) for _ in range(2)]
    made = PagedCaches.of(caches(), values)
    assert made.keys[0].stride() != made.values[0].stride()


def test_a_base_off_the_grid_of_whole_vectors_is_noticed():
    odd = [torch.zeros(5, 16, 3, 65, dtype=torch.bfloat16)[..., 1:]]
    assert not PagedCaches.of(odd, odd).aligned


@pytest.mark.parametrize(
    ("dtype", "given", "wanted"),
    [
        (torch.float8_e4m3fn, None, "e4m3"),
        (torch.float8_e5m2, None, "e5m2"),
        (torch.float8_e5m2, "e5m2", "e5m2"),
        (torch.uint8, "e4m3", "e4m3"),
        (torch.uint8, "e5m2", "e5m2"),
        (torch.float32, None, None),
    ],
)
def test_the_format_of_the_bytes_is_given_or_implied(dtype, given, wanted):
    assert PagedCaches.of(caches(dtype=dtype), caches(dtype=dtype), fp8=given).fp8 == wanted


BYTES = caches(dtype=torch.uint8)


@pytest.mark.parametrize(
    ("keys", "values", "options", "message"),
    [
        ([], [], {}, "got 0 key and 0 value caches"),
        (caches(2), caches(1), {}, "got 2 key and 1 value caches; wanted one of each per layer"),
        ([*caches(1), torch.zeros(5, 16, 192)], caches(2), {}, r"keys of layer 1 are \(5, 16, 192\)"),
        ([c.mT for c in caches()], caches(), {}, r"keys of layer 0 .* whose last axis is contiguous"),
        (caches(), caches(1) + caches(1, torch.float16), {}, "values of layer 1 are torch.float16"),
        (
            caches(),
            [*caches(1), torch.zeros(5, 3, 16, 64, dtype=torch.bfloat16).transpose(1, 2)],
            {},
            r"values of layer 1 have strides .* Make one PagedCaches for each group",
        ),
        (caches(1), [torch.zeros(6, 16, 3, 64).bfloat16()], {}, r"values of layer 0 .* \(6, 16, 3, 64\)"),
        (BYTES, BYTES, {}, "say what the bytes mean: fp8='e4m3' or fp8='e5m2'"),
        (BYTES, BYTES, {"fp8": "e3m4"}, "fp8 is 'e3m4'; use 'e4m3', 'e5m2' or None"),
        (caches(), caches(), {"fp8": "e4m3"}, "fp8 is 'e4m3', but the caches are torch.bfloat16"),
        (*[caches(dtype=torch.float8_e5m2)] * 2, {"fp8": "e4m3"}, "fp8 is 'e4m3', the caches are torch.float8_e5m2"),
        (*[caches(dtype=torch.int32)] * 2, {}, "the caches are torch.int32; wanted bfloat16"),
        (caches(), caches(), {"k_scale": torch.ones(2)}, "k_scale is given for caches that are not fp8"),
        (BYTES, BYTES, {"fp8": "e4m3", "v_scale": torch.ones(3)}, r"v_scale is torch.float32 \(3,\).*float32 \[2\]"),
        (BYTES, BYTES, {"fp8": "e4m3", "k_scale": torch.ones(2).half()}, "k_scale is torch.float16"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_layer_named(keys, values, options, message):
    with pytest.raises(ValueError, match=message):
        PagedCaches.of(keys, values, **options)
