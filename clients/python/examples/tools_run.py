"""Calls tools without an agent.

    python tools_run.py

A list of calls is one run. Adjacent parallel calls run at the same time. A command that exits with a code other than 0
is a result; a tool that cannot do its work fails the run.
"""

import time

from remuda import Client, RunNotCompletedError, ToolCall


def main() -> None:
    session = f"tools-run-{time.time_ns()}"
    with Client() as client:
        run = client.run_tools(
            session,
            [
                ToolCall("Write", {"file_path": f"{session}.txt", "content": "hello\n"}),
                ToolCall("Read", {"file_path": f"{session}.txt"}),
                ToolCall("Bash", {"command": f"wc -c < {session}.txt"}, parallel=True),
                ToolCall("Bash", {"command": f"sleep 0.1; rm {session}.txt; exit 3"}, parallel=True, timeout_ms=10_000),
            ],
            create_session=True,
        )
        for outcome in run.outcomes:
            print(f"{outcome.tool}: {outcome.status} in {outcome.duration_ms} ms: {outcome.output}")

        try:
            client.run_tools(session, [ToolCall("Read", {"file_path": f"{session}.txt"})])
        except RunNotCompletedError as error:
            print(f"{error.run.state}: {error.code}: {error.message}")


if __name__ == "__main__":
    main()
