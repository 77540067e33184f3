"""The statements of the schema."""

from ratchet.core.stores.schema import schema_statements, statements


def test_statements_drop_comments_and_keep_semicolons_inside_a_line() -> None:
    script = "-- about; this\nCREATE TABLE a (x String DEFAULT ';');\n\n-- b\nCREATE VIEW b AS\nSELECT 1;\n"
    assert statements(script) == ["CREATE TABLE a (x String DEFAULT ';')", "CREATE VIEW b AS\nSELECT 1"]


def test_schema_statements_can_run_again() -> None:
    assert schema_statements()
    for statement in schema_statements():
        assert statement.startswith(("CREATE TABLE IF NOT EXISTS ", "CREATE VIEW IF NOT EXISTS "))
