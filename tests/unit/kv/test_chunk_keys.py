from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.kv.keys import chunk_key, context_digest

MODEL = hashlib.sha256(b"a model").hexdigest()
IDS = st.lists(st.integers(0, 2**31), max_size=6)
FIELDS = st.fixed_dictionaries(
    {
        "tenant": st.text(max_size=4),
        "owner": st.text(max_size=4),
        "context_ids": IDS,
        "token_ids": IDS.filter(len),
    }
)


@given(FIELDS, FIELDS)
def test_two_chunks_have_one_key_only_if_everything_is_equal(left, right):
    one, other = chunk_key(fingerprint=MODEL, **left), chunk_key(fingerprint=MODEL, **right)
    assert (one == other) == (left == right)
    assert len(one) == 64


@given(IDS.filter(lambda ids: len(ids) > 1), st.data())
def test_moving_a_token_from_the_context_to_the_run_changes_the_key(ids, data):
    cuts = data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=2, max_size=2, unique=True))
    keys = {
        chunk_key(tenant="t", owner="o", fingerprint=MODEL, context_ids=ids[:cut], token_ids=ids[cut:]) for cut in cuts
    }
    assert len(keys) == 2


def test_moving_a_letter_from_the_tenant_to_the_owner_changes_the_key():
    keys = {
        chunk_key(tenant=tenant, owner=owner, fingerprint=MODEL, context_ids=(), token_ids=(1,))
        for tenant, owner in (("ab", "c"), ("a", "bc"))
    }
    assert len(keys) == 2


def test_the_key_is_stable_across_releases():
    key = chunk_key(tenant="default", owner="", fingerprint="0" * 64, context_ids=(), token_ids=(1, 2, 3))
    assert key == "fb9702a66e7dc5d1d76ae87c5e32599a63a0c949b864c67fd195ff23e73d8131"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": ()}, "at least one token"),
        ({"token_ids": (2**63,)}, "64-bit"),
        ({"token_ids": (1.5,)}, "64-bit"),
        ({"context_ids": ("1",)}, "64-bit"),
        ({"fingerprint": "gpt"}, "fingerprint is 'gpt'"),
    ],
)
def test_what_is_not_a_run_of_tokens_is_refused(change, message):
    fields = {"tenant": "t", "owner": "o", "fingerprint": MODEL, "context_ids": (), "token_ids": (1,)}
    with pytest.raises(InvalidInputError, match=message):
        chunk_key(**{**fields, **change})


def test_the_context_digest_depends_on_order():
    assert context_digest((1, 2)) != context_digest((2, 1))


def test_names_and_tiers_import_without_torch():
    script = "import sys; sys.modules['torch'] = None; import inferscale_memory.kv; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
