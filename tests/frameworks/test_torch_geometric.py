"""PyTorch Geometric in scopes: convolutions that keep the normalised graph of their first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.frameworks.rounds import LIBRARIES_WARN, Round, assert_same_as_plain, needs

needs("torch_geometric")
import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric import nn as gnn
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.loader import DataLoader

pytestmark = LIBRARIES_WARN


def graph() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(10, 4, generator=generator),
        torch.randint(0, 10, (2, 30), generator=generator),
        torch.randint(0, 3, (10,), generator=generator),
    )


def trained(make: Callable[[], nn.Module], step: Round) -> object:
    torch.manual_seed(0)
    x, edges, labels = graph()
    conv, last = make(), nn.Linear(8, 3)
    optimizer = torch.optim.Adam([*conv.parameters(), *last.parameters()], lr=0.05)
    losses: list[float] = []
    for _ in range(4):
        with step():
            loss = nn.functional.cross_entropy(last(conv(x, edges).relu()), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, conv.state_dict(), last.state_dict()


CACHED: dict[str, Callable[[], nn.Module]] = {
    "GCNConv": lambda: gnn.GCNConv(4, 8, cached=True),
    "SGConv": lambda: gnn.SGConv(4, 8, K=2, cached=True),
    "SSGConv": lambda: gnn.SSGConv(4, 8, alpha=0.1, K=2, cached=True),
    "ClusterGCN": lambda: gnn.ClusterGCNConv(4, 8),
    "ARMAConv": lambda: gnn.ARMAConv(4, 8),
    "APPNP": lambda: gnn.Sequential(
        "x, e", [(nn.Linear(4, 8), "x -> x"), (gnn.APPNP(2, 0.1, cached=True), "x, e -> x")]
    ),
    "GCN": lambda: gnn.GCN(4, 8, 2, 8, cached=True, norm="BatchNorm"),
}


@pytest.mark.parametrize("conv", CACHED)
def test_convolutions_keep_their_graph(conv: str) -> None:
    assert_same_as_plain(lambda step: trained(CACHED[conv], step))


def recurrent_memory(step: Round) -> object:
    torch.manual_seed(0)
    memory: Any = gnn.TGNMemory(10, 4, 8, 8, gnn.models.tgn.IdentityMessage(4, 8, 8), gnn.models.tgn.LastAggregator())
    optimizer = torch.optim.SGD(memory.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(2)
    for time in range(4):
        with step():
            source, target = torch.randint(0, 10, (2, 3), generator=generator)
            nodes = torch.cat([source, target]).unique()
            state, _ = memory(nodes)
            memory.update_state(source, target, torch.full((3,), time), torch.randn(3, 4, generator=generator))
            optimizer.zero_grad()
            if state.requires_grad:
                state.square().sum().backward()
                optimizer.step()
            memory.detach()
    return memory.memory, memory.last_update, [value.detach() for value in memory.parameters()]


def edge_index_that_remembers_its_other_orders(step: Round) -> object:
    torch.manual_seed(0)
    x, edges, labels = graph()
    index = EdgeIndex(edges, sparse_size=(10, 10)).sort_by("row").values
    conv = gnn.SAGEConv(4, 3)
    optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
    for _ in range(3):
        with step():
            index.get_csr(), index.get_csc()
            nn.functional.cross_entropy(conv(x, index), labels).backward()
            optimizer.step()
    return conv.state_dict(), index.get_csc()[0][0]


def batches_of_graphs(step: Round) -> object:
    torch.manual_seed(0)
    x, edges, labels = graph()
    loader = DataLoader([Data(x=x + shift, edge_index=edges, y=labels) for shift in range(6)], batch_size=2)
    conv = gnn.GATConv(4, 3)
    norm = gnn.GraphNorm(3)
    optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
    for batch in loader:
        with step():
            out = norm(conv(batch.x, batch.edge_index), batch.batch)
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                gnn.global_mean_pool(out, batch.batch), batch.y[: len(batch.ptr) - 1]
            ).backward()
            optimizer.step()
    return conv.state_dict(), norm.state_dict()


def dataset_that_keeps_what_it_has_cut_out(step: Round) -> object:
    class Graphs(InMemoryDataset):  # type: ignore[misc]  # its class is not known without the library
        def __init__(self) -> None:
            super().__init__(None)
            x, edges, labels = graph()
            self.data, self.slices = self.collate(
                [Data(x=x[:n], edge_index=edges % n, y=labels[:1]) for n in (3, 5, 9)]
            )

    dataset = Graphs()
    sums: list[float] = []
    for _ in range(2):
        for index in range(len(dataset)):
            with step():
                sums.append((dataset[index].x * 2).sum().item())
    return sums


PROGRAMS: tuple[Callable[[Round], object], ...] = (
    recurrent_memory,
    edge_index_that_remembers_its_other_orders,
    batches_of_graphs,
    dataset_that_keeps_what_it_has_cut_out,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_program_runs_unchanged(program: Callable[[Round], object]) -> None:
    assert_same_as_plain(program)
