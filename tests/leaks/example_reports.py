"""Reports to show and export: a training run with each kind of leak, a hostile one, big ones."""

from __future__ import annotations

import math
import random

from disposescope.leaks import (
    Band,
    Excerpt,
    Leak,
    LiveSite,
    Pass,
    Process,
    ProgramFacts,
    Record,
    Report,
    Retainer,
    Sample,
    Settings,
    Site,
    Suppressed,
    Timeline,
    Trend,
    UnusedSuppression,
)
from disposescope.leaks.report.peak import Advice, Life, LinePeak, ProgramPeak

HOME = "/projects/speech"
STEP = Site(f"{HOME}/train.py", 31, "Trainer.step")
MAIN = Site(f"{HOME}/train.py", 58, "main")
MODULE = Site(f"{HOME}/train.py", 71, "<module>")
FORWARD = Site(f"{HOME}/model/encoder.py", 112, "Encoder.forward")
HOOK = Site(f"{HOME}/model/hooks.py", 12, "make_hook.<locals>.hook")
LOAD = Site(f"{HOME}/data/loader.py", 44, "Batches.__iter__")
EVAL = Site(f"{HOME}/evaluate.py", 23, "score")
LIBRARY = Site("/usr/lib/python3/site-packages/metrics/running.py", 88, "Running.update")

SOURCE = (
    "    def step(self, batch):",
    "        out = self.model(batch.frames)",
    "        loss = self.criterion(out, batch.targets)  # one value a step",
    "        self.history.append(loss)",
    '        self.log(f"loss {loss}", every=100)',
)


