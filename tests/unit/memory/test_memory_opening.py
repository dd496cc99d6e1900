"""Opening and closing: which settings go together, who may read the secret, what a closed memory says."""

from __future__ import annotations

import inspect
import logging
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest

from inferscale_memory import ConfigError, LocalEngine, Memory, ModelError, StoreError, memory_parts
from inferscale_memory.handles import HandleBook
from inferscale_memory.sync_memory import SyncMemory
from tests.unit.memory.standin import StandIn
from tests.unit.memory.toys import embed

METHODS = {
    "add": lambda m: m.add("fact", user_id="alice"),
    "update": lambda m: m.update("id", text="t", user_id="alice"),
    "delete": lambda m: m.delete("id", user_id="alice"),
    "delete_all": lambda m: m.delete_all(user_id="alice"),
    "search": lambda m: m.search("q", user_id="alice"),
    "recall": lambda m: m.recall("q", user_id="alice"),
    "recall_many": lambda m: m.recall_many(["q"], {"user_id": "alice"}),
    "name": lambda m: m.name([], user_id="alice"),
    "explain": lambda m: m.explain("⟦kv:abc⟧"),
    "get": lambda m: m.get("id", user_id="alice"),
    "list": lambda m: m.list(user_id="alice"),
    "turns": lambda m: m.turns(user_id="alice"),
    "history": lambda m: m.history("id", user_id="alice"),
    "flush": lambda m: m.flush(),
    "status": lambda m: m.status(),
    "retry_parked": lambda m: m.retry_parked(),
}


def test_every_public_method_is_in_the_table_above():
    public = {name for name, _ in inspect.getmembers(SyncMemory, inspect.isfunction) if not name.startswith("_")}
    assert public == {*METHODS, "close"}


@pytest.mark.parametrize("name", METHODS)
def test_a_closed_memory_says_so(memory, name):
    memory.close()
    with pytest.raises(StoreError, match=r"this memory is closed.*Open it again"):
        METHODS[name](memory)


def test_closing_twice_at_once_or_on_leaving_a_block_is_harmless(opened):
    with opened() as memory:
        memory.add("kept", user_id="alice")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: memory.close(), range(8)))
    assert [fact.text for fact in opened().list(user_id="alice").facts] == ["kept"]


def test_closing_lets_the_engine_go_and_leaves_it_open(opened, home):
    engine = StandIn(home)
    first = opened(engine)
    assert engine.resolver is not None
    first.close()
    assert engine.resolver is None
    second = opened(engine)
    bound = engine.resolver
    first.close()
    assert engine.resolver is bound
    assert second.encoder.running


def test_an_engine_on_another_home_is_refused(opened, tmp_path):
    engine = StandIn(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"the engine keeps its KV in .*elsewhere.*give both the same home"):
        opened(engine, home=tmp_path / "here")
    assert engine.resolver is None


def test_one_home_by_two_names_is_the_same_home(opened, home, tmp_path):
    (tmp_path / "link").symlink_to(home)
    assert opened(StandIn(home), home=tmp_path / "link").engine is not None


def test_a_memory_takes_its_engines_home(opened, tmp_path):
    assert opened(StandIn(tmp_path / "there")).settings.home == tmp_path / "there"


def test_a_secret_that_others_can_read_is_refused_until_it_is_put_right(opened, home):
    opened().close()
    (home / "memory" / "secret").chmod(0o644)
    with pytest.raises(ConfigError, match=r"has mode 0644.*chmod 600"):
        opened()
    (home / "memory" / "secret").chmod(0o600)
    assert opened().add("fact", user_id="alice").created


def test_a_key_of_the_kv_folder_that_others_can_read_is_refused(opened, home):
    opened().close()
    (home / "memory" / "kv" / "store.key").chmod(0o640)
    with pytest.raises(StoreError, match="can be read by others"):
        opened()


def test_everything_in_the_home_is_the_owners_alone(memory, home):
    memory.add("fact", user_id="alice")
    assert (home / "memory").stat().st_mode & 0o077 == 0
    assert (home / "memory" / "kv").stat().st_mode & 0o077 == 0
    assert (home / "memory" / "secret").stat().st_mode & 0o177 == 0


def test_the_secret_comes_from_the_argument_then_the_environment_then_the_file(opened, home, monkeypatch):
    def minted(**options):
        with opened(**options) as memory:
            return memory.recall("q", user_id="alice")

    from_file = minted()
    monkeypatch.setenv("INFERSCALE_SECRET", "e" * 32)
    from_environment = minted()
    assert minted(secret=b"e" * 32) == from_environment
    assert len({from_file, from_environment, minted(secret=b"a" * 32)}) == 3
    monkeypatch.setenv("INFERSCALE_SECRET", "")
    assert minted() == from_file


def test_a_secret_in_the_environment_makes_no_file(opened, home, monkeypatch):
    monkeypatch.setenv("INFERSCALE_SECRET", "e" * 32)
    opened().recall("q", user_id="alice")
    assert not (home / "memory" / "secret").exists()


