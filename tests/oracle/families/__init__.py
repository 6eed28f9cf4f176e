"""Families of the oracle: scenarios and reference, a module each.

A module has one `Family` (family.py): the rows of its vendors as the reference knows them, random
nodes as its plugin registers them, and random requests. fleets.py makes scenarios of all families,
product.py (one folder up) asks the product, and tests/oracle/test_families.py compares the answers.

To add a family:

1. Read docs/vendors.md and docs/placement.md, not src/hami/vendors: an error of the product must
   not repeat here. Only `hami.wire` may be imported from the product.
2. Write `tests/oracle/families/<name>.py`. Rows are `RefVendor`s (reference_vendor.py); what is
   special of a vendor is one of its functions: `read_cards`, `admit`, `read_ask`, `takes`, `rule`,
   `word_of`, `held`, `record`. biren.py is a family of data alone, drs.py one with all functions.
   If a vendor needs a rule of another kind, add a field to `RefVendor` and call it from the module
   of the section it belongs to.
3. `node` draws what one node registers, `request` what one container asks for. A request is sized
   by a card that may have room: half of the pods should be placed. registering.py has the formats.
4. Add the family to registry.py, at the place that its rows have in the product's table.
5. `HAMI_ORACLE_CASES=4000 .venv/bin/pytest tests/oracle/test_families.py -k <name>` prints the
   smallest scenario on which the answers differ. With `-s` the last test prints how pods ended: at
   least a quarter is placed and a quarter refused.
6. Add mutants of the family's rules to tests/mutants/mutants.toml, with
   `tests/oracle/test_families.py::test_product_and_reference_agree[<name>]`.
"""
