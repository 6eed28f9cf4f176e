"""Names of MIG profiles, and the share that replaces each."""

from __future__ import annotations

import pytest

from hami.wire import errors, mig


@pytest.mark.parametrize(
    ("name", "memory", "cores"),
    [
        ("1g.5gb", 5017, 14),
        ("1g.10gb", 10035, 14),
        ("2g.20gb", 20070, 28),
        ("3g.40gb", 40140, 42),
        ("4g.40gb", 40140, 57),
        ("6g.47gb", 47165, 85),
        ("7g.141gb", 141496, 100),
        ("7g.9999gb", 10034196, 100),
    ],
)
def test_a_profile_is_read_from_its_name(name: str, memory: int, cores: int) -> None:
    profile = mig.parse_profile(name)
    assert (profile.name, profile.memory, profile.cores) == (name, memory, cores)
    assert profile.resource == f"nvidia.com/mig-{name}"


@pytest.mark.parametrize(
    ("total", "name", "instances"),
    [
        (40536, "3g.20gb", 2),  # A100 40 GB
        (40536, "1g.5gb", 7),
        (81559, "3g.40gb", 2),  # H100 80 GB
        (81559, "1g.10gb", 7),
        (95830, "3g.47gb", 2),  # H100 94 GB
        (143771, "3g.71gb", 2),  # H200
        (143771, "1g.18gb", 7),
        (183359, "3g.90gb", 2),  # B200
    ],
)
def test_as_many_shares_fit_on_a_card_as_instances_would(
    total: int, name: str, instances: int
) -> None:
    share = mig.parse_profile(name)
    assert instances * share.memory <= total
    assert instances * share.cores <= 100


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "gpu",
            "g.10gb",
            "0g.10gb",
            "8g.80gb",
            "10g.10gb",
            "1g",
            "1g.gb",
            "1g.0gb",
            "1g.05gb",
        ),
        *("1g.10GB", "1G.10gb", "1g.10gb.me", "1g.10gb+me", "1c.3g.40gb", " 1g.10gb", "1g.10gb "),
        *(
            "1g.10gb\n",
            "1g,10gb",
            "1g.99999gb",
            "-1g.10gb",
            "\u0661g.10gb",
            "1g.\u0661gb",
            "mig-1g.10gb",
        ),
    ],
)
def test_anything_else_is_refused_with_what_to_write(name: str) -> None:
    with pytest.raises(errors.WireError) as caught:
        mig.parse_profile(name)
    message = str(caught.value)
    assert message.startswith(f"MIG profile: {name!r} is not SLICESg.GIGABYTESgb")
    assert message.endswith("write it as `nvidia-smi mig -lgip` lists it, for example 1g.10gb")


def test_a_long_name_is_cut_in_the_message() -> None:
    with pytest.raises(errors.WireError) as caught:
        mig.parse_profile("1g." + "1" * 10**6 + "gb")
    assert len(str(caught.value)) < 400
