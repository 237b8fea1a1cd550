"""The frozen models of a run as a reward function or hook sees them: plain blocking calls, which run in its thread.

Standard library only. A call goes to the model's router, or to its one server.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.errors import RunFailed

BACKOFF_S = 0.25
MAX_BACKOFF_S = 8.0
SHOWN = 500
"""Characters of an answer that an error quotes."""


class UnknownModel(KeyError):
    """A name that `rollout.models` does not have."""

    def __str__(self) -> str:
        return str(self.args[0])


class ServedModels(dict[str, "ServedModel"]):
    """Name -> model. Filled when the servers are up; another name raises UnknownModel with those there are."""

    def __missing__(self, name: str) -> ServedModel:
        raise UnknownModel(f"rollout.models has no {name!r}: there is {', '.join(sorted(self)) or 'none'}")


@dataclass(frozen=True)
class ServedModel:
    """One frozen model. Every method may be called from many threads at once, and raises RunFailed when the model
    cannot be reached or refuses."""

    name: str
    path: str  # as rollout.models has it
    url: str  # of its router, or of its one server
    timeout_s: float  # of one attempt
    max_retries: int

    def generate(
        self, prompt: str | Sequence[int], max_tokens: int, temperature: float = 0.0, **parameters: Any
    ) -> str:
        """The continuation of a text or of token ids, without a chat template. `parameters` are further ones of
        SGLang's sampling, such as stop or top_p."""
        sampling = {"max_new_tokens": max_tokens, "temperature": temperature, **parameters}
        return self.post("/generate", {**_prompt(prompt), "sampling_params": sampling})["text"]

    def chat(
        self, messages: str | Sequence[Mapping[str, Any]], max_tokens: int, temperature: float = 0.0, **parameters: Any
    ) -> str:
        """The answer to messages in the model's own chat template; a text is one message of the user. `parameters` are
        further ones of /v1/chat/completions."""
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        body = {"model": self.name, "messages": said, "max_tokens": max_tokens, "temperature": temperature}
        return self.post("/v1/chat/completions", body | parameters)["choices"][0]["message"]["content"] or ""

    def logprobs(self, prompt: str | Sequence[int]) -> list[float]:
        """Log-prob of every token but the first, given those before it, at temperature 1."""
        body = {
            **_prompt(prompt),
            "sampling_params": {"temperature": 1.0, "max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        entries = self.post("/generate", body)["meta_info"]["input_token_logprobs"]
        return input_logprobs(entries, None if isinstance(prompt, str) else prompt, f"model {self.name}")

    def post(self, endpoint: str, body: Mapping[str, Any], timeout_s: float | None = None) -> Any:
        """The JSON that the server answers a POST with, at `endpoint` such as /v1/score. Tried again, `max_retries`
        times, after a lost connection, a timeout, 429 or 5xx; any other refusal raises at once."""
        data, limit = json.dumps(body).encode(), timeout_s or self.timeout_s
        request = urllib.request.Request(self.url + endpoint, data, {"Content-Type": "application/json"})
        reason = ""
        for attempt in range(self.max_retries + 1):
            if attempt:
                time.sleep(min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (attempt - 1)))
            try:
                with urllib.request.urlopen(request, timeout=limit) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as e:
                reason = f"HTTP {e.code}: {e.read().decode(errors='replace')[:SHOWN]}"
                if e.code != 429 and e.code < 500:
                    raise RunFailed(self._part, f"refused {endpoint} with {reason}") from e
            except TimeoutError:
                reason = f"no answer in {limit:g} s"
            except (OSError, ValueError) as e:  # lost connections; answers that are not JSON
                reason = str(getattr(e, "reason", e))
        attempts = self.max_retries + 1
        summary = f"{endpoint} at {self.url} failed {attempts} times, last with: {reason}"
        raise RunFailed(self._part, summary, "raise rollout.request_timeout_s if it was only slow")

    @property
    def _part(self) -> str:
        return f"model {self.name}"


def _prompt(prompt: str | Sequence[int]) -> dict[str, Any]:
    return {"text": prompt} if isinstance(prompt, str) else {"input_ids": [int(token) for token in prompt]}


def input_logprobs(entries: Sequence[Sequence[Any]], token_ids: Sequence[int] | None, part: str) -> list[float]:
    """SGLang's entries [log-prob, id, text] of a prompt -> the log-probs of all tokens but the first. `token_ids`: the
    tokens that were sent, with which the entries have to agree. Raises RunFailed naming `part` when they do not."""
    if token_ids is not None:
        # SGLang scores the vocabulary's last id and reports it as 0; no id is larger, so it can only be the largest.
        last, sent = max(token_ids), [int(token) for token in token_ids]
        if [entry[1] for entry in entries] not in (sent, [0 if t == last else t for t in sent]):
            raise RunFailed(part, "scored other tokens than those sent")
    return [float(entry[0]) for entry in entries[1:]]
