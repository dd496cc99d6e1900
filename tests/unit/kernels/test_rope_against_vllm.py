"""Reference and kernel against the arithmetic they stand for: vLLM's own CPU operator and its own rotary modules."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="compares with vLLM's rotary embedding")

from inferscale_kernels import PagedCaches, inject, interpreted, rotate  # noqa: E402 (needs torch)

HALF = (torch.bfloat16, torch.float16)
LENGTH = 4096
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 1e5},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 1024},
}


@pytest.fixture(scope="module", autouse=True)
def vllm_context():
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        current_platform.import_kernels()
    with set_current_vllm_config(VllmConfig()):
        yield


def build(dtype, *, rope="default", head_dim=64, rotary_dim=None, neox=True):
    from vllm.model_executor.layers.rotary_embedding import get_rope

    parameters = dict(ROPES[rope])
    if rotary_dim is not None:
        parameters["partial_rotary_factor"] = rotary_dim / head_dim
    return get_rope(head_dim, LENGTH, is_neox_style=neox, rope_parameters=parameters, dtype=dtype)


def keys_and_positions(dtype, head_dim=64, tokens=300):
    random = torch.Generator().manual_seed(7)
    keys = (torch.randn(tokens, 3, head_dim, generator=random) * 4).to(dtype)
    return keys, torch.randint(0, LENGTH, (tokens,), generator=random)


def ours(module, keys, positions, rounding):
    how = {"neox": module.is_neox_style, "rotary_dim": module.rotary_dim}
    return rotate(keys, positions, module.cos_sin_cache, rounding=rounding, **how)


def through_the_kernel(module, keys, positions, rounding):
    """Keys as an interpreted launch leaves them in a cache packed as FlashAttention's, each in the slot of its row."""
    pytest.importorskip("triton", reason="interprets Triton kernels")
    heads, size = keys.shape[1:]
    rows = torch.arange(len(keys))
    cells = torch.zeros(-(-len(keys) // 16), heads, 16, 2 * size, dtype=keys.dtype).transpose(1, 2)
    caches = PagedCaches.of([cells[..., :size]], [cells[..., size:]])
    how = {"neox": module.is_neox_style, "rotary_dim": module.rotary_dim, "rounding": rounding}
    with interpreted():
        inject(keys[None], keys[None], rows, positions, rows, caches, module.cos_sin_cache, **how)
    return cells[..., :size].flatten(0, 1)[: len(keys)]


def theirs(forward, keys, positions):
    flat = keys.flatten(1).clone()
    return forward(positions, torch.zeros_like(flat), flat)[1].view_as(keys)


def cpu_operator(module):
    """The module's compiled CPU path; skips where this vLLM was built for another platform."""
    if not hasattr(torch.ops._C, "rotary_embedding") or not torch._C._dispatch_has_kernel_for_dispatch_key(
        "_C::rotary_embedding", "CPU"
    ):
        pytest.skip("this vLLM has no CPU operator for rotary embedding")
    return module.forward_cpu


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("rope", ROPES)
def test_op_rounding_is_the_compiled_operator_to_the_bit(dtype, rope):
    module = build(dtype, rope=rope)
    keys, positions = keys_and_positions(dtype)
    assert torch.equal(ours(module, keys, positions, "op"), theirs(cpu_operator(module), keys, positions))


@pytest.mark.parametrize("dtype", [*HALF, torch.float32], ids=str)
@pytest.mark.parametrize("rope", ROPES)
def test_native_rounding_is_the_torch_path_to_the_bit(dtype, rope):
    module = build(dtype, rope=rope)
    keys, positions = keys_and_positions(dtype)
    assert torch.equal(ours(module, keys, positions, "native"), theirs(module.forward_native, keys, positions))


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 32), (80, 16), (96, 96), (128, 64)])
def test_partial_rotary_and_both_pair_layouts_are_the_same_bits(head_dim, rotary_dim, neox):
    module = build(torch.bfloat16, head_dim=head_dim, rotary_dim=rotary_dim, neox=neox)
    assert module.rotary_dim == rotary_dim
    keys, positions = keys_and_positions(torch.bfloat16, head_dim)
    for rounding, forward in (("op", cpu_operator(module)), ("native", module.forward_native)):
        assert torch.equal(ours(module, keys, positions, rounding), theirs(forward, keys, positions)), rounding


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("rope", ROPES)
def test_the_kernel_writes_the_bits_of_the_compiled_operator_and_of_the_torch_path(dtype, rope):
    module = build(dtype, rope=rope)
    keys, positions = keys_and_positions(dtype, tokens=60)
    for rounding, forward in (("op", cpu_operator(module)), ("native", module.forward_native)):
        got = through_the_kernel(module, keys, positions, rounding)
        assert torch.equal(got, theirs(forward, keys, positions)), rounding


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(80, 16), (128, 64)])
def test_the_kernel_writes_the_same_bits_for_partial_rotary_and_both_pair_layouts(head_dim, rotary_dim, neox):
    module = build(torch.bfloat16, head_dim=head_dim, rotary_dim=rotary_dim, neox=neox)
    keys, positions = keys_and_positions(torch.bfloat16, head_dim, tokens=60)
    for rounding, forward in (("op", cpu_operator(module)), ("native", module.forward_native)):
        got = through_the_kernel(module, keys, positions, rounding)
        assert torch.equal(got, theirs(forward, keys, positions)), rounding


def test_fp32_keys_are_within_one_rounding_of_the_compiled_operator():
    module = build(torch.float32)
    keys, positions = keys_and_positions(torch.float32)
    difference = (ours(module, keys, positions, "op") - theirs(cpu_operator(module), keys, positions)).abs()
    assert (difference <= torch.finfo(torch.float32).eps * keys.abs().amax(-1, keepdim=True) * 2).all()


def test_yarn_tables_have_a_magnitude_of_their_own():
    cos, sin = build(torch.float32, rope="yarn").cos_sin_cache.chunk(2, -1)
    assert (cos**2 + sin**2).mean().item() == pytest.approx(1.1386294**2, rel=1e-4)


@pytest.mark.parametrize("max_model_len", [1024, LENGTH])
def test_longrope_is_the_torch_path_on_its_own_half_of_the_table(monkeypatch, max_model_len):
    from types import SimpleNamespace

    from vllm.model_executor.layers.rotary_embedding import phi3_long_rope_scaled_rope as longrope

    config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=max_model_len))
    monkeypatch.setattr(longrope, "get_current_vllm_config", lambda: config)
    module = longrope.Phi3LongRoPEScaledRotaryEmbedding(
        96, 96, LENGTH, 1024, 1e4, True, torch.bfloat16, [1.0] * 48, [2.0] * 48
    )
    keys, positions = keys_and_positions(torch.bfloat16, 96)
    positions %= max_model_len
    table = module.long_short_cos_sin_cache[1024 if module.use_long_rope else 0 :]
    got = rotate(keys, positions, table, neox=True, rotary_dim=96, rounding="native")
    assert torch.equal(got, theirs(module.forward, keys, positions))
