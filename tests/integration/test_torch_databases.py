"""PyTorch's own samples of operators, modules and optimizers, each run plain and in scopes."""

from __future__ import annotations

import copy
import itertools
import warnings

import pytest

torch = pytest.importorskip("torch")
# What PyTorch's own test suite needs.
pytest.importorskip("expecttest")

import disposescope as ds

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


def tensors_in(tree):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def same(one, other):
    if isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return one.layout is not torch.strided or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return True


def scope_if(scoped):
    return ds.dispose_scope() if scoped else torch.enable_grad()


def test_operators_return_the_same_and_what_they_return_is_owned():
    from torch.testing._internal.common_methods_invocations import op_db

    seen = 0
    for op in op_db:
        if torch.float32 not in op.dtypes:
            continue
        # The first few of each: making all of them takes minutes. The function behind
        # `sample_inputs`, because that one formats the whole stack in search of the test that runs.
        for sample in itertools.islice(op.sample_inputs_func(op, "cpu", torch.float32, False), 3):
            torch.manual_seed(0)
            try:
                given = copy.deepcopy((sample.input, sample.args, sample.kwargs))
                expected = tensors_in(op(given[0], *given[1], **given[2]))
            except Exception:  # a sample that this build cannot run, or that cannot be copied
                continue
            inputs, args, kwargs = copy.deepcopy((sample.input, sample.args, sample.kwargs))
            before = tensors_in((inputs, args, kwargs))
            torch.manual_seed(0)
            with ds.dispose_scope() as scope:
                results = tensors_in(op(inputs, *args, **kwargs))
                fresh = [result for result in results if not any(result is tensor for tensor in before)]
                assert "empty" in op.name or same(results, expected), op.name
                assert all(result in scope for result in fresh), op.name
                assert not any(tensor in scope for tensor in before), op.name
            assert all(ds.is_disposed(result) for result in fresh), op.name
            assert not any(ds.is_disposed(tensor) for tensor in before), op.name
            seen += 1
    assert seen > 400


def test_modules_train_in_scopes_as_without():
    from torch.testing._internal.common_modules import module_db

    def run(info, sample, scoped):
        torch.manual_seed(0)
        with scope_if(scoped):
            module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        outputs = []
        for seed in range(2):
            torch.manual_seed(seed)
            with scope_if(scoped):
                args, kwargs = copy.deepcopy((sample.forward_input.args, sample.forward_input.kwargs))
                result = tensors_in(module(*args, **kwargs))[0]
                if result.requires_grad:
                    result.sum().backward()
                outputs.append(result.detach().numpy().copy())
        gradients = [parameter.grad for parameter in module.parameters()]
        return [torch.from_numpy(output) for output in outputs], dict(module.state_dict()), gradients

    seen = 0
    for info in module_db:
        samples = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=True)
        for sample in samples[:1]:
            try:
                plain = run(info, sample, False)
            except Exception:  # a sample that needs another device
                continue
            assert same(plain, run(info, sample, True)), info.name
            seen += 1
    assert seen > 50


RECURRENT = [
    (network, {"num_layers": layers, "bidirectional": bidirectional, **options}, sorted_first, given_state)
    for network in (torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM)
    for layers, bidirectional in ((1, False), (2, True))
    for options in ({}, {"dropout": 0.5, "bias": False}, {"batch_first": True})
    for sorted_first in (True, False)
    for given_state in (False, True)
] + [(torch.nn.LSTM, {"proj_size": 2}, False, False), (torch.nn.RNN, {"nonlinearity": "relu"}, False, True)]


def test_recurrent_networks_train_on_packed_sequences_in_scopes_as_without():
    def run(network, options, sorted_first, given_state, scoped):
        torch.manual_seed(0)
        with scope_if(scoped):
            model = network(3, 4, **options)
            optimizer = torch.optim.Adam(model.parameters())
        results = []
        for _ in range(2):
            with scope_if(scoped):
                lengths = [5, 4, 1] if sorted_first else [1, 5, 4]
                sequences = [torch.randn(length, 3, requires_grad=True) for length in lengths]
                packed = torch.nn.utils.rnn.pack_sequence(sequences, enforce_sorted=sorted_first)
                state = torch.randn(model.num_layers * (2 if model.bidirectional else 1), 3, 4)
                given = (state, state) if network is torch.nn.LSTM else state
                output, final = model(packed, given) if given_state else model(packed)
                padded, counts = torch.nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
                loss = padded.square().sum() + sum(last.sum() for last in tensors_in(final))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen = [padded, counts, *tensors_in(final), *(sequence.grad for sequence in sequences)]
                results.extend(tensor.detach().numpy().copy() for tensor in seen)
        return [torch.from_numpy(array) for array in results], dict(model.state_dict())

    for case in RECURRENT:
        assert same(run(*case, False), run(*case, True)), case


def test_optimizers_step_in_scopes_as_without():
    from torch.testing._internal.common_optimizers import optim_db

    def run(info, sample, scoped):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(3, 3))]
        optimizer = info.optim_cls(parameters, **copy.deepcopy(sample.kwargs))

        def closure():
            optimizer.zero_grad()
            loss = ((parameters[0].T @ parameters[1]) ** 2).sum()
            loss.backward()
            if info.only_supports_sparse_grads:
                for parameter in parameters:
                    parameter.grad = parameter.grad.to_sparse()
            return loss

        for _ in range(4):
            with scope_if(scoped):
                if info.step_requires_closure:
                    optimizer.step(closure)
                else:
                    closure()
                    optimizer.step()
        return [parameter.detach() for parameter in parameters], copy.deepcopy(optimizer.state_dict())

    seen = 0
    for info in optim_db:
        for sample in info.optim_inputs_func(device="cpu"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    plain = run(info, sample, False)
                except Exception:  # a sample for another device
                    continue
                assert same(plain, run(info, sample, True)), (info.name, sample.desc)
            seen += 1
    assert seen > 50
