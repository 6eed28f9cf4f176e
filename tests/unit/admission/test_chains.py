"""Chains of MIG profiles: built-in ones, files, and mistakes in files."""

from __future__ import annotations

import pathlib

import pytest

from hami.admission import mig_fallback, settings
from hami.vendors.config_file import ConfigError
from hami.wire import mig
from tests.builders import VENDORS

SOURCE = "chains.yaml"


def after(known: mig_fallback.Chains, name: str) -> list[str]:
    return [profile.name for profile in known.after(name)]


def error_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        mig_fallback.parse(text, source=SOURCE)
    message = str(caught.value)
    assert message.startswith(f"{SOURCE}: ")
    return message


@pytest.mark.parametrize(
    ("name", "then"),
    {
        "3g.30gb": ["2g.20gb", "1g.10gb"],
        "7g.40gb": ["4g.20gb", "3g.20gb", "2g.10gb", "1g.5gb"],
        "7g.80gb": ["4g.40gb", "3g.40gb", "2g.20gb", "1g.10gb"],
        "7g.94gb": ["4g.47gb", "3g.47gb", "2g.24gb", "1g.12gb"],
        "7g.96gb": ["4g.48gb", "3g.48gb", "2g.24gb", "1g.12gb"],
        "7g.141gb": ["4g.71gb", "3g.71gb", "2g.35gb", "1g.18gb"],
        "7g.180gb": ["4g.90gb", "3g.90gb", "2g.45gb", "1g.23gb"],
        "1g.10gb": [],
    }.items(),
)
def test_the_built_in_chains_are_those_of_the_cards(name: str, then: list[str]) -> None:
    assert after(mig_fallback.built_in(), name) == then


def test_built_in_chains_only_ever_get_smaller() -> None:
    known = mig_fallback.built_in()
    for profile in known.profiles.values():
        for smaller in known.after(profile.name):
            assert (smaller.memory, smaller.cores) <= (profile.memory, profile.cores)
            assert smaller.cores < profile.cores or smaller.memory < profile.memory


def test_a_file_replaces_all_chains(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "chains.yaml"
    file.write_text("chains:\n- [3g.71gb, ' 1g.18gb ']\n- - profile: 4g.24gb\n    cores: 100\n")
    plan = settings.plan(VENDORS, mode="type", end="share", file=str(file))
    assert plan is not None
    assert set(plan.chains.profiles) == {"3g.71gb", "1g.18gb", "4g.24gb"}
    assert after(plan.chains, "3g.71gb") == ["1g.18gb"]
    named = mig.parse_profile("4g.24gb")
    assert plan.chains.profiles["4g.24gb"].cores == 100
    assert plan.chains.profiles["4g.24gb"].memory == named.memory


def test_a_profile_may_stand_in_several_chains_if_they_agree() -> None:
    known = mig_fallback.parse(
        "chains: [[3g.40gb, 2g.20gb, 1g.10gb], [4g.40gb, 2g.20gb, 1g.10gb], [1g.10gb]]",
        source=SOURCE,
    )
    assert after(known, "4g.40gb") == after(known, "3g.40gb") == ["2g.20gb", "1g.10gb"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3g.40gb",
        "chain: [[3g.40gb]]",
        "chains: [[3g.40gb]]\nmode: type",
        "~: [[3g.40gb]]",
    ],
)
def test_a_file_holds_one_key(text: str) -> None:
    message = error_of(text)
    assert "the file must hold one key, chains; write for example\nchains:\n- [3g.40gb" in message


@pytest.mark.parametrize("value", ["", "[]", "{}", "3g.40gb", "{3g.40gb: 1}"])
def test_there_is_at_least_one_chain(value: str) -> None:
    message = error_of(f"chains: {value}")
    assert message.startswith(f"{SOURCE}: chains: ")
    assert "must be a list of at least one chain; write for example" in message


@pytest.mark.parametrize("value", ["~", "[]", "3g.40gb", "{profile: 3g.40gb}", "7"])
def test_a_chain_is_a_list_of_profiles(value: str) -> None:
    message = error_of(f"chains: [[1g.10gb], {value}]")
    assert message.startswith(f"{SOURCE}: chains[1]: ")
    assert "must be a list of profiles, the largest first; write for example" in message


