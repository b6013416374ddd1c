"""Programs of ``torch.distributed``, run by processes of their own.

Their arguments are WORLD, RANK, FILE and a device, which is "cpu" where none is given.

Each prints the name of a program that is done.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.frameworks.rounds import Round, assert_same_as_plain

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
DEVICE = sys.argv[4] if len(sys.argv) == 5 else "cpu"


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    parts = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
    return nn.Sequential(*parts).to(DEVICE)


def train(model: nn.Module, optimizer: Any, step: Round) -> object:
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    losses: list[float] = []
    for _ in range(4):
        x = torch.randn(4, 6, generator=generator).to(DEVICE)
        with step():
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            losses.append(total.item())
    return losses, [whole(parameter) for parameter in model.parameters()]


def whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def fsdp(step: Round, **options: Any) -> object:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)).to(DEVICE)
    for layer in model:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return train(model, torch.optim.Adam(model.parameters(), lr=0.05), step)


def fsdp_that_keeps_gathered_parameters(step: Round) -> object:
    return fsdp(step, reshard_after_forward=False)


def fsdp_in_lower_precision(step: Round) -> object:
    return fsdp(step, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def ddp(step: Round) -> object:
    model = DistributedDataParallel(layers())
    return train(model, torch.optim.Adam(model.parameters(), lr=0.05), step)


def ddp_that_finds_unused_parameters(step: Round) -> object:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = layers(), layers()

        def forward(self, x: Any) -> Any:
            return self.used(x)

    model = DistributedDataParallel(Half(), find_unused_parameters=True, gradient_as_bucket_view=True)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.05), step)


def ddp_that_accumulates(step: Round) -> object:
    model = DistributedDataParallel(layers())
    for index in range(4):
        with step():
            if index % 2:
                model(torch.full((4, 6), float(index), device=DEVICE)).sum().backward()
            else:
                with model.no_sync():
                    model(torch.full((4, 6), float(index), device=DEVICE)).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def ddp_with_power_sgd(step: Round) -> object:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = DistributedDataParallel(layers())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, warm_start=True)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.05), step)


def sharded_optimizer(step: Round) -> object:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # PyTorch warns that it imports code of its own

    model = DistributedDataParallel(layers())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.05)
    return train(model, optimizer, step)


def tensor_parallel(step: Round) -> object:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(DEVICE)
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(model, torch.optim.Adam(model.parameters(), lr=0.05), step)


def sharded_inside_of_the_block(step: Round) -> object:
    torch.manual_seed(0)
    with step():
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2)).to(DEVICE)
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return train(model, optimizer, step)


def state_loaded_inside_of_the_block(step: Round) -> object:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

    torch.manual_seed(0)
    model = nn.Linear(6, 8).to(DEVICE)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    train(model, optimizer, step)
    options = StateDictOptions(full_state_dict=True)
    with step():
        of_model, of_optimizer = step.out(get_state_dict(model, optimizer, options=options))
        set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer, options=options)
    return train(model, optimizer, step)


def checkpoint_written_in_the_background(step: Round) -> object:
    import torch.distributed.checkpoint as dcp

    model = layers()
    # Each process to its own folder, as one alone would.
    with tempfile.TemporaryDirectory() as folder:
        for index in range(2):
            with step():
                state = {"model": model.state_dict(), "step": torch.ones(3) * index}
                written = dcp.async_save(state, checkpoint_id=f"{folder}/{index}", no_dist=True)
            written.result()
        read = {"model": layers().state_dict(), "step": torch.zeros(3)}
        dcp.load(read, checkpoint_id=f"{folder}/1", no_dist=True)
    return read["step"], read["model"]


def collectives_that_are_waited_for(step: Round) -> object:
    world = dist.get_world_size()
    sums, gathered = [], []
    for index in range(5):
        with step():
            total = torch.full((64,), float(index), device=DEVICE)
            summed = dist.all_reduce(total, async_op=True)
            parts = [torch.empty(8, device=DEVICE) for _ in range(world)]
            collected = dist.all_gather(parts, torch.full((8,), float(index), device=DEVICE), async_op=True)
            summed.wait()
            collected.wait()
            sums.append(total.sum().item())
            gathered.append([part.tolist() for part in parts])
    return sums, gathered


def pipeline(step: Round) -> object:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, world = dist.get_rank(), dist.get_world_size()
    parts = [nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 2)] if world == 2 else [nn.Linear(6, 2)]
    parts = [part.to(DEVICE) for part in parts]
    for part in parts:
        torch.manual_seed(0)
        for parameter in part.parameters():
            nn.init.normal_(parameter)
    stage = PipelineStage(parts[rank], rank, world, torch.device(DEVICE))
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    last = rank == world - 1
    outputs: list[object] = []
    for index in range(3):
        with step():
            inputs = () if rank else (torch.full((4, 6), float(index), device=DEVICE),)
            targets = {"target": torch.ones(4, 2, device=DEVICE), "losses": []} if last else {}
            found = schedule.step(*inputs, **targets)
            outputs.append(found.tolist() if last else None)
    return outputs, [parameter.grad for parameter in parts[rank].parameters()]


PROGRAMS: tuple[Callable[[Round], object], ...] = (
    fsdp,
    fsdp_that_keeps_gathered_parameters,
    fsdp_in_lower_precision,
    ddp,
    ddp_that_finds_unused_parameters,
    ddp_that_accumulates,
    ddp_with_power_sgd,
    sharded_optimizer,
    tensor_parallel,
    sharded_inside_of_the_block,
    state_loaded_inside_of_the_block,
    checkpoint_written_in_the_background,
    collectives_that_are_waited_for,
    pipeline,
)


def main(world: str, rank: str, file: str, device: str = "cpu") -> None:
    torch.set_num_threads(1)
    dist.init_process_group(BACKENDS[device], init_method=f"file://{file}", world_size=int(world), rank=int(rank))
    for program in PROGRAMS:
        assert_same_as_plain(program)
        print(program.__name__, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
