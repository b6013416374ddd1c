"""Lightning in scopes: what ``self.log`` collects over an epoch, and a Trainer on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.rounds import LIBRARIES_WARN, Round, assert_same_as_plain, needs

lightning: Any = needs("lightning", "torchmetrics")
import torch
import torchmetrics
from lightning.pytorch import callbacks, loggers
from torch import Tensor, nn

pytestmark = LIBRARIES_WARN


class Classifier(lightning.LightningModule):  # type: ignore[misc]  # its class is not known without the library
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=3)
        self.curve = torchmetrics.classification.MulticlassAUROC(num_classes=3)
        self.logged: list[dict[str, float]] = []

    def loss_of(self, batch: Any, stage: str) -> Tensor:
        x, y = batch
        scores = self.layers(x)
        loss = nn.functional.cross_entropy(scores, y)
        self.accuracy(scores, y)
        self.log(f"{stage}_loss", loss, on_step=stage == "train", on_epoch=True)
        self.log(f"{stage}_norm", scores.detach().norm(), on_step=False, on_epoch=True, reduce_fx="max")
        self.log(f"{stage}_accuracy", self.accuracy, on_step=False, on_epoch=True)
        self.log_dict({f"{stage}_mean": scores.mean(), f"{stage}_spread": scores.std()}, on_epoch=True)
        if stage == "test":
            self.curve.update(scores.softmax(1), y)
        return loss

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self.loss_of(batch, "train")

    def validation_step(self, batch: Any, index: int) -> None:
        self.loss_of(batch, "validation")

    def test_step(self, batch: Any, index: int) -> None:
        self.loss_of(batch, "test")

    def predict_step(self, batch: Any, index: int) -> Tensor:
        return self.layers(batch[0]).softmax(1)

    def on_test_epoch_end(self) -> None:
        self.log("test_curve", self.curve.compute())

    def on_train_epoch_end(self) -> None:
        self.logged.append({name: value.item() for name, value in self.trainer.callback_metrics.items()})

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def loader() -> Any:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(18, 4, generator=generator), torch.randint(0, 3, (18,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=6)


def trainer_of(folder: Path, *added: Any, **options: Any) -> Any:
    lightning.seed_everything(0)
    return lightning.Trainer(
        **{
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 2,
            "default_root_dir": folder,
            "logger": loggers.CSVLogger(folder, name=None),
            "callbacks": list(added),
            "log_every_n_steps": 1,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            **options,
        }
    )


def fitted(model: Any, folder: Path, *added: Any, **options: Any) -> object:
    trainer = trainer_of(folder, callbacks.EarlyStopping("validation_loss", patience=5), *added, **options)
    trainer.fit(model, loader(), loader())
    tested = trainer.test(model, loader(), verbose=False)
    predicted = trainer.predict(model, loader())
    return model.logged, tested, predicted, model.state_dict()


def scope_round_each_step(step: Round, folder: Path) -> object:
    class Model(Classifier):
        def training_step(self, batch: Any, index: int) -> Tensor:
            return step.function(super().training_step)(batch, index)

        def validation_step(self, batch: Any, index: int) -> None:
            with step():
                super().validation_step(batch, index)

        def test_step(self, batch: Any, index: int) -> None:
            with step():
                super().test_step(batch, index)

        def predict_step(self, batch: Any, index: int) -> Tensor:
            return step.function(super().predict_step)(batch, index)

    torch.manual_seed(0)
    return fitted(Model(), folder)


def scope_round_each_batch(step: Round, folder: Path) -> object:
    """Opened and closed by a callback, round backward and the optimizer's step too."""

    class Scopes(callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.open = ExitStack()

        def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
            self.open.enter_context(step())

        def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
            self.open.close()

        on_validation_batch_start = on_test_batch_start = on_train_batch_start
        on_validation_batch_end = on_test_batch_end = on_train_batch_end

    torch.manual_seed(0)
    return fitted(Classifier(), folder, Scopes(), accumulate_grad_batches=2, gradient_clip_val=0.5)


def scope_round_the_whole_fit(step: Round, folder: Path) -> object:
    torch.manual_seed(0)
    model = Classifier()
    best = callbacks.ModelCheckpoint(folder / "best", monitor="validation_loss")
    patience = callbacks.EarlyStopping("train_loss_epoch", patience=5)
    trainer = trainer_of(folder, best, patience, enable_checkpointing=True)
    with step():
        trainer.fit(model, loader(), loader())
    return trainer.callback_metrics, best.best_model_score, patience.best_score, model.state_dict()


def best_step_by_a_checkpoint(step: Round, folder: Path) -> object:
    torch.manual_seed(0)
    best = callbacks.ModelCheckpoint(folder / "best", monitor="train_loss", every_n_train_steps=1)

    class Model(Classifier):
        def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            with step():
                super().optimizer_step(*args, **kwargs)

    model = Model()
    trainer_of(folder, best, enable_checkpointing=True).fit(model, loader())
    return best.best_model_score, model.state_dict()


def manual_optimization(step: Round, folder: Path) -> object:
    class Model(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, index: int) -> None:
            with step():
                optimizer = self.optimizers()
                loss = self.loss_of(batch, "train")
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()

    torch.manual_seed(0)
    return fitted(Model(), folder)


PROGRAMS: tuple[Callable[[Round, Path], object], ...] = (
    scope_round_each_step,
    scope_round_each_batch,
    scope_round_the_whole_fit,
    best_step_by_a_checkpoint,
    manual_optimization,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_program_runs_unchanged(program: Callable[[Round, Path], object], tmp_path: Path) -> None:
    assert_same_as_plain(lambda step: program(step, tmp_path))


def fabric(step: Round) -> object:
    torch.manual_seed(0)
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    model = nn.Linear(4, 3)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    losses: list[float] = []
    for x, y in fabric.setup_dataloaders(loader()):
        with step():
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    return losses, model.state_dict()


def test_fabric_runs_unchanged() -> None:
    assert_same_as_plain(fabric)


PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/use-with-lightning-accelerate-and-plain-loops.md"


def test_the_program_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(code, str(PAGE), "exec"), {"__name__": "page"})
