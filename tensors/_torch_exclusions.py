"""What is never captured: parameters, registered buffers, gradients, and what an optimizer makes while it steps.

They are born in a scope often, in the first step, and belong to the model.
"""

from __future__ import annotations

from sys import _getframe  # pyright: ignore[reportPrivateUsage]
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ._torch_births import give_up, pause_births, resume_births

__all__ = ["exclude_what_models_own"]


def exclude_what_models_own() -> None:
    """Hear of every registration of a parameter or buffer, and of every step of an optimizer."""
    register_module_parameter_registration_hook(_registered)
    register_module_buffer_registration_hook(_registered)
    register_optimizer_step_pre_hook(_step_begins)
    register_optimizer_step_post_hook(_step_is_over)


def _registered(module: torch.nn.Module, name: str, tensor: Any) -> None:
    if tensor is not None:
        give_up(tensor)


def _step_begins(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    # The frame that runs the hooks runs the step too: when it is gone, so is the step, also where it raised.
    pause_births(_getframe(1))


def _step_is_over(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    resume_births(_getframe(1))
