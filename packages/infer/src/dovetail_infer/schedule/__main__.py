# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m dovetail_infer.schedule`: capacity planning, and the replay of event logs."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from dovetail_infer import _command
from dovetail_infer._command import Parser, add_json, answering
from dovetail_infer.schedule.plan import Group, Limits
from dovetail_infer.schedule.replay import replay
from dovetail_infer.schedule.simulate import Arrival, Linear, simulate


class TraceError(ValueError):
    """A trace with a line that is no request."""

    exit_code = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns its exit code."""
    parser = Parser(prog="python -m dovetail_infer.schedule", description=__doc__)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _command.add_action(actions, "simulate", _simulate)
    _command.add_action(actions, "replay", _replay)
    args = parser.parse(argv)
    with answering(args):
        args.run(args)
    return args.code


def _simulate(parser: Parser) -> None:
    """Prints waiting times, latencies and page use of a trace.

    Each line of TRACE is a JSON object with time_s, prompt_tokens, output_tokens, and optionally
    prefix (a name) with prefix_tokens, and priority. A step takes fixed + token * tokens +
    kv-token * cached tokens of its rows seconds.
    """
    parser.set_defaults(run=_run_simulate)
    parser.add_argument("trace", metavar="TRACE", help="requests, as JSON lines")
    parser.add_argument("--pages", type=int, required=True, help="pages of layers with no window")
    parser.add_argument(
        "--window",
        type=_group,
        action="append",
        default=[],
        metavar="TOKENS:PAGES",
        help="pages of layers with this window; may be repeated",
    )
    parser.add_argument("--page-size", type=int, default=16, help="tokens per page (16)")
    parser.add_argument("--step-tokens", type=int, default=2048, help="tokens of a step (2048)")
    parser.add_argument("--prefill-tokens", type=int, help="prefill tokens beside decoding rows")
    parser.add_argument("--max-rows", type=int, default=64, help="running requests (64)")
    parser.add_argument("--length", type=int, default=4096, help="tokens of a request (4096)")
    parser.add_argument("--no-prefix-cache", action="store_true", help="share no pages")
    parser.add_argument("--fixed-s", type=float, default=0.02, help="seconds of any step (0.02)")
    parser.add_argument("--token-s", type=float, default=0.0, help="seconds per token (0)")
    parser.add_argument("--kv-token-s", type=float, default=0.0, help="seconds per key read (0)")
    parser.add_argument("--ahead", type=int, default=1, help="steps planned ahead (1)")
    add_json(parser)
    parser.words.update({"max_length": "--length", "window": "--window", "pages": "--pages"})


def _run_simulate(args: argparse.Namespace) -> None:
    limits = Limits(
        page_size=args.page_size,
        step_tokens=args.step_tokens,
        max_rows=args.max_rows,
        max_length=args.length,
        groups=(Group(window=None, pages=args.pages), *args.window),
        prefix_cache=not args.no_prefix_cache,
        prefill_tokens=args.prefill_tokens,
    )
    seconds = Linear(fixed_s=args.fixed_s, token_s=args.token_s, kv_token_s=args.kv_token_s)
    with open(args.trace, encoding="utf-8") as lines:
        result = simulate(_arrivals(lines), limits, seconds=seconds, ahead=args.ahead)
    print(json.dumps(result.summary()) if args.json else result)


def _arrivals(lines: Any) -> Iterator[Arrival]:
    """Yields the requests of a trace."""
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            arrival = Arrival(**{**fields, "time_s": float(fields["time_s"])})
            arrival.check()
        except (ValueError, TypeError, KeyError) as error:
            names = ", ".join(field.name for field in dataclasses.fields(Arrival))
            raise TraceError(
                f"each line of a trace must be an object with {names}, got line {number}: "
                f"{line.strip()[:200]} ({error}); correct this line"
            ) from error
        yield arrival


def _group(text: str) -> Group:
    window, _, pages = text.partition(":")
    return Group(window=int(window), pages=int(pages))


def _replay(parser: Parser) -> None:
    """Makes the calls of an event log again, and compares the plans.

    LOG has the events of an engine, as JSON lines. Exit code 3 if a plan differs.
    """
    parser.set_defaults(run=_run_replay)
    parser.add_argument("log", metavar="LOG", help="event log, as JSON lines")
    add_json(parser)


def _run_replay(args: argparse.Namespace) -> None:
    with open(args.log, encoding="utf-8") as lines:
        scheduler = replay(lines)
    counts = {
        **dataclasses.asdict(scheduler.counters),
        "running": scheduler.running,
        "waiting": scheduler.waiting,
    }
    shown = "\n".join(f"{name:<14}{value:>12}" for name, value in counts.items())
    print(json.dumps(counts) if args.json else shown)


if __name__ == "__main__":
    sys.exit(main())