def record(nbytes: int = 4096, age_s: float | None = 2.0, **changes: object) -> Record:
    """One tensor of a storage of its own."""
    fields = {
        "kind": "torch.Tensor",
        "shape": (nbytes // 4,),
        "dtype": "float32",
        "nbytes": nbytes,
        "used_nbytes": nbytes,
        "storages": ((0, nbytes),),
        "site": STEP,
        "disposal": None,
        "scope": "step",
        "age_s": age_s,
        "generation": 3,
        "state": "alive",
        "frames": (STEP,),
        "device": "cpu:0",
        "op": None,
    }
    return Record(**{**fields, **changes})


def leak(**changes: object) -> Leak:
    """One leak of 30 tensors, 30 MB."""
    fields = {
        "kind": "growth",
        "sure": "certain",
        "tensor": "torch.Tensor float32 (250000,)",
        "tensor_kind": "torch.Tensor",
        "device": "cpu:0",
        "count": 30,
        "nbytes": 30_000_000,
        "used_nbytes": 30_000_000,
        "site": STEP,
        "frames": (STEP, MAIN, MODULE),
        "op": "relu",
        "state": "alive",
        "disposal": None,
        "scopes": ("step",),
        "oldest_age_s": 11.2,
        "newest_age_s": 0.4,
        "generation": 60,
        "trend": None,
        "holders": ("module train.trainer.history[17]",),
        "carriers": (),
        "members": (),
        "explanation": "It is there, and nothing says why.",
        "fingerprint": "1f" * 20,
        "pid": 4711,
        "excerpt": None,
        "records": (),
    }
    return Leak(**{**fields, **changes})


def trend(passes: int = 60, nbytes: int = 1_000_000, first: int = 3) -> Trend:
    series = tuple((i, max(0, i - first), max(0, i - first) * nbytes) for i in range(1, passes + 1))
    return Trend(passes, 1.0, float(nbytes), first, 0.998, series)


RETAINERS = (
    Retainer(
        "module __main__.trainer.history",
        "list",
        57,
        399,
        239_400_000,
        (FORWARD, STEP),
        4.0,
        4_000_000.0,
        Site(STEP.file, 34, "Trainer.step"),
        ("torch.Tensor",),
        4711,
    ),
    Retainer("module __main__.scores", "dict", 1, 1, 100_000_000, (EVAL,), 0.0, 0.0, None, ("numpy.ndarray",), 4711),
    Retainer("several holders together", "", None, 2, 8_388_608, (HOOK,), 0.0, 0.0, None, ("torch.Tensor",), 4711),
)


PEAK = ProgramPeak(
    nbytes=96_000_000,
    line="train.py:41 in step()",
    living=(
        LinePeak("train.py:38 in step()", 64_000_000, 2),
        LinePeak("train.py:41 in step()", 32_000_000, 1),
    ),
    advice=(Advice("del hidden after train.py:39", 32_000_000, 64_000_000),),
    births=400,
    is_whole=True,
    pass_name="step",
    pass_index=3,
    course=((0, 32_000_000), (1, 64_000_000), (2, 96_000_000), (3, 32_000_000)),
    lives=(
        Life("train.py:38 in step()", 32_000_000, 0, 4, True),
        Life("train.py:38 in step()", 32_000_000, 1, 3, True),
        Life("train.py:41 in step()", 32_000_000, 2, 3, True),
        Life("train.py:44 in <script>", 8, 3, 4, False),
    ),
)


def training_report() -> Report:
    """A training run with a leak of each kind, 60 passes and two devices; always the same."""
    rng = random.Random(5)
    leaks = (
        leak(
            kind="growth",
            nbytes=57_000_000,
            used_nbytes=57_000_000,
            count=57,
            trend=trend(),
            holders=("module train.trainer.history[17]", "frame train.py:58 main(): local 'trainer'.history[17]"),
            explanation="Each pass leaves one tensor behind: Trainer.history keeps it. Append loss.item(), or empty "
            "the list after each epoch.",
            excerpt=Excerpt(STEP.file, 29, SOURCE, 31),
            records=tuple(record(1_000_000, 11.2 - 0.18 * i, frames=(STEP, MAIN)) for i in range(20)),
            fingerprint="a1" * 20,
        ),
        leak(
            kind="graph",
            device="cuda:0",
            nbytes=182_400_000,
            used_nbytes=182_400_000,
            count=342,
            site=FORWARD,
            frames=(FORWARD, STEP, MAIN, MODULE),
            tensor="torch.Tensor float32 (64, 128, 512)",
            op="linear",
            holders=("module train.trainer.total.grad_fn.next_functions[0]._saved_self",),
            carriers=("module train.trainer.total",),
            explanation="Trainer.total carries the graph of every step since the start. Add loss.detach() to it.",
            excerpt=Excerpt(
                FORWARD.file,
                110,
                ("        x = self.norm(x)", "        residual = x", "        x = self.linear(x)"),
                112,
            ),
            trend=trend(60, 3_200_000, 1),
            fingerprint="b2" * 20,
            records=(record(16_777_216, 11.4, device="cuda:0", site=FORWARD, frames=(FORWARD,)),),
        ),
        leak(
            kind="view",
            nbytes=100_000_000,
            used_nbytes=40,
            count=1,
            op=None,
            site=EVAL,
            frames=(EVAL, MAIN),
            tensor="numpy.ndarray float32 (10,)",
            tensor_kind="numpy.ndarray",
            scopes=(None,),
            holders=("closure of make_plot() at evaluate.py:9, cell 'preview'",),
            explanation="40 bytes are used and 100.0 MB are pinned: it is a view. Keep a copy of the ten values.",
            excerpt=Excerpt(
                EVAL.file, 22, ("    scores = model(everything)", "    preview = scores[:10]", "    return preview"), 23
            ),
            fingerprint="c3" * 20,
            records=(record(100_000_000, 4.0, used_nbytes=40, shape=(10,), kind="numpy.ndarray", site=EVAL),),
        ),
        leak(
            kind="cycle",
            sure="certain",
            nbytes=8_388_608,
            used_nbytes=8_388_608,
            count=2,
            site=HOOK,
            frames=(HOOK,),
            op="clone",
            holders=(),
            members=("Trainer._hook -> function.__closure__ -> cell.cell_contents -> Trainer",),
            explanation="Only a reference cycle holds it: it goes with the next gc.collect(). Use weakref.ref.",
            fingerprint="d4" * 20,
        ),
        leak(
            kind="exception",
            sure="likely",
            nbytes=2_097_152,
            used_nbytes=2_097_152,
            count=1,
            site=LOAD,
            frames=(LOAD,),
            op=None,
            holders=("sys.last_exc.__traceback__, frame loader.py:44 __iter__(): local 'batch'",),
            explanation="The last exception's traceback keeps the frame and all its variables.",
            fingerprint="e5" * 20,
        ),
        leak(
            kind="escaped",
            nbytes=0,
            used_nbytes=0,
            count=4,
            state="disposed",
            disposal=MAIN,
            site=LIBRARY,
            frames=(LIBRARY, STEP),
            op="mul",
            holders=("module metrics._last[0]",),
            explanation="Its scope has ended, and the cache names it: the next use raises DisposedError. Move it out.",
            fingerprint="f6" * 20,
            records=(record(0, 1.0, state="disposed", disposal=MAIN, storages=(), scope=""),),
        ),
        leak(
            kind="native",
            sure="possible",
            tensor=None,
            tensor_kind=None,
            device=None,
            count=0,
            nbytes=21_000_000,
            used_nbytes=21_000_000,
            site=None,
            frames=(),
            op=None,
            scopes=(),
            oldest_age_s=None,
            newest_age_s=None,
            generation=None,
            holders=(),
            trend=Trend(60, 0.0, 350_000.0, 5, 0.93, tuple((i, 0, 350_000 * i) for i in range(1, 61))),
            explanation="Resident memory grows by 350 kB a pass and tracked bytes do not: look at native extensions.",
            fingerprint="07" * 20,
        ),
    )
    samples, bands, passes = [], [], []
    t = 0.4
    for epoch in range(3):
        start = t
        for step in range(20):
            index = epoch * 20 + step + 1
            bands.append(Band("step", t, t + 0.17, 1, "MainThread"))
            for part in range(4):
                busy = 90_000_000 * math.sin(math.pi * (part + 0.5) / 4)
                live = {
                    "cpu:0": int(100_000_000 + index * 1_000_000 + busy / 6),
                    "cuda:0": int(index * 3_200_000 + busy),
                }
                rss = int(410_000_000 + index * 1_700_000 + rng.random() * 9_000_000)
                samples.append(Sample(t + part * 0.045, rss, live, 30_000_000 + (index % 7) * 2_000_000))
            t += 0.18
            passes.append(Pass(t, index, "step"))
        bands.append(Band("epoch", start, t, 0, "MainThread"))
        bands.append(Band("evaluation", t, t + 0.3, 0, "MainThread"))
        t += 0.32
    bands.append(Band("", 0.5, None, 0, "prefetch"))
    sites = (
        LiveSite(FORWARD, (FORWARD, STEP, MAIN), "torch.Tensor", "cuda:0", 342, 182_400_000, 260_000_000, 20_520),
        LiveSite(EVAL, (EVAL, MAIN), "numpy.ndarray", "cpu:0", 1, 100_000_000, 100_000_000, 3),
        LiveSite(STEP, (STEP, MAIN), "torch.Tensor", "cpu:0", 57, 57_000_000, 57_000_000, 60),
        LiveSite(Site(STEP.file, 38, "Trainer.clip"), (), "torch.Tensor", "cuda:0", 12, 24_000_000, 24_000_000, 720),
        LiveSite(
            Site(FORWARD.file, 96, "Encoder.__init__"), (), "torch.Tensor", "cuda:0", 48, 31_000_000, 31_000_000, 48
        ),
        LiveSite(HOOK, (HOOK,), "torch.Tensor", "cpu:0", 2, 8_388_608, 9_000_000, 2),
        LiveSite(LOAD, (LOAD,), "torch.Tensor", "cpu:0", 4, 8_200_000, 19_000_000, 240),
        LiveSite(LIBRARY, (LIBRARY,), "Tensor", "cpu:0", 9, 5_100_000, 5_100_000, 90),
        LiveSite(None, (), "jax.Array", "cpu:0", 3, 3_000_000, 3_000_000, 3),
    )
    return Report(
        program=ProgramFacts(
            ("train.py", "--epochs", "3"),
            False,
            "3.11.7",
            "2.4.6",
            "2.13.0",
            None,
            "linux",
            4711,
            "2026-11-21T04:00:00Z",
            round(t, 2),
            1,
            "exception",
        ),
        settings=Settings(frames=4),
        count=437,
        nbytes=370_885_760,
        leaks=leaks,
        kept=(leak(kind="alive", sure="possible", nbytes=31_000_000, site=Site(FORWARD.file, 96, "Encoder.__init__")),),
        leftovers=(leak(kind="escaped", nbytes=0, used_nbytes=0, count=1, state="disposed", holders=("a.batch",)),),
        suppressed=(Suppressed(leak(nbytes=5_100_000, site=LIBRARY, kind="alive"), "a cache of fixed size"),),
        unused_suppressions=(UnusedSuppression(".leak-report.toml", 1, "was fixed in March"),),
        sites=sites,
        retainers=RETAINERS,
        peak=PEAK,
        timeline=Timeline(tuple(samples), tuple(passes), tuple(bands)),
        processes=(
            Process(4711, None, "main", "exception", 1, 520_000_000),
            Process(4718, 4711, "worker", "killed", -9, 210_000_000),
        ),
    )


HOSTILE = "</script><script>window.hurt=1</script><!--{{data}}\"'&\u2028\udc80"


def hostile_report() -> Report:
    """Every text that a program chooses tries to leave its place."""
    site = Site(f"/tmp/{HOSTILE}.py", 3, HOSTILE)
    one = leak(
        site=site,
        frames=(site, site),
        holders=(HOSTILE,),
        carriers=(HOSTILE,),
        members=(HOSTILE,),
        explanation=HOSTILE,
        op=HOSTILE,
        tensor=HOSTILE,
        scopes=(HOSTILE,),
        fingerprint=HOSTILE,
        device=HOSTILE,
        trend=trend(),
        excerpt=Excerpt(site.file, 2, (HOSTILE, HOSTILE), 3),
        disposal=site,
        state="disposed",
        records=(record(scope=HOSTILE, dtype=HOSTILE, disposal=site, site=site),),
    )
    return Report(
        program=ProgramFacts((HOSTILE,), False, HOSTILE, None, None, None, HOSTILE, 1, HOSTILE, 1.0, 0, "exit"),
        count=1,
        nbytes=one.nbytes,
        leaks=(one,),
        suppressed=(Suppressed(one, HOSTILE),),
        unused_suppressions=(UnusedSuppression(HOSTILE, 0, HOSTILE),),
        sites=(LiveSite(site, (site,), HOSTILE, HOSTILE, 1, 1000, 1000, 1),),
        timeline=Timeline(
            (Sample(0.0, 10, {HOSTILE: 5}, 1), Sample(1.0, 10, {HOSTILE: 5}, 1)),
            (Pass(0.5, 1, HOSTILE),),
            (Band(HOSTILE, 0.0, 1.0, 0, HOSTILE),),
        ),
        processes=(Process(1, None, "main", "exit", 0, 5), Process(2, 1, "worker", "exit", 0, 5)),
        peak=ProgramPeak(
            8,
            HOSTILE,
            (LinePeak(HOSTILE, 8, 1),),
            (Advice(HOSTILE, 8, 0),),
            1,
            False,
            HOSTILE,
            1,
            ((0, 8),),
            (Life(HOSTILE, 8, 0, 1, True),),
        ),
    )


def big_report(leaks: int, records_each: int = 1) -> Report:
    """So many leaks of so many records each, all of different lines."""
    rng = random.Random(11)
    kinds = ("growth", "graph", "view", "cycle", "alive", "escaped")
    rows, sites = [], []
    for i in range(leaks):
        site = Site(f"{HOME}/part{i % 400}/module{i % 97}.py", 1 + i // 400, f"Class{i % 53}.method{i % 29}")
        nbytes = int(rng.lognormvariate(11, 2))
        records = tuple(
            record(1 + nbytes // records_each, i * 0.001 + j, site=site, frames=(site,)) for j in range(records_each)
        )
        rows.append(
            leak(
                kind=kinds[i % 6],
                site=site,
                frames=(site, MAIN, MODULE),
                nbytes=nbytes,
                used_nbytes=nbytes,
                count=records_each,
                holders=(f"module part{i % 400}.cache[{i}]",),
                fingerprint=f"{i:040x}",
                records=records,
                tensor=f"torch.Tensor float32 ({nbytes // 4},)",
                explanation=f"The cache of part {i % 400} keeps it.",
            )
        )
        sites.append(LiveSite(site, (site,), "torch.Tensor", "cpu:0", records_each, nbytes, nbytes, records_each))
    rows.sort(key=lambda row: -row.nbytes)
    base = training_report()
    return Report(
        program=base.program,
        count=leaks * records_each,
        nbytes=sum(row.nbytes for row in rows),
        leaks=tuple(rows),
        sites=tuple(sites),
        timeline=base.timeline,
        processes=base.processes,
    )
