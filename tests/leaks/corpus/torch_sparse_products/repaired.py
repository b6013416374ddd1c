"""Only the last product stays."""

import torch


def graphs(number):
    torch.manual_seed(0)
    for _ in range(number):
        edges = torch.randint(0, 500, (2, 800))
        yield torch.sparse_coo_tensor(edges, torch.ones(800), (500, 500), check_invariants=True).coalesce()


def main():
    neighbours = []
    edges = 0
    for graph in graphs(100):
        neighbours[:] = [torch.sparse.mm(graph, graph)]
        edges += neighbours[-1].values().numel() if neighbours[-1].is_coalesced() else 0
    return len(neighbours), edges


main()
