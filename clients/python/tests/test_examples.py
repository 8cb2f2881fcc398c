"""Runs the examples and the code of README.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from server import Server, team_workspace

HERE = Path(__file__).resolve().parents[1]
README = (HERE / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def python(server: Server, *arguments: str) -> str:
    environment = {**os.environ, "REMUDA_ENDPOINT": server.url}
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout


def example(name: str) -> str:
    return str(HERE / "examples" / name)


def test_submit_and_follow_example(server: Server, tmp_path: Path) -> None:
    team = team_workspace(tmp_path)
    request = "count.sh should be able to count lines, with -l."
    output = python(server, example("submit_and_follow.py"), str(team), request)
    assert "I look at the program and its tests." in output
    assert "planner hands over to builder" in output
    assert "[Edit] completed" in output
    assert output.splitlines()[-1].startswith("completed: Done: `count.sh -l FILE` counts lines.")
    assert "what=-l" in (team / "count.sh").read_text()


def test_fan_out_example(server: Server) -> None:
    lines = python(server, example("fan_out.py")).splitlines()
    assert len(lines) == 21
    assert all("completed, completed" in line for line in lines[:20])


def test_tools_run_example(server: Server) -> None:
    lines = python(server, example("tools_run.py")).splitlines()
    assert [line.split(":")[0] for line in lines] == ["Write", "Read", "Bash", "Bash", "failed"]
    assert lines[-1].startswith("failed: tool_failed")


def test_readme_has_examples() -> None:
    assert len(SNIPPETS) >= 5


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_readme_examples_print_what_they_claim(server: Server, tmp_path: Path, number: int) -> None:
    """Each code block runs on its own. A comment after a print is the expected output."""
    snippet = SNIPPETS[number].replace("/tmp/team", str(team_workspace(tmp_path)))
    snippet = snippet.replace("http://127.0.0.1:7777", server.url)
    script = tmp_path / "snippet.py"
    script.write_text(snippet, encoding="utf-8")
    printed = python(server, str(script)).splitlines()
    expected = re.findall(r"^\s*print\(.*\)  # (.*)$", snippet, re.MULTILINE)
    assert [line for line in expected if line not in printed] == [], printed
