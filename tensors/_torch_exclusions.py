"""What is never captured: parameters, registered buffers, gradients, and what an optimizer has or makes while it steps.

They are born in a scope often, in the first step, and belong to the model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from sys import _getframe
from typing import Any, final

import torch
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ._torch_modes import (
    LOCAL,
    ThreadState,
    is_looked_at,
    pause_births,
    resume_after_a_failed_step,
    resume_births,
)
from ._torch_results import flattened, give_up

__all__ = ["exclude_what_models_own"]


def exclude_what_models_own() -> None:
    """Hear of every registration of a parameter or buffer, and of every step of an optimizer and what it is given."""
    register_module_parameter_registration_hook(_registered)
    register_module_buffer_registration_hook(_registered)
    register_optimizer_step_pre_hook(_step_begins)
    register_optimizer_step_post_hook(_step_is_over)
    optimizer: Any = torch.optim.Optimizer
    # What its options are, and what it is loaded, unpickled or copied with: neither passes through a step.
    optimizer.add_param_group = _keeping(optimizer.add_param_group, _tensors_of_an_optimizer)
    optimizer.__setstate__ = _keeping(optimizer.__setstate__, _tensors_of_an_optimizer)
    # Of what is unpickled no buffer is registered.
    module: Any = torch.nn.Module
    module.__setstate__ = _keeping(module.__setstate__, _buffers_of)


def _keeping(method: Callable[..., None], tensors_of: Callable[[Any], Iterable[Any]]) -> Callable[..., None]:
    """The same method of an optimizer or a module; the tensors that it has afterwards are no scope's."""

    @functools.wraps(method)
    def kept(owner: Any, *args: Any, **kwargs: Any) -> None:
        method(owner, *args, **kwargs)
        for leaf in tensors_of(owner):
            if isinstance(leaf, torch.Tensor):
                give_up(leaf)

    return kept


def _tensors_of_an_optimizer(optimizer: Any) -> Iterable[Any]:
    return *flattened(optimizer.param_groups, 4), *flattened(optimizer.state, 4)


def _buffers_of(module: Any) -> Iterable[Any]:
    buffers: dict[str, Any] = module.__dict__.get("_buffers", {})
    return buffers.values()


def _registered(module: torch.nn.Module, name: str, tensor: Any) -> None:
    if tensor is not None:
        give_up(tensor)


def _step_begins(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    here = LOCAL.here
    if here.stepping:
        resume_after_a_failed_step(here)
    if here.stepping or not is_looked_at(here):
        return None
    # The frame that runs the hooks runs the step, and takes from a hook the arguments that it then holds until its end.
    pause_births(id(_getframe(1)))
    return args, _Arguments(kwargs, here)


def _step_is_over(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    resume_births(LOCAL.here, id(_getframe(1)))


@final
class _Arguments(dict[str, Any]):
    """The keyword arguments of a step. They die with the step's frame, also where it raised and no hook is called."""

    __slots__ = ("_here", "_step")

    def __init__(self, kwargs: Any, here: ThreadState) -> None:
        super().__init__(kwargs)
        self._here = here
        self._step = here.stepping

    def __del__(self) -> None:
        resume_births(self._here, self._step)
