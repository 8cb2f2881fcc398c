"""Sends a message to an agent and shows its work live.

    python submit_and_follow.py DIRECTORY MESSAGE

DIRECTORY defines the agents (AGENTS.md, .openharness/) and must exist on the machine of the workers. For agents that
need no API key, use a copy of examples/team of the repository:

    cp -r examples/team /tmp/team
    python clients/python/examples/submit_and_follow.py /tmp/team "count.sh should be able to count lines, with -l."
"""

import sys
from contextlib import suppress
from pathlib import Path

from remuda import Client, ConflictError, Event, LiveText


def main(directory: str, message: str) -> int:
    root = Path(directory).resolve()
    with Client() as client:
        # It exists already at the second start.
        with suppress(ConflictError):
            client.create_workspace(root.name, str(root))
        submitted = client.send(root.name, message, create_session=True, workspace=root.name)

        live = LiveText()
        with client.follow(submitted, deltas=True) as events:
            for event in events:
                piece = live.add(event)
                if piece is None:
                    show(event)
                elif piece.kind == "text":
                    print(f"\n{piece.text}" if piece.anew else piece.text, end="", flush=True)

        run = client.get_run(submitted)
        print(f"\n{run.state}: {run.answer or run.failure}")
        return 0 if run.completed else 1


def show(event: Event) -> None:
    if event.type == "tool.started":
        print(f"\n[{event.data['tool']}]", end=" ", flush=True)
    elif event.type in {"tool.completed", "tool.failed"}:
        print(event.data["status"])
    elif event.type == "agent.switched":
        print(f"{event.data['from']} hands over to {event.data['to']}")
    elif event.type == "approval.requested":
        print(f"\nwaits for a person: remuda approvals approve {event.data['approval']}")
    # There are more types, and newer servers may add others: ignore the types you do not need.


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2]))
