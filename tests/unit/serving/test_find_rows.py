"""Finding a request's rows in a step by cache slot."""

import pytest

torch = pytest.importorskip("torch", reason="the connector's workers need torch")
pytest.importorskip("vllm", reason="the taps import vLLM's connector classes")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from inferscale_memory.serving.staging import find_rows  # noqa: E402


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60, unique=True), st.data())
def test_every_wanted_slot_is_found_where_it_is_and_nowhere_else(slots: list[int], data: st.DataObject) -> None:
    padding = data.draw(st.integers(0, 5))
    wanted = data.draw(st.lists(st.integers(0, 5100), min_size=1, max_size=40))
    mapping = slots + [-1] * padding
    rows = find_rows(torch.tensor(mapping), torch.tensor(wanted)).tolist()
    assert rows == [mapping.index(slot) if slot in slots else -1 for slot in wanted]


def test_padding_rows_are_never_taken_for_a_slot() -> None:
    assert find_rows(torch.tensor([-1, -1, 7, -1]), torch.tensor([0, 7])).tolist() == [-1, 2]
