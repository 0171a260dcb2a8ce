# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of a resume: the description of a run, and the verdict on each difference.

Every checkpoint has the description of the run that saved it. A resumed run compares it with its
own before any array is read. `RULES` is the whole contract; the documentation shows this table.
"""

import dataclasses
import difflib
import importlib.metadata
import json
import platform
from collections.abc import Collection, Mapping
from typing import Any, Literal

import jax

from dovetail_train._patterns import name_of
from dovetail_train.resume.conversion import flat, plain
from dovetail_train.resume.describe import alike, changes, codes, describe, root, short, shown
from dovetail_train.step.options import Options
from dovetail_train.step.state import Definition, State

Verdict = Literal["free", "logged", "converted", "refused"]
_VERSIONED = ("jax", "flax", "optax", "dovetail-train")
_FORMAT = 1
_SHOWN = 3  # parameters of another model; hundreds may differ
_LEAVE = "or begin another run: another store, and the model trainer.model(state)"


@dataclasses.dataclass(frozen=True)
class Rule:
    """An entry of the contract.

    Attributes:
        entry: Name.
        change: The change in question.
        verdict: "free" changes without a word, "logged" in one line, "converted" needs
            `resume="convert"`, "refused" is an error.
        advice: The code to write instead, or the effect of the change.
    """

    entry: str
    change: str
    verdict: Verdict
    advice: str


#: One rule for each entry of a run.
RULES = (
    Rule("steps", "more steps than were made", "free", "trains on; equal: returns at once"),
    Rule("saves", "save_every, the store's options", "free", "counts from the restored step"),
    Rule("reports", "sinks, hooks without state, stop", "free", "the new ones are called"),
    Rule("hardware", "mesh, devices, processes, opt_shardings", "free", "equal up to rounding"),
    Rule("rates", "flops, peak_flops", "free", "changes reports alone"),
    Rule("optimizer", "numbers, schedules, masks", "logged", "holds from the restored step"),
    Rule("guard", "numbers of the guard", "logged", "holds from the restored step"),
    Rule("loss", "numbers and functions inside the loss", "logged", "holds from the restored step"),
    Rule("after_update", "the function and its numbers", "logged", "holds from the restored step"),
    Rule("weights", "factors of the terms", "logged", "holds from the restored step"),
    Rule("accumulate", "microbatches", "logged", "equal up to rounding"),
    Rule("batch", "rows of a batch, of all processes", "logged", "told at the first batch"),
    Rule("precision", "compute dtype, keep", "logged", "holds from the restored step"),
    Rule("ema", "decay", "logged", "the average goes on"),
    Rule("max_skips", "rejected steps in a row", "logged", "the count goes on"),
    Rule("code", "body of a function of the same name", "logged", "compared on equal versions"),
    Rule("versions", "Python, jax, flax, optax, dovetail-train", "logged", "bits may differ"),
    Rule("average", "ema added or dropped", "converted", "begins at the restored parameters"),
    Rule("guard history", "guard added or dropped, another history", "converted", "begins anew"),
    Rule(
        "optimizer state", "arrays gained or lost", "converted",
        "keeps equal names, shapes and dtypes; a new `count` is the number of updates made",
    ),
    Rule("fewer steps", "fewer steps than were made", "refused", "pass at least as many steps"),
    Rule("seed", "seed", "refused", f"pass the saved seed, {_LEAVE}"),
    Rule("another optimizer", "other transformations", "refused", f"pass the saved one, {_LEAVE}"),
    Rule("another loss", "a function of another name", "refused", f"pass the saved one, {_LEAVE}"),
    Rule("trainable", "other parameters are frozen", "refused", f"pass the saved filter, {_LEAVE}"),
    Rule("model", "names, shapes, dtypes of arrays", "refused", f"pass the saved model, {_LEAVE}"),
    Rule("stateful hooks", "hooks with get_state", "refused", "pass the hooks that were saved"),
)  # fmt: skip
_FUNCTIONS = ("optimizer", "guard", "loss", "after_update", "another loss", "code", "versions")
_BY_ENTRY = {rule.entry: rule for rule in RULES}

# Transformations that multiply by a rate. A constant and a schedule differ in nothing else.
_RATES = ("optax:scale.", "optax:scale_by_schedule.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference between the saved run and this one.

    Attributes:
        rule: Its rule.
        name: Name of the value.
        before: Text of the saved value.
        after: Text of the present value.
    """

    rule: Rule
    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name} {self.before} is now {self.after}"


