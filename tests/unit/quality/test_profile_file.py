"""The file of profiles: whole or not at all, one profile per model and policy."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from inferscale_memory.errors import StoreError
from inferscale_memory.quality.profile import Bound, Profiles, read_profiles, write_profiles
from tests.unit.quality.profiles import point, profile


def test_what_is_written_is_read_again(tmp_path):
    written = profile([point(10, 0, kl_ci=(0.01, 0.2)), point(10, 10)])
    write_profiles(tmp_path / "sub" / "quality.json", (written,))
    assert read_profiles(tmp_path / "sub" / "quality.json").profiles == (written,)
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["quality.json"]


def test_a_new_profile_replaces_that_of_its_model_and_policy_only(tmp_path):
    file = tmp_path / "quality.json"
    write_profiles(file, (profile(), profile(policy="preamble"), profile(fingerprint="other")))
    write_profiles(file, (profile(questions=99),))
    found = read_profiles(file)
    assert len(found.profiles) == 3
    assert found.find(profile().policy, "f" * 64).questions == 99
    assert found.find("preamble", "f" * 64).questions == 5


def test_without_a_model_only_a_policy_s_single_profile_is_found():
    one, other = profile(), profile(fingerprint="other")
    assert Profiles(profiles=(one,)).find(one.policy, None) == one
    assert Profiles(profiles=(one, other)).find(one.policy, None) is None


def test_a_file_that_is_not_there_holds_nothing(tmp_path):
    assert read_profiles(tmp_path / "quality.json") == Profiles()


@pytest.mark.parametrize("text", ["", "{", '{"version": 2}', '{"profiles": [{}]}', "[]"])
def test_a_file_that_is_no_profile_is_refused_and_not_overwritten(tmp_path, text):
    file = tmp_path / "quality.json"
    file.write_text(text)
    for use in (lambda: read_profiles(file), lambda: write_profiles(file, (profile(),))):
        with pytest.raises(StoreError, match=r"quality.json cannot be used: .*Delete it and run inferscale tune"):
            use()
    assert file.read_text() == text


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be (written|used): Not a directory"):
        write_profiles(tmp_path / "file" / "quality.json", (profile(),))


def test_a_profile_without_a_point_of_refresh_0_is_none():
    with pytest.raises(ValidationError, match=r"no point of refresh 0 for k=\[50\]"):
        profile([point(10, 0), point(50, 3)])


def test_a_bound_says_what_it_is():
    assert str(Bound(metric="kl", value=0.05)) == "mean KL of at most 0.05"
    assert str(Bound(metric="top1", value=0.9)) == "top-1 of at least 0.9"
