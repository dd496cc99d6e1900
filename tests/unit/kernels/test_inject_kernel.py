"""The interpreted kernel against the reference: the same bits where rows go, nothing anywhere else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="interprets Triton kernels")

from dataclasses import replace  # noqa: E402 (needs torch)

from paged_states import ARENA_SLOTS, LAYERS, Case, cases, same_bits  # noqa: E402

from inferscale_kernels import Config, PagedCaches, inject, inject_reference, interpreted, rotate  # noqa: E402

FAST = settings(deadline=None, max_examples=40)
PLAIN = Case(
    dtype=torch.bfloat16,
    layout="packed HND",
    arena_layout="layer major",
    heads=2,
    dims=(64, 64),
    block=16,
    neox=True,
    fp8=None,
    scaled=False,
    rows=12,
    several_tables=False,
    index=torch.int64,
    seed=3,
)


def injected(function, case, **options):
    """The whole cache tensors after injecting."""
    whole, caches = case.caches()
    keys, values = case.states()
    how = {**case.how, **options}
    function(keys, values, case.source, case.positions, case.slots, caches, case.table, **how)
    return torch.stack(whole)


def both(case, **options):
    with interpreted():
        got = injected(inject, case, **options)
    return got, injected(inject_reference, case, **options)


@given(case=cases, rounding=st.sampled_from(("op", "native")))
@FAST
def test_the_kernel_leaves_the_bits_of_the_reference_in_the_whole_cache(case, rounding):
    got, wanted = both(case, rounding=rounding)
    assert same_bits(got, wanted)


@given(case=cases)
@settings(FAST, max_examples=10)
def test_slots_that_no_row_names_keep_what_they_held(case):
    _, caches = case.caches()
    whole, before = injected(inject_reference, case), torch.stack(case.caches()[0])
    changed = whole.view(torch.uint8) != before.view(torch.uint8)
    written = int((case.slots >= 0).sum()) * LAYERS * 2 * case.heads * case.dims[0] * caches.keys[0].element_size()
    assert int(changed.sum()) <= written
    assert bool(changed.any()) == bool((case.slots >= 0).any())


def test_keys_are_rotated_and_values_are_copied():
    _, caches = PLAIN.caches()
    keys, values = PLAIN.states()
    with interpreted():
        inject(keys, values, PLAIN.source, PLAIN.positions, PLAIN.slots, caches, PLAIN.table, **PLAIN.how)
    row = int((PLAIN.slots >= 0).nonzero()[0])
    block, offset = divmod(int(PLAIN.slots[row]), PLAIN.block)
    at = PLAIN.positions[row : row + 1]
    source = int(PLAIN.source[row])
    for layer in range(LAYERS):
        turned = rotate(keys[layer, source : source + 1], at, PLAIN.table, neox=True, rotary_dim=64)
        assert same_bits(caches.keys[layer][block, offset], turned[0])
        assert same_bits(caches.values[layer][block, offset], values[layer, source])
        assert not same_bits(turned[0], keys[layer, source])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_two_roundings_give_different_keys(dtype):
    case = replace(PLAIN, dtype=dtype)
    assert not same_bits(both(case, rounding="op")[0], both(case, rounding="native")[0])


def test_without_a_table_keys_are_copied_as_they_are():
    case = replace(PLAIN, several_tables=False)
    case.table = None
    got, wanted = both(case)
    assert same_bits(got, wanted)
    block, offset = divmod(int(case.slots.max()), case.block)
    key = case.states()[0][0, case.source[case.slots.argmax()]]
    assert same_bits(got[0][block, :, offset, :64], key)


def test_a_layer_without_a_table_of_its_own_is_not_rotated():
    case = replace(PLAIN, several_tables=True)
    got, wanted = both(case)
    assert same_bits(got, wanted)
    block, offset = divmod(int(case.slots.max()), case.block)
    keys = case.states()[0][:, case.source[case.slots.argmax()]]
    assert not same_bits(got[0][block, :, offset, :64], keys[0])
    assert same_bits(got[1][block, :, offset, :64], keys[1])


def test_one_chunk_can_be_injected_twice_in_a_step():
    case = replace(PLAIN, rows=8)
    case.source = torch.arange(4).repeat(2)
    case.slots, case.positions = torch.arange(8), torch.arange(8)
    got, wanted = both(case)
    assert same_bits(got, wanted)
    first, second = got[0][0, :, :4, 64:], got[0][0, :, 4:8, 64:]
    assert same_bits(first, second)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rounding", ["op", "native"])
def test_positions_up_to_131072_rotate_by_their_own_row_of_the_table(neox, rounding):
    case = replace(PLAIN, dims=(64, 32), neox=neox, rows=6)
    angles = torch.arange(131_073)[:, None] / 1e5 ** (torch.arange(0, 32, 2) / 32)
    case.table = torch.cat((angles.cos(), angles.sin()), -1).to(torch.bfloat16)
    case.positions = torch.tensor([131_072, 0, 131_071, 65_536, 1, 99_999])
    case.slots = torch.arange(6)
    got, wanted = both(case, rounding=rounding)
    assert same_bits(got, wanted)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_zeros_infinities_and_subnormals_come_out_as_in_the_reference():
    info = torch.finfo(torch.bfloat16)
    special = [0.0, -0.0, info.smallest_normal / 4, -info.smallest_normal / 2, info.max, -info.max, torch.inf, 1e-20]
    for rounding in ("op", "native"):
        results = []
        for function in (inject, inject_reference):
            whole, caches = PLAIN.caches()
            keys, values = PLAIN.states()
            keys[..., :8] = torch.tensor(special)
            values[..., :8] = torch.tensor(special)
            with interpreted():
                function(
                    keys,
                    values,
                    PLAIN.source,
                    PLAIN.positions,
                    PLAIN.slots,
                    caches,
                    PLAIN.table,
                    **PLAIN.how,
                    rounding=rounding,
                )
            results.append(torch.stack(whole))
        got, wanted = results
        assert torch.equal(got.isnan(), wanted.isnan())
        assert same_bits(got.nan_to_num(nan=7.0), wanted.nan_to_num(nan=7.0))


@pytest.mark.parametrize("config", [Config(2, 1), Config(8, 2), Config(128, 8)], ids=str)
def test_how_a_launch_is_cut_changes_no_bit(config):
    with interpreted():
        cut = injected(inject, PLAIN, config=config)
    assert same_bits(cut, injected(inject_reference, PLAIN))


def test_a_negative_source_skips_its_row():
    case = replace(PLAIN, rows=5)
    case.slots = torch.arange(5)
    case.source = torch.tensor([3, -1, 4, -1, 5])
    got, wanted = both(case)
    assert same_bits(got, wanted)
    before = torch.stack(case.caches()[0])
    assert same_bits(got[:, 0, :, [1, 3]], before[:, 0, :, [1, 3]])


def test_no_rows_need_no_device():
    nothing = torch.zeros(0, dtype=torch.int64)
    _, caches = PLAIN.caches()
    keys, values = PLAIN.states()
    inject(keys, values, nothing, nothing, nothing, caches, PLAIN.table, **PLAIN.how)


def test_tensors_on_a_cpu_are_refused_unless_kernels_are_interpreted():
    with pytest.raises(ValueError, match=r"tensors are on cpu; Triton kernels run on CUDA devices.*inject_reference"):
        injected(inject, PLAIN)


INDEX = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize("function", [inject, inject_reference])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": INDEX[:3]}, r"source is torch.int64 \(3,\).*wanted a contiguous int32 or int64 \[4\] on cpu"),
        ({"positions": INDEX.float()}, r"positions is torch.float32 \(4,\)"),
        ({"slots": torch.zeros(8, dtype=torch.int64)[::2]}, r"slots is torch.int64 \(4,\) on cpu, strides \(2,\)"),
        ({"arena_keys": torch.zeros(3, 9, 2, 64)}, r"arena_keys are \(3, 9, 2, 64\).*wanted \[2, slots, 2, 64\]"),
        (
            {"arena_values": torch.zeros(2, 9, 2, 64)},
            r"arena_values are torch.float32 on cpu; wanted the model's dtype",
        ),
        ({"arena_keys": torch.zeros(2, 9, 2, 64).int()}, "arena_keys are torch.int32"),
        ({"arena_keys": torch.zeros(2, 9, 64, 2).bfloat16().mT}, "last axis contiguous"),
        ({"cos_sin": torch.zeros(9, 32)}, r"cos_sin is torch.float32 \(9, 32\).*wanted \[positions, rotary_dim = 64\]"),
        ({"cos_sin": torch.zeros(2, 9, 64)}, "several tables need table_of_layer"),
        ({"table_of_layer": torch.zeros(2, dtype=torch.int32)}, r"wanted \[tables, positions, rotary_dim = 64\]"),
        (
            {"table_of_layer": torch.zeros(2), "cos_sin": torch.zeros(1, 9, 64)},
            r"table_of_layer is torch.float32 \(2,\) on cpu; wanted int32 \[2\]",
        ),
        ({"rotary_dim": 65}, r"rotary_dim is 65; wanted an even number in 2\.\.64"),
        ({"rotary_dim": 66}, "rotary_dim is 66"),
        ({"rounding": "fast"}, "rounding is 'fast'; use 'op'"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_wanted(function, change, message):
    _, caches = PLAIN.caches()
    arena = torch.zeros(2, ARENA_SLOTS, 2, 64, dtype=torch.bfloat16)
    arguments = {"arena_keys": arena, "arena_values": arena, "source": INDEX, "positions": INDEX, "slots": INDEX}
    arguments |= {"caches": caches, "cos_sin": torch.zeros(9, 64), "neox": True, "rotary_dim": 64}
    with pytest.raises(ValueError, match=message):
        function(**{**arguments, **change})


def test_an_arena_of_another_dtype_than_the_cache_is_refused():
    case = replace(PLAIN, dtype=torch.float16)
    keys, values = replace(PLAIN, dtype=torch.float32).states()
    _, caches = case.caches()
    with pytest.raises(ValueError, match=r"arena_keys are torch.float32, the caches torch.float16; .* alike"):
        inject(keys, values, case.source, case.positions, case.slots, caches, case.table, **case.how)


def test_offsets_past_two_to_the_31_elements_reach_their_slot(tmp_path):
    """Sparse files stand in for large memory; only the pages that are touched exist."""
    numpy = pytest.importorskip("numpy")
    from inferscale_kernels import launching
    from inferscale_kernels.transfer import Rotation, transfer_launch

    def sparse(name, shape):
        (tmp_path / name).touch()
        return numpy.memmap(tmp_path / name, dtype=numpy.uint8, mode="r+", shape=shape)

    # The last block begins past 2^31 elements, and so does the last slot of an arena's layer, hence its second layer.
    block, last = (1 << 31) // (16 * 32), (1 << 31) // 32
    paged = torch.from_numpy(sparse("paged", (block + 1, 16, 1, 32)))
    stored = sparse("arena", (2 * (last + 1) * 32 * 2,)).view(numpy.float16)
    whole = torch.from_numpy(stored).view(2, last + 1, 1, 32)
    whole[1, last] = torch.arange(32) - 9.0
    caches = PagedCaches.of([paged] * 2, [paged] * 2, fp8="e4m3")
    small = torch.zeros(1, dtype=torch.int64)
    table = torch.cat((torch.ones(1, 16), torch.zeros(1, 16)), -1)
    with interpreted():
        launch = transfer_launch(
            whole,
            whole,
            small + last,
            small,
            small + block * 16 + 3,
            caches,
            Rotation(table, None, True, 32),
            into_cache=True,
            turn="op",
            bitwise="all",
            config=None,
        )
        # The interpreter copies the storage of every tensor it is given: give it the first elements of the same memory.
        first = torch.from_numpy(stored[:32])
        arguments = {**launch.arguments, "arena_keys": first, "arena_values": first}
        launching.Launch(launch.kernel, launch.grid, arguments, launch.constants, 1).run(whole.device)
    codes = paged[block, 3, 0].view(torch.float8_e4m3fn).float()
    assert torch.equal(codes, (torch.arange(32) - 9.0).to(torch.float8_e4m3fn).float())