@pytest.mark.parametrize(
    "value",
    ["8g.40gb", "3g.40GB", "3g", "gpu", "''", "{profile: 3g.0gb}", "{}", "~", "{memory: 4}"],
)
def test_a_profile_is_written_as_nvidia_smi_writes_it(value: str) -> None:
    message = error_of(f"chains: [[1g.10gb, {value}]]")
    assert message.startswith(f"{SOURCE}: chains[0][1]: ")
    assert "is not SLICESg.GIGABYTESgb with 1 to 7 slices" in message
    assert "as `nvidia-smi mig -lgip` lists it, for example 1g.10gb" in message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("7", "chains[0][0]: 7 must be a mapping of keys to values"),
        ("[3g.40gb]", "chains[0][0]: ['3g.40gb'] must be a mapping"),
        ("{profile: 3}", "chains[0][0].profile: 3 must be text"),
        (
            "{profile: 3g.40gb, memory: 0}",
            "chains[0][0].memory: 0 must be a whole number from 1 to 2147483647",
        ),
        ("{profile: 3g.40gb, memory: 1.5}", "chains[0][0].memory: 1.5 must be a whole number"),
        ("{profile: 3g.40gb, memory: 40Gi}", "chains[0][0].memory: '40Gi' must be a whole number"),
        (
            "{profile: 3g.40gb, cores: 101}",
            "chains[0][0].cores: 101 must be a whole number from 1 to 100",
        ),
        (
            "{profile: 3g.40gb, memry: 1}",
            "chains[0][0].memry: no such key; did you mean memory?; an entry has profile, and",
        ),
        ("{profile: 3g.40gb, 7: 1}", "chains[0][0].7: no such key; an entry has profile"),
        ("{profile: 3g.40gb, profile: 3g.40gb}", "key 'profile' is written twice"),
        (
            "3g.40gb, 2g.20gb, 3g.40gb",
            "chains: '3g.40gb' comes after itself; name each profile once in a chain",
        ),
        ("3g.40gb, 3g.40gb", "chains: '3g.40gb' comes after itself"),
        (
            "3g.40gb, {profile: 3g.40gb, cores: 50}",
            "chains: '3g.40gb' is given two different shares; give memory and cores once",
        ),
    ],
)
def test_an_entry_that_breaks_a_rule_is_named(value: str, message: str) -> None:
    assert message in error_of(f"chains: [[{value}]]")


TWO_WAYS = "is followed by different profiles in two chains"
ENDS = "ends one chain, and goes on in another"


@pytest.mark.parametrize(
    ("value", "reply"),
    {
        "[[3g.40gb, 2g.20gb], [3g.40gb, 1g.10gb]]": f"'3g.40gb' {TWO_WAYS}",
        "[[3g.40gb, 2g.20gb], [2g.20gb, 1g.10gb]]": f"'2g.20gb' {ENDS}",
        "[[2g.20gb, 1g.10gb], [3g.40gb, 2g.20gb]]": f"'2g.20gb' {ENDS}",
        "[[3g.40gb, 2g.20gb], [3g.40gb]]": f"'3g.40gb' {ENDS}",
        "[[3g.40gb], [3g.40gb, 2g.20gb]]": f"'3g.40gb' {ENDS}",
        "[[3g.40gb, 2g.20gb], [2g.20gb, 3g.40gb]]": f"'2g.20gb' {ENDS}",
        "[[3g.40gb, 2g.20gb, 1g.10gb], [1g.10gb, 3g.40gb]]": f"'1g.10gb' {ENDS}",
    }.items(),
)
def test_a_profile_has_one_successor_everywhere(value: str, reply: str) -> None:
    message = error_of(f"chains: {value}")
    assert message == f"{SOURCE}: chains: {reply}; let each profile have one successor everywhere"


def test_two_shares_of_one_profile_contradict_each_other() -> None:
    message = error_of("chains: [[3g.40gb], [{profile: 3g.40gb, memory: 39000}]]")
    assert "chains: '3g.40gb' is given two different shares; give memory and cores once" in message


def test_a_file_that_is_no_yaml_or_cannot_be_read_is_an_error(tmp_path: pathlib.Path) -> None:
    assert "not valid YAML" in error_of("chains: [")
    missing = tmp_path / "missing.yaml"
    with pytest.raises(ConfigError, match=r"cannot be read.*check --mig-fallback-file") as caught:
        mig_fallback.load(missing)
    assert str(caught.value).startswith(f"{missing}: ")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"chains: \xff")
    with pytest.raises(ConfigError, match=r"byte 9: the file is not UTF-8 text; save it as UTF-8"):
        mig_fallback.load(binary)
    long = tmp_path / "long.yaml"
    long.write_text("# ä\n" * 300_000)
    with pytest.raises(ConfigError, match="more than 262144 characters"):
        mig_fallback.load(long)


def test_no_plan_is_made_where_the_fallback_is_off() -> None:
    assert settings.plan(VENDORS, mode="off", end="share", file="/does/not/exist") is None
