"""The way back: interpreted kernels against their references, and against what was injected."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="interprets Triton kernels")

from paged_states import ARENA_SLOTS, ARENAS, DIMS, DTYPES, arena, cases, same_bits  # noqa: E402 (needs torch)

from inferscale_kernels import (  # noqa: E402
    capture_cache,
    capture_cache_reference,
    capture_rows,
    capture_rows_reference,
    inject_reference,
    interpreted,
)

FAST = settings(deadline=None, max_examples=30)


def captured(function, case, caches, table):
    """An arena of random states after capturing into it."""
    keys, values = states = case.states()
    function(caches, case.slots, case.positions, keys, values, case.distinct, table, **case.how)
    return states


@given(case=cases, turned=st.booleans())
@FAST
def test_the_kernel_leaves_the_bits_of_the_reference_in_the_whole_arena(case, turned):
    table = case.table if turned else None
    _, caches = case.caches()
    with interpreted():
        got = captured(capture_cache, case, caches, table)
    assert same_bits(got, captured(capture_cache_reference, case, caches, table))


@given(case=cases)
@settings(FAST, max_examples=10)
def test_states_injected_without_rotation_come_back_bit_by_bit(case):
    if case.fp8:
        return
    _, caches = case.caches()
    keys, values = case.states()
    how = {"neox": True, "rotary_dim": case.dims[1]}
    inject_reference(keys, values, case.distinct, case.positions, case.slots, caches, None, **how)
    back = torch.zeros_like(case.states())
    with interpreted():
        capture_cache(caches, case.slots, None, back[0], back[1], case.distinct, **how)
    kept = case.distinct[case.slots >= 0].long()
    assert same_bits(back[:, :, kept], torch.stack((keys, values))[:, :, kept])
    assert not back.index_fill(2, kept, 0).any()


@given(
    dtype=st.sampled_from(DTYPES),
    dims=st.sampled_from(DIMS),
    heads=st.integers(1, 3),
    layout=st.sampled_from(ARENAS),
    rows=st.sampled_from((0, 1, 5, 17)),
    fused=st.booleans(),
    seed=st.integers(0, 2**16),
)
@FAST
def test_projected_rows_land_in_their_slots_and_nowhere_else(dtype, dims, heads, layout, rows, fused, seed):
    random = torch.Generator().manual_seed(seed)
    dim = dims[0]
    # As a model has them: one projection for queries, keys and values, rows further apart than keys are long.
    width = 3 * heads * dim if fused else 2 * heads * dim
    projected = (torch.randn(20, width, generator=random) * 3).to(dtype)
    keys, values = projected[:, -2 * heads * dim :].unflatten(1, (2, heads, dim)).unbind(1)
    chosen = torch.randint(-1, 20, (rows,), generator=random)
    target = torch.randperm(ARENA_SLOTS, generator=random)[:rows]
    results = []
    for function in (capture_rows, capture_rows_reference):
        states = arena(layout, heads, dim, dtype).fill_(7)
        with interpreted():
            function(keys, values, chosen, states[0, 1], states[1, 1], target)
        results.append(states)
    got, wanted = results
    assert same_bits(got, wanted)
    assert (got[:, 0] == 7).all()


KEYS = torch.zeros(4, 2, 32, dtype=torch.bfloat16)
ROWS = torch.arange(2)


@pytest.mark.parametrize("function", [capture_rows, capture_rows_reference])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": KEYS.float()}, r"values are torch.float32 \(4, 2, 32\).*as those of keys, torch.bfloat16"),
        ({"arena_keys_layer": KEYS[None]}, r"arena_keys_layer are torch.bfloat16 \(1, 4, 2, 32\)"),
        ({"arena_values_layer": KEYS[:, :1]}, r"arena_values_layer are torch.bfloat16 \(4, 1, 32\)"),
        ({"target": ROWS[:1]}, r"target is torch.int64 \(1,\).*\[2\]"),
        ({"rows": ROWS[None]}, r"rows are \(1, 2\); wanted one axis"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_what_was_wanted(function, change, message):
    arguments = {"keys": KEYS, "values": KEYS, "rows": ROWS, "target": ROWS}
    arguments |= {"arena_keys_layer": KEYS, "arena_values_layer": KEYS}
    with pytest.raises(ValueError, match=message):
        function(**{**arguments, **change})
