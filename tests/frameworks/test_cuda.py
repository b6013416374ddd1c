"""What docs/how-to/gpu-memory.md says, and programs on a GPU, in scopes as without them."""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these programs are PyTorch's")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
from torch import Tensor, nn

import disposescope as ds
from tests.frameworks.rounds import LIBRARIES_WARN, Round, assert_same_as_plain

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
KEPT: list[Any] = []


def allocated() -> int:
    return int(torch.cuda.memory_allocated())


def reserved() -> int:
    return int(torch.cuda.memory_reserved())


def of_mib(count: int) -> Tensor:
    return torch.ones(count * MIB // 4, device="cuda")


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    KEPT.clear()
    gc.collect()
    torch.cuda.synchronize()


class TestMemory:
    def test_the_end_of_a_block_frees_what_a_list_holds(self) -> None:
        before = allocated()
        with ds.dispose_scope() as scope:
            KEPT.extend(of_mib(4) for _ in range(5))
            assert allocated() - before == 20 * MIB
            assert scope.nbytes == 20 * MIB
        assert allocated() == before
        assert all(map(ds.is_disposed, KEPT))
        with pytest.raises(ds.DisposedError):
            KEPT[0] + 1

    def test_reserved_memory_falls_with_the_cache(self) -> None:
        with ds.dispose_scope():
            of_mib(64)
        kept_by_the_allocator = reserved() - allocated()
        assert kept_by_the_allocator >= 64 * MIB
        ds.empty_cache()
        assert reserved() - allocated() < 64 * MIB

    def test_a_view_that_leaves_keeps_its_storage_and_a_compact_one_does_not(self) -> None:
        before = allocated()
        with ds.dispose_scope():
            row = ds.move_to_outer(of_mib(16)[:256])
        assert allocated() - before == 16 * MIB
        del row
        assert allocated() == before
        with ds.dispose_scope():
            row = ds.move_to_outer(of_mib(16)[:256], compact=True)
        assert allocated() - before == 1024
        assert row.sum().item() == 256

    def test_a_graph_goes_with_its_block(self) -> None:
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).cuda()
        x = torch.ones(2048, 512, device="cuda")
        with torch.no_grad():
            model(x)  # cuBLAS takes its workspace at the first product
        before = allocated()
        with ds.dispose_scope():
            KEPT.append(model(x).sum())
            assert allocated() - before > 7 * 4 * MIB
        assert allocated() == before
        assert not any(map(ds.is_disposed, model.parameters()))

    def test_an_exception_that_is_kept_keeps_no_memory(self) -> None:
        def step() -> None:
            local = of_mib(32)
            raise torch.OutOfMemoryError(f"{local.numel()} made up")

        before = allocated()
        try:
            with ds.dispose_scope():
                step()
        except torch.OutOfMemoryError as error:
            KEPT.append(error)
        assert allocated() == before

    def test_a_step_that_runs_out_of_memory_fits_when_tried_with_less(self) -> None:
        """The traceback holds the locals of the first try; a scope has released them."""
        ds.empty_cache()
        torch.cuda.set_per_process_memory_fraction((reserved() + 512 * MIB) / torch.cuda.mem_get_info()[1])

        def step(mib: int) -> float:
            with ds.dispose_scope():
                parts = [of_mib(mib) for _ in range(4)]
                KEPT.append(parts)
                return float(torch.stack([part.sum() for part in parts]).sum())

        try:
            with pytest.raises(torch.OutOfMemoryError):
                step(256)
            ds.empty_cache()
            assert step(100) == 4 * 100 * MIB / 4
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def test_a_budget_refuses_what_does_not_fit(self) -> None:
        with ds.dispose_scope(budget="8MiB") as scope:
            of_mib(1)
            kept = of_mib(6)
            with pytest.raises(MemoryError, match="a budget refuses 4194304 bytes"):
                of_mib(4)
            assert scope.nbytes >= kept.nbytes

    def test_counts_name_the_current_device(self) -> None:
        with ds.dispose_scope():
            kept = of_mib(2)
            assert kept.device.index == torch.cuda.current_device()
            assert ds.statistics().by_device[f"cuda:{torch.cuda.current_device()}"].live == 1

    def test_disposing_one_frees_it_at_once(self) -> None:
        before = allocated()
        with ds.dispose_scope():
            big = of_mib(8)
            ds.dispose(big)
            assert allocated() == before

    def test_what_is_kept_in_a_graph_of_cuda_is_played_again(self) -> None:
        weight = torch.full((256, 256), 0.5, device="cuda")
        static_input = torch.ones(4, 256, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            _ = (static_input @ weight).relu() * 2
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with ds.dispose_scope() as scope, torch.cuda.graph(graph):
            hidden = (static_input @ weight).relu()
            static_output = scope.move_to_outer(hidden * 2)
        assert ds.is_disposed(hidden)
        for value in (1.0, 3.0):
            with ds.dispose_scope():
                static_input.fill_(value)
                graph.replay()
                torch.empty(4 * MIB, device="cuda").fill_(7)
            assert static_output.unique().tolist() == [value * 256]

    def test_memory_that_another_stream_reads_is_not_handed_out_before(self) -> None:
        side = torch.cuda.Stream()
        sums = []
        for round_number in range(20):
            with ds.dispose_scope() as scope:
                x = torch.full((8 * MIB,), float(round_number), device="cuda")
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    torch.cuda._sleep(2_000_000)
                    sums.append(scope.move_to_outer(x.double().mean()))
                x.record_stream(side)
            torch.full((8 * MIB,), -1.0, device="cuda")
        torch.cuda.synchronize()
        assert [total.item() for total in sums] == [float(number) for number in range(20)]

    def test_work_that_is_queued_reads_a_released_block_before_the_next_tensor_writes_to_it(self) -> None:
        sums, addresses = [], set()
        for round_number in range(20):
            with ds.dispose_scope() as scope:
                x = torch.full((8 * MIB,), float(round_number), device="cuda")
                addresses.add(x.data_ptr())
                torch.cuda._sleep(2_000_000)
                sums.append(scope.move_to_outer(x.double().mean()))
            again = torch.full((8 * MIB,), -1.0, device="cuda")
            addresses.add(again.data_ptr())
            del again
        assert [total.item() for total in sums] == [float(number) for number in range(20)]
        assert len(addresses) == 1

    @pytest.mark.parametrize("block", [nullcontext, ds.dispose_scope])
    def test_a_block_that_another_stream_reads_is_handed_out_at_once_unless_it_is_told(self, block: Any) -> None:
        """PyTorch's rule for ``del``, in a scope as without one."""
        side = torch.cuda.Stream()
        for tell in (False, True):
            with block():
                x = torch.full((8 * MIB,), 1.0, device="cuda")
                address = x.data_ptr()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    torch.cuda._sleep(200_000_000)
                if tell:
                    x.record_stream(side)
                if block is nullcontext:
                    del x
            again = torch.full((8 * MIB,), -1.0, device="cuda")
            assert (again.data_ptr() != address) is tell
            torch.cuda.synchronize()
            del again

    def test_the_allocator_asks_the_device_again_after_its_cache_is_emptied(self) -> None:
        def asked() -> int:
            return int(torch.cuda.memory_stats()["num_device_alloc"])

        with ds.dispose_scope():
            of_mib(64)
        before = asked()
        with ds.dispose_scope():
            of_mib(64)
        assert asked() == before
        ds.empty_cache()
        with ds.dispose_scope():
            of_mib(64)
        assert asked() == before + 1

    def test_pinned_memory_is_not_handed_out_while_it_is_copied(self) -> None:
        arrived = []
        for round_number in range(20):
            with ds.dispose_scope() as scope:
                host = torch.full((4 * MIB,), float(round_number)).pin_memory()
                assert host.is_pinned()
                torch.cuda._sleep(2_000_000)
                arrived.append(scope.move_to_outer(host.to("cuda", non_blocking=True).mean()))
            torch.full((4 * MIB,), -1.0).pin_memory()
        assert [value.item() for value in arrived] == [float(number) for number in range(20)]

    def test_a_thread_has_its_own_scope_on_the_device(self) -> None:
        before = allocated()
        found = []

        def work() -> None:
            with ds.dispose_scope():
                kept = of_mib(4)
                found.append((ds.owner_of(kept) is not None, float(kept.sum())))

        with ds.dispose_scope() as scope:
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(scope) == 0
        assert found == [(True, MIB)] * 4
        assert allocated() == before

    def test_it_is_shared_with_cupy(self) -> None:
        cupy = pytest.importorskip("cupy")
        before = allocated()
        with ds.dispose_scope() as scope:
            tensor = torch.arange(1024.0, device="cuda")
            array = cupy.from_dlpack(tensor)
            back = scope.move_to_outer(torch.from_dlpack(array))
        torch.full((1024,), -1.0, device="cuda")
        assert float(array.sum()) == float(back.sum()) == 1023 * 512
        del array, back
        assert allocated() == before

    def test_a_swap_and_a_change_of_device_keep_their_owner(self) -> None:
        with ds.dispose_scope() as scope:
            tensor = torch.ones(4)
            tensor.data = tensor.data.cuda()
            assert tensor in scope
            assert scope.move_to_outer(tensor) is tensor
        assert tensor.cpu().tolist() == [1.0] * 4

    def test_events_and_streams_are_left_alone(self) -> None:
        with ds.dispose_scope():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            of_mib(1)
            end.record()
        end.synchronize()
        assert start.elapsed_time(end) >= 0


class TestModels:
    def test_a_model_that_is_made_and_moved_in_a_block_stays(self) -> None:
        with ds.dispose_scope():
            model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).cuda()
            recurrent = nn.LSTM(8, 8, num_layers=2).to("cuda", torch.float32)
            recurrent(torch.ones(3, 2, 8, device="cuda"))
        assert not any(map(ds.is_disposed, [*model.parameters(), *model.buffers(), *recurrent.parameters()]))
        assert model(torch.ones(4, 8, device="cuda")).shape == (4, 8)
        assert recurrent(torch.ones(3, 2, 8, device="cuda"))[0].shape == (3, 2, 8)

    @LIBRARIES_WARN
    def test_weights_that_are_put_into_one_piece_in_a_block_stay(self) -> None:
        recurrent = nn.GRU(16, 16, num_layers=2, bidirectional=True).cuda()
        with torch.no_grad():
            for weight in recurrent.parameters():
                weight.set_(weight.clone())
        expected = recurrent(torch.ones(3, 2, 16, device="cuda"))[0].detach().clone()
        with ds.dispose_scope():
            recurrent.flatten_parameters()
        torch.full((64 * 1024,), 9.0, device="cuda")
        assert torch.equal(recurrent(torch.ones(3, 2, 16, device="cuda"))[0], expected)

    def test_packed_sequences_pass_through_cudnn(self) -> None:
        recurrent = nn.LSTM(3, 4).cuda()
        sequences = [torch.ones(length, 3) for length in (2, 5, 3)]
        before = allocated()
        with ds.dispose_scope() as scope:
            packed = nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False).to("cuda")
            output, _ = recurrent(packed)
            padded, lengths = nn.utils.rnn.pad_packed_sequence(output)
            assert lengths.tolist() == [2, 5, 3]
            total = scope.move_to_outer(padded.detach().sum())
        assert ds.is_disposed(output.data)
        assert total.isfinite()
        del total
        assert allocated() - before <= MIB  # the workspace of cuDNN and the weights in one piece

    @pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"capturable": True}])
    def test_state_of_optimizers_stays(self, options: dict[str, Any]) -> None:
        def program(step: Round) -> object:
            torch.manual_seed(0)
            model = nn.Linear(8, 8).cuda()
            optimizer = torch.optim.AdamW(model.parameters(), **options)
            for _ in range(4):
                with step():
                    optimizer.zero_grad()
                    model(torch.ones(4, 8, device="cuda")).square().mean().backward()
                    optimizer.step()
            return [value.detach().cpu() for value in model.parameters()]

        assert_same_as_plain(program)

    def test_mixed_precision_is_the_same_in_scopes(self) -> None:
        def program(step: Round) -> object:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            losses = []
            for _ in range(5):
                with step():
                    with torch.autocast("cuda", torch.float16):
                        loss = model(torch.ones(8, 16, device="cuda")).square().mean()
                    optimizer.zero_grad()
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                    losses.append(loss.item())
            return losses, [value.detach().cpu() for value in model.parameters()], scaler.get_scale()

        assert_same_as_plain(program)

    def test_attention_and_convolutions_are_the_same_in_scopes(self) -> None:
        def program(step: Round) -> object:
            torch.manual_seed(0)
            attention = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True).cuda()
            convolutions = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).cuda()
            convolutions = convolutions.to(memory_format=torch.channels_last)
            results = []
            for index in range(4):
                with step():
                    out = attention(torch.full((2, 16, 64), float(index), device="cuda"))
                    image = convolutions(torch.full((2, 3, 16, 16), float(index), device="cuda"))
                    (out.sum() + image.sum()).backward()
                    results.append((out.sum().item(), image.sum().item()))
            return results, [buffer.cpu() for buffer in convolutions.buffers()]

        deterministic = torch.backends.cudnn.deterministic
        torch.backends.cudnn.deterministic = True
        try:
            assert_same_as_plain(program)
        finally:
            torch.backends.cudnn.deterministic = deterministic

    def test_data_parallel_and_checkpointing(self) -> None:
        def program(step: Round) -> object:
            torch.manual_seed(0)
            model = nn.DataParallel(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2)).cuda())
            for _ in range(3):
                with step():
                    x = torch.ones(4, 8, device="cuda", requires_grad=True)
                    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
            return [value.grad.cpu() for value in model.parameters() if value.grad is not None]

        assert_same_as_plain(program)

    def test_a_model_that_is_gone_is_freed(self) -> None:
        before = allocated()
        model = nn.Linear(1024, 1024).cuda()
        reference = weakref.ref(model)
        cache = {"features": model.weight}
        found = str(ds.why_alive(model.weight))
        assert "cache" in found
        del model
        cache.clear()
        gc.collect()
        assert reference() is None
        assert allocated() == before

    def test_a_file_is_loaded_onto_the_device(self) -> None:
        model = nn.Linear(8, 8).cuda()
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        with ds.dispose_scope():
            model.load_state_dict(torch.load(file, map_location="cuda"), assign=True)
        assert model(torch.ones(2, 8, device="cuda")).isfinite().all()


