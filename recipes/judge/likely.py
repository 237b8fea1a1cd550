"""A reward without labels: how likely a frozen model finds a response. `conf/experiment/judge.yaml` uses it."""

from __future__ import annotations

import math
from typing import Any


def likely(prompt: Any, response_text: str, label: Any, models: Any) -> float:
    """The geometric mean of what the judge gives each token of the response and of its end. The judge has the policy's
    tokenizer and chat template, which is why the prompt's ids can be counted; the label is not looked at."""
    said = "".join(f"<|im_start|>{message['content']}" for message in prompt.messages)
    scored = models["judge"].logprobs(f"{said}<|im_start|>{response_text}<|im_end|>")
    of_response = scored[len(prompt.token_ids) - 1 :]
    return math.exp(sum(of_response) / len(of_response))
