from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from inferscale_kernels import rotate, unrotate  # noqa: E402 (needs torch)

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_POSITION = 131_071
CASES = {
    "dtype": st.sampled_from(DTYPES),
    "neox": st.booleans(),
    "dims": st.sampled_from(((2, 2), (8, 6), (64, 64), (64, 32), (80, 20), (96, 96), (128, 64))),
    "positions": st.lists(st.integers(0, MAX_POSITION), min_size=1, max_size=9),
    "magnitude": st.sampled_from((0.6, 1.0, 1.19)),
    "scale": st.sampled_from((1e-2, 1.0, 50.0)),
    "seed": st.integers(0, 2**16),
}
FAST = settings(deadline=None, max_examples=80)


def table(rotary_dim: int, dtype: torch.dtype, positions=None, magnitude: float = 1.0) -> torch.Tensor:
    """Rows of a default RoPE table, theta 1e5; all up to 4095 unless positions are given."""
    positions = torch.arange(4096) if positions is None else positions
    inverse = 1.0 / 1e5 ** (torch.arange(0, rotary_dim, 2).float() / rotary_dim)
    angles = positions.float()[:, None] * inverse
    return (torch.cat((angles.cos(), angles.sin()), -1) * magnitude).to(dtype)


def random_keys(shape, dtype, seed=0, scale=1.0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def draw(dtype, neox, dims, positions, magnitude, scale, seed):
    """Keys ``[2 layers, T, 3 heads, D]``, a table that holds just their rows, and the arguments."""
    rows = table(dims[1], dtype, torch.tensor(positions), magnitude)
    keys = random_keys((2, len(positions), 3, dims[0]), dtype, seed, scale)
    return keys, torch.arange(len(positions)), rows, {"neox": neox, "rotary_dim": dims[1]}


def pair_norms(keys, neox, rotary_dim):
    """Norm of each rotated pair, standing at both its features: ``[..., rotary_dim]``."""
    rotary = keys[..., :rotary_dim].double()
    first, second = rotary.chunk(2, -1) if neox else (rotary[..., ::2], rotary[..., 1::2])
    norms = (first**2 + second**2).sqrt()
    return torch.cat((norms, norms), -1) if neox else torch.stack((norms, norms), -1).flatten(-2)


@given(**CASES)
@FAST
def test_rotating_an_unrotated_key_again_stays_within_the_stated_error(**case):
    rotated, positions, rows, how = draw(**case)
    again = rotate(unrotate(rotated, positions, rows, **how), positions, rows, **how)
    factor = 4.0 if case["dtype"] == torch.float32 else 1.05
    info = torch.finfo(case["dtype"])
    bound = factor * info.eps * pair_norms(rotated, **how) + 2 * info.smallest_normal * info.eps
    error = (again.double() - rotated.double()).abs()
    assert (error[..., : how["rotary_dim"]] <= bound).all()
    assert torch.equal(again[..., how["rotary_dim"] :], rotated[..., how["rotary_dim"] :])


@given(**CASES)
@FAST
def test_unrotating_a_rotated_key_recovers_it_within_an_eps_of_its_pair(**case):
    keys, positions, rows, how = draw(**case)
    back = unrotate(rotate(keys, positions, rows, **how), positions, rows, **how)
    info = torch.finfo(case["dtype"])
    bound = (4.0 if case["dtype"] == torch.float32 else 1.05) * info.eps * pair_norms(
        keys, **how
    ) + 4 * info.smallest_normal * info.eps
    assert ((back.double() - keys.double()).abs()[..., : how["rotary_dim"]] <= bound).all()


@given(**CASES)
@FAST
def test_one_rounding_is_within_half_an_eps_of_the_exact_rotation(**case):
    keys, positions, rows, how = draw(**case)
    exact = rotate(keys.double(), positions, rows.double(), **how)
    got = rotate(keys, positions, rows, **how)
    info = torch.finfo(case["dtype"])
    slack = 1.5 if case["dtype"] == torch.float32 else 0.51
    bound = slack * info.eps * pair_norms(exact, **how) + info.smallest_normal * info.eps
    assert ((got.double() - exact).abs()[..., : how["rotary_dim"]] <= bound).all()


@given(**CASES)
@FAST
def test_features_past_the_rotary_ones_pass_through_and_the_input_is_left_alone(**case):
    keys, positions, rows, how = draw(**case)
    before = keys.clone()
    for result in (
        rotate(keys, positions, rows, **how),
        rotate(keys, positions, rows, rounding="native", **how),
        unrotate(keys, positions, rows, **how),
    ):
        assert torch.equal(result[..., how["rotary_dim"] :], keys[..., how["rotary_dim"] :])
        assert (result.shape, result.dtype, result.is_contiguous()) == (keys.shape, keys.dtype, True)
    assert torch.equal(keys, before)


def test_one_rounding_and_one_per_operation_differ_in_bf16():
    keys, positions = random_keys((1, 500, 3, 64), torch.bfloat16), torch.arange(500)
    how = {"neox": True, "rotary_dim": 64}
    op = rotate(keys, positions, table(64, torch.bfloat16), rounding="op", **how)
    native = rotate(keys, positions, table(64, torch.bfloat16), rounding="native", **how)
    share = (op != native).float().mean().item()
    assert 0.1 < share < 0.6


def test_position_zero_leaves_keys_as_they_are():
    keys = random_keys((2, 1, 3, 64), torch.bfloat16)
    assert torch.equal(rotate(keys, torch.tensor([0]), table(64, torch.bfloat16), neox=True, rotary_dim=64), keys)


def test_chunks_rotated_apart_are_the_bits_of_one_run():
    keys, positions = random_keys((2, 40, 3, 64), torch.bfloat16), torch.arange(100, 140)
    rows, how = table(64, torch.bfloat16), {"neox": True, "rotary_dim": 64}
    parts = [rotate(keys[:, s], positions[s], rows, **how) for s in (slice(0, 7), slice(7, 40))]
    assert torch.equal(torch.cat(parts, 1), rotate(keys, positions, rows, **how))


def test_dot_products_depend_on_distance_only():
    how = {"neox": True, "rotary_dim": 64}
    query, key = (random_keys((1, 1, 64), torch.float64, seed) for seed in range(2))
    rows = table(64, torch.float64)

    def dot(at: int) -> float:
        left, right = (rotate(x, torch.tensor([p]), rows, **how) for x, p in ((query, at + 17), (key, at)))
        return float((left * right).sum())

    assert dot(0) == pytest.approx(dot(3000), abs=2e-3)
    assert dot(0) != pytest.approx(float((query * key).sum()), abs=2e-3)


def test_a_table_in_fp32_is_rounded_to_the_keys_dtype_first():
    keys, positions = random_keys((1, 50, 2, 64), torch.bfloat16), torch.arange(50)
    how = {"neox": True, "rotary_dim": 64}
    fine, rounded = table(64, torch.float32), table(64, torch.bfloat16)
    assert torch.equal(rotate(keys, positions, fine, **how), rotate(keys, positions, rounded, **how))


GOOD = {"keys": torch.zeros(2, 5, 3, 64), "positions": torch.arange(5), "cos_sin_cache": torch.ones(9, 64)}


@pytest.mark.parametrize("function", [rotate, unrotate])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": torch.zeros(5, 64)}, r"wanted floating point \[\.\.\., T, H, D\]"),
        ({"keys": torch.zeros(2, 5, 3, 64).int()}, "keys are torch.int32"),
        ({"rotary_dim": 63}, "rotary_dim is 63; wanted an even number in 2..64"),
        ({"rotary_dim": 66}, "rotary_dim is 66"),
        ({"rotary_dim": 32}, r"cos_sin_cache is \(9, 64\); wanted \[positions, rotary_dim = 32\]"),
        ({"positions": torch.arange(4)}, r"positions are torch.int64 \(4,\); wanted int64 \[5\]"),
        ({"positions": torch.arange(5.0)}, "positions are torch.float32"),
        ({"positions": torch.arange(5) + 5}, r"positions span 5\.\.9; the table has rows 0\.\.8"),
        ({"positions": torch.arange(5) - 1}, r"positions span -1\.\.3"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_wanted(function, change, message):
    with pytest.raises(ValueError, match=message):
        function(**{**GOOD, "neox": True, "rotary_dim": 64, **change})


def test_an_unknown_rounding_is_refused():
    with pytest.raises(ValueError, match="rounding is 'fast'; use 'op'"):
        rotate(**GOOD, neox=True, rotary_dim=64, rounding="fast")
