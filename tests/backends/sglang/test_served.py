"""Calls of a reward function to a frozen model, against a small HTTP server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rlrun.backends.sglang import served
from rlrun.backends.sglang.served import ServedModel, ServedModels, UnknownModel
from rlrun.errors import RunFailed


class Server:
    """Gives the prepared answers, (status, JSON or bytes), one after the other, the last one for ever."""

    def __init__(self, *answers):
        self.asked: list[tuple[str, dict]] = []
        prepared = list(answers)
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append((self.path, body))
                status, answer = prepared.pop(0) if len(prepared) > 1 else prepared[0]
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def model(self) -> ServedModel:
        return ServedModel("judge", "some/judge", f"http://127.0.0.1:{self.http.server_port}", 5.0, 2)


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr(served, "BACKOFF_S", 0.001)
    started = []

    def make(*answers):
        started.append(Server(*answers))
        return started[-1]

    yield make
    for server in started:
        server.http.shutdown()
        server.http.server_close()


def scored(*entries):
    return 200, {"meta_info": {"input_token_logprobs": [list(entry) for entry in entries]}}


def test_text_and_ids_are_continued_greedily_unless_told_otherwise(serve):
    server = serve((200, {"text": "42"}))
    assert server.model.generate("6 * 7 =", 3) == "42"
    assert server.model.generate((1, 2), 3, temperature=0.5, stop=["."]) == "42"
    greedy = {"max_new_tokens": 3, "temperature": 0.0}
    warm = {"max_new_tokens": 3, "temperature": 0.5, "stop": ["."]}
    assert server.asked == [
        ("/generate", {"text": "6 * 7 =", "sampling_params": greedy}),
        ("/generate", {"input_ids": [1, 2], "sampling_params": warm}),
    ]


def test_a_text_is_one_message_of_a_chat(serve):
    server = serve((200, {"choices": [{"message": {"content": "7"}}]}))
    assert server.model.chat("Grade it.", 8) == "7"
    [(path, body)] = server.asked
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "Grade it."}]
    assert (body["max_tokens"], body["temperature"]) == (8, 0.0)


def test_logprobs_are_those_of_all_tokens_but_the_first(serve):
    server = serve(scored((None, 5), (-0.5, 6), (-1.5, 7)))
    assert server.model.logprobs([5, 6, 7]) == [-0.5, -1.5]
    assert server.model.logprobs("abc") == [-0.5, -1.5]
    with pytest.raises(RunFailed, match="model judge: scored other tokens"):
        server.model.logprobs([5, 6, 8, 7])


@pytest.mark.parametrize("failure", [(503, {"message": "busy"}), (429, {}), (200, b"<html>")])
def test_a_passing_failure_is_tried_again(serve, failure):
    server = serve(failure, failure, (200, {"score": 1}))
    assert server.model.post("/v1/score", {"query": "q"}) == {"score": 1}
    assert server.asked == [("/v1/score", {"query": "q"})] * 3


def test_a_lasting_failure_names_the_model_its_address_and_the_reason(serve):
    server = serve((500, {"message": "out of memory"}))
    with pytest.raises(RunFailed) as e:
        server.model.post("/generate", {})
    assert e.value.part == "model judge"
    assert f"/generate at {server.model.url} failed 3 times, last with: HTTP 500" in e.value.summary
    assert "out of memory" in e.value.summary


def test_a_refusal_is_not_repeated(serve):
    server = serve((400, {"message": "too long"}))
    with pytest.raises(RunFailed, match=r"refused /generate with HTTP 400.*too long"):
        server.model.post("/generate", {})
    assert len(server.asked) == 1


def test_a_server_that_is_gone_is_named(serve):
    server = serve((200, {}))
    model = server.model
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(RunFailed, match=r"failed 3 times, last with: .*refused"):
        model.post("/generate", {})


def test_an_unknown_name_is_an_error_that_says_which_there_are():
    models = ServedModels(judge=ServedModel("judge", "", "", 1.0, 0), search=ServedModel("search", "", "", 1.0, 0))
    with pytest.raises(UnknownModel) as e:
        models["jugde"]
    assert str(e.value) == "rollout.models has no 'jugde': there is judge, search"
    assert isinstance(e.value, KeyError)