def description(options: Options, definition: Definition, target: State) -> dict[str, Any]:
    """Returns the description of a run as JSON: settings, functions, names and shapes of arrays.

    Args:
        options: Options of the trainer.
        definition: The split model; has the optimizer for its parameters.
        target: Shapes of the state.
    """
    precision, tx = options.precision, describe(definition.tx)
    return _canonical(
        {
            "format": _FORMAT,
            "seed": options.seed,
            "accumulate": options.accumulate,
            "precision": {"compute": precision.compute, "keep": precision.keep},
            "ema": options.ema,
            "max_skips": options.max_skips,
            "weights": describe(dict(options.weights)),
            "optimizer": tx,
            "loss": describe(options.loss),
            "guard": describe(options.guard),
            "after_update": describe(options.after_update),
            "versions": {"python": platform.python_version()}
            | {name: importlib.metadata.version(name) for name in _VERSIONED},
            "arrays": {
                "params": _leaves(target.params),
                "frozen": _leaves(target.frozen),
                "rest": _leaves(target.rest),
            },
            "state": {
                "opt": plain(target.opt),
                "ema": plain(target.ema),
                "guard": plain(target.guard),
            },
        }
    )


def readable(saved: Any) -> dict[str, Any] | None:
    """Returns a saved description if this version can read it."""
    return saved if isinstance(saved, dict) and saved.get("format") == _FORMAT else None


