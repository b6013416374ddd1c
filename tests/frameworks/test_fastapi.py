"""Scopes around the requests of a service: docs/how-to/serve-a-model-with-fastapi.md."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.engines.page_programs import program_of, run
from tests.frameworks.rounds import LIBRARIES_WARN, needs

fastapi: Any = needs("fastapi", "torch")
import torch

import disposescope as ds

pytestmark = LIBRARIES_WARN

PAGE = "serve-a-model-with-fastapi.md"
# A request as a server hands it over: see https://asgi.readthedocs.io/en/latest/specs/www.html.
CLIENT = """
import asyncio
import json

async def asked(app, path):
    parts = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        parts.append(message)

    path, _, query = path.partition("?")
    await app(
        {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": [],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        },
        receive,
        send,
    )
    assert parts[0]["status"] == 200, parts
    return json.loads(b"".join(part.get("body", b"") for part in parts[1:]))
"""


@pytest.fixture
def service() -> dict[str, Any]:
    """The names of the page's program and of the client."""
    names: dict[str, Any] = {"__name__": "service"}
    exec(compile(program_of(PAGE) + CLIENT, PAGE, "exec"), names)
    return names


# A closure would be the model's own, and what that refers to as well.
MADE: list[torch.Tensor] = []


def note_result(model: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
    MADE.append(output)


def test_each_request_of_the_page_releases_what_it_made(service: dict[str, Any]) -> None:
    MADE.clear()
    service["model"].register_forward_hook(note_result)

    async def ask_all() -> list[Any]:
        paths = ["/scores", "/scores?rows=3", "/labels", "/labels?rows=5", "/embedding/a", "/embedding/a"]
        one_by_one = [await service["asked"](service["app"], path) for path in paths]
        return [*one_by_one, *await asyncio.gather(*(service["asked"](service["app"], path) for path in paths * 5))]

    answers = asyncio.run(ask_all())
    assert [len(next(iter(answer.values()))) for answer in answers[:5]] == [8, 8, 16, 5, 8]
    assert answers[4] == answers[5]
    assert len(MADE) == 4 * 6 + 1
    [kept] = service["cache"].values()
    assert [each is kept for each in MADE if not ds.is_disposed(each)] == [True]
    assert not ds.is_disposed(service["model"].weight)
    MADE.clear()


@pytest.mark.parametrize(("written", "is_seen"), [("async def", True), ("def", False)])
def test_a_scope_of_a_dependency_is_seen_where_the_page_says(
    service: dict[str, Any], written: str, is_seen: bool
) -> None:
    text = f"""
{written} own_scope():
    with ds.dispose_scope("own") as scope:
        yield scope

@app.get("/is_seen")
def is_seen(scope=Depends(own_scope)):
    return ds.current_scope() is scope
"""
    exec(text, service)
    assert asyncio.run(service["asked"](service["app"], "/is_seen")) is is_seen


def test_the_report_names_the_cache_that_grows(tmp_path: Path) -> None:
    requests = """
async def main():
    for number in range(60):
        await asked(app, "/embedding/x" + "x" * number)

asyncio.run(main())
"""
    # Of a size that is worth a row.
    program = re.sub(r"Linear\(64, 8\)", "Linear(64, 8_000)", program_of(PAGE)) + CLIENT + requests
    (tmp_path / "program.py").write_text(program)
    run("run", "-q", "-o", "leaks.json", "program.py", cwd=tmp_path)
    report = json.loads((tmp_path / "leaks.json").read_text())
    [leak] = report["leaks"]
    assert (leak["kind"], leak["count"]) == ("growth", 60)
    assert any("cache[" in holder for holder in leak["holders"])
