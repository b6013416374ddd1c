"""Schedulers of diffusers in scopes: they keep the last outputs of a model for their next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.frameworks.rounds import LIBRARIES_WARN, Round, assert_same_as_plain, needs

diffusers: Any = needs("diffusers")
import torch
from torch import nn

pytestmark = LIBRARIES_WARN

SCHEDULERS = [
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "DEISMultistepScheduler",
    "UniPCMultistepScheduler",
    "PNDMScheduler",
    "IPNDMScheduler",
    "LMSDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "EulerDiscreteScheduler",
    "EulerAncestralDiscreteScheduler",
    "DDIMScheduler",
    "DDPMScheduler",
    "SASolverScheduler",
]


def denoised(name: str, step: Round) -> object:
    torch.manual_seed(0)
    model = nn.Conv2d(2, 2, 3, padding=1)
    scheduler = getattr(diffusers, name)(num_train_timesteps=50)
    scheduler.set_timesteps(6)
    sample = torch.randn(1, 2, 4, 4) * scheduler.init_noise_sigma
    with torch.no_grad():
        for time in scheduler.timesteps:
            with step():
                noise = model(scheduler.scale_model_input(sample, time))
                sample = step.out(scheduler.step(noise, time, sample).prev_sample)
    return sample


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_keeps_its_last_outputs(name: str) -> None:
    assert_same_as_plain(lambda step: denoised(name, step))


def unet() -> Any:
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(4, 8),
        norm_num_groups=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )


def pipeline(step: Round) -> object:
    pipe = diffusers.DDIMPipeline(unet=unet(), scheduler=diffusers.DDIMScheduler(num_train_timesteps=20))
    pipe.set_progress_bar_config(disable=True)
    images = []
    for seed in range(2):
        with step():
            found = pipe(generator=torch.Generator().manual_seed(seed), num_inference_steps=3, output_type="np")
            images.append(found.images.tolist())
    return images


def training_with_an_average(step: Round) -> object:
    from diffusers.training_utils import EMAModel

    model = unet()
    average = EMAModel(model.parameters(), decay=0.9)
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        with step():
            clean, noise = torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8)
            times = torch.randint(0, 20, (2,))
            predicted = model(scheduler.add_noise(clean, noise, times), times).sample
            loss = nn.functional.mse_loss(predicted, noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.step(model.parameters())
    return model.state_dict(), average.shadow_params


PROGRAMS: tuple[Callable[[Round], object], ...] = (pipeline, training_with_an_average)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_program_runs_unchanged(program: Callable[[Round], object]) -> None:
    assert_same_as_plain(program)
