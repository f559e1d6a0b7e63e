"""The model under test in this process: loaded when it is first asked, greedy, in fixed batches."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from vlmconsole import __version__
from vlmconsole.evaluation.answerer import ModelAnswer, Stopping
from vlmconsole.evaluation.items import Item
from vlmconsole.evaluation.resolve import ResolvedSide
from vlmconsole.measure.machine import hardware
from vlmconsole.runs.conditions import Conditions, another_prompt

PACKAGES = ("vlmconsole", "torch", "transformers", "peft", "tokenizers", "pillow", "numpy")


class InProcess:
    """An answerer that generates with torch here. Raises LabError for a model or adapter that cannot be used."""

    def __init__(self, side: ResolvedSide, stopping: Callable[[], bool] = lambda: False) -> None:
        from vlmconsole.training.adapters.provenance import other_prompt

        settings = side.settings
        self.settings, self.stopping = settings, stopping
        self._loaded: Any = None
        self.folder, self.adapter, self.who = side.answering_folder, side.adapter.found, side.who
        self.device, self.precision = side.device, side.precision
        self.facts: dict[str, Any] = {
            "backend": "in-process",
            "host": platform.node(),
            "hardware": hardware(),
            "device": self.device,
            "versions": {"python": platform.python_version(), **_versions()},
            "weights": [self.who.model_sha256, self.who.adapter_sha256],
            "precision": self.precision,
            "threads": settings.threads,
            "batch": settings.batch,
            "max_new_tokens": settings.max_new_tokens,
            "seed": settings.seed,
        }
        self.prompt = side.prompt
        asked = other_prompt(self.adapter.provenance, self.prompt["prompt_sha256"]) if self.adapter else ""
        self._notes = tuple(filter(None, (self.who.label, f"adapter {self.who.adapter} {asked}" if asked else "")))
        self.facts |= another_prompt(self.prompt)  # answers to another prompt are not taken over

    def ask(self, items: Sequence[Item]) -> list[ModelAnswer]:
        """Return one batch, generated together; `seconds` is the batch's time shared out evenly. A stop is heeded
        between two tokens: raises Stopping, and the batch is generated whole another time."""
        from vlmconsole.training.generation import answers, prompt_of

        loaded, limit = self._load(), self.settings.max_new_tokens
        asks = [prompt_of(item.example) for item in items]
        begun = time.monotonic()
        made = list(answers(loaded, asks, max_new_tokens=limit, batch=len(asks), stopping=self.stopping))
        if len(made) < len(asks):
            raise Stopping
        each = round((time.monotonic() - begun) / len(asks), 4)
        return [
            ModelAnswer(
                answer=generated.text,
                token_ids=generated.token_ids,
                tensor_sha256=generated.tensor_sha256,
                finish=generated.finish,
                prompt_tokens=generated.prompt_tokens,
                output_tokens=len(generated.token_ids),
                seconds=each,
            )
            for generated in made
        ]

    def conditions(self) -> Conditions:
        """Device, versions and settings; a prefix cache does not exist here, so it is off."""
        versions = self.facts["versions"]
        return Conditions(
            hardware=self.facts["hardware"],
            engine="in-process",
            engine_version=f"transformers {versions.get('transformers')}, torch {versions.get('torch')}",
            model=self.who.model,
            model_sha256=self.who.model_sha256,
            precision=self.precision,
            adapter=self.who.identity,
            cache="off",
            warm_up="none: nothing is timed",
            temperature=0.0,
            seed=self.settings.seed,
            **self.prompt,
            max_tokens=self.settings.max_new_tokens,
            client=f"vlmconsole {__version__} in-process",
            settings={
                "device": self.device,
                "batch": self.settings.batch,
                "threads": self.settings.threads,
                "decoding": "greedy",
                "versions": versions,
            },
            notes=self._notes,
        )

    def _load(self) -> Any:
        if self._loaded is None:
            import torch

            from vlmconsole.training import model
            from vlmconsole.training.adapters import store

            torch.set_num_threads(self.settings.threads)
            torch.manual_seed(self.settings.seed)
            loaded = model.load(self.folder, dtype=self.precision, device=self.device)
            if self.adapter is not None:
                store.load_peft(loaded, self.adapter.path)  # from now on the model answers with it
            self._loaded = loaded
        return self._loaded


@contextmanager
def in_process(side: ResolvedSide, stopping: Callable[[], bool] = lambda: False) -> Iterator[InProcess]:
    """The side's model for the block's time; its memory is given back with the block."""
    model = InProcess(side, stopping)
    try:
        yield model
    finally:
        model._loaded = None


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions
