"""What mkdocs is told besides the pages: pages of docstrings, and links that lead out of docs/.

The pages of docs/ are written to be read on the forge. A link to a file beside docs/ leads to the
repository on the site. The pages of `API` have no files: each is made of the docstrings of its
names, which stand in the order of this list.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")

API = {
    "scopes": (
        "API: scopes",
        "Scopes, the verbs, and kinds of your own. [The reference](../reference.md) has them in tables.",
        "disposescope",
        "DisposeScope dispose_scope current_scope tidy move_to_outer attach keep detach dispose is_disposed "
        "check_alive owner_of register_kind keeps statistics Statistics DeviceStatistics reset_statistics ArenaUse",
    ),
    "tensors": (
        "API: tensors and memory",
        "Tensors of this library, the memory of NumPy's arrays, and plans of memory: "
        "[a loop whose memory is known](../how-to/a-loop-whose-memory-is-known.md) uses a `Workspace`.",
        "disposescope",
        "Tensor tensor asarray from_dlpack empty zeros ones full arange exported_storages ExportedStorage "
        "arena_statistics ArenaStatistics empty_cache plan Plan Workspace WorkspaceStatistics Peak Advice",
    ),
    "sequences": (
        "API: sequences and batches",
        "Sequences of different lengths, collate functions, and batches with a scope each.",
        "disposescope",
        "PackedSequence pack_sequence pack_padded_sequence pad_packed_sequence pad_sequence unpack_sequence "
        "unpad_sequence ScopedCollate pack_collate scoped_batches",
    ),
    "graphs": (
        "API: graphs",
        "What an autograd graph keeps. [Find what keeps the graph](../how-to/find-what-keeps-the-graph.md) uses them.",
        "disposescope",
        "graph_nbytes graph_summary GraphSummary GraphOp audit ModelAudit Recorder",
    ),
    "leaks": (
        "API: leaks",
        "Detectors, snapshots and checks. [Find a leak](../how-to/find-a-leak.md) uses them.",
        "disposescope",
        "LeakDetector take_snapshot Snapshot Record live_tensors assert_no_leaks why_alive WhyAlive assert_freed "
        "AssertFreed",
    ),
    "report": (
        "API: the fields of a report",
        "The classes of `disposescope.leaks`. [The JSON](../leak-report.md#the-json) has the same fields.",
        "disposescope.leaks",
        "Report Leak Trend Excerpt KnownLeak Site LiveSite Retainer Comparison Growth Timeline Sample Pass Band "
        "Process ProgramFacts Settings Suppressed UnusedSuppression",
    ),
    "frameworks": (
        "API: adapters for other libraries",
        "What an adapter is made of. [Another array library](../how-to/add-a-framework.md) shows how to write one.",
        "disposescope.frameworks",
        "Framework Kind register born born_late born_together belongs_to_model disposed_error BirthLog HeldMemory "
        "LiveMemory LibraryCache ModelFacts Role Belonging Escape Part",
    ),
    "errors": (
        "API: errors",
        "[Troubleshooting](../troubleshooting.md) has each message, and what to write instead.",
        "disposescope",
        "DisposeScopeError ScopeClosedError ScopeNestingError NotOwnedError UnknownKindError DisposedError "
        "EscapedError DeviceMismatchError GraphRetainedError WorkspaceError LeakError LeakWarning",
    ),
}
"""For each page its title, its introduction, a package, and names of it."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made of docstrings."""
    from mkdocs.structure.files import File

    for name in API:
        files.append(File.generated(config, f"api/{name}.md", content=api_page(name)))
    return files


def api_page(name: str) -> str:
    """Return the text of such a page, which mkdocstrings fills."""
    title, introduction, package, names = API[name]
    parts = [f"# {title}", introduction, *(f"::: {package}.{public}" for public in names.split())]
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Have links that lead out of docs/ lead to the repository."""
    folder = (ROOT / "docs" / page.file.src_uri).parent
    return LINK.sub(lambda link: link[1] + outside(folder, link[2], config.repo_url), markdown)


def outside(folder: Path, target: str, repository: str) -> str:
    """Return where a relative link of a page leads on the site."""
    path = (folder / target).resolve()
    if path.is_relative_to(ROOT / "docs") or not path.exists():
        return target  # an error where there is no such file, which mkdocs reports
    kind = "tree" if path.is_dir() else "blob"
    return f"{repository.rstrip('/')}/{kind}/main/{path.relative_to(ROOT).as_posix()}"
