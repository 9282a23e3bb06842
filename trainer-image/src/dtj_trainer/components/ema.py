"""An exponential moving average of the weights, which often validates better than the weights themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from dtj_trainer.checkpoint.contents import model_state, plain_name


class Ema(nn.Module):
    """Averages of a model's parameters, sharded like them; a checkpoint has them by the model's own names."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__()
        self._decay = decay
        self._model = (model,)  # in a tuple: not a submodule
        self._live = list(model.parameters())
        self._average = [p.detach().clone() for p in self._live]
        places = {id(p): place for place, p in enumerate(self._live)}
        # Tied weights have several names, and all of them are in a checkpoint.
        every = model.named_parameters(remove_duplicate=False)
        self._places = {plain_name(model, name): places[id(p)] for name, p in every}

    @torch.no_grad()
    def update(self) -> None:
        """Sets average = decay·average + (1 − decay)·weights. Call it after each optimizer step."""
        for average, live in zip(self._average, self._live, strict=True):
            average.lerp_(live.detach(), 1 - self._decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Gives the model the averages as weights inside, and its own weights back at the end."""
        kept = [p.detach().clone() for p in self._live]
        self._copy(self._average)
        try:
            yield
        finally:
            self._copy(kept)

    @torch.no_grad()
    def _copy(self, values: list[torch.Tensor]) -> None:
        for live, value in zip(self._live, values, strict=True):
            live.copy_(value)

    def unregistered_tensors(self) -> dict[str, torch.Tensor]:
        """Returns the averages, which are no parameters of this module."""
        return {str(place): average for place, average in enumerate(self._average)}

    def portable_state_dict(self) -> dict[str, torch.Tensor]:
        """Returns the model's state with the averages for parameters: the plain model can load it."""
        model = model_state(self._model[0])
        return {
            name: self._average[self._places[name]] if name in self._places else value for name, value in model.items()
        }

    @torch.no_grad()
    def load_portable_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Loads what `portable_state_dict` returned."""
        for name, place in self._places.items():
            self._average[place].copy_(state[name])
