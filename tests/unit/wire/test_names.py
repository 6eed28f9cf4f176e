"""Words of users and operators: resource names, comma lists, product names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.wire import errors, quantity, text_values

GOOD_RESOURCES = [
    "nvidia.com/gpu",
    "nvidia.com/gpumem-percentage",
    "huawei.com/Ascend910B-memory",
    "metax-tech.com/sgpu",
    "cambricon.com/mlu.smlu.vmemory",
    "a/b",
    "kubernetes.io.example/gpu",
    "x.y/under_score.dot",
    f"{'a' * 61}.{'b' * 61}.{'c' * 61}.{'d' * 58}/{'n' * 63}",
]
BAD_RESOURCES = {
    "no domain": ("gpu", "no domain"),
    "empty": ("", "no domain"),
    "empty domain": ("/gpu", "DNS form"),
    "empty name": ("nvidia.com/", "after the slash"),
    "two slashes": ("nvidia.com/gpu/mem", "after the slash"),
    "capital domain": ("Nvidia.com/gpu", "DNS form"),
    "double dot": ("nvidia..com/gpu", "DNS form"),
    "domain ends in dash": ("nvidia-/gpu", "DNS form"),
    "underscore in domain": ("nv_idia.com/gpu", "DNS form"),
    "name begins with dash": ("nvidia.com/-gpu", "both ends"),
    "name ends with dot": ("nvidia.com/gpu.", "both ends"),
    "space": ("nvidia.com/g pu", "after the slash"),
    "line break at the end": ("nvidia.com/gpu\n", "after the slash"),
    "other letters": ("nvidia.com/gpü", "after the slash"),
    "long domain": (f"{'a' * 245}/gpu", "more than 244"),
    "long name": (f"nvidia.com/{'g' * 64}", "more than 63"),
    "kubernetes' own": ("kubernetes.io/gpu", "kubernetes.io"),
    "looks like kubernetes' own": ("mykubernetes.io/gpu", "kubernetes.io"),
    "below kubernetes' own": ("batch.kubernetes.io/gpu", "kubernetes.io"),
    "quota word": ("requests.nvidia.com/gpu", "requests."),
}


@pytest.mark.parametrize("name", GOOD_RESOURCES)
def test_a_resource_name_kubernetes_takes_comes_back_unchanged(name: str) -> None:
    assert quantity.check_resource_name(name, what="resourceCountName") == name


@pytest.mark.parametrize(("name", "rule"), BAD_RESOURCES.values(), ids=BAD_RESOURCES)
def test_a_resource_name_kubernetes_refuses_is_an_error_with_the_rule(name: str, rule: str) -> None:
    with pytest.raises(errors.WireError, match=rule) as caught:
        quantity.check_resource_name(name, what="nvidia.resourceCountName")
    assert str(caught.value).startswith("nvidia.resourceCountName: ")
    assert str(caught.value).endswith("write for example nvidia.com/gpu")


def test_quota_keys_lead_to_the_resource_and_back() -> None:
    assert quantity.quota_key("nvidia.com/gpumem") == "limits.nvidia.com/gpumem"
    assert quantity.resource_of_quota_key("limits.nvidia.com/gpumem") == "nvidia.com/gpumem"


@pytest.mark.parametrize("key", ["requests.nvidia.com/gpumem", "pods", "nvidia.com/gpu", ""])
def test_other_quota_keys_name_no_resource_of_ours(key: str) -> None:
    assert quantity.resource_of_quota_key(key) is None


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("", ()),
        ("  ", ()),
        (",", ()),
        (" , ,", ()),
        ("A100", ("A100",)),
        ("A100,", ("A100",)),
        (",A100", ("A100",)),
        (" A100 , H100\t", ("A100", "H100")),
        ("A100-SXM4 80GB,,H20", ("A100-SXM4 80GB", "H20")),
        ("a,a", ("a", "a")),
    ],
)
def test_a_comma_list_is_its_trimmed_words(value: str, want: tuple[str, ...]) -> None:
    assert text_values.comma_list(value) == want


A100 = "NVIDIA A100-SXM4-40GB"
MATCHES = {
    ("A100", A100): True,
    ("a100-sxm4", A100): True,
    ("NVIDIA", A100): True,
    ("SXM", A100): True,
    ("SXM4", A100): True,
    ("40GB", A100): True,
    ("0GB", A100): False,
    ("A10", A100): False,
    ("A1", A100): False,
    ("100", A100): True,
    ("10", A100): False,
    ("00", A100): False,
    ("4", A100): True,
    (A100, A100): True,
    (A100 + " ", A100): False,
    ("", A100): False,
    ("A100", ""): False,
    ("", ""): False,
    ("A10", "NVIDIA A10G"): True,
    ("a10g", "NVIDIA A10G"): True,
    ("A10", "NVIDIA A10"): True,
    ("A100", "NVIDIA A10"): False,
    ("H20", "NVIDIA H200"): False,
    ("H20", "NVIDIA H20"): True,
    ("H200", "NVIDIA H200"): True,
    ("H200", "NVIDIA H20"): False,
    ("H", "NVIDIA H200"): True,
    ("H100", "NVIDIA H100 80GB HBM3"): True,
    ("80GB", "NVIDIA H100 80GB HBM3"): True,
    ("L4", "NVIDIA L40S"): False,
    ("L40", "NVIDIA L40S"): True,
    ("L40s", "NVIDIA L40S"): True,
    ("L4", "NVIDIA L4"): True,
    ("P4", "Tesla P4"): True,
    ("P4", "Tesla P40"): False,
    ("tesla", "NVIDIA-Tesla P4"): True,
    ("NVIDIA-Tesla P4", "NVIDIA-Tesla P4"): True,
    ("V100", "Tesla V100-SXM2-32GB"): True,
    ("2", "Tesla V100-SXM2-32GB"): True,
    ("3090", "NVIDIA GeForce RTX 3090"): True,
    ("309", "NVIDIA GeForce RTX 3090"): False,
    # A cut occurrence comes first, a whole one later.
    ("10", "MLU100-10"): True,
    ("1", "11 1"): True,
    ("11", "111-11"): True,
    ("1", "111"): False,
}


@pytest.mark.parametrize(
    ("token", "product", "want"),
    [(token, product, want) for (token, product), want in MATCHES.items()],
)
def test_a_word_names_a_product_without_cutting_a_number(
    token: str, product: str, *, want: bool
) -> None:
    assert text_values.matches_product(token, product) is want


# The tables of HAMi's CheckType, with real names: does a use or nouse list speak of the card?
TYPE_LISTS = {
    "one word": ("A100", True),
    "lower case": ("a100", True),
    "spaces": ("  A100  ", True),
    "second of two": ("H100,A100", True),
    "second, after a space": ("H100, A100", True),
    "trailing comma": ("A100,", True),
    "leading comma": (",A100", True),
    "other card": ("H100", False),
    "shorter number": ("A10,A30", False),
    "blank": ("   ", False),
    "only commas": (",,", False),
    "empty": ("", False),
}


@pytest.mark.parametrize(("value", "want"), TYPE_LISTS.values(), ids=TYPE_LISTS)
def test_a_type_list_speaks_of_a_card_when_one_word_does(value: str, *, want: bool) -> None:
    assert (
        any(text_values.matches_product(token, A100) for token in text_values.comma_list(value))
        is want
    )


# The same for CheckUUID: words are compared whole.
UUID_LISTS = {
    "one": ("GPU-1", True),
    "spaces": (" GPU-1 ", True),
    "second": ("GPU-2,GPU-1", True),
    "trailing comma": ("GPU-1,", True),
    "leading comma": (",GPU-1", True),
    "longer": ("GPU-12", False),
    "shorter": ("GPU-", False),
    "other case": ("gpu-1", False),
    "blank": ("  ", False),
    "empty": ("", False),
    "only commas": (",", False),
}


@pytest.mark.parametrize(("value", "want"), UUID_LISTS.values(), ids=UUID_LISTS)
def test_a_uuid_list_holds_whole_ids(value: str, *, want: bool) -> None:
    assert ("GPU-1" in text_values.comma_list(value)) is want


class CountedSearches(str):
    """A product name that counts how often it is searched."""

    __slots__ = ("searches",)
    searches: int

    def lower(self) -> CountedSearches:
        self.searches = 0
        return self

    def find(self, *arguments: Any) -> int:
        self.searches += 1
        return super().find(*arguments)


def test_a_word_longer_than_the_product_is_not_even_searched_for() -> None:
    product = CountedSearches("1" * 256)
    assert text_values.matches_product("1" * 257, product) is False
    assert product.searches == 0
    assert text_values.matches_product("1" * 255, product) is False
    assert product.searches == 3  # two cut occurrences, and no third


@settings(deadline=None)
@given(st.text("aA01 -"), st.text("aA01 -"))
def test_a_match_is_a_substring_whose_numbers_end_where_it_ends(token: str, product: str) -> None:
    low_token, low = token.lower(), product.lower()
    places = [i for i in range(len(low)) if low_token and low.startswith(low_token, i)]
    whole = [
        i
        for i in places
        if not (low_token[0].isdigit() and low[:i][-1:].isdigit())
        and not (low_token[-1].isdigit() and low[i + len(low_token) :][:1].isdigit())
    ]
    assert text_values.matches_product(token, product) is bool(whole)