def compare(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[Difference]:
    """Returns the differences of two descriptions; refused ones first.

    Args:
        saved: Description in the checkpoint.
        present: Description of the run to resume.
    """
    saved = {"after_update": None, **saved}  # runs saved before it was an option
    differences = _of_values(saved, present, "seed", "seed")
    differences += _of_arrays(saved["arrays"], present["arrays"])
    differences += _of_optimizer(saved, present)
    named = root(saved["loss"]), root(present["loss"])
    if not alike(*named):
        differences += [_difference("another loss", "loss", *map(short, named))]
    else:
        differences += _of_functions(saved, present, "loss")
    differences += _of_guard(saved, present)
    differences += _of_functions(saved, present, "after_update")
    for entry in ("weights", "accumulate", "precision", "max_skips", "versions"):
        differences += _of_values(saved, present, entry, entry)
    differences += _of_ema(saved, present)
    if saved["versions"] == present["versions"]:
        differences += _of_code(saved, present)
    order = ("refused", "converted", "logged")
    unique = dict.fromkeys(differences)
    return sorted(unique, key=lambda difference: order.index(difference.rule.verdict))


def between(first: Mapping[str, Any], own: Mapping[str, Any]) -> list[tuple[bool, str, str, str]]:
    """Returns (whether the step may be equal, name, before, after) for each difference.

    A function may hold a value that the step does not read. Settings and arrays are the step's own.

    Args:
        first: Description of process 0.
        own: Description of another process.
    """
    same_arrays = first["state"]["opt"] == own["state"]["opt"]
    may_be_equal = {*_FUNCTIONS, *(["another optimizer"] if same_arrays else [])}
    return [(d.rule.entry in may_be_equal, d.name, d.before, d.after) for d in compare(first, own)]


def compare_rows(saved: Mapping[str, Any], rows: int) -> list[Difference]:
    """Returns the difference of a batch's rows from those of the saved run, if there is one.

    Args:
        saved: Description in the checkpoint; without rows if an earlier version wrote it.
        rows: Rows of the first batch of this launch.
    """
    fewest, most = saved.get("rows") or (rows, rows)
    if fewest <= rows <= most:
        return []
    before = str(most) if fewest == most else f"{fewest} to {most}"
    return [_difference("batch", "rows of a batch", before, str(rows))]


def refusal(difference: Difference) -> str:
    """Returns the message of a refused difference."""
    return (
        f"a run must be resumed with the {difference.rule.entry.removeprefix('another ')} that it "
        f"was saved with, got {difference.name}={difference.after} where {difference.before} was "
        f"saved; {difference.rule.advice}"
    )


def _canonical(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def _leaves(tree: Any) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {name_of(path): f"{x.dtype}{list(x.shape)}" for path, x in leaves}


def _difference(entry: str, name: str, before: str, after: str) -> Difference:
    return Difference(rule=_BY_ENTRY[entry], name=name, before=before, after=after)


def _of_values(saved: Any, present: Any, key: str, entry: str) -> list[Difference]:
    return [_difference(entry, *texts) for texts in changes(saved[key], present[key], key)]


def _of_functions(saved: Any, present: Any, key: str) -> list[Difference]:
    return [
        _difference(key, f"{key} {name}", before, after)
        for name, before, after in changes(saved[key], present[key], "")
    ]


def _of_optimizer(saved: Any, present: Any) -> list[Difference]:
    chains = [_transformations(each["optimizer"]) for each in (saved, present)]
    if len(chains[0]) != len(chains[1]) or not all(map(alike, *chains)):
        texts = (", ".join(dict.fromkeys(map(short, names))) for names in chains)
        return [_difference("another optimizer", "optimizer", *texts)]
    trees = saved["state"]["opt"], present["state"]["opt"]
    if trees[0] == trees[1]:
        return _of_functions(saved, present, "optimizer")
    lost, gained = map(flat, trees)
    before, after = _few(lost.items() - gained.items()), _few(gained.items() - lost.items())
    arrays = _difference("optimizer state", "optimizer arrays", before, after)
    # Without the functions of `init`: the arrays say it.
    old, new = ({"optimizer": each["optimizer"]["values"]["update"]} for each in (saved, present))
    return [arrays, *_of_functions(old, new, "optimizer")]


def _of_guard(saved: Any, present: Any) -> list[Difference]:
    if saved["state"]["guard"] == present["state"]["guard"]:
        return _of_functions(saved, present, "guard")
    texts = (shown(each["guard"]) for each in (saved, present))
    return [_difference("guard history", "guard", *texts)]


def _of_ema(saved: Any, present: Any) -> list[Difference]:
    added = (saved["ema"] is None) != (present["ema"] is None)
    return _of_values(saved, present, "ema", "average" if added else "ema")


def _of_arrays(saved: Any, present: Any) -> list[Difference]:
    """Compares names, shapes and dtypes. The same parameters in other roles are `trainable`."""
    before, after = ({**each["frozen"], **each["params"]} for each in (saved, present))
    if before == after and saved["params"] != present["params"]:
        moved = sorted(saved["params"].keys() ^ present["params"].keys())[:_SHOWN]
        roles = (
            ", ".join(
                f"{name} {'trained' if name in each['params'] else 'frozen'}" for name in moved
            )
            for each in (saved, present)
        )
        return [_difference("trainable", "trainable", *roles)]
    before, after = before | saved["rest"], after | present["rest"]
    if before == after:
        return []
    names = sorted(name for name in before | after if before.get(name) != after.get(name))
    texts = [
        ", ".join(_array_text(name, arrays) for name in names[:_SHOWN])
        for arrays in (before, after)
    ]
    return [_difference("model", f"{len(names)} arrays", *texts)]


def _array_text(name: str, arrays: Mapping[str, str]) -> str:
    if name in arrays:
        return f"{name} {arrays[name]}"
    near = difflib.get_close_matches(name, arrays, n=1)
    return f"no {name}" + (f" (but {near[0]})" if near else "")


def _of_code(saved: Any, present: Any) -> list[Difference]:
    return [
        _difference("code", f"code of {short(name)}", before, after)
        for key in ("optimizer", "loss", "guard", "after_update")
        for name, before, after in codes(saved[key], present[key])
    ]


def _few(leaves: Collection[tuple[str, str]]) -> str:
    texts = [f"{name} {array}" for name, array in sorted(leaves)[:_SHOWN]]
    more = f" and {len(leaves) - _SHOWN} more" if len(leaves) > _SHOWN else ""
    return ", ".join(texts) + more if texts else "none"


def _transformations(tx: Any) -> list[str]:
    """Returns the names of the functions that make up an optimizer, in order.

    A function of one argument is a setting: a schedule, a mask, or labels. A rate counts as one
    transformation, whether it is constant or a schedule.
    """
    if isinstance(tx, list):
        return [name for each in tx for name in _transformations(each)]
    if not isinstance(tx, dict) or tx.get("arity") == 1:
        return []
    name = tx.get("function")
    if name is not None and name.startswith(_RATES):
        return [f"{_RATES[0]}<locals>.update_fn"]
    children = tx.get("values", tx.get("mapping", {}))
    below = [each for key in sorted(children) for each in _transformations(children[key])]
    return below if name is None else [name, *below]
