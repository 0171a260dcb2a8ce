# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Choice of the versions to load, by a policy over those in the repository.

Versions are integers from 1 without leading zeros. Labels name versions, and a labelled version is
loaded beside those that the policy chooses, so a label never points at nothing by a new arrival.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from dovetail_serve._patterns import near
from dovetail_serve.types import check_name

# At most 18 digits: every version fits in 64 bits.
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_LATEST = re.compile(r"latest:([1-9][0-9]{0,17})")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """A parsed choice of versions. `parse_policy` makes it.

    Attributes:
        latest: Number of the largest versions to load; None for all.
        named: Versions by model, or None. Other models are then not loaded.
        labels: Versions by label, by model.
    """

    latest: int | None
    named: Mapping[str, tuple[int, ...]] | None
    labels: Mapping[str, Mapping[str, int]]

    def wanted(self, model: str, available: Collection[int]) -> tuple[int, ...]:
        """Returns the versions of `model` to load, ascending.

        Versions that the policy names or labels are wanted even if the repository lacks them.
        """
        if self.named is not None:
            by_policy = set(self.named.get(model, ()))
        else:
            ascending = sorted(available)
            by_policy = set(ascending if self.latest is None else ascending[-self.latest :])
        return tuple(sorted(by_policy | set(self.labels.get(model, {}).values())))

    def __str__(self) -> str:
        if self.named is not None:
            return repr({name: tuple(versions) for name, versions in self.named.items()})
        return "'all'" if self.latest is None else f"'latest:{self.latest}'"


def parse_policy(
    versions: str | Mapping[str, Sequence[int]],
    labels: Mapping[str, Mapping[str, int]] | None,
) -> Policy:
    """Parses the options `versions` and `labels` of a server.

    Raises:
        TypeError: A version is not an integer.
        ValueError: `versions` is another text, a version is below 1, or a label looks like one.
    """
    checked = {
        model: {_label(model, label): _version("labels", v) for label, v in by_label.items()}
        for model, by_label in (labels or {}).items()
    }
    if isinstance(versions, str):
        return Policy(latest=_latest(versions), named=None, labels=checked)
    named = {
        model: tuple(_version("versions", version) for version in listed)
        for model, listed in versions.items()
    }
    for model, listed in named.items():
        if not listed:
            raise ValueError(
                f"versions of a model must not be empty, got versions={{{model!r}: ()}}; leave "
                f"{model!r} out to load none of it, or write versions={{{model!r}: (1,)}}"
            )
    return Policy(latest=None, named=named, labels=checked)


def check_models(option: str, names: Iterable[str], models: Collection[str]) -> None:
    """Checks the models named by an option of a server.

    Args:
        option: Name of the option.
        names: Models named by it.
        models: Models of the repository.

    Raises:
        ValueError: A model is absent.
    """
    for name in names:
        if name not in models:
            instead = near(name, models) or "the name of a directory, after a bundle is there"
            raise ValueError(
                f"{option} must name models of the repository, got {name!r}; write {instead}"
            )


def version_of(name: str) -> int | None:
    """Returns the version named by a directory, or None."""
    return int(name) if _VERSION.fullmatch(name) else None


def _latest(text: str) -> int | None:
    if text == "all":
        return None
    if match := _LATEST.fullmatch(text):
        return int(match[1])
    raise ValueError(
        "versions must be 'all', 'latest:N' with N from 1, or numbers for each model to load, "
        f"got versions={text!r}; write {near(text, _examples(text))}"
    )


def _examples(text: str) -> Iterable[str]:
    """Returns valid texts, with the number of a text close to one."""
    digits = re.search(r"[1-9][0-9]*", text)
    return ("all", f"latest:{digits[0] if digits else 1}")


def _version(option: str, version: int) -> int:
    if not isinstance(version, int) or isinstance(version, bool):
        raise TypeError(
            f"{option} must give versions as integers, got {version!r}; write the directory's name "
            "as a number, such as 3"
        )
    if version < 1:
        raise ValueError(f"{option} must give versions from 1, got {version}; write 1 or more")
    return version


def _label(model: str, label: str) -> str:
    check_name(label, f"a label of {model!r}")
    if label.isdecimal():
        raise ValueError(
            f"a label must differ from every version, got {label!r} for {model!r}; write a word "
            "such as 'stable'"
        )
    return label
