"""Uses twenty sessions in parallel and follows all of them.

    python fan_out.py

Runs of one session execute one after another, sessions execute in parallel.
"""

import asyncio
import time

from remuda import AsyncClient, ToolCall

SESSIONS = 20


async def work(client: AsyncClient, number: int) -> str:
    """Submits two runs to one session and follows its events until both have ended."""
    session = f"fan-out-{number}-{time.time_ns()}"
    waiting = set()
    for word in ("first", "second"):
        call = ToolCall("Bash", {"command": f"echo {word} of {number}"})
        submitted = await client.call_tools(session, [call], create_session=True)
        waiting.add(submitted.run_id)

    order = []
    async with client.follow(session) as events:
        async for event in events:
            if event.terminal_state is not None and event.run_id in waiting:
                waiting.remove(event.run_id)
                order.append(event.terminal_state)
            if not waiting:
                break
    return f"{session}: {', '.join(order)}, {events.cursor} events"


async def main() -> None:
    started = time.monotonic()
    async with AsyncClient() as client:
        lines = await asyncio.gather(*(work(client, number) for number in range(SESSIONS)))
    print("\n".join(lines))
    print(f"{SESSIONS} sessions in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())
