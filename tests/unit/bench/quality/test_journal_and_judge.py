"""What is kept of a run that was stopped, and a judge that answers over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from inferscale_memory.bench.quality.journal import Journal
from inferscale_memory.bench.quality.judge import Judge, JudgeError, accuracy
from inferscale_memory.errors import StoreError


def test_what_was_written_is_found_by_the_next_run(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "journal.jsonl"
    Journal(file).write("a", {"kl": 0.5, "answer": "犬 🐕\n"})
    again = Journal(file)
    assert again.get("a") == {"kl": 0.5, "answer": "犬 🐕\n"}
    assert again.get("b") is None


def test_a_line_that_was_cut_short_is_passed_over_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    Journal(file).write("a", {"kl": 1.0})
    with file.open("a") as torn:
        torn.write('{"key": "b", "kl": 2.')
    Journal(file).write("c", {"kl": 3.0})
    again = Journal(file)
    assert [again.get(key) for key in "abc"] == [{"kl": 1.0}, None, {"kl": 3.0}]


def test_the_later_of_two_lines_counts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("a", {"kl": 1.0})
    journal.write("a", {"kl": 2.0})
    assert Journal(journal.file).get("a") == {"kl": 2.0}


def test_a_journal_without_a_file_remembers_while_it_is_there() -> None:
    journal = Journal()
    journal.write("a", {"kl": 1.0})
    assert (journal.get("a"), journal.file) == ({"kl": 1.0}, None)


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be written: .* Free space, or give --keep a folder"):
        Journal(tmp_path / "file" / "journal.jsonl").write("a", {})


class Api:
    """A chat completions API: gives the replies in turn, the last one for ever, and keeps what it was asked."""

    def __init__(self, url: str, replies: list[Any]) -> None:
        self.url, self.replies = url, replies
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []


@pytest.fixture
def api() -> Iterator[Callable[..., Api]]:
    servers: list[ThreadingHTTPServer] = []

    def start(*replies: Any) -> Api:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                served.asked.append((self.path, body, self.headers.get("Authorization")))
                reply = served.replies.pop(0) if len(served.replies) > 1 else served.replies[0]
                status, content = reply if isinstance(reply, tuple) else (200, completion(reply))
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        served = Api(f"http://127.0.0.1:{server.server_port}/v1", list(replies))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return served

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def completion(text: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def judge(url: str, journal: Journal | None = None) -> Judge:
    return Judge(url, "strict", journal or Journal(), wait=0.001)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("yes", True),
        (" No.", False),
        ("**Yes**, it does.", True),
        ("<think>no, wait</think>\nyes", True),
        ("It depends.", None),
        ("nothing", None),
        (None, None),
    ],
)
def test_the_first_word_of_the_reply_is_the_verdict(api: Callable[..., Api], reply: Any, verdict: bool | None) -> None:
    assert judge(api(reply).url).verdict("Who?", "Ann", "It was Ann") is verdict


def test_the_judge_is_told_question_gold_and_answer_and_has_a_key(
    api: Callable[..., Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    served = api("yes")
    judge(f"{served.url}/").verdict("Who {x}?", "Ann", "Bob {y}")
    [(path, body, key)] = served.asked
    assert (path, body["model"], body["temperature"], key) == ("/v1/chat/completions", "strict", 0.0, "Bearer sesame")
    [message] = body["messages"]
    for part in ("Who {x}?", "Right answer: Ann", "Given answer: Bob {y}", "yes or no"):
        assert part in message["content"]


def test_a_verdict_is_asked_for_once_and_kept(api: Callable[..., Api], tmp_path: Path) -> None:
    served, file = api("yes", "no"), tmp_path / "journal.jsonl"
    assert judge(served.url, Journal(file)).verdict("Who?", "Ann", "Ann") is True
    assert judge(served.url, Journal(file)).verdict("Who?", "Ann", "Ann") is True
    assert judge(served.url, Journal(file)).verdict("Who?", "Ann", "Bob") is False
    assert len(served.asked) == 2


def test_a_blank_answer_is_wrong_without_asking(api: Callable[..., Api]) -> None:
    served = api("yes")
    assert judge(served.url).verdict("Who?", "Ann", " ") is False
    assert served.asked == []


def test_a_judge_that_is_busy_is_asked_again(api: Callable[..., Api]) -> None:
    served = api((503, {}), (429, {}), "yes")
    assert judge(served.url).verdict("Who?", "Ann", "Ann") is True
    assert len(served.asked) == 3


@pytest.mark.parametrize(("status", "tries"), [(401, 1), (404, 1), (500, 5)])
def test_a_judge_that_refuses_is_named_with_its_status(api: Callable[..., Api], status: int, tries: int) -> None:
    served = api((status, {"error": "no such key"}))
    with pytest.raises(JudgeError, match=rf"{served.url}/chat/completions answered with status {status}: .*no such"):
        judge(served.url).verdict("Who?", "Ann", "Ann")
    assert len(served.asked) == tries


def test_what_is_no_judge_is_named(api: Callable[..., Api]) -> None:
    served = api((200, {"hello": "there"}))
    with pytest.raises(JudgeError, match="status 200, but with no chat completion"):
        judge(served.url).verdict("Who?", "Ann", "Ann")


def test_a_judge_that_is_not_there_is_named() -> None:
    with pytest.raises(JudgeError, match=r"http://127\.0\.0\.1:9/v1/chat/completions cannot be reached"):
        judge("http://127.0.0.1:9/v1").verdict("Who?", "Ann", "Ann")


def test_accuracy_is_over_the_answers_that_the_judge_decided_on() -> None:
    assert accuracy([True, False, None, True]) == pytest.approx(2 / 3)
    assert accuracy([None]) is None
