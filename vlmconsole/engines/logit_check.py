"""Proof that a converted adapter computes what it was made from: logits compared inside real mlx-vlm, elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlmconsole.engines import mlx_logits
from vlmconsole.engines.http import EngineError
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.engines.supported import mlx
from vlmconsole.runs.places import Places

LIMIT = 1e-3
"""Largest difference from merged weights, as a share of the largest logit: float32 gives 1e-6, bfloat16 some 1e-2."""
LIMIT_HALF = 3e-2
TIMEOUT_S = 900.0


@dataclass(frozen=True)
class LogitCheck:
    """Largest absolute differences of next-token logits over `tokens` positions; `scale` is the largest logit.

    from_merged: adapter against merged weights; from_base: adapter against the bare base (0: it does nothing).
    """

    tokens: int
    from_base: float
    from_merged: float
    scale: float
    same_choices: int
    limit: float

    @property
    def same(self) -> bool:
        """Within the limit, and the adapter does something: two ways to change nothing agree always."""
        return self.from_merged <= self.limit * self.scale and self.from_base > 0

    def __str__(self) -> str:
        if self.from_base == 0:
            return "the adapter changes no logit at all, so nothing is proven"
        return (
            f"logits differ from merged weights by {self.from_merged:.2g} at most, of {self.scale:.3g};"
            f" {self.same_choices} of {self.tokens} first choices the same; from the base by {self.from_base:.2g}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**asdict(self), "same": self.same}


def compare_logits(
    base: Path,
    adapter: Path,
    peft: Path,
    scales: Mapping[str, float],
    places: Places,
    precision: str = "float32",
) -> LogitCheck:
    """Runs `mlx_logits` under the Python that serves MLX here. Raises ProfileError without one, EngineError else.

    scales: what each layer's product is multiplied by, as the PEFT adapter's configuration says.
    """
    python = mlx.interpreter(ServerProfile(name="logits", engine="mlx"), places)
    words = [python, mlx_logits.__file__, str(base), str(adapter), str(peft), json.dumps(dict(scales))]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=dict(os.environ)
        )
        value = json.loads(done.stdout.strip().rpartition("\n")[2]) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, OSError, ValueError) as error:
        raise EngineError(f"the logits could not be compared: {error}") from None
    if value is None:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise EngineError(f"mlx-vlm could not load the converted adapter: {reason}")
    return LogitCheck(**value, limit=LIMIT if precision == "float32" else LIMIT_HALF)
