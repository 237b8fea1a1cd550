"""Codes: arguments of the engines, written below rollout.sglang and trainer.megatron."""

from __future__ import annotations

CODES: dict[str, str] = {
    "owned-argument": (
        "rollout.sglang and trainer.megatron take any argument of the pinned engine, but those that another key "
        "decides: ports, parallel sizes, the model and its shape, types, seeds, learning rate. A value given twice "
        "could contradict itself, so it is given once, under the key that the hint names."
    ),
    "argument-refused": (
        "The engine has the argument, and here only the value in use can work: another one would break the run, "
        "change what is learned behind the algorithm's back, or do nothing because rlrun does that part itself. The "
        "message gives the reason."
    ),
    "argument-not-settable": (
        "The argument takes a function or another object of Python, which a YAML file cannot hold. Its value is "
        "rlrun's or the engine's own."
    ),
    "argument-conflict": (
        "Two arguments, or an argument and a key, ask for opposite things: the engine would refuse to start, or follow "
        "one of them without a word. All of them are shown."
    ),
    "argument-incomplete": (
        "Some arguments mean nothing alone. Speculative decoding needs its algorithm together with the number of draft "
        "steps, the branching and the number of draft tokens (or the draft model); with only some of them SGLang "
        "chooses the rest by itself, or stops at start."
    ),
}
