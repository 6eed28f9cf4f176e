"""A worker's part with PyTorch, under any Python that has it.

It answers as work.py does.
"""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import subprocess
import sys
import time
from typing import Any

import torch  # type: ignore[import-not-found]
from torch.multiprocessing.reductions import (  # type: ignore[import-not-found]
    reduce_tensor,
)

from tests.gpu.driver import MIB, Nvml
from tests.gpu.work import serve

WIDTH, HEADS, LAYERS, WORDS = 1024, 16, 4, 8192
BATCH, LENGTH, CACHE = 8, 512, 512
BEYOND = 6144  # MiB, above every limit of the tests: whoever gets as far is not limited


class TorchWork:
    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.parts: dict[str, Any] = {}

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__, "cuda": str(torch.version.cuda)}

    def start(self, fraction: float | None = None) -> str:
        """Make the context and run what loads modules; return the allocator's name."""
        if fraction is not None:
            torch.cuda.set_per_process_memory_fraction(fraction)
        square = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
        (square @ square).sum().item()
        return str(torch.cuda.get_allocator_backend())

    # running out of memory

    def fill(self, mebibytes: int) -> dict[str, Any]:
        """Allocate until torch says that there is no more."""
        error = ""
        while not error and len(self.kept) * mebibytes < BEYOND:
            try:
                self.kept.append(torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda"))
            except torch.cuda.OutOfMemoryError:
                error = "OutOfMemoryError"
            except RuntimeError as other:
                error = f"RuntimeError {str(other)[:120]}"
        return {"bytes": len(self.kept) * mebibytes * MIB, "error": error}

    def retry(self, mebibytes: int) -> bool:
        """Give all back and take it again in one piece, as a program does after running out."""
        self.kept.clear()
        torch.cuda.empty_cache()
        whole = torch.ones(mebibytes * MIB, dtype=torch.uint8, device="cuda")
        right = int(whole[-1].item()) == 1
        del whole
        torch.cuda.empty_cache()
        return right

    def one_more(self, mebibytes: int) -> str:
        try:
            self.kept.append(torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            return "OutOfMemoryError"
        except RuntimeError as other:
            return f"RuntimeError {str(other)[:120]}"
        return "given"

    def solve(self) -> str:
        """Use cuSOLVER for the first time: it loads close to 100 MiB of code."""
        try:
            matrix = torch.eye(64, device="cuda") * 2
            torch.linalg.cholesky(matrix)
            torch.linalg.eigh(matrix)
            torch.cuda.synchronize()
        except RuntimeError as error:
            return f"{type(error).__name__} {str(error)[:80]}"
        return "done"

    # what it sees

    def views(self) -> dict[str, list[int]]:
        """Return used and total MiB as torch, NVML and nvidia-smi tell them here."""
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        nvml_total, _nvml_free, nvml_used = Nvml().memory()
        found = {
            "torch": [(total - free) // MIB, total // MIB],
            "NVML": [nvml_used // MIB, nvml_total // MIB],
        }
        smi = shutil.which("nvidia-smi")
        if smi:
            query = "--query-gpu=memory.used,memory.total"
            printed = subprocess.run(
                [smi, query, "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                check=True,
                capture_output=True,
                text=True,
                timeout=30,
            )
            found["nvidia-smi"] = [int(word) for word in printed.stdout.split("\n")[0].split(",")]
        return found

    # sharing

    def share(self, mebibytes: int) -> str:
        tensor = torch.full((mebibytes * MIB,), 42, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        self.kept.append(tensor)
        return pickle.dumps(reduce_tensor(tensor)).hex()

    def take(self, shared: str) -> None:
        rebuild, arguments = pickle.loads(bytes.fromhex(shared))  # noqa: S301  from our own worker
        self.kept.append(rebuild(*arguments))

    def reads(self) -> int:
        return int(self.kept[-1][-1].item())

    def used(self) -> int:
        return Nvml().memory()[2]

    # throughput

    def prepare(self) -> None:
        """Build a small transformer to train, and one to decode with, and warm both up."""
        # The same core for all, one works at a time: else where a process happens to run decides.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        torch.set_num_threads(1)
        gc.disable()
        torch.manual_seed(1)
        half = {"device": "cuda", "dtype": torch.bfloat16}
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True, **half
        )
        body = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        words = torch.nn.Embedding(WORDS, WIDTH, **half)
        out = torch.nn.Linear(WIDTH, WORDS, bias=False, **half)
        model = torch.nn.Sequential(words, body, out)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens = torch.randint(WORDS, (BATCH, LENGTH), device="cuda")
        self.parts = {"model": model, "optimiser": optimiser, "tokens": tokens}
        self.parts["weights"] = [
            {
                "qkv": torch.randn(3 * WIDTH, WIDTH, **half) * 0.02,
                "out": torch.randn(WIDTH, WIDTH, **half) * 0.02,
                "up": torch.randn(4 * WIDTH, WIDTH, **half) * 0.02,
                "down": torch.randn(WIDTH, 4 * WIDTH, **half) * 0.02,
                "keys": torch.randn(1, HEADS, CACHE, WIDTH // HEADS, **half),
                "values": torch.randn(1, HEADS, CACHE, WIDTH // HEADS, **half),
            }
            for _ in range(LAYERS)
        ]
        self.parts["words"] = torch.randn(WORDS, WIDTH, **half) * 0.02
        self.train(1.0)
        self.decode(1.0)

    def _step(self) -> None:
        tokens = self.parts["tokens"]
        logits = self.parts["model"](tokens)
        flat = logits[:, :-1].reshape(-1, WORDS).float()
        loss = torch.nn.functional.cross_entropy(flat, tokens[:, 1:].reshape(-1))
        loss.backward()
        self.parts["optimiser"].step()
        self.parts["optimiser"].zero_grad(set_to_none=True)

    def train(self, seconds: float) -> float:
        """Return training steps per second."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        steps = 0
        while time.perf_counter() - start < seconds:
            for _ in range(5):
                self._step()
            torch.cuda.synchronize()
            steps += 5
        return steps / (time.perf_counter() - start)

    def _token(self, token: Any, place: int) -> Any:
        functional = torch.nn.functional
        hidden = functional.embedding(token, self.parts["words"])
        for weights in self.parts["weights"]:
            normed = functional.layer_norm(hidden, (WIDTH,))
            query, key, value = (
                part.view(1, 1, HEADS, -1).transpose(1, 2)
                for part in functional.linear(normed, weights["qkv"]).chunk(3, dim=-1)
            )
            weights["keys"][:, :, place : place + 1] = key
            weights["values"][:, :, place : place + 1] = value
            seen = functional.scaled_dot_product_attention(
                query, weights["keys"][:, :, : place + 1], weights["values"][:, :, : place + 1]
            )
            seen = seen.transpose(1, 2).reshape(1, 1, WIDTH)
            hidden = hidden + functional.linear(seen, weights["out"])
            normed = functional.layer_norm(hidden, (WIDTH,))
            wide = functional.gelu(functional.linear(normed, weights["up"]))
            hidden = hidden + functional.linear(wide, weights["down"])
        return functional.linear(hidden, self.parts["words"]).argmax(-1)

    def decode(self, seconds: float) -> float:
        """Return tokens per second, one at a time, each needing the one before."""
        with torch.inference_mode():
            token = torch.zeros((1, 1), dtype=torch.long, device="cuda")
            torch.cuda.synchronize()
            start = time.perf_counter()
            done = 0
            while time.perf_counter() - start < seconds:
                for _ in range(10):
                    token = self._token(token, done % CACHE)
                    done += 1
                token.item()
            return done / (time.perf_counter() - start)


if __name__ == "__main__":
    sys.stderr.flush()
    serve(TorchWork())
