"""float32 copies of coarse weights, which the optimizer steps: in bfloat16 alone a small step is rounded away.

A bfloat16 number has 8 bits of precision, so its neighbours are 1/256 to 1/128 of it apart; AdamW's step is about its
learning rate, whatever the gradient's size. At 1e-6 that is lost on every number above 0.0005.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BITS = {"float32": 24, "float16": 11, "bfloat16": 8}
"""Bits of precision by torch's name of a type, the implicit one included."""


class Masters:
    """The trained parameters once more, in float32. Gradients are summed up here, as they come out of each backward.

    Give `weights` to the optimizer, then `follow` it: after each of its steps the model gets them, rounded once.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        import torch

        self.parameters = list(parameters)
        self.weights = [torch.nn.Parameter(p.detach().float().clone()) for p in self.parameters]
        for parameter, weight in zip(self.parameters, self.weights, strict=True):
            parameter.register_post_accumulate_grad_hook(_moved_to(weight))

    def follow(self, optimizer: Any) -> None:
        """Round the weights into the model after every step of `optimizer`."""
        optimizer.register_step_post_hook(lambda *_: self.round())

    def round(self) -> None:
        """The model's parameters from these weights, each rounded to the nearest of its type."""
        import torch

        with torch.no_grad():
            for parameter, weight in zip(self.parameters, self.weights, strict=True):
                parameter.copy_(weight)


def _moved_to(weight: Any) -> Any:
    def move(parameter: Any) -> None:
        gradient = parameter.grad.float()
        weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
        parameter.grad = None

    return move


def lost_above(rate: float, precision: str) -> float:
    """Return the size above which a step of `rate` is always rounded away: half the distance of two neighbours is
    more.
    """
    return float(rate * 2 ** (BITS[precision] + 1))


def half_steps(values: Any) -> Any:
    """Half the distance from each number to its next one, in float64: what a change must reach to be one at all."""
    import torch

    bits = BITS[str(values.dtype).removeprefix("torch.")]
    _, exponents = torch.frexp(values.float())
    least = torch.frexp(torch.tensor(torch.finfo(values.dtype).tiny))[1]  # below it they lie equally far apart
    return torch.exp2((exponents.clamp(min=int(least)) - bits - 1).double())
