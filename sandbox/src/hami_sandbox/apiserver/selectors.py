"""What a list or a watch selects: a namespace, labels and fields."""

from __future__ import annotations

from hami_sandbox.apiserver import fields, labels
from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.apiserver.refusals import Object


class Selection:
    """A test of objects. `namespace` and `name` are known, so that an index can be used."""

    __slots__ = ("_fields", "_labels", "name", "namespace", "selective")

    def __init__(
        self,
        kind: Kind,
        *,
        namespace: str = "",
        name: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> None:
        self._labels = labels.parse(label_selector)
        terms = fields.parse(kind, field_selector)
        #: Whether anything but the namespace is asked for.
        self.selective = self._labels is not None or bool(terms) or bool(name)
        self.namespace = namespace
        self.name = name
        tests = []
        for term in terms:
            if term.equal and term.value and self._indexed(term):
                continue
            tests.append(fields.test_of(term))
        self._fields = tests

    def matches(self, found: Object) -> bool:
        metadata = found["metadata"]
        if self.namespace and metadata.get("namespace") != self.namespace:
            return False
        if self.name and metadata["name"] != self.name:
            return False
        if self._labels is not None and not self._labels(metadata.get("labels") or {}):
            return False
        return all(test(found) for test in self._fields)

    def _indexed(self, term: fields.Term) -> bool:
        """Take a condition that names the object or its namespace; not if another did before."""
        if term.field == "metadata.name" and not self.name:
            self.name = term.value
            return True
        if term.field == "metadata.namespace" and not self.namespace:
            self.namespace = term.value
            return True
        return False
