"""Transformers in scopes: generation with caches of keys and values, and its Trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.rounds import LIBRARIES_WARN, Round, assert_same_as_plain, needs

transformers: Any = needs("transformers", "accelerate")
import torch

pytestmark = LIBRARIES_WARN

SIZES = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
LAYERS = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **SIZES)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(max_position_embeddings=64, **LAYERS, **SIZES)
    ),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(sliding_window=4, max_position_embeddings=64, **LAYERS, **SIZES)
    ),
    "llama with long rope": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            max_position_embeddings=8,
            rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
            **LAYERS,
            **SIZES,
        )
    ),
}


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    return MODELS[name]().eval()


def decoded(model: Any, cache: Any, step: Round) -> object:
    """Token by token, the cache handed on by the caller."""
    tokens = [3, 7, 5]
    fed = tokens
    with torch.no_grad():
        for _ in range(10):
            with step():
                out = model(input_ids=torch.tensor([fed]), past_key_values=cache, use_cache=True)
                tokens.append(int(out.logits[0, -1].argmax()))
                last = out.logits[0, -1].tolist()
            fed = tokens[-1:]
    return tokens, last


@pytest.mark.parametrize("name", MODELS)
def test_a_loop_over_tokens_keeps_its_cache(name: str) -> None:
    assert_same_as_plain(lambda step: decoded(model_of(name), transformers.DynamicCache(), step))


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_cache_of_fixed_size(name: str) -> None:
    def program(step: Round) -> object:
        model = model_of(name)
        return decoded(model, transformers.StaticCache(config=model.config, max_cache_len=32), step)

    assert_same_as_plain(program)


def cache_that_the_model_makes(step: Round) -> object:
    model = model_of("llama")
    ids, past = torch.tensor([[3, 7, 5]]), None
    tokens: list[int] = []
    with torch.no_grad():
        for _ in range(8):
            with step():
                out = model(input_ids=ids, past_key_values=past, use_cache=True)
                past = out.past_key_values
                ids = step.out(out.logits[:, -1:].argmax(-1))
                tokens.append(ids.item())
    return tokens


def generated(step: Round) -> object:
    found: list[object] = []
    for name in ("gpt2", "llama"):
        model = model_of(name)
        for sampling in ({"do_sample": False}, {"do_sample": True, "top_k": 5}, {"num_beams": 3}):
            torch.manual_seed(4)
            with step():
                ids = model.generate(torch.tensor([[3, 7, 5]]), max_new_tokens=6, **sampling)
                found.append(ids.tolist())
    return found


def generated_with_a_static_cache(step: Round) -> object:
    model = model_of("llama")
    found: list[object] = []
    for start in range(3):
        with step():
            ids = model.generate(
                torch.tensor([[3, 7, start]]), max_new_tokens=6, cache_implementation="static", disable_compile=True
            )
            found.append(ids.tolist())
    return found


def generated_with_a_scope_round_each_token(step: Round) -> object:
    model = model_of("llama")
    model.forward = step.function(model.forward)
    return model.generate(torch.tensor([[3, 7, 5]]), max_new_tokens=8, do_sample=False)


def conversation_that_reuses_its_cache(step: Round) -> object:
    model = model_of("llama")
    cache = transformers.DynamicCache()
    ids = [3, 7, 5]
    for turn in range(3):
        with step():
            given = torch.tensor([[*ids, turn + 1]])
            out = model.generate(given, past_key_values=cache, max_new_tokens=4, do_sample=False)
            ids = out[0].tolist()
    return ids


PROGRAMS: tuple[Callable[[Round], object], ...] = (
    cache_that_the_model_makes,
    generated,
    generated_with_a_static_cache,
    generated_with_a_scope_round_each_token,
    conversation_that_reuses_its_cache,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_program_runs_unchanged(program: Callable[[Round], object]) -> None:
    assert_same_as_plain(program)


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.arange(6) * (index + 1) % 40
        return {"input_ids": ids, "labels": ids}


def trained(step: Round, folder: Path) -> object:
    class Trainer(transformers.Trainer):  # type: ignore[misc]  # its class is not known without the library
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            return step.function(super().training_step)(*args, **kwargs)

        def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
            return step.function(super().prediction_step)(*args, **kwargs)

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=6,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    trainer = Trainer(model=model_of("gpt2"), args=arguments, train_dataset=Texts(), eval_dataset=Texts())
    result = trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    checks = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert losses
    assert checks
    return result.training_loss, losses, checks, trainer.model.state_dict(), trainer.predict(Texts()).predictions


def test_the_trainer_runs_unchanged(tmp_path: Path) -> None:
    assert_same_as_plain(lambda step: trained(step, tmp_path))
