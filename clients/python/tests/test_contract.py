"""The server conforms to its OpenAPI description: schemathesis sends valid and invalid requests.

Nothing may be a server error, and no answer may have a status, a content type or a form that is not described.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from server import Server, start_server, team_workspace, wait_for

from remuda import Client, PermissionRule, Permissions, ToolCall

CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
#: Draining the only worker would leave every other request without one.
EXCLUDED = ["drain_worker"]
SECONDS = int(os.environ.get("REMUDA_CONTRACT_SECONDS", "75"))
REQUEST = "count.sh should be able to count lines, with -l."


@pytest.mark.skipif(sys.version_info < (3, 10), reason="schemathesis needs Python 3.10")
def test_server_conforms_to_its_openapi_description(tmp_path: Path) -> None:
    with start_server(tmp_path, {"REMUDA_WEBHOOKS__ALLOWED": "127.0.0.1:9"}) as server:
        existing = create_example_objects(server, tmp_path)
        description = strict_description(server, tmp_path)
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", str(description), "--url", server.url),
            *("--checks", ",".join(CHECKS), "--continue-on-failure"),
            *("--max-time", str(SECONDS), "--request-timeout", "20", "--seed", "6", "--generation-database", "none"),
            *("--warnings", "off", "--no-color"),
            *(argument for name in EXCLUDED for argument in ("--exclude-operation-id", name)),
        ]
        environment = {
            **os.environ,
            "SCHEMATHESIS_HOOKS": "contract_hooks",
            "PYTHONPATH": str(Path(__file__).parent),
            "CONTRACT_EXISTING": json.dumps(existing),
        }
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS * 2 + 60
        )
        print(done.stdout)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert httpx.get(f"{server.url}/readyz").status_code == 200


def create_example_objects(server: Server, directory: Path) -> dict[str, list[str]]:
    """Creates sessions, runs in several states and approvals. Returns values of path parameters that exist."""
    with Client(server.url) as client:
        client.create_workspace("team", str(team_workspace(directory)))
        client.create_session("finished", workspace="team")
        finished = client.run("finished", REQUEST)
        asking = Permissions(rules=[PermissionRule("bash", "ask", "sh *")])
        client.create_session("asking", workspace="team", permissions=asking)
        parked = client.send("asking", REQUEST)
        wait_for(lambda: client.get_run(parked).state == "parked", "the run to wait for an approval")
        failed = client.run_tools("tools", [ToolCall("Read", {"file_path": "nope"})], create_session=True, check=False)
        slow = client.call_tools("slow", [ToolCall("Bash", {"command": "sleep 600"})], create_session=True)
        queued = client.call_tools("slow", [ToolCall("noop")])
        models = [step.model_call for step in client.list_steps(finished) if step.model_call]
        return {
            "session": ["finished", "asking", "tools", "slow", finished.session_id],
            "run_id": [finished.id, parked.run_id, failed.id, slow.run_id, queued.run_id],
            "approval_id": [approval.id for approval in client.list_approvals()],
            "hash": [model.system_hash for model in models if model.system_hash][:1],
            "name": ["team"],
            "webhook_id": [client.create_webhook("slow", "http://127.0.0.1:9/").id],
        }


def strict_description(server: Server, directory: Path) -> Path:
    """The description without ``default`` responses, which would accept every status."""
    description = httpx.get(f"{server.url}/openapi.json").raise_for_status().json()
    for operations in description["paths"].values():
        for operation in operations.values():
            if isinstance(operation, dict):
                operation["responses"].pop("default", None)
    path = directory / "openapi.json"
    path.write_text(json.dumps(description), encoding="utf-8")
    return path
