"""The statements of the schema."""

from ratchet.core.stores.schema import schema_statements, statements


def test_statements_drop_comments_and_keep_semicolons_inside_a_line() -> None:
    script = "-- about; this\nCREATE TABLE a (x String DEFAULT ';');\n\n-- b\nCREATE VIEW b AS\nSELECT 1;\n"
    assert statements(script) == ["CREATE TABLE a (x String DEFAULT ';')", "CREATE VIEW b AS\nSELECT 1"]


def test_schema_statements_can_run_again() -> None:
    made = schema_statements()
    assert {"trajectories", "latest_rewards"} <= made.keys()
    for name, statement in made.items():
        assert statement.startswith((f"CREATE TABLE IF NOT EXISTS {name}\n", f"CREATE VIEW IF NOT EXISTS {name} AS\n"))
