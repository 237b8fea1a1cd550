"""A small HTTP server that keeps weights as SGLang does."""

from __future__ import annotations

import base64
import json
import os
import pickle
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from safetensors.torch import load_file

from rlrun.backends.base import EngineAddress
from rlrun.errors import RunFailed
from rlrun.weight_sync.delta.mirror import Mirror
from rlrun.weight_sync.files import CHANGES_FORMAT


class FakeEngine:
    """Applies flattened buckets with SGLang's own arithmetic; `refuse_at` fails that update, counted from 0."""

    def __init__(self, refuse_at: int | None = None, reports: str | None = None, folder: str | None = None):
        self.weights: dict[str, torch.Tensor] = {}
        self.updates: list[dict] = []
        self.version = "0"
        self.mirror = Mirror(folder)
        self.harm: Callable[[str], None] = lambda path: None
        """What becomes of a file of changes on its way."""
        self._refuse_at, self._reports = refuse_at, reports
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(200, {"weight_version": engine._reports or engine.version})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.answer(*engine.post(self.path, body))

            def answer(self, status, value):
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def post(self, path: str, body: dict) -> tuple[int, dict]:
        self.updates.append(body)
        if self._refuse_at == len(self.updates) - 1:
            return 400, {"success": False, "message": "out of memory"}
        problem = self.load_folder(body["model_path"]) if path == "/update_weights_from_disk" else self.load(body)
        if problem is not None:
            return 400, {"success": False, "message": problem}
        self.version = body["weight_version"] or self.version
        return 200, {"success": True, "message": "Success"}

    def load_folder(self, folder: str) -> str | None:
        if not os.path.isdir(folder):
            return f"no folder {folder}"
        self.weights = load_file(os.path.join(folder, "model.safetensors"))
        return None

    def load_changes(self, path: str) -> str | None:
        self.harm(path)
        try:
            for name in self.mirror.apply(path):
                self.weights[name] = self.mirror.tensors[name].clone()
        except RunFailed as e:
            return str(e)
        return None

    def load(self, body: dict) -> str | None:
        if body["load_format"] == CHANGES_FORMAT:
            return self.load_changes(pickle.loads(base64.b64decode(body["serialized_named_tensors"][0])))
        ranks = [pickle.loads(base64.b64decode(text)) for text in body["serialized_named_tensors"]]
        for meta in ranks[0]["metadata"]:
            part = ranks[0]["flattened_tensor"][meta.start_idx : meta.end_idx]
            self.weights[meta.name] = part.view(meta.dtype).reshape(meta.shape)
        return None

    def address(self, index: int, tp: int = 1) -> EngineAddress:
        return EngineAddress(index, f"http://127.0.0.1:{self.server.server_port}", tp)