def test_a_secret_that_cannot_be_one_is_refused_and_not_shown(opened, monkeypatch):
    with pytest.raises(ConfigError, match="secret= has 5 bytes, at least 32"):
        opened(secret=b"short")
    with pytest.raises(ConfigError, match="secret= is a str, bytes are needed"):
        opened(secret="x" * 40)
    monkeypatch.setenv("INFERSCALE_SECRET", "short-hush")
    with pytest.raises(ConfigError, match="INFERSCALE_SECRET has 10 bytes") as caught:
        opened()
    assert "hush" not in str(caught.value)


def test_a_secret_of_any_bytes_can_come_from_the_environment(opened, monkeypatch):
    raw = bytes(range(200, 240))
    monkeypatch.setenv("INFERSCALE_SECRET", raw.decode("utf-8", "surrogateescape"))
    with opened() as memory, opened(secret=raw) as same:
        assert memory.recall("q", user_id="alice") == same.recall("q", user_id="alice")


def test_a_misspelt_variable_is_told_once(opened, monkeypatch, caplog):
    monkeypatch.setattr(memory_parts, "_told", set())
    monkeypatch.setenv("INFERSCALE_SECRETT", "e" * 32)
    for _ in range(2):
        opened()
    assert caplog.text.count("INFERSCALE_SECRETT is not a setting and is ignored; was INFERSCALE_SECRET meant?") == 1
    assert "eeee" not in caplog.text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"embedder": 42}, "embedder is a int; give a function"),
        ({"index": "jasper"}, "no vector index is called 'jasper'"),
        ({"policy": "everything"}, "unknown encoding context 'everything'"),
        ({"database_url": "hunter2"}, "database URL cannot be read"),
        ({"database_url": "nosuch://user:hunter2@host/db"}, "databases of the kind 'nosuch'"),
        ({"database_url": "postgresql+psycopg2://u:hunter2@host/db"}, "psycopg2"),
        ({"database_url": "sqlite://"}, "in memory is a different one in every thread"),
        ({"database_url": "sqlite:////no/such/folder/facts.db"}, "unable to open database file"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_at_opening(opened, options, reason):
    with pytest.raises((ConfigError, StoreError, ValueError), match=reason) as caught:
        opened(**options)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("variable", ["INFERSCALE_INDEX", "INFERSCALE_POLICY"])
def test_a_wrong_setting_of_the_environment_is_refused_at_opening(home, monkeypatch, variable):
    monkeypatch.setenv(variable, "nonsense")
    with pytest.raises((ConfigError, ValueError), match="nonsense"):
        Memory(embedder=embed)


@pytest.mark.parametrize("life", ["inf", "nan", "1e12", "0"])
def test_a_life_of_handles_that_no_calendar_holds_is_refused(opened, monkeypatch, life):
    monkeypatch.setenv("INFERSCALE_HANDLE_TTL", life)
    with pytest.raises(ConfigError, match="INFERSCALE_HANDLE_TTL"):
        opened()


def test_a_home_that_is_a_file_is_named(opened, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"folder .*file/memory cannot be made.*Give home="):
        opened(home=tmp_path / "file")


def test_a_database_that_is_none_is_named_and_left_alone(opened, home):
    (home / "memory" / "facts.db").write_bytes(b"certainly not a database " * 100)
    with pytest.raises(StoreError, match=r"facts\.db.*not a database"):
        opened()
    assert (home / "memory" / "facts.db").read_bytes().startswith(b"certainly not")


def test_a_failed_opening_leaves_no_encoder_and_no_engine_bound(opened, home, monkeypatch):
    engine = StandIn(home)
    monkeypatch.setattr("inferscale_memory.memory_parts.BackgroundEncoder.start", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        opened(engine)
    assert engine.resolver is None


def test_what_cannot_be_tidied_up_at_opening_is_told_and_stops_nothing(opened, monkeypatch, caplog):
    def full(*_):
        raise StoreError("disk full")

    monkeypatch.setattr(HandleBook, "purge_expired", full)
    with caplog.at_level(logging.WARNING):
        assert opened().add("fact", user_id="alice").created
    assert "left undone until the next opening: disk full" in caplog.text


@pytest.mark.parametrize("content", [None, "not a folder", "{broken"])
def test_an_engine_refuses_what_is_no_model_before_anything_starts(tmp_path, content):
    folder = tmp_path / "model"
    if content == "not a folder":
        folder.write_text(content)
    else:
        folder.mkdir()
        if content:
            (folder / "config.json").write_text(content)
    running = multiprocessing.active_children()
    with pytest.raises(ModelError, match=r"model"):
        LocalEngine(folder)
    assert multiprocessing.active_children() == running


def test_an_embedder_that_is_no_model_is_told_at_the_first_question_and_facts_are_kept(opened, tmp_path):
    memory = opened(embedder=str(tmp_path))
    memory.add("kept", user_id="alice")
    with pytest.raises(ModelError, match="no model folder"):
        memory.recall("kept", user_id="alice")
    assert [fact.text for fact in memory.list(user_id="alice").facts] == ["kept"]
