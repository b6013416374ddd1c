"""Storages behind a tensor: every layout is weighed, each storage once, and meta weighs nothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds
from disposescope.scopes.kinds import device_name


class Pair(torch.Tensor):
    """A subclass that wraps two tensors, and has no storage of its own."""

    @staticmethod
    def __new__(cls, one, other):
        return torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype)

    def __init__(self, one, other):
        self.one, self.other = one, other

    def __tensor_flatten__(self):
        return ["one", "other"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, outer_size, outer_stride):
        return Pair(inner["one"], inner["other"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def compressed(layout, *values):
    """Two rows (or columns) of two elements or blocks."""
    return lambda: torch.sparse_compressed_tensor([0, 1, 2], [0, 1], torch.tensor(values), layout=layout)


WEIGHTS = {
    "dense": (lambda: torch.zeros(100), 400),
    "view": (lambda: torch.zeros(100)[:10], 400),
    "expanded": (lambda: torch.zeros(1, 4).expand(100, 4), 16),
    "zero-dim": (lambda: torch.tensor(1.0), 4),
    "empty": (lambda: torch.empty(0, 3), 0),
    "complex": (lambda: torch.zeros(10, dtype=torch.complex64), 80),
    "conjugate view": (lambda: torch.zeros(10, dtype=torch.complex64).conj(), 80),
    "bfloat16": (lambda: torch.zeros(10, dtype=torch.bfloat16), 20),
    "meta": (lambda: torch.zeros(100, device="meta"), 0),
    "parameter": (lambda: torch.nn.Parameter(torch.zeros(100)), 400),
    "coo": (lambda: torch.eye(3).to_sparse(), 2 * 3 * 8 + 3 * 4),
    "csr": (compressed(torch.sparse_csr, 1.0, 2.0), 3 * 8 + 2 * 8 + 2 * 4),
    "csc": (compressed(torch.sparse_csc, 1.0, 2.0), 3 * 8 + 2 * 8 + 2 * 4),
    "bsr": (compressed(torch.sparse_bsr, [[1.0]], [[2.0]]), 3 * 8 + 2 * 8 + 2 * 4),
    "bsc": (compressed(torch.sparse_bsc, [[1.0]], [[2.0]]), 3 * 8 + 2 * 8 + 2 * 4),
    "quantised": (lambda: torch.quantize_per_tensor(torch.zeros(10), 0.1, 0, torch.qint8), 10),
    "nested": (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), 20),
    "jagged": (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged), 20 + 3 * 8),
    "wrapper": (lambda: Pair(torch.zeros(10), torch.zeros(10)), 80),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("make", "nbytes"), WEIGHTS.values(), ids=WEIGHTS)
def test_each_sort_of_tensor_weighs_its_storages(make, nbytes):
    tensor = make()
    with ds.dispose_scope() as scope:
        scope.attach(tensor)
        assert len(scope) == 1
        assert scope.nbytes == nbytes
        scope.detach(tensor)


def test_what_has_no_storage_that_could_be_asked_weighs_its_elements():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch was built without mkldnn")
    with ds.dispose_scope() as scope:
        opaque = torch.zeros(3, 4).to_mkldnn()
        assert opaque in scope
        assert scope.nbytes == 48


def test_a_fake_tensor_weighs_nothing():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), ds.dispose_scope() as scope:
        fake = torch.zeros(1000)
        assert fake in scope
        assert scope.nbytes == 0


@pytest.mark.parametrize("initialised", [False, True])
def test_cuda_without_a_number_has_a_name_with_or_without_cuda(initialised, monkeypatch):
    with ds.dispose_scope():
        torch.zeros(1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialised)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2 if initialised else pytest.fail("CUDA was started"))
    assert device_name("cuda") == ("cuda:2" if initialised else "cuda:0")
    assert device_name(torch.device("cuda", 1)) == "cuda:1"


USES = {
    "dense": (lambda: torch.zeros(10, 10), "torch.Tensor float32 (10, 10)", 400, 400),
    "view": (lambda: torch.zeros(1000)[:10], "torch.Tensor float32 (10,)", 40, 4000),
    "view with gaps": (lambda: torch.zeros(1000)[::100], "torch.Tensor float32 (10,)", 40, 4000),
    "expanded": (lambda: torch.zeros(1000)[:4].expand(100, 4), "torch.Tensor float32 (100, 4)", 16, 4000),
    "windows": (lambda: torch.zeros(1000)[:100].unfold(0, 10, 1), "torch.Tensor float32 (91, 10)", 400, 4000),
    "bfloat16": (lambda: torch.zeros(10, dtype=torch.bfloat16), "torch.Tensor bfloat16 (10,)", 20, 20),
    "zero-dim": (lambda: torch.zeros(1000)[3], "torch.Tensor float32 ()", 4, 4000),
    "empty view": (lambda: torch.zeros(1000)[:0], "torch.Tensor float32 (0,)", 0, 4000),
    "coo": (lambda: torch.eye(3).to_sparse(), "torch.Tensor float32 (3, 3)", 60, 60),
    "nested": (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "torch.Tensor", 20, 20),
    "parameter": (lambda: torch.nn.Parameter(torch.zeros(10)), "torch.Tensor float32 (10,)", 40, 40),
    "meta": (lambda: torch.zeros(10, device="meta"), "torch.Tensor float32 (10,)", 0, 0),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("make", "what", "used", "pinned"), USES.values(), ids=USES)
def test_a_leak_record_has_shape_dtype_used_and_pinned_bytes(make, what, used, pinned):
    with ds.LeakDetector() as detector:
        tensor = make()
        with ds.dispose_scope() as scope:
            scope.attach(tensor)
            scope.detach(tensor)
        [record] = (record for record in detector.take_snapshot() if record.state == "alive")
    assert str(record) == what
    assert (record.used_nbytes, record.nbytes) == (used, pinned)
    assert tensor.dtype is not None


class Vanishing(torch.Tensor):
    """A subclass that another thread seems to dispose as soon as it is looked at."""

    @property
    def layout(self):
        raise ds.DisposedError("disposed meanwhile")


def test_a_tensor_that_another_thread_disposes_meanwhile_weighs_nothing():
    with ds.dispose_scope() as scope:
        under = torch.ones(3)
        _tensor = under.as_subclass(Vanishing)
        assert scope.nbytes == under.nbytes
