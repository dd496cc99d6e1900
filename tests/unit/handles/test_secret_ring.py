import json
import multiprocessing
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from inferscale_memory.errors import ConfigError, InvalidInputError
from inferscale_memory.handles import SecretRing

DAY = timedelta(days=1)


def _current(path, queue):
    queue.put(SecretRing(path=path).current())


def test_the_file_is_made_on_first_use_for_its_owner_only(tmp_path):
    path = tmp_path / "deep" / "secret"
    secret = SecretRing(path=path).current()
    assert len(secret) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert SecretRing(path=path).current() == secret
    assert sorted(p.name for p in path.parent.iterdir()) == ["secret", "secret.lock"]


def test_a_generous_umask_does_not_widen_the_file(tmp_path):
    before = os.umask(0)
    try:
        SecretRing(path=tmp_path / "secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_open_to_others_is_refused_with_the_remedy(tmp_path, mode):
    path = tmp_path / "secret"
    SecretRing(path=path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode 0{mode:o}.*chmod 600"):
        SecretRing(path=path)


def test_threads_racing_to_create_it_agree(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: SecretRing(path=tmp_path / "secret").current(), range(16)))
    assert len(secrets) == 1


def test_processes_racing_to_create_it_agree(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_current, args=(tmp_path / "secret", queue)) for _ in range(4)]
    for worker in workers:
        worker.start()
    secrets = {queue.get(timeout=30) for _ in workers}
    for worker in workers:
        worker.join()
    assert secrets == {SecretRing(path=tmp_path / "secret").current()}


def test_a_file_system_without_hard_links_works_too(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "secret"
    assert SecretRing(path=path).current() == SecretRing(path=path).current()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff", b"[]", b'{"secrets": []}', b'{"secrets": [{"secret": "00"}]}']
)
def test_a_damaged_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=str(path)):
        SecretRing(path=path)


def test_a_short_secret_in_the_file_is_refused(tmp_path):
    path = tmp_path / "secret"
    path.write_text(json.dumps({"secrets": [{"secret": "00", "until": None}]}))
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="has 1 bytes, at least 32"):
        SecretRing(path=path)


def test_a_short_secret_is_refused_with_a_way_to_make_one():
    with pytest.raises(ConfigError, match="openssl rand -hex 32"):
        SecretRing(b"short")


def test_a_ring_takes_a_secret_or_a_path(tmp_path):
    with pytest.raises(ConfigError, match="exactly one"):
        SecretRing()
    with pytest.raises(ConfigError, match="exactly one"):
        SecretRing(b"s" * 32, path=tmp_path / "secret")


def test_the_environment_goes_before_the_file(tmp_path):
    value = "e" * 40
    assert SecretRing.load(tmp_path, {"INFERSCALE_SECRET": value}).current() == value.encode()
    assert not (tmp_path / "secret").exists()
    assert SecretRing.load(tmp_path, {}).current() == SecretRing(path=tmp_path / "secret").current()


def test_a_short_secret_in_the_environment_is_refused_by_the_variables_name(tmp_path):
    with pytest.raises(ConfigError, match="INFERSCALE_SECRET has 0 bytes"):
        SecretRing.load(tmp_path, {"INFERSCALE_SECRET": ""})


def test_rotation_keeps_the_earlier_secrets_until_their_grace_ends(now):
    ring = SecretRing(b"1" * 32)
    ring.rotate(DAY, secret=b"2" * 32, now=now)
    ring.rotate(3 * DAY, secret=b"3" * 32, now=now)
    assert ring.current() == b"3" * 32
    assert ring.accepted(now) == (b"3" * 32, b"2" * 32, b"1" * 32)
    assert ring.accepted(now + DAY) == (b"3" * 32, b"2" * 32)
    assert ring.accepted(now + 3 * DAY) == (b"3" * 32,)


def test_rotation_without_grace_ends_the_earlier_secret_at_once(now):
    ring = SecretRing(b"1" * 32)
    ring.rotate(timedelta(0), now=now)
    assert len(ring.accepted(now)) == 1
    assert ring.current() != b"1" * 32


def test_a_negative_grace_is_refused(ring):
    with pytest.raises(InvalidInputError, match="grace"):
        ring.rotate(-DAY)


def test_another_ring_on_the_file_notices_a_rotation(tmp_path):
    here, there = SecretRing(path=tmp_path / "secret"), SecretRing(path=tmp_path / "secret")
    before = there.current()
    here.rotate(DAY)
    assert there.current() == here.current() != before
    assert there.accepted() == (here.current(), before)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_rotation_by_one_ring_keeps_the_rotation_of_another(tmp_path):
    here, there = SecretRing(path=tmp_path / "secret"), SecretRing(path=tmp_path / "secret")
    first = here.current()
    here.rotate(DAY)
    second = here.current()
    there.rotate(DAY)
    assert here.accepted() == (there.current(), second, first)


def test_a_file_removed_under_a_running_server_changes_nothing_for_it(tmp_path):
    ring = SecretRing(path=tmp_path / "secret")
    before = ring.current()
    (tmp_path / "secret").unlink()
    assert ring.current() == before


def test_a_folder_that_cannot_be_made_names_the_environment_variable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="INFERSCALE_SECRET"):
        SecretRing(path=tmp_path / "file" / "secret")


def test_a_full_disk_leaves_no_half_written_file(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        SecretRing(path=tmp_path / "secret")
    assert [p.name for p in tmp_path.iterdir() if "lock" not in p.name and p.name != "home"] == []