@LIBRARIES_WARN
class TestCompiled:
    def test_a_compiled_step_is_the_same_in_scopes(self) -> None:
        def program(step: Round) -> object:
            torch._dynamo.reset()
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda()
            compiled = torch.compile(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            losses = []
            for _ in range(4):
                with step():
                    loss = compiled(torch.ones(8, 16, device="cuda")).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
            return losses

        assert_same_as_plain(program)

    def test_a_prediction_with_graphs_of_cuda_is_the_same_too(self) -> None:
        def program(step: Round) -> object:
            compiled = compiled_with_graphs().eval()
            results = []
            with torch.no_grad():
                for index in range(6):
                    with step():
                        results.append(compiled(torch.full((8, 16), float(index), device="cuda")).cpu().tolist())
            return results

        assert_same_as_plain(program)

    def test_training_with_graphs_of_cuda_is_the_same_too(self) -> None:
        def program(step: Round) -> object:
            compiled = compiled_with_graphs()
            optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
            losses = []
            for index in range(6):
                with step():
                    torch.compiler.cudagraph_mark_step_begin()
                    out = compiled(torch.full((8, 16), float(index), device="cuda"))
                    optimizer.zero_grad()
                    out.square().mean().backward()
                    optimizer.step()
                    losses.append(out.detach().sum().item())
            return losses, [value.detach().cpu() for value in compiled.parameters()]

        assert_same_as_plain(program)


class TestProcesses:
    def test_a_loader_pins_packed_sequences(self) -> None:
        loader = torch.utils.data.DataLoader(
            [torch.ones(length, 3) for length in (2, 5, 3, 4)] * 4,
            batch_size=4,
            collate_fn=pack,
            num_workers=2,
            pin_memory=True,
        )
        before = allocated()
        seen = 0
        for packed in loader:
            with ds.dispose_scope():
                assert packed.is_pinned()
                on_device = packed.to("cuda", non_blocking=True)
                seen += int(on_device.data.sum())
        assert seen == 4 * 14 * 3
        assert allocated() == before

    def test_a_worker_that_is_forked_after_cuda_began_works(self) -> None:
        torch.ones(1, device="cuda")
        loader = torch.utils.data.DataLoader(range(8), collate_fn=scoped_sum, num_workers=2, batch_size=2)
        with ds.LeakDetector() as detector:
            assert [int(total) for total in loader] == [1, 5, 9, 13]
            detector.report()

    def test_a_tensor_is_handed_to_a_process(self) -> None:
        context = torch.multiprocessing.get_context("spawn")
        to, back = context.Queue(), context.Queue()
        process = context.Process(target=doubling, args=(to, back))
        process.start()
        with ds.dispose_scope():
            to.put(torch.arange(8.0, device="cuda"))
            assert back.get(timeout=120) == [2.0 * value for value in range(8)]
        to.put(None)
        process.join(60)
        assert process.exitcode == 0
        torch.cuda.ipc_collect()

    @pytest.mark.parametrize(
        ("setting", "fits"), [("expandable_segments:False", False), ("expandable_segments:True", True)]
    )
    def test_a_large_tensor_fits_between_others_only_where_segments_can_grow(
        self, setting: str, fits: bool, tmp_path: Path
    ) -> None:
        (tmp_path / "gaps.py").write_text(GAPS)
        environment = os.environ | {"PYTORCH_ALLOC_CONF": setting}
        shown = run(sys.executable, "gaps.py", cwd=tmp_path, env=environment).split()
        assert shown[0] == ("fits" if fits else "no")
        assert int(shown[1]) < 300 * MIB < 900 * MIB <= int(shown[2])

    def test_the_context_of_a_process_stays_until_the_process_ends(self, tmp_path: Path) -> None:
        def used() -> int:
            free, total = torch.cuda.mem_get_info()
            return int(total - free)

        (tmp_path / "other.py").write_text(OTHER)
        before = used()
        with subprocess.Popen(
            [sys.executable, "other.py"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert int(process.stdout.readline()) >= 512 * MIB
            assert used() - before > 512 * MIB
            assert str(process.pid) in processes_on_the_device()
            print(file=process.stdin, flush=True)
            assert int(process.stdout.readline()) == 0
            context = used() - before
            assert context > 64 * MIB
            print(file=process.stdin, flush=True)
            assert process.wait(60) == 0
        assert used() - before < context / 2
        assert str(process.pid) not in processes_on_the_device()

    def test_a_report_has_the_memory_that_the_allocator_keeps(self, tmp_path: Path) -> None:
        (tmp_path / "cached.py").write_text(CACHED)
        run(sys.executable, "-m", "disposescope.leaks.commands", "run", "-o", "report.json", "cached.py", cwd=tmp_path)
        last = json.loads((tmp_path / "report.json").read_text())["timeline"]["samples"][-1]
        assert 256 * MIB <= last["cached_nbytes"] < 300 * MIB
        assert last["live_nbytes"].get("cuda:0", 0) < MIB

    def test_a_report_counts_memory_by_device_and_names_the_holder(self, tmp_path: Path) -> None:
        program = tmp_path / "grows.py"
        program.write_text(GROWS)
        run(sys.executable, "-m", "disposescope.leaks.commands", "run", "-o", "report.json", "grows.py", cwd=tmp_path)
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["verdict"] == "leaks"
        shown = run(sys.executable, "-m", "disposescope.leaks.commands", "show", "report.json", cwd=tmp_path)
        assert "history" in shown
        assert {leak["device"] for leak in report["leaks"]} == {"cuda:0"}


def compiled_with_graphs() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    return torch.compile(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda(), mode="reduce-overhead")


def pack(batch: list[Tensor]) -> Any:
    with ds.dispose_scope() as scope:
        return scope.move_to_outer(nn.utils.rnn.pack_sequence(batch, enforce_sorted=False))


def scoped_sum(batch: list[int]) -> Tensor:
    with ds.dispose_scope() as scope:
        total = torch.tensor(batch).sum()
        ds.statistics()
        ds.empty_cache()
        return scope.move_to_outer(total)


def doubling(to: Any, back: Any) -> None:
    while (tensor := to.get()) is not None:
        with ds.dispose_scope():
            back.put((tensor * 2).tolist())
        del tensor


GROWS = """
import torch

history = []


def main():
    model = torch.nn.Linear(256, 256).cuda()
    for _ in range(60):
        out = model(torch.ones(64, 256, device="cuda"))
        history.append(out)
        out.sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()


main()
"""


# 70 of each 100 MiB are free between tensors that live; a tensor of 200 MiB is then asked for.
GAPS = """
import torch

MIB = 2**20


def of_mib(count):
    return torch.ones(count * MIB // 4, device="cuda")


of_mib(1)
torch.cuda.set_per_process_memory_fraction(1050 * MIB / torch.cuda.mem_get_info()[1])
kept, gaps = [], []
for _ in range(9):
    of_mib(100)
    kept.append(of_mib(30))
    gaps.append(of_mib(70))
gaps.clear()
allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
try:
    of_mib(200)
    print("fits", allocated, reserved)
except torch.OutOfMemoryError:
    print("no", allocated, reserved)
"""

# Tells what it has reserved, with a tensor and after its cache was emptied. A line that it is sent
# lets it go on.
OTHER = """
import torch

kept = torch.ones(128 * 2**20, device="cuda")
print(torch.cuda.memory_reserved(), flush=True)
input()
del kept
torch.cuda.empty_cache()
print(torch.cuda.memory_reserved(), flush=True)
input()
"""

CACHED = """
import time

import torch

kept = torch.ones(64 * 2**20, device="cuda")
del kept
time.sleep(0.5)
"""


def processes_on_the_device() -> list[str]:
    """Return the numbers of the processes that ``nvidia-smi`` lists."""
    query = "nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"
    return subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout.split()


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_programs_over_nccl_run_unchanged(tmp_path: Path) -> None:
    program = "-m", "tests.frameworks.distributed_programs"
    run(sys.executable, *program, "1", "0", str(tmp_path / "meeting"), "cuda", cwd=ROOT)


class TestJax:
    def test_arrays_on_the_device_end_with_their_block(self) -> None:
        jax = jax_with_a_gpu()
        with ds.dispose_scope() as scope:
            kept = jax.numpy.ones((1024, 1024))
            total = scope.move_to_outer(kept.sum())
            assert ds.statistics().by_device["cuda:0"].live == 2
            assert scope.nbytes == 4 * MIB
        assert kept.is_deleted()
        assert float(total) == 2**20

    def test_their_memory_is_free_then(self) -> None:
        jax = jax_with_a_gpu()
        device = jax.devices()[0]
        jax.numpy.ones(4).block_until_ready()
        before = device.memory_stats()["bytes_in_use"]
        with ds.dispose_scope():
            KEPT.extend(jax.numpy.ones((256, 1024), float).block_until_ready() + i for i in range(8))
            assert device.memory_stats()["bytes_in_use"] >= before + 8 * MIB
        assert device.memory_stats()["bytes_in_use"] == before

    def test_a_step_that_donates_its_state_is_the_same_in_scopes(self) -> None:
        jax = jax_with_a_gpu()

        def program(step: Round) -> object:
            update = jax.jit(lambda state, x: (state * 0.9 + x, (state * x).sum()), donate_argnums=0)
            state = jax.numpy.ones((64, 64))
            totals = []
            for index in range(5):
                with step():
                    state, total = update(state, jax.numpy.full((64, 64), float(index)))
                    step.out(state)
                    totals.append(float(total))
            return totals, state

        assert_same_as_plain(program)

    def test_memory_is_shared_with_pytorch(self) -> None:
        jax = jax_with_a_gpu()
        with ds.dispose_scope() as scope:
            array = jax.numpy.arange(1024.0)
            tensor = scope.move_to_outer(torch.from_dlpack(array))
        with ds.dispose_scope():
            jax.numpy.full(1024, -1.0).block_until_ready()
        assert float(tensor.sum()) == 1023 * 512


def jax_with_a_gpu() -> Any:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX knows no GPU")
    return jax
