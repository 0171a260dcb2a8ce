# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The report on a stuck job: its suspects, and the place of each rank."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from dovetail_cluster.control.generation import SILENT_S, Rank
from dovetail_cluster.elastic import Elastic

SHOWN = 4  # ranks of a line: there may be hundreds
FRAMES = 6  # enough to reach from a collective to the line of the user

_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-fA-F]+.*:")


def report(ranks: Sequence[Rank], stuck: Sequence[Rank], *, elastic: Elastic, now: float) -> str:
    """Describes a stuck job, the suspected ranks first.

    Args:
        ranks: All ranks.
        stuck: The ranks without progress for their deadline.
        elastic: The options of the job.
        now: The present time.
    """
    suspects, why = culprits(ranks, now)
    lines = [_headline(suspects, why, stuck, elastic=elastic, now=now)]
    is_silent = any(rank.fell_silent(elastic, now) for rank in stuck)
    if not is_silent and all(rank.place == (0, -1, 0) for rank in ranks):
        lines.append(
            "The function neither asks stop nor reports progress, so its steps cannot be seen. "
            "Call ctx.stop(step) and ctx.progress.write(step, scalars) in each step, or write a "
            f"first_step_s larger than {elastic.first_step_s:g}."
        )
    if suspects:
        lines.append(f"Suspected: {', '.join(str(rank) for rank in suspects)}: {why}.")
    else:
        lines.append("No rank stands out.")
    frames = Counter(innermost(rank.stacks or "") for rank in ranks)
    for rank in sorted(
        ranks,
        key=lambda r: (r not in suspects, frames[innermost(r.stacks or "")], r.rank),
    ):
        lines += [_state(rank, now), *_stack(rank)]
    return "\n".join(lines)


def lateness(ranks: Sequence[Rank], late: Sequence[Rank], *, now: float) -> str:
    """Describes ranks that the others wait for before their first step.

    Args:
        ranks: All ranks.
        late: Those that are behind.
        now: The present time.
    """
    others = [rank for rank in ranks if rank not in late]
    names = ", ".join(str(rank) for rank in late[:SHOWN])
    more = f" and {len(late) - SHOWN} more" if len(late) > SHOWN else ""
    newest = max(others, key=lambda rank: rank.reached_at)
    return (
        f"{names}{more} may keep the others waiting: {_start(late[0], now)}. The others are "
        f"further, the last of them {newest}: {_start(newest, now)}."
    )


def _headline(
    suspects: Sequence[Rank], why: str, stuck: Sequence[Rank], *, elastic: Elastic, now: float
) -> str:
    """Names the first suspect. The deadline may be that of a rank that waits for it."""
    worst = min(
        [rank for rank in stuck if rank in suspects] or stuck, key=lambda rank: rank.progressed_at
    )
    rest = f"completed no step for {now - worst.progressed_at:.1f} s ({_rule(worst, elastic, now)})"
    if not suspects or worst in suspects:
        return f"The job is stuck: {worst} {rest}."
    return f"The job is stuck: {suspects[0]} is suspected, {why}; {worst} {rest}."


def culprits(ranks: Sequence[Rank], now: float) -> tuple[list[Rank], str]:
    """Returns the suspected ranks and the reason, or none.

    They are the ranks without a sign of life, else those behind the others or ahead of most, else
    those that have returned before most, else those with another stack than the majority.
    """
    returned = [rank for rank in ranks if rank.returned is not None]
    ranks = [rank for rank in ranks if rank.returned is None]
    silent = [r for r in ranks if r.heard_at is None or now - r.heard_at > SILENT_S]
    if silent:
        return silent, "no sign of life, the whole process is stopped or its host is cut off"
    behind = [r for r in ranks if r.place == min(rank.place for rank in ranks)]
    if len(ranks) / 2 < len(behind) < len(ranks):
        ahead = [r for r in ranks if r not in behind]
        return ahead, "ahead of the others, as after a collective that was left out"
    if len(behind) < len(ranks):
        return behind, "behind the others, which wait"
    if returned and len(returned) < len(ranks):
        return returned, "returned while the others wait, as after a collective that was left out"
    if returned:
        return ranks, "has not returned, unlike the others"
    stacks = Counter(innermost(r.stacks or "") for r in ranks)
    common, count = stacks.most_common(1)[0]
    if count > len(ranks) / 2 and count < len(ranks):
        return [r for r in ranks if innermost(r.stacks or "") != common], "at another line"
    return [], ""


def innermost(stacks: str) -> tuple[str, ...]:
    """Returns the innermost frames of the thread of the user's function.

    Args:
        stacks: A dump of `faulthandler`. The thread is the current one, else the last.
    """
    threads: list[tuple[bool, list[str]]] = []
    for line in stacks.splitlines():
        if head := _THREAD.match(line):
            threads.append((head[1] == "Current thread", []))
        elif threads and line.startswith("  File "):
            threads[-1][1].append(line.strip())
    current = [frames for marked, frames in threads if marked]
    frames = current[0] if current else threads[-1][1] if threads else []
    return tuple(frames[:FRAMES])


def _rule(rank: Rank, elastic: Elastic, now: float) -> str:
    if rank.fell_silent(elastic, now):
        phase = f" in phase {rank.phase!r}" if rank.phase else ""
        return f"stall_s={elastic.stall_s:g}, for it shows no sign of life{phase}"
    is_long = rank.phase_s is None if rank.phase else rank.step is None
    rule = f"{'first_step_s' if is_long else 'stall_s'}={rank.deadline_s(elastic):g}"
    return f"{rule} of phase {rank.phase!r}" if rank.phase else rule


def _start(rank: Rank, now: float) -> str:
    """Describes a rank before its first step."""
    activity = f"in {rank.activity!r}" if rank.activity else "in its start"
    return f"no step, {activity} for {now - rank.reached_at:.1f} s"


def _state(rank: Rank, now: float) -> str:
    step = _start(rank, now) if rank.step is None else f"step {rank.step}"
    if rank.returned is not None:
        return f"{rank}: has returned, {step}, asked {rank.asked} times"
    phase = f", in phase {rank.phase!r}" if rank.phase else ""
    life = "never heard" if rank.heard_at is None else f"heard {now - rank.heard_at:.1f} s ago"
    return (
        f"{rank}: {step}, asked {rank.asked} times{phase}, "
        f"progress {now - rank.progressed_at:.1f} s ago, {life}"
    )


def _stack(rank: Rank) -> list[str]:
    if rank.returned is not None:
        return []
    frames = innermost(rank.stacks or "")
    return [f"    {frame}" for frame in frames] or ["    (no stack)"]
