"""The extender's JSON, as kube-scheduler of any age writes and reads it."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hami.wire import errors, extender_api

POD = '{"metadata":{"name":"train"},"spec":{"containers":[]}}'
NODE = '{"metadata": {"name":"n1"}, "status":{"images":[{"names":["x"]}]},"future":1.50}'


class TestFilter:
    NAMES = {  # noqa: RUF012  a table, read once
        "today": f'{{"Pod":{POD},"Nodes":null,"NodeNames":["n1","n2"]}}',
        "old": f'{{"pod":{POD},"nodenames":["n1","n2"]}}',
        "camel case": f'{{"pod":{POD},"nodes":null,"nodeNames":["n1","n2"]}}',
    }

    @pytest.mark.parametrize("text", NAMES.values(), ids=NAMES)
    def test_schedulers_of_any_age_are_understood(self, text: str) -> None:
        args = extender_api.decode_args(text.encode())
        assert args.pod is not None
        assert args.pod.name == "train"
        assert args.node_names == ["n1", "n2"]
        assert (args.nodes, args.raw_nodes) == (None, None)

    @pytest.mark.parametrize("key", ["Nodes", "nodes"])
    def test_whole_nodes_are_read_and_go_back_as_they_came(self, key: str) -> None:
        text = f'{{"Pod":{POD},"{key}":{{"metadata":{{}},"items":[{NODE},{{}}]}}}}'
        args = extender_api.decode_args(text.encode())
        assert args.nodes is not None
        assert args.raw_nodes is not None
        assert [node.name for node in args.nodes] == ["n1", ""]
        assert args.node_names is None
        reply = extender_api.encode_filter_result(nodes=args.raw_nodes[:1])
        assert (
            reply
            == (
                f'{{"Nodes":{{"metadata":{{}},"items":[{NODE}]}},"NodeNames":null,"FailedNodes":null,'
                '"FailedAndUnresolvableNodes":null,"Error":""}'
            ).encode()
        )

    @pytest.mark.parametrize("text", ["{}", '{"Pod":null,"Nodes":null,"NodeNames":null}'])
    def test_a_missing_pod_and_missing_nodes_are_none(self, text: str) -> None:
        args = extender_api.decode_args(text.encode())
        assert (args.pod, args.nodes, args.node_names) == (None, None, None)

    def test_an_empty_list_is_not_a_missing_one(self) -> None:
        args = extender_api.decode_args(b'{"NodeNames":[],"Nodes":{"items":null}}')
        assert (args.node_names, args.nodes) == ([], ())

    def test_nulls_among_names_and_nodes_are_skipped(self) -> None:
        args = extender_api.decode_args(b'{"NodeNames":["a",null,"b"],"Nodes":{"items":[null]}}')
        assert args.node_names == ["a", "b"]
        assert (args.nodes, args.raw_nodes, args.bad_nodes) == ((), (), {})

    def test_a_node_that_cannot_be_read_does_not_fail_the_others(self) -> None:
        named = '{"metadata":{"name":"n2","annotations":{"secret":5}}}'
        items = f'{named}, {NODE} ,null,{{"metadata":5}},{{"spec":5}}'
        args = extender_api.decode_args(f'{{"Nodes":{{"items":[{items}]}}}}'.encode())
        assert args.nodes is not None
        assert args.raw_nodes is not None
        assert [node.name for node in args.nodes] == ["n1"]
        assert [bytes(raw).decode() for raw in args.raw_nodes] == [NODE]
        assert list(args.bad_nodes) == ["n2", "nodes[3]", "nodes[4]"]
        assert args.bad_nodes["n2"].startswith(
            f"filter request, node: {len(named)} bytes does not decode: "
        )

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"null",
            b"[]",
            b'{"Pod":5}',
            b'{"NodeNames":"n1"}',
            b'{"NodeNames":[5]}',
            b'{"Nodes":[]}',
            b'{"Pod":{}',
        ],
    )
    def test_a_malformed_request_is_an_error(self, data: bytes) -> None:
        with pytest.raises(errors.WireError, match=r"^filter request"):
            extender_api.decode_args(data)

    def test_a_placed_pod_is_answered_byte_for_byte(self) -> None:
        assert extender_api.encode_filter_result(node_names=["n1"]) == (
            b'{"Nodes":null,"NodeNames":["n1"],"FailedNodes":null,'
            b'"FailedAndUnresolvableNodes":null,"Error":""}'
        )

    def test_a_refused_pod_is_answered_byte_for_byte(self) -> None:
        failed = {
            "n1": "1/2 CardInsufficientMemory, 1/2 CardNotHealth",
            "n2": "node unregistered",
        }
        assert extender_api.encode_filter_result(failed=failed) == (
            b'{"Nodes":null,"NodeNames":null,"FailedNodes":'
            b'{"n1":"1/2 CardInsufficientMemory, 1/2 CardNotHealth","n2":"node unregistered"},'
            b'"FailedAndUnresolvableNodes":null,"Error":""}'
        )

    @given(
        st.lists(
            st.tuples(st.lists(st.text(max_size=12), unique=True, max_size=5), st.text(max_size=20))
        )
    )
    def test_a_refusal_by_groups_is_the_same_answer(
        self, groups: list[tuple[list[str], str]]
    ) -> None:
        failed = {name: text for names, text in groups for name in names}
        assume(sum(len(names) for names, _ in groups) == len(failed))
        answer = extender_api.encode_refusal(groups)
        assert answer == extender_api.encode_filter_result(failed=failed)

    def test_an_error_and_hopeless_nodes_have_their_place(self) -> None:
        reply = extender_api.encode_filter_result(unresolvable={"n3": "r"}, error="no pod")
        assert json.loads(reply) == {
            "Nodes": None,
            "NodeNames": None,
            "FailedNodes": None,
            "FailedAndUnresolvableNodes": {"n3": "r"},
            "Error": "no pod",
        }

    def test_five_thousand_names_are_read_and_answered(self) -> None:
        names = [f"node-{i:05}.cluster.example" for i in range(5000)]
        data = json.dumps({"Pod": json.loads(POD), "Nodes": None, "NodeNames": names}).encode()
        assert extender_api.decode_args(data).node_names == names
        failed = dict.fromkeys(names, "1/8 CardNotHealth")
        answer = json.loads(extender_api.encode_filter_result(failed=failed))
        assert answer["FailedNodes"] == failed


class TestBind:
    @pytest.mark.parametrize(
        "text",
        [
            '{"PodName":"train","PodNamespace":"team-a","PodUID":"0f3b","Node":"n1"}',
            '{"podName":"train","podNamespace":"team-a","podUID":"0f3b","node":"n1"}',
        ],
    )
    def test_schedulers_of_any_age_are_understood(self, text: str) -> None:
        assert extender_api.decode_binding_args(text.encode()) == extender_api.BindingArgs(
            pod_name="train", pod_namespace="team-a", pod_uid="0f3b", node="n1"
        )

    @pytest.mark.parametrize("key", ["PodName", "PodNamespace", "PodUID", "Node"])
    @pytest.mark.parametrize("value", ["", None])
    def test_every_value_is_needed(self, key: str, value: str | None) -> None:
        args = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n", key: value}
        with pytest.raises(errors.WireError, match=f"^bind request: .* for {key}$"):
            extender_api.decode_binding_args(json.dumps(args).encode())

    def test_the_answer_is_written_byte_for_byte(self) -> None:
        assert extender_api.encode_binding_result() == b'{"Error":""}'
        assert extender_api.encode_binding_result("no") == b'{"Error":"no"}'
