from __future__ import annotations

import sys
import types

import pytest

from rlrun.backends.sglang.launch import _require_hooks


@pytest.fixture
def registry(monkeypatch):
    """SGLang's hook registry, without SGLang."""
    made = types.SimpleNamespace(_hooks={}, _patched=set())
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins", "sglang.srt.plugins.hook_registry"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules["sglang.srt.plugins.hook_registry"], "HookRegistry", made, raising=False)
    return made


def test_a_server_does_not_start_without_a_hook_that_sglang_could_not_apply(registry):
    registry._hooks = {"sglang.b.there": [], "sglang.a.gone": [], "sglang.c.gone": []}
    registry._patched = {"sglang.b.there"}
    with pytest.raises(SystemExit, match=r"lacks what rlrun has to change in it: sglang\.a\.gone, sglang\.c\.gone$"):
        _require_hooks()
    registry._patched |= {"sglang.a.gone", "sglang.c.gone"}
    _require_hooks()
