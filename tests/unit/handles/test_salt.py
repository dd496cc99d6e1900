import re

import pytest

from inferscale_memory.salt import salt

BASE = {"tenant": "t", "scope_key": "s", "fingerprint": "f", "policy": "p", "injecting": True, "epoch": 3}
SECRET = b"s" * 32


def test_a_salt_is_sixty_four_hex_digits():
    assert re.fullmatch("[0-9a-f]{64}", salt(SECRET, **BASE))


def test_equal_requests_share_a_salt():
    assert salt(SECRET, **BASE) == salt(SECRET, **BASE)


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "u"},
        {"scope_key": "x"},
        {"fingerprint": "x"},
        {"policy": "x"},
        {"injecting": False},
        {"epoch": 4},
        {"tenant": "ts", "scope_key": ""},
        {"scope_key": "sf", "fingerprint": ""},
        {"policy": "", "fingerprint": "fp"},
    ],
)
def test_every_field_changes_the_salt_and_none_runs_into_the_next(change):
    assert salt(SECRET, **{**BASE, **change}) != salt(SECRET, **BASE)


def test_another_secret_gives_another_salt():
    assert salt(b"o" * 32, **BASE) != salt(SECRET, **BASE)
